"""Tests of sweeps on a Ray cluster of this machine, one worker of it killed."""

import importlib.util
import json
import os
import pathlib
import signal
import socket
import threading
import time
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.sweep import __main__ as main
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import on_ray
from replay_rl.sweep import planning
from tests import mains
from tests import tiny
from tests import train_test

needs_ray = unittest.skipUnless(
  importlib.util.find_spec('ray'), "needs Ray: pip install -e '.[test]'"
)
_NUM_ITERATIONS = 12


def get_cells():
  base = tiny.config(
    num_iterations=_NUM_ITERATIONS,
    evaluation__every_cost=100.0,
    checkpoint__every=1,
  )
  axes = {
    'replay.batch_size': [8, 4],
    'optimizer.learning_rate': [1e-3, 2e-3],
  }
  return cells_lib.make(base, cells_lib.product(axes))


def _holder(folder: pathlib.Path) -> int | None:
  """Returns the process that holds the lock of a run, if one does."""
  if not (folder / '.lock').exists():
    return None
  inode = (folder / '.lock').stat().st_ino
  for line in pathlib.Path('/proc/locks').read_text().splitlines():
    words = line.split()
    if words[1] == 'FLOCK' and int(words[5].split(':')[2]) == inode:
      return int(words[4])
  return None


def _kill_in_the_middle(out: pathlib.Path, done: list[int]) -> None:
  """Kills the process of a cell that has saved; adds its lines to `done`."""
  deadline = time.monotonic() + 600
  while time.monotonic() < deadline:
    for path in out.glob('*/metrics.jsonl'):
      holder = _holder(path.parent)
      lines = path.read_bytes().count(b'\n')
      is_saved = any((path.parent / 'checkpoints').glob('[0-9]'))
      if holder and is_saved and lines < _NUM_ITERATIONS - 2:
        os.kill(holder, signal.SIGKILL)
        done.append(lines)
        return
    time.sleep(0.005)


class ClusterTest(train_test.TrainTestCase):
  def _main(self, out, *arguments):
    # A cell of another run is there, so the fourth one fails.
    folder = out / get_cells()[3].name
    folder.mkdir(parents=True)
    (folder / 'config.json').write_text('{')
    text = 'from tests.sweep.on_ray_test import get_cells'
    return mains.ran(
      main.main,
      main.FLAGS,
      f'--sweep={self.create_tempfile("sweep.py", text).full_path}',
      f'--out={out}',
      *arguments,
    )

  @needs_ray
  @unittest.skipUnless(os.path.exists('/proc/locks'), 'needs Linux')
  def test_a_killed_worker_loses_nothing(self):
    local, on_cluster = self.workdir('local'), self.workdir('ray')
    self._main(local)
    killed = []
    killer = threading.Thread(
      target=_kill_in_the_middle, args=(on_cluster, killed)
    )
    killer.start()
    status, said, error = self._main(
      on_cluster, '--executor=ray', '--', '--workers=2', '--max_crashes=1'
    )
    killer.join()
    self.assertLen(killed, 1)
    # The fourth cell fails, and the rest goes on.
    self.assertEqual((status, error), (1, ''))
    self.assertEndsWith(said, '1 of 4 cells failed\n')
    self.assertIn('learning_rate=0.002: failed: ', said)
    self.assertEqual(
      *((out / 'evaluations.csv').read_bytes() for out in (local, on_cluster))
    )
    continued = 0
    for cell in get_cells()[:3]:
      self.assertTrue(planning.is_finished(cell, on_cluster / cell.name))
      self.assertLen(
        train_test.read_lines(on_cluster / cell.name), _NUM_ITERATIONS
      )
      timing = (on_cluster / cell.name / 'timing.jsonl').read_text()
      continued += json.loads(timing.splitlines()[-1])['process'] > 0
    self.assertEqual(continued, 1)  # From its checkpoint.


class GroupTest(train_test.TrainTestCase):
  @needs_ray
  def test_an_address_without_a_cluster_is_refused(self):
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    for address in (f'127.0.0.1:{port}', f'ray://127.0.0.1:{port}', 'x:y'):
      settings = on_ray._settings([f'--address={address}', '--max_crashes=0'])
      with self.assertRaisesRegex(
        ValueError, f"--address = '{address}': must be a Ray cluster that runs"
      ):
        on_ray._connected(settings)

  def test_a_group_that_saved_is_started_again(self):
    with (
      mock.patch.object(local, 'run', side_effect=SystemExit(143)),
      self.assertRaisesRegex(on_ray.SavedError, 'status = 143: must be 0'),
    ):
      on_ray._run_group([], 'out', os.getcwd(), False)

  @needs_ray
  def test_cells_of_a_group_that_died_have_failed_or_finished(self):
    import ray

    out = self.workdir()
    planned = planning.plan(get_cells()[:2], out)
    finished = planned[0].cell
    (out / finished.name).mkdir(parents=True)
    planning.mark_finished(finished, out / finished.name)
    died = mock.Mock(
      get=mock.Mock(side_effect=ray.exceptions.WorkerCrashedError()),
      exceptions=ray.exceptions,
    )
    first, second = on_ray._ended(died, None, planned, out)
    self.assertEqual(first, planning.Ended(finished.name, None, False, None))
    self.assertRegex(second.error, '^WorkerCrashedError: .*worker died')


class SettingsTest(parameterized.TestCase):
  @parameterized.parameters(
    ((), '--workers, --address: exactly one must be given, after --'),
    (
      ('--workers=1', '--address=auto', '--max_crashes=0'),
      '--workers, --address: exactly one must',
    ),
    (('--workers=1',), '--max_crashes = None: must be given, after --'),
    (('--workers=0', '--max_crashes=0'), 'workers=0'),
    (('--workers=1', '--max_crashes=-1'), 'max_crashes=-1'),
    (('--worker=1',), "Unknown command line flag 'worker'"),
  )
  def test_what_cannot_be_is_refused(self, settings, complaint):
    work = planning.Work(
      file=pathlib.Path('/nowhere.py'),
      out=pathlib.Path('/nowhere'),
      planned=(),
      chosen=(),
      settings=settings,
      say=print,
      allow_code_change=False,
    )
    with self.assertRaisesRegex(ValueError, complaint):
      on_ray.execute(work)


if __name__ == '__main__':
  absltest.main()
