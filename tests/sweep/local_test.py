"""Tests of sweeps on one machine: real runs of a second each."""

import contextlib
import pathlib
from unittest import mock

import jax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import train
from replay_rl.run import programs
from replay_rl.sweep import __main__ as main
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import planning
from tests import mains
from tests import tiny
from tests import train_test

_RATES = (1e-3, 2e-3)


def _cells(**changes):
  base = tiny.config(
    num_iterations=4,
    evaluation__every_cost=100.0,
    stop='max_cost(cost_units=150)',
    checkpoint__every=2,
    **changes,
  )
  axes = {
    'replay.batch_size': [8, 4],
    'optimizer.learning_rate': list(_RATES),
  }
  return cells_lib.make(base, cells_lib.product(axes))


def _run(cells, out, **changes):
  said = []
  settings = {'say': said.append, 'allow_code_change': False}
  return local.run(cells, out, **(settings | changes)), said


@contextlib.contextmanager
def _compilations():
  """Yields a list with an element for each program that JAX compiles."""
  seen = []

  def listen(event, *_, **__):
    if event == '/jax/core/compile/backend_compile_duration':
      seen.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield seen
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)


class RunTest(train_test.TrainTestCase):
  def test_cells_of_one_shape_share_programs_and_change_nothing(self):
    out = self.workdir('sweep')
    compiled = []
    said = []
    with (
      mock.patch.object(programs, 'build', wraps=programs.build) as built,
      _compilations() as names,
    ):
      ended = local.run(
        _cells(),
        out,
        say=lambda text: (said.append(text), compiled.append(len(names))),
        allow_code_change=False,
      )
    self.assertEqual(built.call_count, 2)
    # The first cell of a group compiles, and the second nothing. The second of
    # all is the first one that reads a warm start, with programs of its own.
    _, second, third, fourth = compiled
    self.assertGreater(third, second)
    self.assertEqual(fourth, third)
    self.assertEqual([one.error for one in ended], [None] * 4)
    # A cell of 8 rows costs 48 units an iteration, and one of 4 costs 40. Above
    # 150 each ends, with 192 or 160.
    self.assertRegex(
      said[0],
      r'^\[1/4 cells; 192/704 cost units; about \d+ (s|min) left\] '
      r'batch_size=8,learning_rate=0.001: \d+ s$',
    )
    self.assertRegex(
      said[3], r'^\[4/4 cells; 704/704 cost units\] batch_size=4'
    )
    for cell in _cells():
      alone = self.workdir('alone')
      train.train(cell.config, alone)
      self.assertEqual(
        (out / cell.name / 'metrics.jsonl').read_bytes(),
        (alone / 'metrics.jsonl').read_bytes(),
      )

  def test_finished_cells_are_skipped_and_a_stopped_one_continues(self):
    out, cells = self.workdir('sweep'), _cells()
    whole = self.workdir('whole')
    _run(cells[:2], whole)
    _run(cells[:1], out)
    trained = train.train
    with mock.patch.object(
      train,
      'train',
      lambda *args, **kwargs: trained(*args, stop_after=1, **kwargs),
    ):
      local.run(cells[1:2], out, say=lambda _: None, allow_code_change=False)
    # As a kill would leave it: begun, and not marked.
    (out / cells[1].name / planning.FINISHED).unlink()
    self.assertLen(train_test.read_lines(out / cells[1].name), 1)
    with mock.patch.object(train, 'train', wraps=train.train) as called:
      ended, said = _run(cells[:2], out)
    self.assertEqual(called.call_count, 1)
    self.assertEqual([one.is_skipped for one in ended], [True, False])
    self.assertIn('had finished before', said[0])
    for cell in cells[:2]:
      self.assertEqual(
        (out / cell.name / 'metrics.jsonl').read_bytes(),
        (whole / cell.name / 'metrics.jsonl').read_bytes(),
      )

  def test_a_cell_that_fails_does_not_stop_the_others(self):
    out, cells = self.workdir('sweep'), _cells()[:2]
    (out / cells[0].name).mkdir(parents=True)
    (out / cells[0].name / 'config.json').write_text('{')
    ended, said = _run(cells, out)
    self.assertRegex(ended[0].error, 'config.json')
    self.assertIsNone(ended[1].error)
    self.assertIn(': failed: ', said[0])
    self.assertFalse((out / cells[0].name / planning.FINISHED).exists())

  def test_a_finished_cell_of_other_settings_is_no_result(self):
    out, cells = self.workdir('sweep'), _cells()[:1]
    _run(cells, out)
    cells[0].config.optimizer.max_grad_norm = 0.5
    ended, _ = _run(cells, out)
    self.assertRegex(ended[0].error, 'optimizer.max_grad_norm = 0.5 .there: 1')

  def test_a_finished_cell_with_a_higher_limit_goes_on(self):
    out, cells = self.workdir('sweep'), _cells()[:1]
    _run(cells, out)
    before = train_test.read_lines(out / cells[0].name)
    cells[0].config.stop = 'max_cost(cost_units=180)'
    ended, _ = _run(cells, out)
    self.assertEqual((ended[0].is_skipped, ended[0].error), (False, None))
    after = train_test.read_lines(out / cells[0].name)
    self.assertEqual(after[: len(before)], before)
    self.assertLen(after, 4)
    self.assertTrue(_run(cells, out)[0][0].is_skipped)

  def test_a_changed_line_of_a_finished_cell_is_no_result(self):
    out, cells = self.workdir('sweep'), _cells()[:1]
    _run(cells, out)
    path = out / cells[0].name / 'metrics.jsonl'
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    ended, _ = _run(cells, out)
    self.assertFalse(ended[0].is_skipped)
    self.assertRegex(ended[0].error, 'lines of .*metrics.jsonl')

  def test_any_error_of_a_cell_is_reported(self):
    out, cells = self.workdir('sweep'), _cells()[:2]
    trained = train.train

    def fail_first(config, *args, **kwargs):
      if config.name == cells[0].name:
        raise MemoryError('a device')
      return trained(config, *args, **kwargs)

    with mock.patch.object(train, 'train', fail_first):
      ended, _ = _run(cells, out)
    self.assertEqual(
      [one.error for one in ended], ['MemoryError: a device', None]
    )

  def test_a_bad_setting_is_found_before_anything_runs(self):
    out, cells = self.workdir('sweep'), _cells()
    cells[3].config.replay.capacity = 1
    with self.assertRaisesRegex(
      ValueError, "cell 'batch_size=4,learning_rate=0.002': replay.capacity = 1"
    ):
      _run(cells, out)
    self.assertFalse(out.exists())


class PlanTest(parameterized.TestCase):
  def test_programs_and_costs(self):
    planned = planning.plan(_cells(), pathlib.Path('/nowhere'))
    self.assertEqual([one.program for one in planned], [0, 0, 1, 1])
    # Two updates of 8 or 4 rows and 2 x 16 for the rollouts: 48 or 40 units an
    # iteration. The limit of 150 ends a run after 192 or 160.
    self.assertEqual(
      [one.cost_units for one in planned], [192.0, 192.0, 160.0, 160.0]
    )

  def test_a_limit_bounds_the_cost(self):
    cells = _cells()
    for cell in cells:
      cell.config.num_iterations = 1000
      cell.config.stop += ' + level(greedy=1, num_evaluations=2)'
    planned = planning.plan(cells, pathlib.Path('/nowhere'))
    self.assertEqual(planned[0].cost_units, 150 + 48)


class MainTest(train_test.TrainTestCase):
  def _main(self, *arguments):
    return mains.ran(main.main, main.FLAGS, *arguments)

  def _file(self):
    text = (
      'from tests.sweep import local_test\n'
      'def get_cells():\n'
      '  return local_test._cells()[:2]\n'
    )
    return f'--sweep={self.create_tempfile("sweep.py", text).full_path}'

  def test_a_sweep_and_its_table(self):
    out = self.workdir('sweep')
    sweep = self._file()
    status, said, _ = self._main(sweep, f'--out={out}', '--dry_run')
    self.assertEqual(status, 0)
    self.assertIn('2 cells, 1 sets of programs to compile', said)
    self.assertIn(
      'time at most 0 s, unknown for 2 cells', ' '.join(said.split())
    )
    self.assertFalse(out.exists())
    status, _, err = self._main(sweep, f'--out={out}')
    self.assertEqual((status, err), (0, ''))
    table = (out / 'evaluations.csv').read_bytes()
    header, *rows = table.decode().splitlines()
    self.assertStartsWith(
      header,
      'cell,replay.batch_size,optimizer.learning_rate,seed,iteration,'
      'learner_step,ledger/generated_tokens,ledger/rollouts,'
      'ledger/trained_rollouts,ledger/cost_units,eval/greedy,',
    )
    self.assertLen(rows, 2)  # Of each cell, when it had spent 100.
    self.assertStartsWith(
      rows[0], '"batch_size=8,learning_rate=0.001",8,0.001,0,2,6,144,'
    )
    status, said, _ = self._main(sweep, f'--out={out}', '--dry_run')
    self.assertIn('at most 0 cost units', said)
    self._check_parts(sweep, table)

  def _check_parts(self, sweep, table):
    """Runs the same cells in parts, whose last one writes the table."""
    out = self.workdir('parts')
    path = out / 'evaluations.csv'
    folder = f'--out={out}'
    status, said, err = self._main(sweep, folder, '--collect')
    self.assertEqual(status, 2)
    self.assertRegex(err, '^error: --out = .*: must have a cell that has fin')
    name = '--cells=batch_size=8,learning_rate=0.001'
    status, said, _ = self._main(sweep, folder, name)
    self.assertEqual(status, 0)
    self.assertEndsWith(
      said,
      '1 of 2 cells have not finished; evaluations.csv is written when all '
      'have\n',
    )
    self.assertFalse(path.exists())
    _, said, _ = self._main(sweep, folder, '--dry_run')
    said = ' '.join(said.split())
    self.assertRegex(
      said,
      r'2 cells, 1 sets .* at most 192 cost units; time at most \d+ s cell',
    )
    self.assertRegex(said, r'=0.001 0 0 finished .*=0.002 0 192 \d+ s$')
    status, said, _ = self._main(sweep, folder, '--collect')
    self.assertEqual((status, said), (1, '1 of 2 cells have not finished\n'))
    self.assertEqual(path.read_bytes().splitlines(), table.splitlines()[:2])
    status, said, _ = self._main(sweep, folder, '--cells=0')
    self.assertEqual((status, path.read_bytes()), (0, table))
    self.assertIn('learning_rate=0.001: had finished before', said)
    path.unlink()
    status, said, _ = self._main(sweep, folder, '--collect')
    self.assertEqual((status, said, path.read_bytes()), (0, '', table))
    config = out / 'batch_size=8,learning_rate=0.001' / 'config.json'
    config.write_text('{')
    status, said, _ = self._main(sweep, folder, '--collect')
    self.assertEqual(status, 1)
    self.assertRegex(said, '=0.001: failed: .*config.json')
    self.assertEndsWith(said, '1 of 2 cells failed\n')
    self.assertLen(path.read_bytes().splitlines(), 2)

  def test_ctrl_c_between_cells_is_one_line(self):
    with mock.patch.object(train, 'train', side_effect=KeyboardInterrupt):
      status, _, err = self._main(self._file(), f'--out={self.workdir()}')
    self.assertEqual(status, 130)
    self.assertEqual(
      err, 'error: stopped by Ctrl-C; the same command continues\n'
    )

  def test_what_cannot_be_is_one_line(self):
    for arguments, complaint in (
      ((), '--sweep = None: must be given'),
      (('--sweep=x',), '--out = None: must be given'),
      (('--sweep=/nowhere.py', '--out=x'), "--sweep = '/nowhere.py': must be"),
      (('more',), "arguments = ['more']: must be flags"),
      (
        ('--sweep=x', '--out=y', '--collect', '--cells=0'),
        '--collect = True: must be without --cells',
      ),
      (
        ('--sweep=x', '--out=y', '--collect', '--dry_run'),
        '--collect = True: must be without',
      ),
      (
        ('--sweep=x', '--out=y', '--collect', '--', '--time=1'),
        '--collect = True: must be without',
      ),
      ((self._file(), '--out=y', '--cells=1'), "--cells = '1': must be the"),
      (
        (self._file(), '--out=y', '--', '--time=1'),
        "Unknown command line flag 'time' (after --, for --executor=local)",
      ),
      (('--executor=pbs',), 'flag --executor=pbs: value should be one of'),
      (('--no_flag',), "Unknown command line flag 'no_flag'"),
    ):
      status, out, err = self._main(*arguments)
      self.assertEqual((status, out), (2, ''))
      self.assertStartsWith(err, f'error: {complaint}')
      self.assertLen(err.splitlines(), 1)


if __name__ == '__main__':
  absltest.main()
