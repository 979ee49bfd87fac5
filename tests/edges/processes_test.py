"""What a user sees where processes do not meet, or one is lost: real ones.

tests/parallel/peers_test.py has the other cases, in threads. The processes of a
test start once, for many checks; see tests/distributed_test.py too.
"""

import os
import pathlib
import signal
import subprocess
from unittest import mock

from absl.testing import absltest

from replay_rl import train
from tests import processes
from tests import tiny

_SECONDS = 300


def _ended(commands):
  """Returns status and stderr of processes that start together."""
  with processes.many_processes.launched(
    commands,
    1,
    cwd=processes.ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  ) as started:
    ended = []
    for process in started:
      _, errors = process.communicate(timeout=_SECONDS)
      ended.append(processes.Ended(process.returncode, errors))
    return ended


class StartTest(absltest.TestCase):
  def test_a_start_that_fails_ends_in_one_line(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    flags = processes.many_processes.process_flags(2)
    alone = processes.many_processes.process_flags(2)[1]
    address, nobody = (one[0].partition('=')[2] for one in (flags[0], alone))
    same_id = (
      'error: --process_id = 0: must be given to one process only; two came '
      f'with it to {address}\n'
    )
    refused = (
      f"error: --coordinator_address = '{nobody}': must be where process 0 "
      'waits for the others; in 5 s it was not there ([Errno 111] Connection '
      'refused)\n'
    )
    ended = _ended(
      [
        '-m',
        'replay_rl.train',
        '--config=configs/quickstart.py',
        f'--workdir={folder / "run"}',
        f'--initialization_timeout={seconds}',
        *own,
      ]
      # The third finds nobody.
      for own, seconds in ((flags[0], 60), (flags[0], 60), (alone, 5))
    )
    self.assertEqual(ended, [(1, same_id), (1, same_id), (1, refused)])
    self.assertEmpty(list(folder.iterdir()))


class WorkdirTest(absltest.TestCase):
  def test_the_home_folder_has_a_short_name(self):
    home = pathlib.Path(self.create_tempdir().full_path)
    with mock.patch.dict(os.environ, HOME=str(home)):
      train.train(
        tiny.config(num_iterations=1, warm_start__num_steps=0), '~/run'
      )
    self.assertTrue((home / 'run' / 'metrics.jsonl').exists())

  def test_a_path_that_leads_nowhere_is_refused(self):
    loop = pathlib.Path(self.create_tempdir().full_path) / 'loop'
    loop.symlink_to(loop)
    for path in ('~no such user/run', str(loop)):
      with self.assertRaisesRegex(
        ValueError,
        f"^workdir = '{path}': must be the path of a folder \\(.+\\)$",
      ):
        train.train(tiny.config(), path)


class RunTest(absltest.TestCase):
  def test_a_folder_by_two_names_then_two_folders_then_a_lost_process(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    (folder / 'link').symlink_to(folder / 'run')
    (folder / 'killed_link').symlink_to(folder / 'killed')
    job = {
      'module': 'tests.tiny',
      'workdir': str(folder / 'run'),
      'changes': {
        'cache_dir': tiny.CACHE,
        'num_iterations': 2,
        'warm_start__num_steps': 0,
        'mesh__shape': {'data': 2, 'fsdp': 1, 'tensor': 1},
      },
    }
    killed, other = processes.run_jobs(
      2,
      job | {'workdir_of_1': f'{folder}/./link/../run'},
      job
      | {
        'workdir_of_1': str(folder / 'elsewhere'),
        'error': r'^processes that differ in workdir = \[1\]: must be none; ',
      },
      job
      | {
        'workdir': str(folder / 'killed'),
        'workdir_of_1': str(folder / 'killed_link'),
        'signal': ['SIGKILL', 0, 0],
      },
    )
    lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
    self.assertLen(lines, 2, (killed, other))
    self.assertFalse((folder / 'elsewhere').exists())
    self.assertEqual(killed.status, -signal.SIGKILL)
    # Process 0 has JAX's service, whose end JAX tells from C++.
    self.assertEqual(other.status, 1)
    self.assertStartsWith(
      other.output.splitlines()[-1],
      'error: lost processes = [0]: must be none of 2; ',
    )
    self.assertNotRegex(other.output, 'Traceback|Check failure|(?m:^[EF]\\d+ )')
