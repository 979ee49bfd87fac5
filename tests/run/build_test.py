"""Tests of what is built from a configuration."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.run import build
from replay_rl.run import generation as generation_lib
from replay_rl.run import schedule
from replay_rl.tasks import addition
from tests import tiny
from tests.run import tiny_run


class ExperimentTest(parameterized.TestCase):
  def test_sizes_are_those_of_the_config_and_of_its_task(self):
    experiment = tiny_run.experiment(
      replay__batch_size=6,
      replay__drop_zero_variance=True,
      replay__num_prompts=7,
      sampler__num_distinct_prompts=3,
      replay__updates_per_iteration=2.5,
      sampler__weight_lag=5,
      optimizer__microbatch_rows=2,
      logging__age_buckets=(1, 2),
      logging__age_grad_norms=True,
    )
    parts = experiment.parts
    actual = {
      name: value
      for name, value in parts._asdict().items()
      if isinstance(value, int)
    }
    self.assertEqual(
      actual,
      {
        'drop_zero_variance': True,
        'capacity': 32,
        'num_known_prompts': 7,
        'num_distinct_prompts': 3,
        'num_prompts': 4,
        'group_size': 4,
        'num_rows': 6,
        'num_publications': 2,
        'num_spans': 0,
        'microbatch_rows': 2,
        'histogram_bins': 4,
        'age_grad_norms': True,
        'judges_beside': False,
      },
    )
    self.assertEqual(parts.num_fresh, 16)
    self.assertEqual(parts.shape, tiny_run.task().shape)
    self.assertEqual(parts.transformer.vocab_size, parts.shape.vocab_size)
    self.assertEqual(parts.transformer.max_context, parts.shape.num_tokens)
    self.assertEqual(
      [experiment.schedule(cycle)[-1] for cycle in (0, 1)],
      [schedule.Learn(2), schedule.Learn(3)],
    )

  def test_rows_of_an_update_are_those_that_the_compose_function_gives(self):
    parts = tiny_run.experiment(
      replay__compose='fresh_anchored(replay_fraction=0.5, warmup_steps=2)',
      replay__batch_size=None,
    ).parts
    self.assertEqual(parts.num_rows, 16 + 8)

  def test_records_say_what_each_field_names(self):
    records = tiny_run.experiment(
      replay__weights='recency(half_life=8)'
    ).records
    self.assertEqual(
      records['replay.weights'],
      {'text': 'recency(half_life=8)', 'functions': {}},
    )
    self.assertEqual(records['sampler.prompts']['text'], 'in_order()')
    self.assertNotIn('replay.keep', records)

  def test_a_vocabulary_that_lacks_tokens_of_the_task_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, '^model.vocab_size = 31: must be at least the 32 tokens'
    ):
      tiny_run.experiment(model__vocab_size=31)


def _with_a_float(is_correct, is_formatted, lengths, is_finished):
  return is_correct * float(lengths[0])


class TaskTest(parameterized.TestCase):
  def _judged(self, reward):
    """Judges four responses to 1 + 2 of one digit each; right is '30'."""
    task = build.task(tiny.config(reward=reward))
    rows = (
      ([3, 0, addition.EOS, addition.PAD], 3, True),
      ([3, 0, 0, addition.EOS], 4, True),
      ([3, addition.EOS, addition.PAD, addition.PAD], 2, True),
      ([3, 0, 0, 0], 4, False),
    )
    responses, lengths, is_finished = map(jnp.array, zip(*rows, strict=True))
    completions = base.Completions(
      *([None] * 5), responses, lengths, is_finished
    )
    references = jnp.tile(jnp.array([[3, 0]]), (4, 1))
    prompts = base.Prompts(None, None, None, references)
    generation = generation_lib.Generation(prompts, completions, *([None] * 4))
    judged = generation_lib.judge(generation, task)
    compiled = jax.jit(lambda one: generation_lib.judge(one, task))(generation)
    chex.assert_trees_all_equal(judged, compiled)
    right = task.reward_fn(responses, lengths, references)
    return judged, right

  @parameterized.parameters(
    ('correctness()', [1, 0, 0, 0]),
    # A half from three tokens on, all of it from four tokens on.
    (
      'correctness() + soft_overlong(max_length=4, cache_length=2)',
      [0.5, -1, 0, -1],
    ),
    ('correctness() + truncation_penalty(weight=0.25)', [1, 0, 0, -0.25]),
  )
  def test_the_reward_shapes_what_is_learned_and_not_what_is_right(
    self, reward, expected
  ):
    (rewards, measured), right = self._judged(reward)
    np.testing.assert_array_equal(rewards, expected)
    self.assertEqual(rewards.dtype, jnp.float32)
    np.testing.assert_array_equal(right, [1, 0, 0, 0])
    self.assertEqual(measured, {'accuracy': 0.25})

  @parameterized.parameters(
    'format_bonus(weight=0.5)', 'correctness() + format_bonus(weight=0.5)'
  )
  def test_a_reward_of_the_format_is_refused_in_jax(self, reward):
    with self.assertRaisesWithLiteralMatch(
      ValueError,
      f'reward = {reward!r}: must not read is_formatted, which only tasks in '
      'text have',
    ):
      build.task(tiny.config(reward=reward))

  def test_a_reward_that_cannot_be_traced_is_named(self):
    with self.assertRaisesRegex(
      ValueError,
      r"^reward = 'tests.run.build_test:_with_a_float\(\)': must fit the run",
    ):
      build.task(tiny.config(), {'reward': _with_a_float})


class BaseWeightsTest(parameterized.TestCase):
  def _built(self, **changes):
    config = tiny.config(
      self.create_tempdir().full_path, warm_start__num_steps=3, **changes
    )
    return jax.tree.leaves(
      build.base_weights(config, tiny_run.experiment(), build.task(config))
    )

  def _is_equal(self, first, second):
    return all(map(jnp.array_equal, first, second))

  def test_they_are_those_of_their_own_seed(self):
    first = self._built()
    self.assertTrue(self._is_equal(first, self._built(seed=5)))
    self.assertFalse(self._is_equal(first, self._built(warm_start__seed=1)))

  def test_the_settings_of_the_run_have_no_part_in_them(self):
    first = self._built()
    again = self._built(
      sampler__temperature=0.5,
      optimizer__learning_rate=0.5,
      optimizer__max_grad_norm=0.1,
      loss__policy='reinforce()',
    )
    self.assertTrue(self._is_equal(first, again))
    adamw = 'adamw(b1=0.5, b2=0.98, eps=1e-8, weight_decay=0.0)'
    for change in (
      {'warm_start__learning_rate': 1e-3},
      {'warm_start__max_grad_norm': 0.01},
      {'warm_start__transform': adamw},
    ):
      with self.subTest(str(change)):
        self.assertFalse(self._is_equal(first, self._built(**change)))
