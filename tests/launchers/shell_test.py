"""Tests of every script, and of the commands of scripts/README.md."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from absl.testing import parameterized

from tests.launchers import fakes

SCRIPTS = sorted(
  path.name
  for pattern in ('*.sh', '*.sbatch')
  for path in (fakes.ROOT / 'scripts').glob(pattern)
)
SHELLCHECK = shutil.which('shellcheck') or shutil.which(
  'shellcheck', path=str(pathlib.Path(sys.executable).parent)
)


def documented(program):
  """Returns the commands of scripts/README.md that start with these words."""
  text = (fakes.ROOT / 'scripts/README.md').read_text()
  blocks = re.findall(r'(?:^    .*\n)+', text, re.MULTILINE)
  lines = ''.join(blocks).replace('\\\n', ' ').splitlines()
  commands = [shlex.split(line, comments=True) for line in lines]
  length = len(program)
  return [words for words in commands if words[:length] == program]


class ShellTest(parameterized.TestCase):
  @parameterized.parameters(*SCRIPTS)
  def test_shellcheck_finds_nothing(self, name):
    if SHELLCHECK is None:
      self.skipTest("needs shellcheck: pip install -e '.[test]'")
    done = subprocess.run(
      [
        *[SHELLCHECK, '--external-sources'],
        *['--source-path=SCRIPTDIR:SCRIPTDIR/..', f'scripts/{name}'],
      ],
      cwd=fakes.ROOT,
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

  def test_every_launcher_is_among_the_scripts(self):
    self.assertContainsSubset(
      ['gke_jobset.sh', 'restart.sh', 'slurm.sbatch', 'tpu_pod.sh'], SCRIPTS
    )


class PageTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.fakes = fakes.Fakes(self.create_tempdir().full_path)

  def dry_run(self, words):
    """Puts --dry-run before the flags of the training, and runs that."""
    end = words.index('--') if '--' in words else len(words)
    done = self.fakes.bash(*words[:end], '--dry-run', *words[end:])
    self.assertEqual(done.returncode, 0, f'{words}: {done.stderr}')
    self.assertEmpty(self.fakes.calls())

  def test_its_commands_for_a_tpu_slice_are_understood(self):
    commands = documented(['bash', 'scripts/tpu_pod.sh'])
    for words in commands:
      # scripts/README.md has the common flags in a variable.
      place = ['--name=n', '--zone=z', '--project=p']
      at = words.index('$POD')
      self.dry_run([*words[1:at], *place, *words[at + 1 :]])
    subcommands = {words[2] for words in commands}
    self.assertContainsSubset(
      {'create', 'wait', 'sync', 'install', 'run', 'logs', 'fetch', 'delete'},
      subcommands,
    )

  def test_its_commands_for_gke_are_understood(self):
    commands = documented(['bash', 'scripts/gke_jobset.sh'])
    self.assertNotEmpty(commands)
    for words in commands:
      self.dry_run(words[1:])

  def test_its_commands_for_slurm_are_understood(self):
    commands = documented(['sbatch'])
    self.assertNotEmpty(commands)
    for words in commands:
      at = words.index('scripts/slurm.sbatch')
      self.assertContainsSubset(
        ['--time', '--partition'], [word.split('=')[0] for word in words[1:at]]
      )
      self.dry_run(words[at:])
