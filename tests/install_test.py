"""Tests of the documented install lines: they bring what the page then uses."""

import ast
import pathlib
import re
import sys
from typing import Any
from unittest import mock

import setuptools
from absl.testing import absltest

from replay_rl.run import packages
from tests import configs_test

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ('README.md', 'scripts/README.md', 'benchmarks/README.md') + tuple(
  str(path.relative_to(ROOT))
  for pattern in ('docs/**/*.md', 'experiments/*/README.md')
  for path in sorted(ROOT.glob(pattern))
)
# An install line of a page, or a script that has one.
_INSTALLS = re.compile(
  r"pip install -e '?\.(?:\[([\w,-]+)\])?"
  r'|install_extras ?([\w,-]*)'
  r"|--editable '\.\[([\w,-]+)\]"
  r'|--extras=([\w,-]+)'
  r'|-f scripts/(Dockerfile)'
  r'|bash scripts/(quickstart\.sh)'
)
_NAMED = r"'\.\\?\[([\w,-]+)\\?\]"
_CONFIGS = (*configs_test.ARMS, *configs_test.WITHOUT_ARMS)
_CONFIG = re.compile(r'configs/(\w+)\.py')
_PROGRAM = re.compile(r'python ((?:benchmarks|experiments|scripts)/\S+\.py)')
# Words of a command -> packages that it needs, whatever its config.
_OF_COMMANDS = {
  'replay_rl.report': {'matplotlib'},
  'replay_rl.compile_check': {'jax[tpu]'},
  '--executor=ray': {'ray'},
  'hf download': {'huggingface-hub'},
  '--source=': {'tensorflow-datasets', 'array-record'},
  'replay_rl.evaluate': {'tokenizers', 'safetensors', 'math-verify'},
  'gs://my-bucket': {'google-cloud-storage'},
  's3://my-bucket': {'boto3'},
  'mkdocs': {'mkdocs-material', 'mkdocstrings[python]'},
}
_MODULES = {'absl': 'absl-py', 'orbax': 'orbax-checkpoint'}


def _name(requirement: str) -> str:
  """Returns the package of a requirement, and its extras, without versions."""
  return re.split('[<>=~!; ]', requirement)[0].lower().replace('_', '-')


def setup_keywords() -> dict[str, Any]:
  """Returns what setup.py says to setuptools."""
  with mock.patch.object(setuptools, 'setup') as setup:
    code = compile((ROOT / 'setup.py').read_text(), 'setup.py', 'exec')
    exec(code, {'__file__': str(ROOT / 'setup.py')})
  return setup.call_args.kwargs


def requirements() -> tuple[set[str], dict[str, set[str]]]:
  """Returns the packages of setup.py: of every install, and by extra."""
  keywords = setup_keywords()
  return {_name(x) for x in keywords['install_requires']}, {
    extra: {_name(x) for x in names}
    for extra, names in keywords['extras_require'].items()
  }


def _extras(line: str) -> list[set[str]]:
  """Returns the extras of each install line in a text."""
  found = []
  for match in _INSTALLS.finditer(line):
    *listed, dockerfile, script = match.groups()
    if dockerfile or script:
      code = (ROOT / 'scripts' / (dockerfile or script)).read_text()
      found += _extras(re.sub('(?m)^#.*', '', code))
    else:
      found.append({x for x in ','.join(filter(None, listed)).split(',') if x})
  return found


def _of_config(name: str) -> set[str]:
  """Returns the packages that training with a config needs."""
  config = configs_test.experiment(name).get_config()
  return {
    _name(package)
    for need in packages.NEEDS
    if need.is_used(config)
    for package in need.modules.values()
  }


def _of_program(path: str) -> set[str]:
  """Returns the packages that a program imports, anywhere in its file."""
  modules = set()
  for node in ast.walk(ast.parse((ROOT / path).read_text())):
    if isinstance(node, ast.ImportFrom) and not node.level:
      modules.add(node.module.partition('.')[0])
    elif isinstance(node, ast.Import):
      modules |= {alias.name.partition('.')[0] for alias in node.names}
  own = (*ROOT.iterdir(), *(ROOT / path).parent.parent.glob('*/*.py'))
  ours = {path.stem for path in own} | {path.parent.name for path in own}
  return {
    _name(_MODULES.get(module, module))
    for module in modules - ours - set(sys.stdlib_module_names)
  }


def _needs(command: str) -> set[str]:
  """Returns the packages that a command of a page needs."""
  needed = set()
  for words, names in _OF_COMMANDS.items():
    if words in command:
      needed |= names
  for path in _PROGRAM.findall(command):
    needed |= _of_program(path)
  if 'compile_check' not in command and 'plan memory' not in command:
    for name in _CONFIG.findall(command):
      if name in _CONFIGS:
        needed |= _of_config(name)
  return needed


def used(page: str) -> list[tuple[str, set[str], set[str]]]:
  """Returns the commands of a page with extras installed for it, and needs.

  A section with install lines relies on these alone. Any other section relies
  on all lines above it.
  """
  rows, before = [], []
  text = (ROOT / page).read_text().replace('\\\n', ' ')
  for section in re.split(r'\n(?=##? )', text):
    here = []
    for line in section.splitlines():
      # A table names programs that need no more than the commands above it.
      if not line.startswith(('    ', '|')):
        continue
      installed = _extras(line) if line.startswith('    ') else []
      here += installed
      if not installed and (before or here):
        extras = set().union(*(here or before))
        rows.append((line.strip(), extras, _needs(line)))
    before += here
  return rows


class InstallTest(absltest.TestCase):
  def test_each_command_has_the_packages_that_its_install_line_brings(self):
    core, extras = requirements()
    configs = set()
    for page in PAGES:
      for command, installed, needed in used(page):
        self.assertContainsSubset(installed, extras, f'{page}: {command}')
        brought = core.union(*(extras[extra] for extra in installed))
        self.assertContainsSubset(needed, brought, f'{page}: {command}')
        configs |= {(page, name) for name in _CONFIG.findall(command)}
    # The pages were read: these are some of the commands.
    self.assertContainsSubset(
      {
        ('README.md', 'quickstart'),
        ('docs/published_models.md', 'gsm8k_tiny'),
        ('docs/published_models.md', 'gsm8k_qwen3_0_6b'),
        ('docs/tutorials/ablation.md', 'quickstart'),
        ('scripts/README.md', 'math_qwen2_5_7b'),
      },
      configs,
    )

  def test_every_published_config_trains_with_the_extra_of_its_kind(self):
    core, extras = requirements()
    for name in _CONFIGS:
      is_in_text = configs_test.experiment(name).get_config().text is not None
      brought = core | extras['math'] if is_in_text else core
      self.assertContainsSubset(_of_config(name), brought, name)

  def test_every_extra_that_a_text_names_is_there(self):
    _, extras = requirements()
    named = set()
    for folder in ('replay_rl', 'scripts', 'tests', 'docs', 'experiments', '.'):
      for path in (ROOT / folder).glob('**/*.*' if folder != '.' else '*.md'):
        if path.suffix in ('.py', '.sh', '.md', '.sbatch'):
          text = path.read_text()
          for listed in re.findall(_NAMED, text):
            named |= {*listed.split(',')}
    self.assertContainsSubset(named, extras)
    self.assertContainsSubset(
      {'gpu', 'gpu-cuda12', 'tpu', 'math', 'gcs', 's3'}, named
    )

  def test_the_tests_have_what_training_and_the_programs_need(self):
    _, extras = requirements()
    for extra in ('math', 'ray', 'gcs', 's3'):
      self.assertContainsSubset(extras[extra], extras['test'])

  def test_an_install_line_is_read_with_its_extras(self):
    for line, expected in (
      (
        "    pip install -e '.[math,ray]' -c constraints.txt",
        [{'math', 'ray'}],
      ),
      ('    pip install -e . -c constraints.txt', [set()]),
      ('    bash scripts/quickstart.sh   # trains', [set()]),
      ('    docker build -f scripts/Dockerfile -t x', [{'tpu', 'math'}]),
      ("    bash -c 'source x && install_extras gpu,math'", [{'gpu', 'math'}]),
      ('    python -m replay_rl.train', []),
    ):
      self.assertEqual(_extras(line), expected)


if __name__ == '__main__':
  absltest.main()
