"""Tests of settings that `replay_rl.run.build` refuses for a task in text."""

import pathlib

from absl import flags
from absl.testing import parameterized
from ml_collections import config_flags

from replay_rl.run import build
from replay_rl.run import functions
from replay_rl.tasks import task as task_lib
from tests import tiny
from tests import tiny_text


class TextSettingsTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'reward': 'corectness()'},
      '^reward = .*: must be one call .* correctness, .* not corectness',
    ),
    ({'text__num_workers': 0}, r'text.num_workers = 0: must be in \[1, 1024\]'),
    ({'text': None}, r"text = None: must be given for task = 'problems\(\)'"),
    ({'task': 'countdown()'}, 'text = .*must be None for task'),
    ({'warm_start__num_steps': 5}, 'warm_start.num_steps = 5: must be 0'),
    (
      {'sampler__prompts': tiny.REPLAYED_PROMPTS},
      r"^sampler.prompts = 'replayed_prompts\(.*\)': must be 'in_order\(\)' "
      r"for task = 'problems\(\)', whose prompts come from the host$",
    ),
    ({'model__vocab_size': 10}, 'model.vocab_size = 10: must be at least'),
    (
      {
        'text__evaluation_problems': None,
        'text__evaluation_split': None,
        'evaluation__every': 2,
      },
      'evaluation.every = 2: must be 0 where',
    ),
    (
      {'evaluation__every': 2, 'evaluation__num_prompts': 7},
      'evaluation.num_prompts = 7: must be at most the 6 problems to',
    ),
    ({'text__max_answer_chars': 0}, 'text.max_answer_chars = 0: must be in'),
    (
      {'text__chat_variables': 3},
      'text.chat_variables = 3: must be of type dict or None',
    ),
    (
      {'text__use_chat_template': True, 'text__chat_variables': {'a': [1]}},
      r"chat_variables = \{'a': \[1\]\}: must be None, or have at least",
    ),
  )
  def test_bad_settings_are_named(self, changes, message):
    folder = pathlib.Path(self.create_tempdir().full_path)
    config = tiny_text.config(folder, **changes)
    with self.assertRaisesRegex(ValueError, message):
      build.experiment(config, build.task(config).shape)

  @parameterized.parameters('task', 'prompts')
  def test_a_function_that_a_task_in_text_ignores_is_refused(self, name):
    folder = pathlib.Path(self.create_tempdir().full_path)
    config = tiny_text.config(folder)
    with self.assertRaisesRegex(
      ValueError,
      f'^function = {name!r}: must not be given for task = '
      r"'problems\(\)'$",
    ):
      functions.choose(config, {name: lambda state, new, rng_key: new})

  @parameterized.parameters(
    ('{"date_string": "26 Jul 2024"}', {'date_string': '26 Jul 2024'}),
    ('null', None),
  )
  def test_chat_variables_are_read_from_the_command_line(self, text, value):
    config = tiny_text.config(pathlib.Path(self.create_tempdir().full_path))
    config.text.chat_variables = {'enable_thinking': False}
    own = flags.FlagValues()
    argv = ['train', f'--config.text.chat_variables={text}']
    config_flags.DEFINE_config_dataclass(
      'config', config, flag_values=own, sys_argv=argv
    )
    own(argv)
    self.assertEqual(own.config.text.chat_variables, value)

  def test_prompts_are_counted_only_if_a_run_evaluates(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    config = tiny_text.config(
      folder, evaluation__every=0, evaluation__num_prompts=7
    )
    task_lib.close(build.task(config))
