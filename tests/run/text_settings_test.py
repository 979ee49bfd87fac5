"""Tests of settings that `replay_rl.run.build` refuses for a task in text."""

import pathlib

from absl.testing import parameterized

from replay_rl.run import build
from tests import tiny_text


class TextSettingsTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'text__reward': 'corectness()'},
      'text.reward = .*: must be one call .* correctness, .* not corectness',
    ),
    ({'text__num_workers': 0}, r'text.num_workers = 0: must be in \[1, inf\)'),
    ({'text': None}, r"text = None: must be given for task = 'problems\(\)'"),
    ({'task': 'countdown()'}, 'text = .*must be None for task'),
    ({'warm_start__num_steps': 5}, 'warm_start.num_steps = 5: must be 0'),
    ({'model__vocab_size': 10}, 'model.vocab_size = 10: must be at least'),
    (
      {
        'text__evaluation_problems': None,
        'text__evaluation_split': None,
        'evaluation__every': 2,
      },
      'evaluation.every = 2: must be 0 where',
    ),
  )
  def test_bad_settings_are_named(self, changes, message):
    folder = pathlib.Path(self.create_tempdir().full_path)
    config = tiny_text.config(folder, **changes)
    with self.assertRaisesRegex(ValueError, message):
      build.experiment(config, build.task(config).shape)
