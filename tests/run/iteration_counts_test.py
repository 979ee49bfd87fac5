"""Tests of what an iteration stores, counts and draws, by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl import rng
from replay_rl.replay import buffer
from replay_rl.run import build
from replay_rl.run import iteration
from replay_rl.run import ledger
from tests import tiny

SEED = 7


@functools.cache
def _parts():
  return build.parts(tiny.config())


@functools.cache
def _started(parts):
  """A run at iteration 3 and learner step 7, with six slots, five in use."""
  run = jax.jit(
    lambda: iteration.init(
      parts, parts.init_params_fn(jax.random.key(0)), jnp.uint32(SEED)
    )
  )()
  row = jax.tree.map(lambda leaf: leaf[:1], run.buffer.rollouts)
  state = buffer.init(row, capacity=6)._replace(
    is_valid=jnp.array([True] * 5 + [False]),
    # What slot 5 still holds is of a rollout that is gone.
    times_sampled=jnp.array([0, 2, 1, 0, 3, 0], jnp.int32),
    insert_index=jnp.arange(6, dtype=jnp.uint32),
    next_slot=jnp.int32(5),
    num_inserted=jnp.uint32(5),
    num_repaired_priorities=jnp.uint32(2),
  )
  return run._replace(
    iteration=jnp.int32(3),
    buffer=state,
    learner=run.learner._replace(step=jnp.int32(7)),
  )


def _totals(run):
  return {name: ledger.total(x) for name, x in run.ledger._asdict().items()}


def _generation():
  """Two groups of two; only the second has variance in its rewards."""
  lengths = jnp.array([1, 2, 3, 4], jnp.int32)
  num_tokens = _parts().transformer.max_context
  columns = jnp.arange(num_tokens)[None]
  mask = (columns >= 4) & (columns < 4 + lengths[:, None])
  completions = base.Completions(
    tokens=jnp.broadcast_to(columns, mask.shape).astype(jnp.int32),
    loss_mask=mask,
    behavior_logprobs=jnp.where(mask, -1.5, 0.0),
    full_logprobs=jnp.where(mask, -1.0, 0.0),
    entropy=jnp.where(mask, 0.5, 0.0).at[3, 7].set(5.5),
    responses=jnp.zeros((4, 4), jnp.int32),
    lengths=lengths,
    is_finished=jnp.array([True, True, True, False]),
  )
  prompts = base.Prompts(
    tokens=jnp.zeros((4, 4), jnp.int32),
    lengths=jnp.array([3, 4, 4, 4], jnp.int32),
    references=(),
  )
  generation = iteration.Generation(
    prompts, completions, jnp.array([6, 6, 7, 7], jnp.int32), jnp.int32(4)
  )
  return generation, jnp.array([1.0, 1.0, 0.0, 1.0])


def _remember(run, **changes):
  parts = _parts()._replace(**changes)
  function = jax.jit(functools.partial(iteration.remember, parts=parts))
  return function(run, *_generation())


class RememberTest(parameterized.TestCase):
  def test_rows_priorities_and_counts_by_hand(self):
    run, fresh, measured = _remember(_started(_parts()))
    # The ring goes on at slot 5, and from there around.
    self.assertEqual(fresh.slots.tolist(), [5, 0, 1, 2])
    self.assertTrue(fresh.is_valid.all())
    rows = jax.tree.map(lambda leaf: leaf[fresh.slots], run.buffer.rollouts)
    generation, rewards = _generation()
    np.testing.assert_array_equal(rows.rewards, rewards)
    np.testing.assert_array_equal(rows.advantages, [0, 0, -0.5, 0.5])
    np.testing.assert_array_equal(rows.group_id, [6, 6, 7, 7])
    np.testing.assert_array_equal(rows.policy_version, [4] * 4)
    for field in ('tokens', 'loss_mask', 'behavior_logprobs'):
      np.testing.assert_array_equal(
        getattr(rows, field), getattr(generation.completions, field)
      )
    np.testing.assert_array_equal(
      run.buffer.priorities[fresh.slots], [0, 0, 0.5, 0.5]
    )
    # Slots 0, 1 and 2 were in use, and used 0, 2 and 1 times.
    expected = {
      'reward': 0.75,
      'entropy': (10 * 0.5 + 5.0) / 10,
      'response_length': 2.5,
      'truncated_fraction': 0.25,
      'zero_variance_fraction': 0.5,
      'num_overwritten': 3,
      'never_used_fraction': 1 / 3,
      'buffer/num_valid': 6,
      'buffer/num_repaired_priorities': 2,
    }
    for name, value in expected.items():
      self.assertAlmostEqual(float(measured[name]), value, places=6, msg=name)
    self.assertEqual(measured['histogram/uses'].tolist(), [1, 1, 1, 0])
    self.assertEqual(set(measured), {*expected, 'histogram/uses'})
    counted = {'rollouts': 4, 'prompt_tokens': 15, 'generated_tokens': 10}
    zeros = dict.fromkeys(ledger.Ledger._fields, 0)
    self.assertEqual(_totals(run), zeros | counted)

  def test_groups_without_variance_are_generated_but_not_stored(self):
    run, fresh, measured = _remember(
      _started(_parts()), drop_zero_variance=True
    )
    self.assertEqual(fresh.slots.tolist(), [6, 6, 5, 0])
    self.assertEqual(fresh.is_valid.tolist(), [False, False, True, True])
    # Of the slots written only slot 0 was in use, and it never was used.
    self.assertEqual(int(measured['num_overwritten']), 1)
    self.assertEqual(float(measured['never_used_fraction']), 1.0)
    self.assertEqual(measured['histogram/uses'].tolist(), [1, 0, 0, 0])
    self.assertEqual(float(measured['zero_variance_fraction']), 0.5)
    self.assertEqual(float(measured['reward']), 0.75)
    self.assertEqual(_totals(run)['rollouts'], 4)
    self.assertEqual(_totals(run)['generated_tokens'], 10)

  def test_a_priority_that_is_repaired_is_counted(self):
    run, fresh, measured = _remember(
      _started(_parts()),
      advantage_fn=lambda rewards, group_id: rewards * jnp.inf,
    )
    # Infinite, infinite, NaN, infinite; two were counted before.
    self.assertEqual(int(measured['buffer/num_repaired_priorities']), 2 + 4)
    self.assertEqual(run.buffer.priorities[fresh.slots].tolist(), [0] * 4)

  def test_the_keep_rule_sees_the_buffer_before_and_the_learner_step(self):
    def drop_one_then_the_least_used(state, step):
      is_first = jnp.arange(6) == step - 3
      return jnp.where(is_first, -1.0, state.times_sampled.astype(jnp.float32))

    run, fresh, _ = _remember(
      _started(_parts()), keep_rule=drop_one_then_the_least_used
    )
    # The empty slot, slot 7 - 3, then those used 0, 0 and 1 times.
    self.assertEqual(fresh.slots.tolist(), [5, 4, 0, 3])
    self.assertEqual(int(run.buffer.next_slot), 5)


def _generate(params, rng_key, prompts):
  """Responses that hold the key and the prompt, of no use but to be seen."""
  del params
  bits = jax.random.bits(rng_key, (4,)).astype(jnp.int32)
  responses = jnp.broadcast_to(bits, prompts.tokens.shape)
  generation, _ = _generation()
  return generation.completions._replace(
    tokens=prompts.tokens, responses=responses
  )


def _prompts(rng_key, num_prompts):
  tokens = jax.random.bits(rng_key, (num_prompts, 4)).astype(jnp.int32)
  lengths = jnp.full((num_prompts,), 4, jnp.int32)
  return base.Prompts(tokens, lengths, references=tokens[:, 0])


class ActTest(absltest.TestCase):
  def test_each_prompt_is_repeated_for_its_group_with_keys_of_the_place(self):
    task = dataclasses.replace(_parts().task, prompts_fn=_prompts)
    parts = _parts()._replace(
      task=task, generate_fn=_generate, num_prompts=3, group_size=2
    )
    run = _started(_parts())
    prompts = iteration.draw_prompts(run, parts)
    expected = _prompts(rng.stream_key(SEED, 'prompts', 3), 3)
    np.testing.assert_array_equal(prompts.tokens, expected.tokens)
    after, generation = iteration.act(run, prompts, parts)
    self.assertIsNone(after.delay_line)
    # 3 iterations of 3 groups came before.
    self.assertEqual(generation.group_id.tolist(), [9, 9, 10, 10, 11, 11])
    self.assertEqual(int(generation.policy_version), 7)
    np.testing.assert_array_equal(
      generation.completions.tokens, np.repeat(expected.tokens, 2, axis=0)
    )
    np.testing.assert_array_equal(
      generation.prompts.references, np.repeat(expected.references, 2)
    )
    bits = jax.random.bits(rng.stream_key(SEED, 'generate', 3), (4,))
    np.testing.assert_array_equal(
      generation.completions.responses[0], bits.astype(jnp.int32)
    )

  def test_a_lagging_sampler_moves_its_delay_line_on(self):
    parts = _parts()._replace(lag_iterations=1, generate_fn=_generate)
    run = _started(parts)
    after, generation = iteration.act(
      run, _prompts(jax.random.key(0), 4), parts
    )
    self.assertEqual(int(generation.policy_version), 0)
    self.assertEqual(run.delay_line.version.tolist(), [0])
    self.assertEqual(after.delay_line.version.tolist(), [7])


def _compose(state, fresh, rng_key, step):
  """Rows 0, 1 and 2 of the fresh ones, of which the last is not valid."""
  del state, step
  return base.Batch(
    rollouts=jax.tree.map(lambda leaf: leaf[:3], fresh.rollouts),
    slots=jnp.array([0, 1, 6]),
    is_valid=jnp.array([True, True, False]),
    is_fresh=jnp.ones(3, bool),
    num_eligible=jax.random.randint(rng_key, (), 0, 10_000),
  )


class LearnTest(absltest.TestCase):
  def test_each_update_is_counted_marked_and_drawn_at_its_own_step(self):
    parts = _parts()._replace(compose_fn=_compose)
    before = _started(_parts())
    generation, rewards = _generation()
    completions = generation.completions
    fresh = base.Fresh(
      rollouts=base.Rollout(
        tokens=completions.tokens,
        loss_mask=completions.loss_mask,
        behavior_logprobs=completions.behavior_logprobs,
        rewards=rewards,
        advantages=rewards - 0.5,
        group_id=generation.group_id,
        policy_version=jnp.full(4, 7, jnp.int32),
      ),
      slots=jnp.arange(4),
      is_valid=jnp.ones(4, bool),
    )
    learn = jax.jit(functools.partial(iteration.learn, parts=parts))
    run, measured = learn(before, fresh)
    self.assertEqual(int(run.learner.step), 9)
    self.assertEqual(int(run.iteration), 4)  # Which ends it.
    # Two updates of the rows 0 and 1, with 4 prompt and 1 and 2 sampled tokens.
    counted = {
      'updates': 2,
      'trained_rollouts': 4,
      'trained_tokens': 2 * (1 + 2),
      'trained_prompt_tokens': 2 * (4 + 4),
    }
    zeros = dict.fromkeys(ledger.Ledger._fields, 0)
    self.assertEqual(_totals(run), zeros | counted)
    self.assertEqual(run.buffer.times_sampled.tolist(), [2, 4, 1, 0, 3, 0])
    self.assertEqual(run.buffer.last_sampled.tolist(), [8, 8, -1, -1, -1, -1])
    # New at step 7, and used one step ago at step 8.
    self.assertEqual(
      measured['histogram/steps_since_last_use'].tolist(), [2, 0, 2, 0, 0]
    )
    self.assertEqual(measured['histogram/staleness'].tolist(), [2, 2, 0, 0])
    draws = [
      int(
        jax.random.randint(rng.stream_key(SEED, 'replay', step), (), 0, 10_000)
      )
      for step in (7, 8)
    ]
    self.assertEqual(float(measured['buffer/num_eligible']), sum(draws) / 2)


class RememberAndLearnTest(absltest.TestCase):
  def test_it_ends_the_iteration(self):
    parts = _parts()._replace(compose_fn=_compose)
    end = jax.jit(functools.partial(iteration.remember_and_learn, parts=parts))
    run, _ = end(_started(_parts()), *_generation())
    self.assertEqual(int(run.iteration), 4)
    self.assertEqual(int(run.learner.step), 9)


if __name__ == '__main__':
  absltest.main()
