"""Tests that packed rows have the gradient of padded rows."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import losses
from replay_rl.rl import statistics
from replay_rl.run import learner
from replay_rl.run import microbatches
from replay_rl.run import state as run_state
from tests.run import updates

_CASES = {
  'clipped': {'loss_fn': updates.CLIPPED},
  'gspo': {
    'loss_fn': functools.partial(losses.gspo, clip_low=0.5, clip_high=0.5),
    'normalizer_fn': losses.sequence_mean,
  },
  'cispo': {
    'loss_fn': functools.partial(losses.cispo, clip_low=0.5, clip_high=0.5)
  },
  'm2po': {
    'loss_fn': losses.m2po,
    'statistics_fn': functools.partial(
      statistics.second_moment_cutoff, limit=0.2
    ),
  },
}
_NUM_ROWS = 8
# Row 2 is not valid, and takes no room. Row 5 has no token of the mask.
_IS_VALID = np.arange(_NUM_ROWS) != 2


def _rollouts(parts):
  """Returns rows of 1 to 4 sampled tokens; row 0 fills a sequence."""
  rollouts = updates.make_rollouts(parts, _NUM_ROWS)
  num_tokens = rollouts.tokens.shape[1]
  mask = np.array(rollouts.loss_mask)
  mask[0, num_tokens - 1] = True
  mask[5] = False
  behavior = np.where(mask, rollouts.behavior_logprobs, 0.0)
  return rollouts._replace(
    loss_mask=jnp.asarray(mask), behavior_logprobs=jnp.asarray(behavior)
  )


@functools.cache
def _update(name, tied, packed, num_sets=0):
  parts = updates.make_parts(tied)
  sets = np.arange(_NUM_ROWS) % 2 == np.arange(num_sets)[:, None]
  return jax.device_get(
    updates.update(
      *(parts, parts.init_params_fn(jax.random.key(0)), _rollouts(parts)),
      jnp.asarray(_IS_VALID),
      packed=packed,
      row_sets=jnp.asarray(sets) if num_sets else None,
      **_CASES[name],
    )
  )


def _capacity():
  return updates.make_parts().shape.num_tokens - 1


class PackedTest(parameterized.TestCase):
  @parameterized.parameters(
    ('clipped', True, 1, 1),
    ('clipped', False, 2, 3),
    ('gspo', True, 1, 3),
    ('cispo', False, 3, 1),
    ('m2po', True, 2, 1),
    # More sequences than there are rows.
    ('m2po', False, 1, 99),
  )
  def test_gradient_and_outcome_are_those_of_padded_rows(
    self, name, tied, factor, num_sequences
  ):
    packed = microbatches.Packing(factor * _capacity(), num_sequences)
    whole, seen, _ = _update(name, tied, None)
    state, seen_packed, status = _update(name, tied, packed)
    gap = updates.distance(updates.gradient(state), updates.gradient(whole))
    self.assertLess(gap, 1e-6)
    mask = np.asarray(_rollouts(updates.make_parts()).loss_mask)
    mask = mask & _IS_VALID[:, None]

    def inside(outcome):
      return outcome._replace(
        logprobs=np.where(mask, outcome.logprobs, 0.0),
        is_clipped=np.where(mask, outcome.is_clipped, False),
      )

    chex.assert_trees_all_close(
      inside(seen_packed), inside(seen), rtol=1e-5, atol=1e-6
    )
    self.assertTrue(np.any(seen.is_clipped))
    # Each microbatch is read as a whole, and no more of them than needed.
    of_step = packed.capacity * min(num_sequences, _NUM_ROWS)
    num_read = int(np.sum(_columns(mask)))
    self.assertEqual(status.num_columns % of_step, 0)
    self.assertGreaterEqual(status.num_columns, num_read)
    self.assertLess(status.num_columns, 2 * num_read + of_step)

  def test_the_norms_of_sets_are_those_of_padded_rows(self):
    packed = microbatches.Packing(2 * _capacity(), 1)
    _, seen, _ = _update('clipped', True, None, num_sets=2)
    _, seen_packed, _ = _update('clipped', True, packed, num_sets=2)
    np.testing.assert_allclose(
      seen_packed.grad_norms_of_sets, seen.grad_norms_of_sets, rtol=1e-5
    )

  def test_an_update_without_a_row_reads_nothing(self):
    parts = updates.make_parts()
    params = parts.init_params_fn(jax.random.key(0))
    state, outcome, status = updates.update(
      *(parts, params, _rollouts(parts), jnp.zeros(_NUM_ROWS, bool)),
      packed=microbatches.Packing(_capacity(), 1),
    )
    self.assertTrue(bool(status.is_empty))
    self.assertEqual(float(status.num_columns), 0.0)
    self.assertEqual(float(outcome.grad_norm), 0.0)
    chex.assert_trees_all_equal(state.params, params)

  def test_a_sequence_that_is_too_short_is_refused(self):
    parts = updates.make_parts()
    params = parts.init_params_fn(jax.random.key(0))
    short = _capacity() - 1
    with self.assertRaisesRegex(
      ValueError, f'^capacity = {short}: must be at least {short + 1}, '
    ):
      updates.update(
        *(parts, params, _rollouts(parts)),
        packed=microbatches.Packing(short, 1),
      )

  def test_seeds_at_once_read_as_many_microbatches_as_the_longest(self):
    parts = updates.make_parts()
    params = parts.init_params_fn(jax.random.key(0))
    functions = updates.make_functions(parts)
    batch = updates.make_batch(_rollouts(parts))
    learner_state = learner.init(params, functions)
    update = functools.partial(
      learner.update,
      functions=functions,
      num_updates_since_fresh=0,
      num_microbatches=1,
      packed=microbatches.Packing(_capacity(), 1),
    )

    def of_seed(is_valid):
      return update(learner_state, batch._replace(is_valid=is_valid))

    # One seed has all rows, one has two, and one has none.
    is_valid = np.arange(_NUM_ROWS) < np.array([[_NUM_ROWS], [2], [0]])
    at_once = jax.jit(jax.vmap(of_seed))(is_valid)
    alone = jax.jit(of_seed)
    for seed in range(3):
      state, outcome, _ = alone(is_valid[seed])
      state_at_once, outcome_at_once, status = jax.tree.map(
        lambda leaf, seed=seed: leaf[seed], at_once
      )
      chex.assert_trees_all_close(
        (updates.gradient(state_at_once), outcome_at_once),
        (updates.gradient(state), outcome),
        rtol=1e-5,
        atol=1e-6,
      )
      self.assertEqual(status.num_columns, at_once[2].num_columns[0])
    # A loop with a number of steps for each seed would ask whether any seed
    # goes on, and select the gradients of those that do.
    program = jax.make_jaxpr(jax.vmap(of_seed))(is_valid)
    loops = [
      equation
      for equation in _equations(program.jaxpr)
      if equation.primitive.name == 'while'
    ]
    self.assertNotEmpty(loops)
    for loop in loops:
      names = [x.primitive.name for x in loop.params['cond_jaxpr'].eqns]
      self.assertEqual(names, ['lt'])


class ScoreTest(parameterized.TestCase):
  def test_the_scores_of_packed_rows_are_those_of_padded_rows(self):
    parts = updates.make_parts()
    params = parts.init_params_fn(jax.random.key(0))
    rollouts = _rollouts(parts)
    score = functools.partial(
      microbatches.score,
      parts.bind(parts.hyper).update.logprobs_fn,
      params,
      rollouts.tokens,
      rollouts.loss_mask,
      num_microbatches=1,
    )
    actual = score(packed=microbatches.Packing(_capacity(), 2))
    mask = rollouts.loss_mask
    expected = jnp.where(mask, score(packed=None), 0.0)
    np.testing.assert_allclose(
      jnp.where(mask, actual, 0.0), expected, atol=1e-6
    )

  def test_parts_that_pack_have_one_microbatch_of_rows(self):
    parts = updates.make_parts()._replace(microbatch_rows=3)
    self.assertIsNone(parts.packed)
    self.assertGreater(parts.num_microbatches, 1)
    packs = parts._replace(packed_tokens=64)
    self.assertIsInstance(packs, run_state.Parts)
    self.assertEqual(packs.packed, microbatches.Packing(64, 3))
    self.assertEqual(packs.num_microbatches, 1)
    alone = packs._replace(microbatch_rows=None)
    self.assertEqual(alone.packed, microbatches.Packing(64, 1))


def _columns(mask):
  return np.max(np.where(mask, np.arange(mask.shape[1]), 0), axis=1)


def _equations(jaxpr):
  for equation in jaxpr.eqns:
    yield equation
    for value in equation.params.values():
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        yield from _equations(inner)
