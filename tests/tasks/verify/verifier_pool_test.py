"""Tests of replay_rl.tasks.verify.verifier_pool and of its worker."""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import time

from absl.testing import parameterized

from replay_rl.tasks.verify import verifier_pool
from tests.tasks.verify import verifier_doubles

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20


def make(
  num_workers=1,
  answer_timeout=0.1,
  memory_limit=512 * MIB,
  verify_fn=verifier_doubles.obey,
):
  return verifier_pool.Workers(
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


class WorkersTest(parameterized.TestCase):
  def pool(self, **settings):
    workers = make(**settings)
    self.addCleanup(workers.close)
    return workers

  @parameterized.parameters(
    ('spin', 'timeout'),
    ('sleep', 'timeout'),
    ('stop', 'timeout'),
    ('exit', 'crashed'),
    ('segfault', 'crashed'),
    ('eat', 'crashed'),
    ('raise', 'crashed'),
    ('unreadable', 'unreadable'),
  )
  def test_a_bad_answer_costs_itself_alone(self, answer, status):
    workers = self.pool(num_workers=2)
    answers = ['1'] * 20 + ['2'] + ['1'] * 20
    answers[3] = answers[30] = answer
    expected = ['correct'] * 20 + ['wrong'] + ['correct'] * 20
    expected[3] = expected[30] = status
    pairs = [(answer, '1') for answer in answers]
    self.assertEqual(workers.run(pairs), expected)
    self.assertEqual(workers.run(pairs[:3]), expected[:3])

  @parameterized.parameters(1, 2, 3)
  def test_verdicts_come_in_order_whatever_the_number_of_workers(self, num):
    workers = self.pool(num_workers=num)
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
    self.assertEqual(workers.run(pairs), expected)

  def test_what_came_before_is_not_held_against_an_answer(self):
    workers = self.pool()
    pairs = [('1', '1'), ('exit if not first', '2'), ('1', '1')] * 2
    self.assertEqual(workers.run(pairs), ['correct', 'wrong', 'correct'] * 2)

  def test_a_worker_that_has_used_half_of_its_memory_is_replaced(self):
    workers = self.pool(answer_timeout=5, memory_limit=512 * MIB)
    # Three in one process would be too many.
    pairs = [('leak', '1'), ('1', '1')] * 3
    self.assertEqual(workers.run([('1', '1')]), ['correct'])
    first = workers.pids()
    self.assertEqual(workers.run(pairs[:2]), ['wrong', 'correct'])
    self.assertNotEqual(workers.pids(), first)
    self.assertEqual(workers.run(pairs), ['wrong', 'correct'] * 3)

  def test_the_memory_of_the_parent_is_not_held_against_a_worker(self):
    held = b'x' * (600 * MIB)
    workers = self.pool(memory_limit=512 * MIB)
    self.assertEqual(workers.run([('1', '1')]), ['correct'])
    del held

  def test_waiting_is_no_computing(self):
    # Longer by the clock than the limit on processor time.
    workers = self.pool(num_workers=1, answer_timeout=0.1)
    self.assertEqual(workers.run([('nap', 'nap')]), ['correct'])

  def test_a_worker_that_dies_between_runs_costs_no_answer(self):
    workers = self.pool()
    pairs = [('1', '1')] * 40
    self.assertEqual(workers.run(pairs), ['correct'] * 40)
    killed = workers.pids()
    for pid in killed:
      os.kill(pid, signal.SIGKILL)
    self.assertEqual(workers.run(pairs), ['correct'] * 40)
    self.assertTrue(set(killed).isdisjoint(workers.pids()))

  def test_no_pairs_are_no_work(self):
    self.assertEqual(self.pool().run([]), [])

  def test_workers_persist_do_not_import_jax_and_hash_alike(self):
    self.assertIn('jax', sys.modules)
    workers = self.pool()
    (pid,) = workers.pids()
    pairs = [('has jax', ''), ('has seed', ''), ('is process', str(pid))]
    self.assertEqual(workers.run(pairs), ['wrong', 'correct', 'correct'])

  @parameterized.parameters(
    dict(verify_fn=verifier_doubles.fail, reason='ValueError: a is not b'),
    dict(verify_fn=verifier_doubles.leave, reason='exit code 7'),
    dict(memory_limit=MIB, reason=''),
    dict(memory_limit=32 * MIB, reason=''),
  )
  def test_a_worker_that_cannot_start_raises(self, reason, **settings):
    workers = self.pool(**settings)
    with self.assertRaisesRegex(RuntimeError, rf'start \(.*{reason}.*memory_l'):
      workers.run([('1', '1')])
    with self.assertRaisesRegex(ValueError, 'The pool is closed'):
      workers.run([('1', '1')])

  @parameterized.parameters(
    dict(num_workers=0),
    dict(answer_timeout=0),
    dict(answer_timeout=float('inf')),
    dict(answer_timeout=float('nan')),
    dict(memory_limit=0),
  )
  def test_a_setting_outside_its_range_raises(self, **settings):
    ((name, value),) = settings.items()
    with self.assertRaisesRegex(ValueError, f'{name} = {value}, must be'):
      make(**settings)


class EndTest(parameterized.TestCase):
  def test_closing_ends_the_processes_and_may_be_repeated(self):
    workers = make(num_workers=2)
    workers.run([('1', '1')])
    pids = workers.pids()
    workers.close()
    workers.close()
    self.assertFalse(any(map(is_running, pids)))

  def test_dropping_a_pool_ends_its_processes(self):
    workers = make()
    pids = workers.pids()
    del workers
    gc.collect()
    self.assertFalse(any(map(is_running, pids)))

  @parameterized.parameters(
    ('kill', 'time.sleep(100)'),
    ('kill', 'workers.run([("sleep", "1")])'),
    ('exit', 'pass'),
    ('exit', 'raise SystemExit(3)'),
  )
  def test_no_process_outlives_its_parent(self, end, code):
    program = (
      'import time\n'
      'from tests.tasks.verify import verifier_pool_test\n'
      'workers = verifier_pool_test.make(answer_timeout=.05)\n'
      'workers.run([("1", "1")])\n'
      'print(*workers.pids(), flush=True)\n'
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
