"""Tests of the experiments: their arms, and how they find each other."""

import dataclasses
import importlib
import pathlib
import subprocess
import sys
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
from ml_collections import config_flags

from replay_rl.configs import arms
from replay_rl.configs import base_small
from replay_rl.configs import methods
from replay_rl.configs import quickstart
from replay_rl.run import config as config_lib
from replay_rl.run import rules

ROOT = pathlib.Path(__file__).parents[1]
_REUSE = ('on_policy', 'reuse_2', 'reuse_4')
ARMS = {
  'countdown': (*_REUSE, 'prioritized', 'per'),
  'gsm8k_qwen3_0_6b': _REUSE,
  'math_llama3_2_3b': _REUSE,
  'math_qwen2_5_7b': _REUSE,
  'math_qwen3_4b_prioritized': ('on_policy', 'prioritized'),
  'methods': tuple(methods.ARMS),
  'modular_arithmetic': (*_REUSE, 'prioritized'),
  'quickstart': (*_REUSE, 'prioritized', 'per'),
}
WITHOUT_ARMS = ('gsm8k_tiny',)


def experiment(name):
  return importlib.import_module(f'replay_rl.configs.{name}')


def _changed(first, second) -> set[str]:
  """Returns the fields in which two configs differ."""
  one, other = config_lib.flatten(first), config_lib.flatten(second)
  return {name for name in one if one[name] != other[name]}


class ExperimentsTest(parameterized.TestCase):
  def test_every_file_with_a_config_is_tested_here(self):
    files = {
      path.stem
      for path in (ROOT / 'configs').glob('[a-z]*.py')
      if hasattr(experiment(path.stem), 'get_config')
    }
    self.assertEqual(files, {*ARMS, *WITHOUT_ARMS})

  @parameterized.parameters(*ARMS, *WITHOUT_ARMS)
  def test_each_file_is_a_document(self, name):
    document = experiment(name).__doc__
    # Those of methods are in a page, see tests/configs/methods_test.py.
    arms_of_it = ARMS.get(name, ()) if name != 'methods' else ()
    for part in ('Question:', 'Command:', 'Cost', 'esult', *arms_of_it):
      self.assertIn(part, document)

  @parameterized.parameters(
    *((name, arm) for name, names in ARMS.items() for arm in names)
  )
  def test_every_arm_is_valid_and_named(self, name, arm):
    config = experiment(name).get_config(arm)
    rules.validate(config)
    family = name if name in ('countdown', 'modular_arithmetic') else ''
    expected = f'{family} {arm}'.strip().replace('_', ' ')
    self.assertEqual(config.name, expected)
    if config.text is not None:
      prompt = config.text.template.format(problem='What is 1 + 1?')
      self.assertIn('What is 1 + 1?\n', prompt)
      self.assertIn('\\boxed{}', prompt)

  @parameterized.parameters(*((name,) for name in WITHOUT_ARMS))
  def test_a_config_without_arms_is_valid(self, name):
    rules.validate(experiment(name).get_config())

  @parameterized.parameters(*ARMS)
  def test_an_unknown_arm_is_answered_with_those_there_are(self, name):
    with self.assertRaisesWithLiteralMatch(
      ValueError, f"arm = 'reuse_3': must be one of {', '.join(ARMS[name])}"
    ):
      experiment(name).get_config('reuse_3')

  @parameterized.parameters(
    'gsm8k_qwen3_0_6b', 'math_llama3_2_3b', 'math_qwen2_5_7b'
  )
  def test_all_arms_of_a_published_model_make_as_many_updates(self, name):
    for arm in ARMS[name]:
      config = experiment(name).get_config(arm)
      updates = config.num_iterations * config.replay.updates_per_iteration
      self.assertEqual(updates, 2000)

  def test_arms_of_the_quickstart_have_a_batch_and_a_rate_of_their_own(self):
    first, second = (
      quickstart.get_config(arm) for arm in ('on_policy', 'reuse_2')
    )
    differing = _changed(first, second)
    self.assertContainsSubset(
      {'optimizer.learning_rate', 'replay.batch_size'}, differing
    )
    # What judges them is the same.
    self.assertEmpty(
      {x for x in differing if x.startswith(('evaluation', 'stop', 'mu'))}
    )

  @parameterized.parameters(*ARMS['countdown'])
  def test_arms_of_countdown_have_one_batch_and_one_rate(self, arm):
    config = experiment('countdown').get_config(arm)
    self.assertEqual(config.sampler.num_prompts, 62)
    self.assertEqual(config.optimizer.learning_rate, 5e-4)

  def test_a_change_of_one_config_leaves_the_next_as_it_is(self):
    first = quickstart.get_config('reuse_4')
    before = dataclasses.asdict(first)
    first.mesh.shape['data'] = 8
    first.replay.capacity = 1
    second = quickstart.get_config('reuse_4')
    self.assertEqual(dataclasses.asdict(second), before)


class ArmsTest(absltest.TestCase):
  def _base(self):
    return base_small.on_policy('task()', num_iterations=7, learning_rate=0.5)

  def test_reuse_draws_from_the_last_four_iterations(self):
    config = arms.chosen(self._base(), 'x', {'x': arms.reuse(3, 496)})
    self.assertEqual(config.replay.capacity, 1984)
    self.assertEqual(config.replay.updates_per_iteration, 3)
    self.assertStartsWith(config.replay.compose, 'pure_buffer(')
    changed = _changed(config, self._base())
    self.assertEqual({path for path in changed if '.' not in path}, {'name'})
    self.assertTrue(
      all(path.startswith('replay.') for path in changed - {'name'})
    )

  def test_a_change_of_no_field_is_refused(self):
    with self.assertRaisesWithLiteralMatch(
      ValueError, 'replay.capcity = 3: must be a field of the config'
    ):
      arms.chosen(self._base(), 'x', {'x': {'replay.capcity': 3}})


class CommandLineTest(parameterized.TestCase):
  @parameterized.parameters('quickstart', 'countdown')
  def test_a_file_is_loaded_by_its_path_from_any_folder(self, name):
    # As from an installed package: the current folder is not the checkout.
    script = (
      'import sys\n'
      'from absl import flags\n'
      'from ml_collections import config_flags\n'
      "config = config_flags.DEFINE_config_file('config')\n"
      'flags.FLAGS(sys.argv)\n'
      'print(config.value.replay.capacity)\n'
    )
    ended = subprocess.run(
      [
        sys.executable,
        '-c',
        script,
        f'--config={ROOT}/configs/{name}.py:reuse_4',
        '--config.replay.capacity=4000',
      ],
      cwd=self.create_tempdir().full_path,
      env={'PYTHONPATH': str(ROOT), 'PYTHONWARNINGS': 'ignore'},
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(ended.stdout, '4000\n', ended.stderr)

  def test_an_unknown_arm_is_named_on_the_command_line(self):
    path = f'{ROOT}/configs/quickstart.py:reuse_3'
    own = flags.FlagValues()
    argv = ['train', f'--config={path}']
    with mock.patch.object(sys, 'argv', argv):
      config_flags.DEFINE_config_file('config', flag_values=own)
      with self.assertRaisesRegex(
        flags.IllegalFlagValueError, "arm = 'reuse_3': must be one of on_policy"
      ):
        own(argv)
