"""Tests of what the events store, count and draw, by hand."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl import rng
from replay_rl.replay import buffer
from replay_rl.replay import prompt_table
from replay_rl.replay import weights
from replay_rl.run import events
from replay_rl.run import generation as generation_lib
from replay_rl.run import ledger
from replay_rl.run import metrics
from replay_rl.run import state
from tests.run import tiny_run

SEED = 7
_parts = tiny_run.parts


@functools.cache
def _started():
  """A run at cycle 3 and learner step 7, with six slots, five in use."""
  run = tiny_run.started(_parts(), SEED)
  row = jax.tree.map(lambda leaf: leaf[:1], run.buffer.rollouts)
  stored = buffer.init(row, capacity=6)._replace(
    is_valid=jnp.array([True] * 5 + [False]),
    # What slot 5 still holds is of a rollout that is gone.
    times_sampled=jnp.array([0, 2, 1, 0, 3, 0], jnp.int32),
    insert_index=jnp.arange(6, dtype=jnp.uint32),
    next_slot=jnp.int32(5),
    num_inserted=jnp.uint32(5),
    num_repaired_priorities=jnp.uint32(2),
  )
  return run._replace(
    clock=state.Clock(
      iteration=jnp.int32(3),
      num_rollouts=jnp.uint32(18),
      num_updates_since_fresh=jnp.int32(5),
      is_reuse_ended=jnp.bool_(True),
    ),
    buffer=stored,
    # One update was refused or empty.
    learner=run.learner._replace(step=jnp.int32(7), num_tried=jnp.int32(8)),
  )


def _totals(run):
  return {name: ledger.total(x) for name, x in run.ledger._asdict().items()}


def _generation():
  """Two groups of two; only the second has variance in its rewards."""
  lengths = jnp.array([1, 2, 3, 4], jnp.int32)
  columns = jnp.arange(_parts().shape.num_tokens)[None]
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
    prompt_id=jnp.array([50, 50, 60, 60], jnp.uint32),
    references=(),
  )
  generation = generation_lib.Generation(
    prompts=prompts,
    completions=completions,
    group_id=jnp.array([6, 6, 7, 7], jnp.int32),
    rollout_id=jnp.arange(18, 22, dtype=jnp.uint32),
    policy_version=jnp.full(4, 4, jnp.int32),
    token_versions=None,
  )
  return generation, jnp.array([1.0, 1.0, 0.0, 1.0])


def _remember(run, parts):
  function = jax.jit(functools.partial(events.remember, parts=parts))
  return function(run, *_generation())


class RememberTest(parameterized.TestCase):
  def test_rows_priorities_and_counts_by_hand(self):
    run, fresh, measured = _remember(_started(), _parts())
    # The ring goes on at slot 5, and from there around.
    self.assertEqual(fresh.slots.tolist(), [5, 0, 1, 2])
    self.assertTrue((fresh.is_valid & fresh.is_fresh).all())
    self.assertEqual(int(fresh.num_eligible), 4)
    self.assertEqual(fresh.probs.tolist(), [0] * 4)
    rows = jax.tree.map(lambda leaf: leaf[fresh.slots], run.buffer.rollouts)
    chex.assert_trees_all_equal(rows, fresh.rollouts)
    generation, rewards = _generation()
    expected = {
      'rewards': rewards,
      'advantages': jnp.array([0, 0, -0.5, 0.5]),
      'prompt_id': generation.prompts.prompt_id,
    }
    for owner in generation, generation.completions:
      for name in set(rows._fields) & set(owner._fields):
        expected[name] = getattr(owner, name)
    computed = {'token_versions', 'reference_logprobs'}
    self.assertEqual({*expected, *computed}, set(rows._fields))
    for name, values in expected.items():
      np.testing.assert_array_equal(getattr(rows, name), values, name)
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
    counted = {
      'rollouts': 4,
      'inserted_rollouts': 4,
      'prompt_tokens': 15,
      'generated_tokens': 10,
    }
    zeros = dict.fromkeys(ledger.Ledger._fields, 0)
    self.assertEqual(_totals(run), zeros | counted)
    # New rollouts open what a gate ended.
    self.assertEqual(run.clock, state.Clock(3, 22, 0, False))

  def test_groups_without_variance_are_generated_but_not_stored(self):
    run, fresh, measured = _remember(
      _started(), _parts()._replace(drop_zero_variance=True)
    )
    self.assertEqual(fresh.slots.tolist(), [6, 6, 5, 0])
    self.assertEqual(fresh.is_valid.tolist(), [False, False, True, True])
    self.assertEqual(fresh.is_fresh.tolist(), [False, False, True, True])
    self.assertEqual(int(fresh.num_eligible), 2)
    # Of the slots written only slot 0 was in use, and it never was used.
    self.assertEqual(int(measured['num_overwritten']), 1)
    self.assertEqual(float(measured['never_used_fraction']), 1.0)
    self.assertEqual(measured['histogram/uses'].tolist(), [1, 0, 0, 0])
    self.assertEqual(float(measured['zero_variance_fraction']), 0.5)
    self.assertEqual(float(measured['reward']), 0.75)
    self.assertEqual(_totals(run)['rollouts'], 4)
    self.assertEqual(_totals(run)['inserted_rollouts'], 2)
    self.assertEqual(_totals(run)['generated_tokens'], 10)
    self.assertEqual(int(run.clock.num_rollouts), 22)

  def test_the_table_of_prompts_has_groups_that_are_not_stored_too(self):
    run = _started()
    stored = run.buffer._replace(
      num_batches=jnp.uint32(6), prompts=prompt_table.init(3)
    )
    run, _, measured = _remember(
      run._replace(buffer=stored),
      _parts()._replace(drop_zero_variance=True, num_prompts=2, group_size=2),
    )
    self.assertEqual(int(run.buffer.num_batches), 7)
    table = run.buffer.prompts
    self.assertEqual(table.prompt_id.tolist(), [50, 60, 0])
    self.assertEqual(table.num_rollouts.tolist(), [2, 2, 0])
    self.assertEqual(table.latest_rate.tolist(), [1, 0.5, 0])
    self.assertEqual(table.last_visit.tolist(), [6, 6, 0])
    expected = {
      'buffer/num_replaced_prompts': 0,
      'prompts/num_seen': 2,
      'prompts/solved_fraction': 0.5,
      'prompts/replayed_fraction': 0,
      # Slots 1 to 4, which no generation here has written.
      'prompts/num_unknown_rows': 4,
    }
    for name, value in expected.items():
      self.assertEqual(float(measured[name]), value, name)

  def test_a_priority_that_is_repaired_is_counted(self):
    run, fresh, measured = _remember(
      _started(),
      tiny_run.with_functions(
        _parts(), advantage_fn=lambda rewards, group_id: rewards * jnp.inf
      ),
    )
    # Infinite, infinite, NaN, infinite; two were counted before.
    self.assertEqual(int(measured['buffer/num_repaired_priorities']), 2 + 4)
    self.assertEqual(run.buffer.priorities[fresh.slots].tolist(), [0] * 4)

  def test_the_keep_rule_sees_the_buffer_before_and_the_learner_step(self):
    def drop_one_then_the_least_used(state, step):
      is_first = jnp.arange(6) == step - 3
      return jnp.where(is_first, -1.0, state.times_sampled.astype(jnp.float32))

    run, fresh, _ = _remember(
      _started(),
      tiny_run.with_functions(_parts(), keep_rule=drop_one_then_the_least_used),
    )
    # The empty slot, slot 7 - 3, then those used 0, 0 and 1 times.
    self.assertEqual(fresh.slots.tolist(), [5, 4, 0, 3])
    self.assertEqual(int(run.buffer.next_slot), 5)


def _compose(state, fresh, rng_key, step):
  """Rows 0, 1 and 2 of the fresh ones, of which the last is not valid."""
  del state, step
  return base.Batch(
    rollouts=jax.tree.map(lambda leaf: leaf[:3], fresh.rollouts),
    slots=jnp.array([0, 1, 6]),
    is_valid=jnp.array([True, True, False]),
    is_fresh=jnp.ones(3, bool),
    probs=jnp.zeros(3),
    num_eligible=jax.random.randint(rng_key, (), 0, 10_000),
  )


def _fresh():
  generation, rewards = _generation()
  completions = generation.completions
  is_valid = jnp.ones(4, bool)
  return base.Batch(
    rollouts=base.Rollout(
      tokens=completions.tokens,
      loss_mask=completions.loss_mask,
      behavior_logprobs=completions.behavior_logprobs,
      rewards=rewards,
      advantages=rewards - 0.5,
      group_id=generation.group_id,
      prompt_id=generation.prompts.prompt_id,
      rollout_id=generation.rollout_id,
      policy_version=jnp.full(4, 7, jnp.int32),
    ),
    slots=jnp.arange(4),
    is_valid=is_valid,
    is_fresh=is_valid,
    probs=jnp.zeros(4),
    num_eligible=jnp.int32(4),
  )


def _learn(run, parts, num_updates):
  learn = functools.partial(events.learn, parts=parts, num_updates=num_updates)
  run, measured = jax.jit(learn)(run, _fresh())
  return run, metrics.as_numbers(jax.device_get(measured))


class LearnTest(absltest.TestCase):
  def test_each_update_is_counted_marked_and_drawn_at_its_own_step(self):
    parts = tiny_run.with_functions(_parts(), compose_fn=_compose)
    run, measured = _learn(_started(), parts, 2)
    self.assertEqual(int(run.learner.step), 9)
    self.assertEqual(int(run.learner.num_tried), 10)
    # What is left of the clock is for other events. Without a gate, nothing
    # reads that one had ended the reuse.
    self.assertEqual(run.clock, state.Clock(3, 18, 7, True))
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
    # The key is of the update that is tried, whatever came of those before.
    draws = [
      int(
        jax.random.randint(rng.stream_key(SEED, 'replay', tried), (), 0, 10_000)
      )
      for tried in (8, 9)
    ]
    self.assertEqual(float(measured['buffer/num_eligible']), sum(draws) / 2)

  def test_updates_without_a_row_change_nothing_but_their_counters(self):
    def never(stored, step):
      return 0.0 * weights.uniform(stored, step)

    compose_fn = functools.partial(
      _parts().bind(_parts().hyper).compose_fn, weight_rule=never, batch_size=3
    )
    # After an update, so that the optimizer has a momentum.
    before, _ = _learn(
      _started(), tiny_run.with_functions(_parts(), compose_fn=_compose), 1
    )
    run, measured = _learn(
      before,
      tiny_run.with_functions(
        _parts(),
        compose_fn=compose_fn,
        feedback_fn=lambda batch, outcome: jnp.full(3, 9.0),
      ),
      2,
    )
    chex.assert_trees_all_equal(
      run,
      before._replace(
        # These are not the first updates since the rollouts were generated.
        learner=before.learner._replace(num_tried=11),
        clock=before.clock._replace(num_updates_since_fresh=8),
      ),
    )
    actual = {
      name.removeprefix('updates/'): int(value)
      for name, value in measured.items()
      if name.startswith('updates/')
    }
    self.assertEqual(actual, {'applied': 0, 'empty': 2, 'refused': 0})
    for name in 'loss', 'grad_norm', 'ess', 'batch/num_valid':
      self.assertTrue(np.isnan(measured[name]), name)
    self.assertEqual(measured['histogram/staleness'].tolist(), [0] * 4)
