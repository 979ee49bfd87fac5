"""Tests of what imports what: dependencies point one way."""

import ast
import graphlib
import importlib
import pathlib

from absl.testing import absltest

PACKAGE = pathlib.Path(__file__).parents[1] / 'replay_rl'
# A part imports parts of its own line, and of the lines above it.
LAYERS = (
  (
    'base',
    'rng',
    'constants',
    'choices',
    'overrides',
    'command_line',
    'installed',
    'json_files',
    'lazy',
    'tolerances',
  ),
  ('parallel', 'disk', 'provenance', 'bucket'),
  ('replay', 'rl', 'lm', 'tasks'),
  ('run',),
  ('fit', 'evaluate', 'report'),
  ('train', 'plan', 'compile_check', 'inspect', 'export'),
  ('sweep',),
  ('__main__',),
)
_LAYER = {part: i for i, parts in enumerate(LAYERS) for part in parts}


def _modules() -> dict[str, ast.Module]:
  """Returns the syntax of each module, by its name below the package."""
  return {
    '.'.join(path.relative_to(PACKAGE).with_suffix('').parts): ast.parse(
      path.read_text()
    )
    for path in PACKAGE.rglob('*.py')
    if path.name != '__init__.py'
  }


def _imported(module: ast.Module) -> set[str]:
  """Returns the modules of the package that one imports, anywhere in it."""
  names = set()
  for node in ast.walk(module):
    if isinstance(node, ast.ImportFrom):
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
    elif isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
  prefix = 'replay_rl.'
  return {x.removeprefix(prefix) for x in names if x.startswith(prefix)}


class ImportsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.modules = _modules()
    cls.imports = {
      name: _imported(module) for name, module in cls.modules.items()
    }

  def test_every_module_can_be_imported(self):
    for name in self.modules:
      importlib.import_module(f'replay_rl.{name}')

  def test_modules_import_modules_of_the_package(self):
    for name, imported in self.imports.items():
      self.assertContainsSubset(imported, self.modules, name)

  def test_no_part_imports_one_of_a_later_layer(self):
    for name, imported in self.imports.items():
      part = name.partition('.')[0]
      for other in imported:
        other_part = other.partition('.')[0]
        self.assertLessEqual(
          _LAYER[other_part], _LAYER[part], f'{name} imports {other}'
        )

  def test_there_is_no_cycle_of_modules_or_of_parts(self):
    parts = {part: set() for part in _LAYER}
    for name, imported in self.imports.items():
      part = name.partition('.')[0]
      parts[part] |= {other.partition('.')[0] for other in imported} - {part}
    for graph in self.imports, parts:
      graphlib.TopologicalSorter(graph).prepare()  # Raises and names a cycle.

  def test_training_imports_of_planning_only_the_estimate_of_memory(self):
    reached, todo = set(), ['train']
    while todo:
      name = todo.pop()
      if name not in reached:
        reached.add(name)
        todo += self.imports[name]
    self.assertContainsSubset({'run.programs', 'base'}, reached)
    self.assertEqual(
      {name for name in reached if name.startswith('fit.')},
      {'fit.advice', 'fit.machine', 'fit.memory', 'fit.working_memory'},
    )

  def test_public_classes_of_the_package_have_names_of_their_own(self):
    places = {}
    for name, module in self.modules.items():
      for node in module.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
          places.setdefault(node.name, []).append(name)
    self.assertEmpty({x: y for x, y in places.items() if len(y) > 1})
