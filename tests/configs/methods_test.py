"""Tests of configs/methods.py, and of its page configs/methods.md."""

import functools
import math
import os
import re
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import train
from replay_rl.configs import methods
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import functions
from replay_rl.run import programs
from replay_rl.sweep import sharing
from tests import configs_test
from tests import tiny
from tests import train_test

# Each program takes seconds to compile, so of the arms that differ in numbers
# alone the first one runs, and the others have the same programs.
_OTHER_NUMBERS = {
  'w_reinforce': ('w_reinforce_0', 'w_reinforce_1'),
  'newest_128': ('newest_256', 'newest_384'),
  'positive_bias_0_2': ('positive_bias_0_5',),
  'prioritized': (
    *('prioritized_exponent_0', 'prioritized_exponent_1'),
    *('prioritized_age_2', 'prioritized_age_5', 'prioritized_age_30'),
    'prioritized_age_none',
  ),
  'dgg': ('dgg_0_1', 'dgg_0_5'),
}
# Arms that only trace their functions: others train the same compositions, with
# other rules. run/events_prompts_test.py trains with `collected`, and `vcpo`
# has the loss of `sequence_tis`.
_TRACED = (
  *('dapo_dynamic', 'sequence_tis', 'inverse_age', 'in_order'),
  *('prioritized_age_generations', 'prioritized_recomputed'),
  *('repo_recent', 'repo_highest', 'repo_random', 'rlep', 'exgrpo'),
  *('exgrpo_pass_rate', 'exgrpo_buckets', 'pass_rate', 'unsolved'),
)
# Each of these differs from an arm that trains by a loss, an advantage, a rule
# or a draw, whose values have tests of their own. Their programs take minutes
# to compile, so they train only where the environment asks for it.
_IS_EVERY = os.environ.get('REPLAY_RL_EVERY_TEST') == '1'
_TRACED += (
  ()
  if _IS_EVERY
  else (
    *('dr_grpo', 'reinforce', 'rloo', 'w_reinforce', 'gspo', 'cispo', 'topr'),
    *('asymre', 'behavior_kl', 'weight_lag', 'tis', 'mis', 'icepop', 'a3po'),
    *('sat', 'gac'),
    *('fifo', 'no_replacement', 'at_least_once', 'private_shards', 'max_uses'),
    *('newest_128', 'queue_lifo', 'naive_replay', 'four_times', 'dgg_squared'),
    *('prioritized_fraction_0_25', 'prioritized_fraction_1'),
  )
)
_TRAINED = [
  arm
  for arm in methods.ARMS
  if arm not in _TRACED
  and not any(arm in others for others in _OTHER_NUMBERS.values())
]
_PAGED_KINDS = (
  *('weights', 'keep', 'draw', 'compose', 'feedback', 'advantage', 'loss'),
  *('batch_advantage', 'statistics', 'normalizer', 'row_weights', 'gate'),
  'prompts',
)
# Compositions of fresh rows and others.
_MIXED = ('same_prompt', 'fresh_filled', 'fresh_first', 'fresh_anchored')


def _small(arm: str) -> config_lib.Config:
  """Returns the config of an arm for two iterations of the tiny model."""
  config, small = methods.get_config(arm), tiny.config()
  sampler = config.sampler
  return config_lib.changed(
    config,
    {
      # From the first update on, rather than from the 20th.
      'replay.compose': re.sub(
        r'warmup_steps=\d+', 'warmup_steps=0', config.replay.compose
      ),
      # The second iteration has the prompts of the first one.
      'sampler.num_distinct_prompts': (
        sampler.num_distinct_prompts and sampler.num_prompts
      ),
      'num_seeds': 1,
      'num_iterations': 2,
    }
    | {
      name: getattr(small, name)
      for name in (
        *('task', 'model', 'warm_start', 'evaluation', 'logging', 'cache_dir'),
      )
    },
  )


def _composition(arm: str) -> str:
  return methods.get_config(arm).replay.compose.split('(')[0]


def _experiment(config: config_lib.Config) -> build.Experiment:
  return build.experiment(config, build.planned_shape(config))


def _without_check(*arguments) -> programs.Programs:
  """Returns the programs of a run, but for one that the log would show."""
  return programs.build(*arguments)._replace(is_finite=lambda _: np.ones(1))


@functools.cache
def _initial_weights():
  config = _small('grpo')
  return build.base_weights(config, _experiment(config), build.task(config))


class ArmsTest(train_test.TrainTestCase):
  @parameterized.parameters(*_TRAINED)
  def test_two_iterations_train(self, arm):
    config, workdir = _small(arm), self.workdir()
    with mock.patch.object(checkpoint.Checkpoints, 'save'):
      run = train.train(config, workdir, make_programs=_without_check)
    lines = train_test.read_lines(workdir)
    self.assertLen(lines, 2)
    for line in lines:
      self.assertTrue(math.isfinite(line['loss']))
      self.assertGreater(line['grad_norm'], 0.0)
    weights = jax.tree.map(lambda leaf: leaf[0], run.learner.params)
    for actual, initial in zip(
      jax.tree.leaves(weights), jax.tree.leaves(_initial_weights()), strict=True
    ):
      self.assertTrue(np.isfinite(actual).all())
      self.assertGreater(np.abs(actual - initial).max(), 0.0)
    is_on_policy = (
      config.sampler.weight_lag == 0
      and config.replay.updates_per_iteration == 1
      and config.replay.compose == 'fresh_only()'
    )
    self.assertEqual(lines[1]['staleness/mean'] == 0.0, is_on_policy)
    if config.replay.compose.startswith(_MIXED):
      num_fresh = lines[1]['batch/num_fresh']
      self.assertGreater(lines[1]['batch/num_valid'], num_fresh)

  @parameterized.parameters(*_TRACED)
  def test_functions_fit_each_other(self, arm):
    traced = _experiment(_small(arm))
    self.assertGreater(traced.parts.num_rows, 0)
    if arm != 'dapo_dynamic':
      self.assertIn(_composition(arm), map(_composition, _TRAINED))

  @parameterized.parameters(*_OTHER_NUMBERS)
  def test_arms_of_other_numbers_have_the_same_programs(self, first):
    keys, numbers = set(), []
    for arm in (first, *_OTHER_NUMBERS[first]):
      config = _small(arm)
      experiment = _experiment(config)
      keys.add(sharing.key(config, experiment))
      numbers.append(experiment.parts.hyper)
    self.assertLen(keys, 1)
    for index, one in enumerate(numbers):
      self.assertNotIn(one, numbers[:index])

  def test_arms_differ(self):
    configs = [methods.get_config(arm) for arm in methods.ARMS]
    for config in configs:
      config.name = ''
    for index, config in enumerate(configs):
      self.assertNotIn(config, configs[:index], list(methods.ARMS)[index])


class PageTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.page = (configs_test.ROOT / 'configs/methods.md').read_text()
    rows = [
      [cell.strip() for cell in line.strip('|').split('|')]
      for line in self.page.splitlines()
      if line.startswith('|') and not line.startswith(('| method |', '|---'))
    ]
    self.assertEqual({len(row) for row in rows}, {5})
    # Functions and arms of each method.
    self.rows = [
      tuple(re.findall('`(.*?)`', cell) for cell in row[2:4]) for row in rows
    ]

  def test_each_arm_has_one_row(self):
    self.assertCountEqual(
      [arm for _, arms in self.rows for arm in arms], methods.ARMS
    )

  def test_the_functions_of_a_row_are_those_of_its_arms(self):
    for listed, arms in self.rows:
      for arm in arms:
        chosen = functions.choose(methods.get_config(arm), {})
        used = {
          call[0] for choice in chosen.values() for call in choice.program
        }
        self.assertContainsSubset(listed, used, arm)

  def test_every_function_of_a_method_has_a_row(self):
    listed = {name for names, _ in self.rows for name in names}
    known = {
      name for _, kind in functions.KINDS.values() for name in kind.functions
    }
    self.assertContainsSubset(listed, known)
    expected = {
      name
      for kind in _PAGED_KINDS
      for name in functions.KINDS[kind][1].functions
    }
    self.assertContainsSubset(expected, listed)

  def test_all_else_in_backticks_is_an_arm_a_function_or_a_field(self):
    known = {
      *methods.ARMS,
      *config_lib.flatten(methods.get_config()),
      *(
        name for _, kind in functions.KINDS.values() for name in kind.functions
      ),
    }
    self.assertContainsSubset(re.findall('`(.*?)`', self.page), known)

  def test_a_paper_is_linked_by_its_number(self):
    links = re.findall(r'\[(\d.*?)\]\(https://arxiv.org/abs/(.*?)\)', self.page)
    self.assertGreater(len(links), len(self.rows) - 8)  # Some have no paper.
    for text, number in links:
      self.assertEqual(text, number)

  def test_the_readme_names_arms_that_exist(self):
    readme = (configs_test.ROOT / 'README.md').read_text()
    section = readme.split('## Methods\n')[1].split('\n## ')[0]
    self.assertIn('(configs/methods.md)', section)
    arms = re.findall('`([a-z0-9_]+)`', section)
    self.assertGreater(len(arms), 20)
    self.assertContainsSubset(arms, methods.ARMS)
