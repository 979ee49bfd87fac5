"""Tests of cells that run in lockstep: real runs of a second each."""

import contextlib
import json
import signal
from unittest import mock

import numpy as np
from absl.testing import absltest

from replay_rl import train
from replay_rl.run import programs
from replay_rl.run import stopping
from replay_rl.sweep import __main__ as main
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import lockstep
from replay_rl.sweep import planning
from tests import mains
from tests import tiny
from tests import train_test

_RATES = (1e-3, 2e-3, 3e-3)


def make_cells(updates=(6, 2), **changes):
  """Returns three cells, of which the first two end after so many updates.

  By default an iteration makes two, and they end after 3 iterations and 1. The
  third cell ends after 4.
  """
  stops = [*(f'max_updates(updates={number})' for number in updates), None]
  settings = {'evaluation__every': 2, 'checkpoint__every': 2} | changes
  base = tiny.config(num_iterations=4, **settings)
  return cells_lib.make(
    base,
    [
      {'optimizer.learning_rate': rate, 'stop': stop}
      for rate, stop in zip(_RATES, stops, strict=True)
    ],
    named_by=['optimizer.learning_rate'],
  )


def _work(cells, out, settings=()):
  said = []
  return planning.Work(
    file=out / 'none.py',
    out=out,
    planned=planning.plan(cells, out),
    chosen=(),
    settings=settings,
    say=said.append,
    allow_code_change=False,
  )


def _run(cells, out, num_cells=2):
  return list(lockstep.run(_work(cells, out), num_cells=num_cells))


def _ending(folder):
  """Returns the lines of a run, and the checksums of its last state."""
  checksums = folder.glob('checkpoints/*/checksums/metadata')
  last = max(checksums, key=lambda path: int(path.parents[1].name))
  paths = [*folder.glob('[ms]*s.jsonl'), last]  # Metrics, perhaps samples.
  return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


class RunTest(train_test.TrainTestCase):
  def _assert_as_alone(self, cells, out):
    one_by_one = self.workdir('one_by_one')
    local.run(cells, one_by_one, say=lambda _: None, allow_code_change=False)
    for cell in cells:
      self.assertTrue(planning.is_finished(cell, out / cell.name))
      actual, expected = map(_ending, (out / cell.name, one_by_one / cell.name))
      self.assertEqual(actual, expected)
      self.assertIn('metrics.jsonl', actual)

  def test_each_cell_is_the_run_that_it_is_alone(self):
    # In turn, seeds have the same bits in any number.
    # Iterations make one update and two in turn, so the cell that begins later
    # has other events than the one beside it.
    cells = make_cells(
      (4, 1),
      replay__updates_per_iteration=1.5,
      logging__samples_every=2,
      num_seeds=2,
    )
    out = self.workdir('sweep')
    with mock.patch.object(programs, 'build', wraps=programs.build) as built:
      ended = _run(cells, out)
    # The cell that ends first made room for the third one.
    self.assertEqual(
      [one.name for one in ended], [cells[i].name for i in (1, 0, 2)]
    )
    self.assertEqual([one.error for one in ended], [None] * 3)
    settings = [call.args[2].num_seeds for call in built.call_args_list]
    self.assertEqual(settings, [2, 4])
    self._assert_as_alone(cells, out)

  def test_together_they_differ_by_rounding_alone(self):
    cells, out = make_cells(vmap_seeds=True), self.workdir('sweep')
    work = _work(cells, out, ['--lockstep=3'])
    ended = local.execute(work)
    self.assertEqual([one.error for one in ended], [None] * 3)
    for cell, number in zip(cells, (3, 1, 4), strict=True):
      alone = self.workdir()
      train.train(cell.config, alone)
      lines = train_test.read_lines(out / cell.name)
      self.assertLen(lines, number)
      for one, other in zip(lines, train_test.read_lines(alone), strict=True):
        self.assertEqual(one.keys(), other.keys())
        for name, value in one.items():
          # A mean of nothing is NaN, which a line has as null.
          pair = (np.asarray(x, float) for x in (value, other[name]))
          np.testing.assert_allclose(*pair, rtol=1e-3, atol=1e-5)
    # Given again, the command finds what has finished.
    ended = local.execute(_work(cells, out, ['--lockstep=3']))
    self.assertEqual([one.is_skipped for one in ended], [True] * 3)

  def test_times_add_up(self):
    cells = make_cells(logging__time_events=True)
    out = self.workdir('sweep')
    ended = _run(cells, out, num_cells=3)
    lines = [
      json.loads(line)
      for cell in cells
      for line in (out / cell.name / 'timing.jsonl').read_text().splitlines()
    ]
    self.assertLen(lines, 3 + 1 + 4)
    for line in lines:
      events = [v for k, v in line.items() if k.endswith('_seconds')]
      self.assertLess(0, min(events))
      self.assertLess(sum(events), line['seconds'])
    # All ran at the same time.
    whole = max(one.seconds for one in ended)
    self.assertLess(sum(line['seconds'] for line in lines), whole)

  def test_a_cell_that_fails_does_not_stop_the_others(self):
    exploding = 'tests.user_functions:exploding(factor={})'.format
    cells = make_cells(optimizer__transform=exploding(1.0))
    out = self.workdir('sweep')
    (out / cells[0].name).mkdir(parents=True)
    (out / cells[0].name / 'config.json').write_text('{')
    cells[1].config.stop = None
    cells[1].config.optimizer.transform = exploding(1e30)
    errors = {one.name: one.error for one in _run(cells, out)}
    self.assertRegex(errors[cells[0].name], 'config.json')
    self.assertRegex(errors[cells[1].name], ': must be finite; ')
    self.assertIsNone(errors[cells[2].name])
    for cell in cells[:2]:
      self.assertFalse((out / cell.name / planning.FINISHED).exists())
    self._assert_as_alone(cells[2:], out)

  def test_an_error_of_the_device_fails_the_cells_that_ran(self):
    cells, out = make_cells(), self.workdir('sweep')
    joined = lockstep._joined

    def fail_once(*runs):
      with mock.patch.object(lockstep, '_joined', joined):
        raise MemoryError('a device')

    with mock.patch.object(lockstep, '_joined', fail_once):
      errors = {one.name: one.error for one in _run(cells, out)}
    self.assertEqual(
      [errors[cell.name] for cell in cells],
      ['MemoryError: a device'] * 2 + [None],
    )

  def test_a_signal_saves_all_cells_that_run_and_they_continue(self):
    cells, out = make_cells(), self.workdir('sweep')
    for cell in cells:
      cell.config.stop = None
    received, joined, calls = set(), lockstep._joined, []

    @contextlib.contextmanager
    def signals():
      yield received

    def signal_at_the_third(*runs):
      calls.append(len(runs))
      if len(calls) == 3:
        received.add(signal.SIGTERM)
      return joined(*runs)

    with (
      mock.patch.object(stopping, 'signals', signals),
      mock.patch.object(lockstep, '_joined', signal_at_the_third),
      self.assertRaises(SystemExit) as raised,
    ):
      _run(cells, out)
    self.assertEqual(raised.exception.code, 128 + signal.SIGTERM)
    for cell, number in zip(cells[:2], (3, 3), strict=True):
      self.assertLen(train_test.read_lines(out / cell.name), number)
    self.assertFalse((out / cells[2].name).exists())
    ended = _run(cells, out)
    self.assertEqual([one.error for one in ended], [None] * 3)
    self._assert_as_alone(cells, out)


class SettingsTest(train_test.TrainTestCase):
  def test_a_cell_that_stopped_within_a_generation_is_refused(self):
    work = _work(make_cells()[:1], self.workdir('sweep'))
    session = mock.MagicMock()  # Whose state has a generation.
    with mock.patch.object(train, 'opened', return_value=session):
      (ended,) = lockstep.run(work, num_cells=1)
    self.assertRegex(
      ended.error, "sweep/.*': must be continued without --lockstep, because"
    )

  def test_what_gains_nothing_is_refused(self):
    out = self.workdir('none')
    cells = make_cells()
    for changes, complaint in (
      ({}, 'vmap_seeds = False: must be True for --lockstep'),
      (
        {'vmap_seeds': True, 'mesh__buffer_memory': 'pinned_host'},
        "mesh.buffer_memory = 'pinned_host': must be 'device' for --lockstep",
      ),
    ):
      cells = make_cells(**changes)
      with self.assertRaisesWithLiteralMatch(
        ValueError, f'cell {cells[0].name!r}: {complaint}'
      ):
        local.execute(_work(cells, out, ['--lockstep=2']))
    self.assertFalse(out.exists())

  def test_the_memory_of_all_cells_is_checked(self):
    cells, out = make_cells(vmap_seeds=True), self.workdir('none')
    with mock.patch.object(lockstep.machine, 'check') as checked:
      lockstep.check(_work(cells, out), num_cells=2)
    seeds = [call.args[0].num_seeds for call in checked.call_args_list]
    self.assertEqual(seeds, [2])

  def test_a_wrong_number_is_one_line(self):
    text = (
      'from tests.sweep import lockstep_test\n'
      'get_cells = lockstep_test.make_cells\n'
    )
    sweep = f'--sweep={self.create_tempfile("sweep.py", text).full_path}'
    for setting, complaint in (
      ('--lockstep=1', 'flag --lockstep=1: 1 is not integer >= 2'),
      ('--lockstep=x', 'flag --lockstep=x: invalid literal'),
      ('--time=1', "Unknown command line flag 'time' (after --"),
    ):
      status, _, err = mains.ran(
        main.main, main.FLAGS, sweep, '--out=x', '--', setting
      )
      self.assertEqual(status, 2)
      self.assertStartsWith(err, f'error: {complaint}')
      self.assertLen(err.splitlines(), 1)


if __name__ == '__main__':
  absltest.main()
