"""Tests of replay_rl.tasks.verify.pool and of its worker."""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import time

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
):
  return pool_lib.Pool(
    verify_fn=verify_fn,
    warm_up=('a', 'b'),
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


def wait_until_gone(pids):
  deadline = time.monotonic() + 10
  while any(is_running(pid) for pid in pids):
    assert time.monotonic() < deadline, 'still running'
    time.sleep(0.01)


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

  @parameterized.parameters(
    ('kill', 'time.sleep(100)'),
    ('kill', 'pool.run([("sleep", "1")])'),
    ('exit', 'pass'),
    ('exit', 'raise SystemExit(3)'),
  )
  def test_no_process_outlives_its_parent(self, end, code):
    program = (
      'import time\n'
      'from tests.tasks.verify import pool_test\n'
      'pool = pool_test.make(answer_timeout=.05)\n'
      'pool.run([("1", "1")])\n'
      'print(*pool.pids(), flush=True)\n'
      f'{code}\n'
    )
    with subprocess.Popen(
      [sys.executable, '-c', program],
      cwd=ROOT,
      env=os.environ | {'PYTHONPATH': str(ROOT)},
      stdout=subprocess.PIPE,
      text=True,
    ) as parent:
      assert parent.stdout is not None
      pids = [int(pid) for pid in parent.stdout.readline().split()]
      self.assertLen(pids, 1)
      if end == 'kill':
        parent.kill()
    wait_until_gone(pids)
