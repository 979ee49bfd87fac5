"""Tests of settings at the edges of what is allowed, and beyond them."""

import math
import pathlib
from unittest import mock

import hypothesis
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import constants
from replay_rl import train
from replay_rl.parallel import host_memory
from replay_rl.run import entry
from replay_rl.run import functions
from tests import tiny
from tests import tiny_text
from tests import train_test
from tests.edges import random_configs

_DATA = pathlib.Path(tiny.FOLDER) / 'data'
# The same examples each time, whatever the speed of the machine.
_ALWAYS_THE_SAME = {
  'derandomize': True,
  'deadline': None,
  'database': None,
  'phases': [hypothesis.Phase.generate],
  'suppress_health_check': list(hypothesis.HealthCheck),
}


class RandomConfigsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    tiny_text.settings(_DATA)  # Writes the data, which a strategy must not.

  def _is_refused_or_passes(self, drawn):
    config, changes = drawn
    why, parts = random_configs.check(config)
    if parts is None:
      self.assertRegex(why, f'^{random_configs.REFUSAL.pattern}$', changes)

  @hypothesis.settings(max_examples=250, **_ALWAYS_THE_SAME)
  @hypothesis.given(random_configs.configs(tiny.config))
  def test_a_config_is_refused_in_one_line_or_passes(self, drawn):
    self._is_refused_or_passes(drawn)

  @hypothesis.settings(max_examples=50, **_ALWAYS_THE_SAME)
  @hypothesis.given(random_configs.configs(lambda: tiny_text.config(_DATA)))
  def test_a_config_of_a_text_run_too(self, drawn):
    self._is_refused_or_passes(drawn)

  def test_every_number_of_a_choice_has_a_range(self):
    of_config = {keyword for _, keyword in functions.OFFERED.values()}
    for _, kind in functions.KINDS.values():
      for name, function in kind.functions.items():
        for key, constant in constants.of_function(function).items():
          if {int, float} & {*constant.types} and key not in of_config:
            self.assertIsNotNone(constant.interval, f'{name}.{key}')


class AllowedTest(parameterized.TestCase):
  @parameterized.parameters(
    # Numbers that set no shape: all of these have one compiled program.
    {'optimizer__learning_rate': 100},
    {'optimizer__learning_rate': 0},
    {'optimizer__max_grad_norm': 1e-6},
    {'optimizer__max_grad_norm': math.inf},
    {'sampler__temperature': 0.001},
    {'sampler__temperature': 1000},
    {'seed': constants.MAX_UINT32},
    {
      'optimizer__learning_rate': 100,
      'optimizer__transform': (
        'adamw(b1=0.0, b2=0.0, eps=1e-20, weight_decay=0.01)'
      ),
    },
  )
  def test_the_ends_of_the_ranges_train(self, **changes):
    config = tiny.config(num_iterations=1, **changes)
    result = random_configs.first_cycle(config)
    self.assertEqual(result['applied'], 2)
    self.assertTrue(result['is_finite'])


class MemoryTest(train_test.TrainTestCase):
  def test_a_run_that_cannot_fit_ends_before_it_leaves_a_trace(self):
    workdir = self.workdir()
    with self.assertRaises(SystemExit) as raised:
      train_test.run_main(
        f'--config={train_test.ROOT}/configs/quickstart.py',
        f'--workdir={workdir}',
        '--config.model.d_model=1000000000',
      )
    self.assertRegex(
      raised.exception.code,
      r'^error: memory = \d+\.\d\d GB: must be at most \d+\.\d\d GB, the free '
      r"memory of this machine; the largest term is '[^']+' with \d+\.\d\d GB; "
      r'what helps: .*; --allow_memory starts the run all the same$',
    )
    self.assertFalse(workdir.exists())

  def test_the_flag_lets_it_start_with_a_warning(self):
    with mock.patch.object(train, 'train') as called:
      for flag, expected in (((), False), (('--allow_memory',), True)):
        train_test.run_main(
          f'--config={train_test.ROOT}/configs/quickstart.py',
          '--workdir=unused',
          *flag,
        )
        self.assertEqual(called.call_args.kwargs['allow_memory'], expected)
    with (
      mock.patch.object(host_memory, 'available', return_value=1),
      mock.patch.object(entry, 'enter', side_effect=InterruptedError),
      self.assertWarnsRegex(UserWarning, '^memory = 0.00 GB: must be at most'),
      self.assertRaises(InterruptedError),
    ):
      train.train(tiny.config(), 'unused', allow_memory=True)
