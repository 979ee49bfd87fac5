"""Tests of how a process joins a run, with one process."""

import os
import threading
from unittest import mock

import jax
from absl.testing import parameterized

from replay_rl.parallel import peers as peers_lib
from replay_rl.parallel import processes
from replay_rl.parallel import relay

_FLAGS = {
  'from_environment': False,
  'coordinator_address': None,
  'num_processes': None,
  'process_id': None,
  'initialization_timeout': 60,
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
    self.meet = self.enter_context(mock.patch.object(peers_lib, 'meet'))
    self.relay = self.enter_context(
      mock.patch.object(relay, 'start', return_value='127.0.0.1:9')
    )

  def test_without_flags_there_is_one_process(self):
    self.assertIsNone(processes.start(**_FLAGS))
    self.initialize.assert_not_called()
    self.meet.assert_not_called()

  def test_explicit_flags_are_passed_on(self):
    order = mock.Mock()
    order.attach_mock(self.meet, 'meet')
    order.attach_mock(self.initialize, 'initialize')
    peers = processes.start(
      **_FLAGS
      | _EXPLICIT
      | {'initialization_timeout': 5, 'heartbeat_timeout': 7}
    )
    self.assertIs(peers, self.meet.return_value)
    # JAX's own timeouts end a process from C++, so they come later.
    self.assertEqual(
      order.mock_calls,
      [
        mock.call.meet(
          '10.0.0.1:1234',
          2,
          1,
          initialization_timeout=5,
          heartbeat_timeout=7,
        ),
        mock.call.initialize(
          '127.0.0.1:9',
          2,
          1,
          initialization_timeout=70,
          heartbeat_timeout_seconds=21,
          shutdown_timeout_seconds=7,
        ),
      ],
    )
    self.relay.assert_called_once_with('10.0.0.1', 1234)
    self.assertIn(
      mock.call('jax_cpu_collectives_implementation', 'gloo'),
      self.updates.mock_calls,
    )

  def test_process_0_needs_no_relay_to_itself(self):
    processes.start(**_FLAGS | _EXPLICIT | {'process_id': 0})
    self.assertEqual(self.initialize.call_args.args, ('10.0.0.1:1234', 2, 0))
    self.relay.assert_not_called()

  def test_what_slurm_says_is_taken_from_the_environment(self):
    environ = {
      'SLURM_JOB_ID': '17',
      'SLURM_STEP_NODELIST': 'gpu[07-08]',
      'SLURM_NTASKS': '16',
      'SLURM_PROCID': '3',
      'SLURM_LOCALID': '3',
    }
    with mock.patch.dict(os.environ, environ):
      processes.start(**_FLAGS | {'from_environment': True})
    self.assertEqual(self.meet.call_args.args, ('gpu07:61457', 16, 3))
    # So JAX finds the device of this process by itself.
    self.assertNotIn('local_device_ids', self.initialize.call_args.kwargs)

  def test_jax_gets_a_time_in_which_to_connect(self):
    leave = self.enter_context(mock.patch.object(peers_lib, 'leave'))
    is_over = threading.Event()
    leave.side_effect = lambda _: is_over.set()
    self.initialize.side_effect = lambda *_, **__: is_over.wait(60)
    processes.start(**_FLAGS | _EXPLICIT | {'initialization_timeout': 1})
    leave.assert_called_once()
    self.assertRegex(
      leave.call_args.args[0],
      r"^error: --coordinator_address = '10.0.0.1:1234': must be where JAX .* "
      r'in 1 s it did not \(is there a proxy .*\)$',
    )

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
      '--heartbeat_timeout = 0: must be at least 1 and at most 1000000 seconds',
    ),
    (
      {'initialization_timeout': 10**6 + 1},
      '--initialization_timeout = 1000001: must be at least 1 and at most',
    ),
  )
  def test_a_wrong_flag_is_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      processes.start(**_FLAGS | _EXPLICIT | changes)
    self.meet.assert_not_called()
    self.initialize.assert_not_called()

  def test_a_lonely_flag_is_not_enough_in_a_known_environment_either(self):
    with self.assertRaisesRegex(ValueError, '--num_processes, --process_id'):
      processes.start(
        **_FLAGS | {'from_environment': True, 'coordinator_address': 'a:1'}
      )

  @parameterized.parameters({}, {'JAX_COORDINATOR_ADDRESS': 'a:1'})
  def test_an_unknown_environment_is_told(self, **environ):
    self.enter_context(mock.patch.dict(os.environ, environ))
    with self.assertRaisesRegex(
      ValueError, '--distributed = True: .* give --coordinator_address, --n'
    ):
      processes.start(**_FLAGS | {'from_environment': True})
    self.meet.assert_not_called()

  def test_an_error_of_jax_names_the_flag(self):
    self.initialize.side_effect = RuntimeError('deadline')
    with self.assertRaisesRegex(
      ValueError, r"--coordinator_address = '10.* the 2 processes.*\(deadline\)"
    ):
      processes.start(**_FLAGS | _EXPLICIT)
