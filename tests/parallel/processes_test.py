"""Tests of how processes agree, and end, with one process."""

import ast
import io
import pathlib
import zlib
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl.testing import absltest
from absl.testing import parameterized
from jax.experimental import multihost_utils

from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import peers as peers_lib
from replay_rl.parallel import processes

PACKAGE = pathlib.Path(processes.__file__).parents[1]


class AloneTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    for name in ('process_allgather', 'broadcast_one_to_all'):
      self.enter_context(
        mock.patch.object(multihost_utils, name, side_effect=AssertionError)
      )

  def test_one_process_agrees_with_itself_and_asks_nobody(self):
    self.assertTrue(processes.is_main())
    self.assertTrue(processes.any_process(True))
    self.assertFalse(processes.any_process(False))
    array = np.arange(3, dtype=np.int32)
    self.assertIs(processes.total(array), array)
    self.assertIs(processes.from_main(array), array)
    processes.check_equal('this', 1, 'advice')
    processes.check_mesh(mesh_lib.make({'data': 1, 'fsdp': 1, 'tensor': 1}))

  def test_a_program_is_left_as_it_is(self):
    program = jax.jit(lambda x: x)
    self.assertIs(processes.aligned(program), program)

  def test_an_error_of_its_own_is_raised_as_it_is(self):
    for error in (OSError('disk'), ValueError('field')):
      with self.assertRaises(type(error)) as raised:
        with processes.ending_all(None), processes.together('this'):
          raise error
      self.assertIs(raised.exception, error)


class OthersTest(parameterized.TestCase):
  """With a second process that is played."""

  def _others(self, value):
    self.enter_context(mock.patch.object(jax, 'process_count', return_value=2))
    self.enter_context(
      mock.patch.object(
        multihost_utils,
        'process_allgather',
        side_effect=lambda own: np.stack([own, value(own)]),
      )
    )

  def setUp(self):
    super().setUp()
    self.barrier = self.enter_context(
      mock.patch.object(ocp.multihost, 'sync_global_processes')
    )

  def test_a_program_waits_for_the_others_once_it_is_compiled(self):
    self._others(np.copy)
    program = mock.Mock(side_effect=lambda *args: sum(args))
    order = mock.Mock()
    order.attach_mock(program, 'program')
    order.attach_mock(self.barrier, 'barrier')
    aligned = processes.aligned(program)
    self.assertEqual([aligned(1, 2), aligned(3, 4)], [3, 7])
    self.assertEqual(
      [name for name, *_ in order.mock_calls],
      [
        'program.lower',
        'program.lower().compile',
        'barrier',
        'program',
        'program',
      ],
    )

  def test_the_main_process_is_the_first(self):
    self.enter_context(
      mock.patch.object(jax.distributed, 'is_initialized', return_value=True)
    )
    for index, expected in ((0, True), (1, False)):
      with mock.patch.object(jax, 'process_index', return_value=index):
        self.assertEqual(processes.is_main(), expected)

  def test_a_failure_here_is_told_to_the_others(self):
    told = []
    self._others(lambda own: told.append(own) or np.copy(own))
    with self.assertRaisesRegex(OSError, 'disk'):
      with processes.together('this'):
        raise OSError('disk')
    ((flag, _),) = told
    self.assertEqual(flag, 1)

  def test_what_any_process_says_counts(self):
    self._others(np.ones_like)
    self.assertTrue(processes.any_process(False))

  def test_sums_are_over_processes(self):
    self._others(lambda own: 10 * own)
    actual = processes.total(np.array([1, -2], np.int32))
    self.assertEqual(actual.tolist(), [11, -22])
    self.assertEqual(actual.dtype, np.int32)

  def test_a_failure_elsewhere_is_raised_here(self):
    self._others(lambda own: np.array([1, own[1]]))
    with self.assertRaisesRegex(
      processes.OtherProcessError, 'this: failed in another process'
    ):
      with processes.together('this'):
        pass

  def test_none_goes_on_before_all_are_done(self):
    order = []
    self._others(lambda own: order.append('asked') or np.copy(own))
    self.barrier.side_effect = lambda *_, **__: order.append('met')
    with processes.together('this'):
      order.append('done')
    self.assertEqual(order, ['done', 'met', 'asked'])

  def test_processes_at_different_steps_do_not_wait_for_each_other(self):
    names = set()
    self.barrier.side_effect = lambda name, **_: names.add(name)
    step_of_other = np.array([0, zlib.crc32(b'one')], np.uint32)
    self._others(lambda _: step_of_other)
    processes.barrier('one')
    with self.assertRaisesRegex(
      ValueError, r"^processes at another step than 'two' = \[1\]: must be none"
    ):
      processes.barrier('two')
    self.assertLen(names, 1)  # Another name would be another barrier.

  def test_a_failure_is_told_also_at_a_wrong_step(self):
    self._others(lambda own: own + np.array([0, 1], np.uint32))
    with self.assertRaisesRegex(OSError, 'disk'):
      with processes.together('this'):
        raise OSError('disk')

  def test_other_values_are_an_error_that_names_the_processes(self):
    self._others(lambda own: own ^ 1)
    with self.assertRaisesRegex(
      ValueError,
      r'^processes that differ in this = \[1\]: must be none; advice$',
    ):
      processes.check_equal('this', {'a': 1}, 'advice')

  def test_equal_values_are_none(self):
    self._others(np.copy)
    processes.check_equal('this', {'a': 1}, 'advice')

  def test_a_process_without_devices_of_the_mesh_is_named(self):
    self._others(np.copy)
    with self.assertRaisesRegex(
      ValueError, r"mesh.shape = \{'data': 2, .* none of the processes \[1\]"
    ):
      processes.check_mesh(mesh_lib.make({'data': 2, 'fsdp': 1, 'tensor': 1}))


class EndingTest(parameterized.TestCase):
  """With other processes that are played."""

  def setUp(self):
    super().setUp()
    self.peers = mock.create_autospec(peers_lib.Peers, instance=True)
    self.leave = self.enter_context(
      mock.patch.object(processes.os, '_exit', side_effect=SystemExit('left'))
    )
    self.told = self.enter_context(mock.patch('sys.stderr', io.StringIO()))

  def _end(self, error):
    with self.assertRaisesRegex(SystemExit, 'left'):
      with processes.ending_all(self.peers):
        raise error

  @parameterized.parameters(
    (
      RuntimeError('no reason'),
      r'^Traceback[^$]*RuntimeError: no reason\n$',
      1,
    ),
    (ValueError('a field'), '^error: a field\n$', 1),
    (KeyboardInterrupt(), '^error: interrupted\n$', 130),
    (
      jax.errors.JaxRuntimeError('Gloo all-reduce failed: x.cc:1\nmore'),
      r'^error: silent processes = .* \(Gloo all-reduce failed: x.cc:1\)\n$',
      1,
    ),
    (
      # This is how some calls of JAX raise it.
      ValueError('UNKNOWN: Gloo AllGather failed: x.cc:1'),
      r'^error: silent processes = .* \(UNKNOWN: Gloo AllGather .*\)\n$',
      1,
    ),
  )
  def test_an_error_is_told_and_ends_the_process_at_once(
    self, error, message, status
  ):
    self._end(error)
    self.leave.assert_called_once_with(status)
    self.assertRegex(self.told.getvalue(), message)
    self.assertEqual(
      [name for name, *_ in self.peers.mock_calls], ['take_last_word', 'fail']
    )

  def test_what_is_known_of_another_process_says_more_than_a_collective(self):
    for error, is_of_collective in (
      (ValueError('a field'), False),
      (ValueError('Gloo AllGather failed'), True),
      (ValueError('name = Gloo'), False),
      (jax.errors.JaxRuntimeError('barrier'), True),
    ):
      self.peers.reset_mock()
      self._end(error)
      (seconds,) = self.peers.take_last_word.call_args.args
      self.assertEqual(seconds > 0, is_of_collective, error)

  def test_an_orderly_end_waits_for_the_others(self):
    with processes.ending_all(self.peers):
      self.peers.finish.assert_not_called()
    self.peers.finish.assert_called_once_with()
    with self.assertRaisesRegex(SystemExit, '143'):
      with processes.ending_all(self.peers):
        raise SystemExit(143)
    self.assertEqual(self.peers.finish.call_count, 2)
    self.leave.assert_not_called()


class StepsTest(absltest.TestCase):
  def test_a_step_has_a_name_that_cannot_differ_between_hosts(self):
    steps = 0
    for path in PACKAGE.rglob('*.py'):
      for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
          continue
        if ast.unparse(node.func) in ('processes.together', 'barrier'):
          self.assertIsInstance(node.args[0], ast.Constant, path)
          steps += 1
    self.assertGreater(steps, 6)
