"""Tests of what is known of a sweep from the files of its runs."""

import json
import shutil
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import planning
from replay_rl.sweep import progress
from tests import tiny
from tests import train_test

# Two updates of 8 rows and 2 x 16 for the rollouts, for two seeds.
_COST = 2 * 48.0


class ProgressTest(train_test.TrainTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.cells = cells_lib.make(
      tiny.config(num_iterations=4, num_seeds=2),
      [
        {'optimizer.learning_rate': 1e-3, 'replay.batch_size': 8},
        {'optimizer.learning_rate': 2e-3, 'replay.batch_size': 8},
        {'optimizer.learning_rate': 1e-3, 'replay.batch_size': 4},
      ],
    )

  def _folder(self):
    """Returns a sweep whose first cell has ended; the second is half done."""
    out = self.workdir('sweep')
    first, second, _ = (out / cell.name for cell in self.cells)
    local.run(self.cells[:1], out, say=lambda _: None, allow_code_change=False)
    shutil.copytree(first, second)
    (second / planning.FINISHED).unlink()
    lines = (first / 'metrics.jsonl').read_bytes().splitlines(keepends=True)
    # Two of the four iterations, and half a line.
    (second / 'metrics.jsonl').write_bytes(b''.join(lines[:4]) + lines[4][:20])
    return out

  def test_costs_and_times_are_those_of_the_files(self):
    out = self._folder()
    planned = planning.plan(self.cells, out)
    self.assertEqual(
      [progress.spent(one, out) for one in planned], [4 * _COST, 2 * _COST, 0]
    )
    # The third has two updates of 4 rows, and two seeds.
    self.assertEqual(
      [progress.remaining(one, out) for one in planned],
      [0, 2 * _COST, 4 * 2 * 40],
    )
    early = planned[0]._replace(cost_units=1e6)  # It ended before its limit.
    self.assertEqual(progress.remaining(early, out), 0)
    timing = (out / self.cells[0].name / 'timing.jsonl').read_text()
    seconds = sum(json.loads(x)['seconds'] for x in timing.splitlines())
    none, half, unknown = progress.seconds_remaining(planned, out)
    self.assertEqual((none, unknown), (0, None))
    self.assertAlmostEqual(half, seconds / 2)
    with mock.patch.object(progress, '_BLOCK', 7):
      self.assertEqual(progress.spent(planned[1], out), 2 * _COST)
    self._check_line(planned, out)
    # What cannot be read counts as nothing; the run of the cell reports it.
    for damaged in ('{}\n{}\n', '1\n2\n', 'x\ny\n'):
      (out / self.cells[1].name / 'metrics.jsonl').write_text(damaged)
      self.assertEqual(progress.spent(planned[1], out), 0)
    (out / self.cells[0].name / 'timing.jsonl').write_text('')
    self.assertIsNone(progress.seconds_remaining(planned, out)[1])

  def _check_line(self, planned, out):
    now = [100.0]
    said = []
    with mock.patch.object(time, 'perf_counter', lambda: now[0]):
      shown = progress.Progress(planned, out, said.append)
      # 6 x 96 of 384 + 384 + 320 units are spent.
      self.assertEqual(
        shown.line(), '[0/3 cells; 576/1,088 cost units; time left unknown]'
      )
      metrics = out / self.cells[1].name / 'metrics.jsonl'
      whole = out / self.cells[0].name / 'metrics.jsonl'
      lines = whole.read_bytes().splitlines(keepends=True)
      metrics.write_bytes(b''.join(lines[:6]))
      now[0] += 10
      # 96 units in 10 s; 416 units are left.
      self.assertEqual(
        shown.line(), '[0/3 cells; 672/1,088 cost units; about 43 s left]'
      )
      # A cell that failed will not spend the rest.
      shown.add(planning.Ended(self.cells[2].name, 'bad', False, 1.0))
      self.assertEqual(
        said,
        [
          '[1/3 cells; 672/768 cost units; about 10 s left] '
          f'{self.cells[2].name}: failed: bad'
        ],
      )
      shown.add(planning.Ended(self.cells[0].name, None, True, 1.0))
      shown.add(planning.Ended(self.cells[1].name, None, False, None))
      self.assertEndsWith(
        said[1], f'] {self.cells[0].name}: had finished before'
      )
      self.assertEqual(
        said[2],
        f'[3/3 cells; 672/672 cost units] {self.cells[1].name}: finished',
      )
      metrics.write_bytes(b''.join(lines[:4]) + lines[4][:20])


class InWordsTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.4, '0 s'),
    (119, '119 s'),
    (120, '2 min'),
    (7199, '120 min'),
    (7200, '2 h'),
    (3.6e7, '10,000 h'),
  )
  def test_a_duration_has_its_unit(self, seconds, expected):
    self.assertEqual(progress.in_words(seconds), expected)


if __name__ == '__main__':
  absltest.main()
