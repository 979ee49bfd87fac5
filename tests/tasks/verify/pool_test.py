"""Tests of replay_rl.tasks.verify.pool and of its worker."""

import fcntl
import gc
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from absl.testing import parameterized

from replay_rl.tasks.verify import pool as pool_lib
from tests.tasks.verify import misbehaviour

ROOT = pathlib.Path(__file__).resolve().parents[3]
MIB = 1 << 20


def make(
  num_workers=1,
  answer_timeout=0.1,
  memory_limit=512 * MIB,
  verify_fn=misbehaviour.obey,
  warm_up=('a', 'b'),
):
  return pool_lib.Pool(
    verify_fn=verify_fn,
    warm_up=warm_up,
    num_workers=num_workers,
    answer_timeout=answer_timeout,
    memory_limit=memory_limit,
  )


def is_running(pid):
  try:
    status = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except FileNotFoundError:
    return False
  return status.rpartition(')')[2].split()[0] != 'Z'


def wait_until(is_done, seconds=60):
  deadline = time.monotonic() + seconds
  while not is_done():
    assert time.monotonic() < deadline, 'still waiting'
    time.sleep(0.01)


def wait_until_gone(pids):
  # It takes no second, and would take longer than any limit here.
  wait_until(lambda: not any(map(is_running, pids)), 10)


def start_parent(code):
  """Starts a program that has a pool; returns it and the pool's processes."""
  program = (
    'import time\n'
    'from tests.tasks.verify import pool_test\n'
    'pool = pool_test.make(num_workers=2, answer_timeout=60)\n'
    'pool.run([("1", "1")] * 2)\n'
    'print(*pool.pids(), flush=True)\n'
    f'{code}\n'
  )
  parent = subprocess.Popen(
    [sys.executable, '-c', program],
    cwd=ROOT,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    text=True,
  )
  return parent, [int(pid) for pid in parent.stdout.readline().split()]


class PoolTest(parameterized.TestCase):
  def pool(self, **settings):
    pool = make(**settings)
    self.addCleanup(pool.close)
    return pool

  def test_a_bad_answer_costs_itself_alone(self):
    pool = self.pool(num_workers=2)
    for answer, status in [
      ('spin', 'timeout'),
      ('sleep', 'timeout'),
      ('stop', 'timeout'),
      ('exit', 'crashed'),
      ('segfault', 'crashed'),
      ('eat', 'crashed'),
      ('raise', 'crashed'),
      ('unreadable', 'unreadable'),
    ]:
      answers = ['1'] * 20 + ['2'] + ['1'] * 20
      answers[3] = answers[30] = answer
      expected = ['correct'] * 20 + ['wrong'] + ['correct'] * 20
      expected[3] = expected[30] = status
      pairs = [(answer, '1') for answer in answers]
      self.assertEqual(pool.run(pairs), expected, answer)
      self.assertEqual(pool.run(pairs[:3]), expected[:3], answer)

  @parameterized.parameters(1, 3)
  def test_verdicts_come_in_order_whatever_the_number_of_workers(self, num):
    pool = self.pool(num_workers=num)
    answers = [str(n % 7) for n in range(300)]
    answers[100:110] = ['exit', '1', 'raise', 'spin', '3'] * 2
    expected = ['correct' if answer == '3' else 'wrong' for answer in answers]
    expected[100:110] = [
      'crashed',
      'wrong',
      'crashed',
      'timeout',
      'correct',
    ] * 2
    pairs = [(answer, '3') for answer in answers]
    self.assertEqual(pool.run(pairs), expected)

  def test_what_came_before_is_not_held_against_an_answer(self):
    pool = self.pool()
    pairs = [('1', '1'), ('exit if not first', '2'), ('1', '1')] * 2
    self.assertEqual(pool.run(pairs), ['correct', 'wrong', 'correct'] * 2)

  def test_a_worker_that_has_used_half_of_its_memory_is_replaced(self):
    pool = self.pool(answer_timeout=5, memory_limit=512 * MIB)
    # Three in one process would be too many.
    pairs = [('leak', '1'), ('1', '1')] * 3
    self.assertEqual(pool.run([('1', '1')]), ['correct'])
    first = pool.pids()
    self.assertEqual(pool.run(pairs[:2]), ['wrong', 'correct'])
    self.assertNotEqual(pool.pids(), first)
    self.assertEqual(pool.run(pairs), ['wrong', 'correct'] * 3)

  @parameterized.parameters('SIGINT', 'SIGHUP', 'SIGTERM')
  def test_a_signal_to_all_processes_changes_no_verdict(self, name):
    pool = self.pool(num_workers=2)
    # A process that starts may be killed, while another one does all the work.
    while not all(worker.is_ready for worker in pool._workers):
      pool.run([('1', '1')] * 4)
    before = pool.pids()
    for pid in before:
      os.kill(pid, getattr(signal, name))
    self.assertEqual(pool.run([('1', '1')] * 4), ['correct'] * 4)
    self.assertEqual(pool.pids(), before)

  def test_the_memory_of_the_parent_is_not_held_against_a_worker(self):
    held = b'x' * (600 * MIB)
    pool = self.pool(memory_limit=512 * MIB)
    self.assertEqual(pool.run([('1', '1')]), ['correct'])
    del held

  def test_waiting_is_no_computing(self):
    # Longer by the clock than the limit on processor time.
    pool = self.pool(num_workers=1, answer_timeout=0.1)
    self.assertEqual(pool.run([('nap', 'nap')]), ['correct'])

  def test_a_worker_that_dies_between_runs_costs_no_answer(self):
    pool = self.pool()
    pairs = [('1', '1')] * 40
    self.assertEqual(pool.run(pairs), ['correct'] * 40)
    killed = pool.pids()
    for pid in killed:
      os.kill(pid, signal.SIGKILL)
    self.assertEqual(pool.run(pairs), ['correct'] * 40)
    self.assertTrue(set(killed).isdisjoint(pool.pids()))

  def test_no_pairs_are_no_work(self):
    self.assertEqual(self.pool().run([]), [])

  def test_workers_persist_do_not_import_jax_and_hash_alike(self):
    self.assertIn('jax', sys.modules)
    pool = self.pool()
    (pid,) = pool.pids()
    pairs = [('has jax', ''), ('has seed', ''), ('is process', str(pid))]
    self.assertEqual(pool.run(pairs), ['wrong', 'correct', 'correct'])

  @parameterized.parameters(
    dict(verify_fn=misbehaviour.fail, reason='ValueError: a is not b'),
    dict(verify_fn=misbehaviour.leave, reason='exit code 7'),
    dict(memory_limit=MIB, reason=''),
    dict(memory_limit=32 * MIB, reason=''),
  )
  def test_a_worker_that_cannot_start_raises(self, reason, **settings):
    pool = self.pool(**settings)
    with self.assertRaisesRegex(
      RuntimeError, f'{reason}.*: must start; memory_l'
    ):
      pool.run([('1', '1')])
    with self.assertRaisesRegex(ValueError, 'pool = closed: must'):
      pool.run([('1', '1')])

  @parameterized.parameters(
    dict(num_workers=0),
    dict(answer_timeout=0),
    dict(answer_timeout=float('inf')),
    dict(answer_timeout=float('nan')),
    dict(memory_limit=0),
  )
  def test_a_setting_outside_its_range_raises(self, **settings):
    ((name, value),) = settings.items()
    with self.assertRaisesRegex(ValueError, f'{name} = {value}: must be in'):
      make(**settings)


class EndTest(parameterized.TestCase):
  def test_closing_ends_the_processes_and_may_be_repeated(self):
    pool = make(num_workers=2)
    pool.run([('1', '1')])
    pids = pool.pids()
    pool.close()
    pool.close()
    self.assertFalse(any(map(is_running, pids)))

  def test_dropping_a_pool_ends_its_processes(self):
    pool = make()
    pids = pool.pids()
    del pool
    gc.collect()
    self.assertFalse(any(map(is_running, pids)))

  @parameterized.parameters('pass', 'raise SystemExit(3)')
  def test_no_process_outlives_a_parent_that_exits(self, code):
    parent, pids = start_parent(code)
    self.assertLen(pids, 2)
    with parent:
      wait_until_gone(pids)

  @parameterized.parameters('in C', 'asleep')
  def test_no_busy_process_outlives_a_parent_that_is_killed(self, how):
    if how == 'in C' and not hasattr(fcntl, 'F_SETSIG'):
      pytest.skip('Linux only: the kernel sends a signal')
    # The limits would stop them after a minute and after ten.
    folder = pathlib.Path(self.create_tempdir().full_path)
    files = [folder / 'one', folder / 'other']
    pairs = [(f'busy {how}', str(file)) for file in files]
    parent, pids = start_parent(f'pool.run({pairs})')
    self.assertLen(pids, 2)
    with parent:
      wait_until(lambda: all(file.exists() for file in files))
      self.assertTrue(all(map(is_running, pids)))
      parent.kill()
      wait_until_gone(pids)

  def test_a_process_that_starts_does_not_outlive_its_parent(self):
    parent, _ = start_parent(
      'pool = pool_test.make(verify_fn=pool_test.misbehaviour.obey,'
      ' warm_up=("sleep", ""))\n'
      'print(*pool.pids(), flush=True)\n'
      'time.sleep(100)'
    )
    with parent:
      pids = [int(pid) for pid in parent.stdout.readline().split()]
      self.assertLen(pids, 1)
      parent.kill()
      wait_until_gone(pids)


class KilledStartTest(parameterized.TestCase):
  def pool(self, num_killed):
    folder = self.create_tempdir().full_path
    pool = make(
      verify_fn=misbehaviour.die_at_starts,
      warm_up=(str(num_killed), folder),
    )
    self.addCleanup(pool.close)
    return pool

  @parameterized.parameters(1, 3)
  def test_another_one_is_started_and_counted(self, num_killed):
    pool = self.pool(num_killed)
    with self.assertWarnsRegex(UserWarning, r'exit code -9; 1 so far\); anot'):
      self.assertEqual(pool.run([('1', '1'), ('1', '2')]), ['correct', 'wrong'])
    self.assertEqual(pool.num_killed_starts, num_killed)

  def test_a_killed_worker_may_be_killed_again_while_it_restarts(self):
    pool = self.pool(0)
    self.assertEqual(pool.run([('1', '1')]), ['correct'])
    # As for a worker that the kernel kills for the memory of others.
    (pid,) = pool.pids()
    os.kill(pid, signal.SIGKILL)
    pool._settings = pool._settings._replace(
      warm_up=('2', self.create_tempdir().full_path)
    )
    with self.assertWarnsRegex(UserWarning, '1 so far'):
      self.assertEqual(pool.run([('1', '1')] * 20), ['correct'] * 20)
    self.assertEqual(pool.num_killed_starts, 2)

  def test_too_many_within_a_minute_raise(self):
    pool = self.pool(100)
    with self.assertWarns(UserWarning):
      with self.assertRaisesRegex(
        RuntimeError, "worker = 'exit code -9': must start; too many"
      ):
        pool.run([('1', '1')])
    self.assertEqual(pool.num_killed_starts, 4)
