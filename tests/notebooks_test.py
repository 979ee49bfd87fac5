"""Tests of the notebooks: they run, and print what is stored in them."""

import os
import pathlib
import traceback
from unittest import mock

import jax
from absl.testing import absltest
from absl.testing import parameterized

from docs import run_notebook
from tests import configs_test

FOLDER = configs_test.ROOT / 'docs' / 'notebooks'
NAMES = sorted(path.name for path in FOLDER.glob('*.ipynb'))


def _lasting(texts):
  """Returns the lines that are the same on every machine.

  Sampled texts are not: a processor may round otherwise.
  """
  return [
    [line for line in text.splitlines() if 'reward' not in line]
    for text in texts
  ]


class NotebooksTest(parameterized.TestCase):
  @parameterized.parameters(*NAMES)
  def test_it_prints_what_is_stored(self, name):
    # The home has the cache of warm starts.
    home = {'HOME': self.create_tempdir().full_path}
    self.enter_context(mock.patch.dict(os.environ, home))
    # A notebook sets the mesh for all its cells.
    mesh = jax.sharding.get_mesh()
    self.enter_context(jax.set_mesh(mesh))
    stored = run_notebook.read(FOLDER / name)
    with jax.numpy_rank_promotion('allow'):
      again = run_notebook.run(stored, name)
    printed = run_notebook.printed(again)
    self.assertEqual(_lasting(printed), _lasting(run_notebook.printed(stored)))
    figures = [
      output['data'].keys()
      for notebook in (stored, again)
      for cell in notebook['cells']
      for output in cell.get('outputs', ())
      if output['output_type'] == 'display_data'
    ]
    self.assertLen(figures, 2 if name == 'run.ipynb' else 0)

  def test_each_is_tested(self):
    self.assertEqual(NAMES, ['buffer.ipynb', 'run.ipynb'])

  def test_a_cell_that_fails_is_named(self):
    source = ['print(1)\n', '1 / 0']
    notebook = {'cells': [{'cell_type': 'code', 'source': source}]}
    try:
      run_notebook.run(notebook, 'x.ipynb')
    except ZeroDivisionError as error:
      frame = traceback.extract_tb(error.__traceback__)[-1]
    self.assertEqual((frame.filename, frame.lineno), ('x.ipynb, cell 1', 2))

  def test_what_is_written_is_read_again(self):
    path = FOLDER / NAMES[0]
    copy = pathlib.Path(self.create_tempdir().full_path, 'x.ipynb')
    run_notebook.write(copy, run_notebook.read(path))
    self.assertEqual(copy.read_bytes(), path.read_bytes())


if __name__ == '__main__':
  absltest.main()
