"""Tests for `replay_rl.replay.prompt_weights`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import buffer
from replay_rl.replay import prompt_table
from replay_rl.replay import prompt_weights
from tests.replay import buffers

STEP = jnp.int32(10)
PASS_RATE = functools.partial(prompt_weights.pass_rate, center=0.5, width=0.25)
OF_CORRECT = functools.partial(
  prompt_weights.correct_by_pass_rate, center=0.5, width=0.25
)
DENSITY = float(np.exp(-0.5))  # One width from the center.


def _with_prompts():
  """Eight slots, the last one empty; two entries of four are of prompts.

  Prompt 5 has a rate of 1/4, prompt 6 of 1/2, 7 of 1, and 9 has no entry.
  """
  state = buffers.filled(
    8,
    8,
    prompt_id=[5, 6, 5, 7, 9, 5, 6, 6],
    rewards=[0, 1, 1, 1, 1, 0.5, -1, 1],
  )
  rewards = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
  table = prompt_table.visit(
    prompt_table.init(4),
    jnp.asarray([5, 6, 7], jnp.uint32),
    jnp.asarray(rewards, jnp.float32),
    jnp.uint32(0),
  )
  return buffers.with_empty(state._replace(prompts=table), 7)


class MaxAgeBatchesTest(parameterized.TestCase):
  @parameterized.product(
    num_fresh=(3, 4),
    # Numbers of generations at which rollout ids, or generations, wrap around.
    first=(0, 2**32 // 4 - 6, 2**32 // 3 - 6, 2**32 - 6),
  )
  def test_ages_count_generations_also_those_that_stored_nothing(
    self, num_fresh, first
  ):
    rng = np.random.default_rng(num_fresh)
    state = buffers.make_state(10)._replace(
      num_batches=jnp.uint32(first % 2**32)
    )
    born = np.zeros(10, int)
    age = jax.jit(buffer.batch_age, static_argnums=(1, 2))
    rule = jax.jit(
      functools.partial(prompt_weights.max_age_batches, num_fresh=num_fresh)
    )
    for generation in range(first, first + 12):
      ids = generation * num_fresh + np.arange(num_fresh)
      rows = buffers.make_rows(np.arange(num_fresh))._replace(
        rollout_id=jnp.asarray(ids % 2**32, jnp.uint32)
      )
      # Two generations in a row, and others now and then, lose all rows.
      is_dropped = generation - first in (4, 5) or rng.random() < 0.2
      is_valid = (rng.random(num_fresh) < 0.7) & (not is_dropped)
      state, slots = buffers.INSERT(
        state, rows, priorities=jnp.ones(num_fresh), is_valid=is_valid
      )
      born[np.asarray(slots)[is_valid]] = generation
      held = np.asarray(state.is_valid)
      expected = (generation - born)[held]
      np.testing.assert_array_equal(
        age(state, num_fresh, 'test')[held], expected
      )
      for limit in (0, 2):
        weights_C = rule(state, STEP, limit=limit)
        np.testing.assert_array_equal(weights_C[held], expected <= limit)
    self.assertGreater(expected.max(), 2)
    self.assertEqual(weights_C.dtype, jnp.float32)
    self.assertEqual(int(state.num_batches), (first + 12) % 2**32)


class PassRateTest(parameterized.TestCase):
  @parameterized.parameters(
    # Three rows of prompt 5 and two of prompt 6; the last slot is empty.
    (PASS_RATE, [1 / 3, 1 / 2, 1 / 3, 0, 0, 1 / 3, 1 / 2, 0]),
    # Two correct rows of prompt 5 and one of prompt 6.
    (OF_CORRECT, [0, 1, 1 / 2, 0, 0, 1 / 2, 0, 0]),
  )
  def test_a_prompt_has_its_density_however_many_rows_it_has(
    self, rule, shares
  ):
    weights_C = jax.jit(rule)(_with_prompts(), STEP)
    of_prompt_C = [DENSITY, 1, DENSITY, 0, 0, DENSITY, 1, 0]
    np.testing.assert_allclose(
      weights_C, np.multiply(shares, of_prompt_C), rtol=1e-6
    )
    self.assertEqual(weights_C.dtype, jnp.float32)

  def test_the_density_is_that_of_the_rate(self):
    for center, width in ((0.5, 0.1), (0.0, 1.0), (1.0, np.inf)):
      rule = functools.partial(
        prompt_weights.pass_rate, center=center, width=width
      )
      of_5, of_6 = np.asarray(rule(_with_prompts(), STEP))[:2] * [3, 2]
      expected = [
        np.exp(-(((rate - center) / width) ** 2) / 2) for rate in (0.25, 0.5)
      ]
      np.testing.assert_allclose([of_5, of_6], expected, rtol=1e-5)

  def test_the_smallest_weight_can_be_drawn(self):
    state = _with_prompts()
    state = state._replace(
      prompts=state.prompts._replace(latest_rate=jnp.zeros(4))
    )
    rule = functools.partial(prompt_weights.pass_rate, center=1.0, width=0.1)
    weights_C = rule(state, STEP)
    self.assertEqual((weights_C > 1e-30).sum(), 6)

  @parameterized.parameters(
    ({'center': 1.5, 'width': 1.0}, r'center = 1.5: must be in \[0, 1\]'),
    ({'center': 0.5, 'width': 0.0}, r'width = 0.0: must be in \[0.1, inf\]'),
  )
  def test_constants_out_of_range_are_refused(self, constants, message):
    for rule in prompt_weights.pass_rate, prompt_weights.correct_by_pass_rate:
      with self.assertRaisesRegex(ValueError, f'^{message}$'):
        rule(_with_prompts(), STEP, **constants)


def _with_buckets():
  """Eleven slots, the last one empty; rates 1/2, 1/2, 1/4, 0, 1 of prompts 5-9.

  Prompt 4 has no entry, and prompt 6 no stored success.
  """
  prompt_id = [5, 5, 5, 6, 7, 7, 7, 8, 9, 4, 7]
  state = buffers.filled(
    11,
    11,
    prompt_id=prompt_id,
    rewards=[1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1],
    loss_mask=np.arange(3)
    < np.array([3, 1, 3, 3, 2, 3, 2, 3, 3, 3, 3])[:, None],
    # The sums are -3, -1.5, 0, 0, -2, -3, -1 and so on.
    behavior_logprobs=np.array([-3, -1.5, 0, 0, -2, -3, -2, -1, -1, -1, 0])[
      :, None
    ]
    * [1, 0, 0],
  )
  rewards = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0] * 4, [1] * 4]
  table = prompt_table.visit(
    prompt_table.init(6),
    jnp.arange(5, 10, dtype=jnp.uint32),
    jnp.asarray(rewards, jnp.float32),
    jnp.uint32(0),
  )
  return buffers.with_empty(state._replace(prompts=table), 10)


OF_BUCKETS = functools.partial(
  prompt_weights.confident_by_rate_bucket,
  **{'center': 0.5, 'width': 0.25, 'group_size': 4},
)


class ConfidentByRateBucketTest(absltest.TestCase):
  def test_by_hand(self):
    weights_C = jax.jit(OF_BUCKETS)(_with_buckets(), STEP)
    # The mean log-probs of prompt 5 are -1 and -1.5, and those of prompt 7 are
    # -1, -1 and -1: the first of these that is correct is drawn.
    expected = [1, 0, 0, 0, 0, DENSITY, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(weights_C, expected, rtol=1e-6)
    self.assertEqual(weights_C.dtype, jnp.float32)

  def test_the_prompts_of_a_bucket_share_its_density(self):
    state = _with_buckets()
    for rates, of_5, of_7, of_8, of_9 in (
      # Prompts 5, 7 and 8 are in one bucket; prompt 6 has no success.
      ([0.5, 0.5, 0.5, 0.5, 1.0], 1 / 3, 1 / 3, 1 / 3, 0.0),
      # Rates of several groups: 0.45 counts as 2/4, and 0.9 as 4/4.
      ([0.5, 0.5, 0.45, 0.9, 0.75], 0.5, 0.5 * np.exp(-0.02), 0, DENSITY),
      # The first bucket and the last one; 0.3 counts as 1/4.
      ([0.75, 0.5, 0.3, 0.0, 0.25], DENSITY, np.exp(-0.32) / 2, 0, DENSITY / 2),
    ):
      table = state.prompts._replace(
        latest_rate=jnp.asarray([*rates, 0.5], jnp.float32)
      )
      weights_C = jax.jit(OF_BUCKETS)(state._replace(prompts=table), STEP)
      expected = [of_5, 0, 0, 0, 0, of_7, 0, of_8, of_9, 0, 0]
      np.testing.assert_allclose(weights_C, expected, rtol=1e-5)

  def test_a_group_of_one_is_refused(self):
    with self.assertRaisesRegex(ValueError, r'^group_size = 1: must be in \[2'):
      OF_BUCKETS(_with_buckets(), STEP, group_size=1)


class MinPassRateTest(absltest.TestCase):
  def test_all_slots_wait_for_the_rate_of_the_latest_generation(self):
    # Rates 1/2, 1/2, 1/4, 0 and 1 of generation 0.
    state = _with_buckets()
    rule = jax.jit(
      lambda state, limit: prompt_weights.min_pass_rate(
        state, STEP, limit=limit
      )
    )
    for limit, expected in ((0.0, 1.0), (0.44, 1.0), (0.45, 1.0), (0.46, 0.0)):
      np.testing.assert_array_equal(rule(state, limit), [expected] * 11)
    # Of generation 1, which visits two of these prompts.
    table = prompt_table.visit(
      state.prompts,
      jnp.asarray([9, 8], jnp.uint32),
      jnp.asarray([[1, 0, 0, 0], [1, 1, 0, 0]], jnp.float32),
      jnp.uint32(1),
    )
    state = state._replace(prompts=table, num_batches=jnp.uint32(2))
    for limit, expected in ((0.37, 1.0), (0.375, 1.0), (0.38, 0.0)):
      np.testing.assert_array_equal(rule(state, limit), [expected] * 11)
    # A generation without an entry of a prompt has no rate.
    state = state._replace(num_batches=jnp.uint32(3))
    self.assertFalse(rule(state, 0.0).any())

  def test_a_limit_out_of_range_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, r'^limit = 1.1: must be in \[0, 1\]'
    ):
      prompt_weights.min_pass_rate(_with_buckets(), STEP, limit=1.1)


class UnsolvedTest(absltest.TestCase):
  def test_rows_of_solved_prompts_alone_have_no_weight(self):
    state = _with_prompts()
    table = state.prompts._replace(latest_rate=jnp.array([0, 0.99, 1, 0]))
    state = state._replace(prompts=table)
    weights_C = jax.jit(prompt_weights.unsolved)(state, STEP)
    np.testing.assert_array_equal(weights_C[:7], [1, 1, 1, 0, 1, 1, 1])
    self.assertEqual(weights_C.dtype, jnp.float32)


class MissingTest(parameterized.TestCase):
  @parameterized.parameters(
    ('pass_rate', PASS_RATE),
    ('correct_by_pass_rate', OF_CORRECT),
    ('unsolved', prompt_weights.unsolved),
    ('confident_by_rate_bucket', OF_BUCKETS),
    ('min_pass_rate', functools.partial(prompt_weights.min_pass_rate, limit=0)),
  )
  def test_a_buffer_without_a_table_is_refused(self, name, rule):
    with self.assertRaisesWithLiteralMatch(
      ValueError, f'replay.num_prompts = None: must be given for {name}'
    ):
      rule(buffers.filled(3, 3), STEP)

  def test_rows_without_their_number_are_refused(self):
    state = _with_prompts()
    rows = state.rollouts._replace(rollout_id=None, prompt_id=None)
    state = state._replace(rollouts=rows)
    with self.assertRaisesWithLiteralMatch(
      ValueError,
      'rollouts.rollout_id = None: must be stored for max_age_batches',
    ):
      prompt_weights.max_age_batches(state, STEP, limit=1, num_fresh=2)
    with self.assertRaisesWithLiteralMatch(
      ValueError, 'rollouts.prompt_id = None: must be stored for unsolved'
    ):
      prompt_weights.unsolved(state, STEP)


if __name__ == '__main__':
  absltest.main()
