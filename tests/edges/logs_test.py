"""Damage to the files of a run, and what the same command then does."""

import pathlib
import shutil
import tempfile

import chex
from absl.testing import parameterized

from replay_rl import train
from replay_rl.run import checkpoint
from tests import tiny

_FILES = ('metrics.jsonl', 'samples.jsonl', 'timing.jsonl')


def _config(**changes):
  return tiny.config(
    num_iterations=4,
    num_seeds=2,
    logging__samples_every=1,
    checkpoint__keep=2,
    **changes,
  )


def _lines(path):
  return path.read_bytes().splitlines(keepends=True)


class DamagedLogsTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.whole, cls.parted = (
      pathlib.Path(folder.name) / name for name in ('whole', 'parted')
    )
    cls.expected = train.train(_config(), cls.whole)
    train.train(_config(), cls.parted, stop_after=3)

  def _copy(self):
    copy = pathlib.Path(self.create_tempdir().full_path) / 'run'
    shutil.copytree(self.parted, copy)
    return copy

  def _check_equal(self, workdir, run):
    chex.assert_trees_all_equal(run, self.expected)
    for name in ('metrics.jsonl', 'samples.jsonl'):
      self.assertEqual(
        (workdir / name).read_bytes(), (self.whole / name).read_bytes()
      )

  @parameterized.product(
    name=_FILES, damage=('deleted', 'doubled', 'changed', 'garbled')
  )
  def test_an_early_line_that_differs_is_refused_and_nothing_is_lost(
    self, name, damage
  ):
    workdir = self._copy()
    path = workdir / name
    first, *rest = _lines(path)
    damaged = {
      'deleted': rest,
      'doubled': [first, first, *rest],
      'changed': [first.replace(b'0', b'1', 1), *rest],
      'garbled': [b'{' + first[1:-2] + b'{\n', *rest],
    }[damage]
    path.write_bytes(b''.join(damaged))
    before = {path: path.read_bytes() for path in workdir.glob('*.jsonl')}
    with self.assertRaisesRegex(ValueError, 'must be readable and fit') as e:
      train.train(_config(), workdir)
    self.assertIn(name, str(e.exception))
    self.assertNotIn('\n', str(e.exception))
    for path, content in before.items():
      self.assertEqual(path.read_bytes(), content)
    steps = sorted(x.name for x in (workdir / 'checkpoints').iterdir())
    self.assertEqual(steps, ['2', '3'])

  @parameterized.parameters(*_FILES)
  def test_a_late_line_that_differs_costs_the_iterations_since(self, name):
    workdir = self._copy()
    *lines, last = _lines(workdir / name)
    (workdir / name).write_bytes(b''.join(lines) + last[: len(last) // 2])
    with self.assertWarnsRegex(
      checkpoint.DamagedCheckpointWarning, f'an older one is used .*{name}'
    ):
      run = train.train(_config(), workdir)
    self._check_equal(workdir, run)

  def test_lines_after_the_checkpoint_are_written_again(self):
    workdir = self._copy()
    with open(workdir / 'metrics.jsonl', 'ab') as file:
      file.write(b'{"iteration": 3}\n{"ite')
    self._check_equal(workdir, train.train(_config(), workdir))

  def test_lost_checkpoints_are_told(self):
    workdir = self._copy()
    shutil.rmtree(workdir / 'checkpoints')
    with self.assertRaisesRegex(ValueError, 'has no checkpoint; restore its'):
      train.train(_config(), workdir)
    self.assertLen(_lines(workdir / 'metrics.jsonl'), 6)
