"""Tests of how processes find each other and agree, with one process."""

import io
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl.testing import parameterized
from jax.experimental import multihost_utils

from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes

_FLAGS = {
  'from_environment': False,
  'coordinator_address': None,
  'num_processes': None,
  'process_id': None,
  'heartbeat_timeout': 100,
}
_EXPLICIT = {
  'coordinator_address': '10.0.0.1:1234',
  'num_processes': 2,
  'process_id': 1,
}


class StartTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.initialize = self.enter_context(
      mock.patch.object(jax.distributed, 'initialize')
    )
    self.updates = self.enter_context(mock.patch.object(jax.config, 'update'))

  def test_without_flags_there_is_one_process(self):
    processes.start(**_FLAGS)
    self.initialize.assert_not_called()

  def test_explicit_flags_are_passed_on(self):
    processes.start(**_FLAGS | _EXPLICIT | {'heartbeat_timeout': 7})
    self.initialize.assert_called_once_with(
      '10.0.0.1:1234',
      2,
      1,
      heartbeat_timeout_seconds=7,
      shutdown_timeout_seconds=7,
    )
    self.assertIn(
      mock.call('jax_cpu_collectives_implementation', 'gloo'),
      self.updates.mock_calls,
    )

  def test_from_the_environment_jax_finds_all(self):
    processes.start(**_FLAGS | {'from_environment': True})
    self.assertEqual(self.initialize.call_args.args, (None, None, None))

  @parameterized.parameters(
    (
      {'process_id': None},
      '--process_id = None: must be given with the others of --coordinator_a',
    ),
    (
      {'coordinator_address': None, 'num_processes': None},
      '--coordinator_address, --num_processes = None: must be given',
    ),
    (
      {'coordinator_address': 'here'},
      "--coordinator_address = 'here': must be HOST:PORT",
    ),
    ({'coordinator_address': ':12'}, "= ':12': must be HOST:PORT"),
    ({'coordinator_address': 'a:b'}, "= 'a:b': must be HOST:PORT"),
    ({'coordinator_address': 'a:0'}, "= 'a:0': must be HOST:PORT"),
    ({'coordinator_address': 'a:65536'}, "= 'a:65536': must be HOST:PORT"),
    ({'num_processes': 0}, '--num_processes = 0: must be at least 1'),
    (
      {'process_id': 2},
      '--process_id = 2: must be at least 0 and less than --num_processes = 2',
    ),
    ({'process_id': -1}, '--process_id = -1: must be at least 0'),
    (
      {'heartbeat_timeout': 0},
      '--heartbeat_timeout = 0: must be at least 1 second',
    ),
  )
  def test_a_wrong_flag_is_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      processes.start(**_FLAGS | _EXPLICIT | changes)
    self.initialize.assert_not_called()

  def test_a_lonely_flag_is_not_enough_in_a_known_environment_either(self):
    with self.assertRaisesRegex(ValueError, '--num_processes, --process_id'):
      processes.start(
        **_FLAGS | {'from_environment': True, 'coordinator_address': 'a:1'}
      )

  def test_an_unknown_environment_is_told(self):
    self.initialize.side_effect = ValueError('coordinator_address')
    with self.assertRaisesRegex(
      ValueError, '--distributed = True: .* give --coordinator_address, --n'
    ):
      processes.start(**_FLAGS | {'from_environment': True})

  def test_processes_that_do_not_find_each_other_are_told(self):
    self.initialize.side_effect = RuntimeError('deadline')
    with self.assertRaisesRegex(
      ValueError, r"--coordinator_address = '10.* the 2 processes .*deadline"
    ):
      processes.start(**_FLAGS | _EXPLICIT)


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
        with processes.ending_all(), processes.together('this'):
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
    self.assertEqual(told, [1])

  def test_what_any_process_says_counts(self):
    self._others(np.ones_like)
    self.assertTrue(processes.any_process(False))

  def test_sums_are_over_processes(self):
    self._others(lambda own: 10 * own)
    actual = processes.total(np.array([1, -2], np.int32))
    self.assertEqual(actual.tolist(), [11, -22])
    self.assertEqual(actual.dtype, np.int32)

  def test_a_failure_elsewhere_is_raised_here(self):
    self._others(np.ones_like)
    with self.assertRaisesRegex(
      processes.OtherProcessError, 'this: failed in another process'
    ):
      with processes.together('this'):
        pass

  def test_none_goes_on_before_all_are_done(self):
    order = []
    self._others(lambda own: order.append('asked') or np.zeros_like(own))
    with processes.together('this'):
      order.append('done')
    self.assertEqual(order, ['done', 'asked'])

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

  @parameterized.parameters(
    (RuntimeError('no reason'), 'RuntimeError: no reason\n'),
    (ValueError('a field'), '^error: a field\n$'),
  )
  def test_an_error_is_told_and_ends_the_process_at_once(self, error, message):
    self._others(np.copy)
    leave = self.enter_context(
      mock.patch.object(processes.os, '_exit', side_effect=SystemExit('left'))
    )
    sleep = self.enter_context(mock.patch.object(processes.time, 'sleep'))
    told = self.enter_context(mock.patch('sys.stderr', io.StringIO()))
    with self.assertRaisesRegex(SystemExit, 'left'):
      with processes.ending_all():
        raise error
    leave.assert_called_once_with(1)
    sleep.assert_called_once_with(1)
    self.assertRegex(told.getvalue(), message)
