"""What the documentation site is made of, for mkdocs.yml.

The pages are files of the checkout, at their paths there, so that a link which
works in the checkout works on the site. Two kinds of pages are made here: the
notebooks, and the reference, a page for each part of the package.
"""

import json
import pathlib
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.files import Files

ROOT = pathlib.Path(__file__).parents[1]
_FOLDERS = ('docs', 'configs', 'experiments', 'scripts', 'benchmarks')
_PAGES = ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md')
_PACKAGE = ROOT / 'replay_rl'
_REFERENCE = 'docs/reference'


def on_config(config: MkDocsConfig) -> MkDocsConfig:
  """Adds the experiments and the reference to the navigation."""
  experiments = ['experiments/README.md', 'benchmarks/README.md']
  experiments += sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / 'experiments').glob('*/*.md')
  )
  reference = [{part: f'{_REFERENCE}/{part}.md'} for part in parts()]
  assert config.nav is not None  # mkdocs.yml has one.
  place = len(config.nav) - len(_PAGES) + 1
  config.nav[place:place] = [
    {'Experiments': experiments},
    {'Reference': reference},
  ]
  return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Replaces the files of docs/ by those of the checkout, and adds pages."""
  for file in list(files):
    if file.src_uri.endswith(('.md', '.ipynb', '.py', '.pyc')):
      files.remove(file)
  paths = [ROOT / page for page in _PAGES]
  for folder in _FOLDERS:
    paths += sorted(path for path in (ROOT / folder).rglob('*.*'))
  for path in paths:
    uri = path.relative_to(ROOT).as_posix()
    if path.suffix == '.ipynb':
      uri = str(pathlib.PurePosixPath(uri).with_suffix('.md'))
      page = File.generated(config, uri, content=notebook_page(path))
    elif '__pycache__' in path.parts or not path.is_file():
      continue
    else:
      page = File.generated(config, uri, abs_src_path=str(path))
    files.append(page)
  for part, modules in parts().items():
    uri = f'{_REFERENCE}/{part}.md'
    content = reference_page(part, modules)
    files.append(File.generated(config, uri, content=content))
  return files


def on_page_markdown(markdown: str, **_: Any) -> str:
  """Makes links to notebooks lead to their pages."""
  return markdown.replace('.ipynb)', '.md)')


def notebook_page(path: pathlib.Path) -> str:
  """Returns a notebook as Markdown, with its outputs."""
  written = []
  for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
      written.append(source)
      continue
    written.append(f'```python\n{source}\n```')
    for output in cell['outputs']:
      if output['output_type'] == 'stream':
        written.append(f'```text\n{"".join(output["text"])}```')
      else:
        png = output['data']['image/png']
        written.append(f'![](data:image/png;base64,{png})')
  return '\n\n'.join(written)


def reference_page(part: str, modules: list[str]) -> str:
  """Returns the page of a part of the package, for mkdocstrings."""
  title = part if part == 'replay_rl' else f'replay_rl.{part}'
  return f'# {title}\n\n' + '\n\n'.join(f'::: {name}' for name in modules)


def parts() -> dict[str, list[str]]:
  """Returns the modules of each folder of the package; its own come first."""
  found: dict[str, list[str]] = {}
  for path in sorted(_PACKAGE.rglob('*.py')):
    *folders, stem = path.relative_to(_PACKAGE).with_suffix('').parts
    if 'configs' in folders or stem.startswith('__'):
      continue
    part = folders[0] if folders else 'replay_rl'
    name = '.'.join(('replay_rl', *folders, stem))
    found.setdefault(part, []).append(name)
  return dict(sorted(found.items(), key=lambda item: item[0] != 'replay_rl'))
