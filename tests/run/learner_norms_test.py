"""Tests of the norms of the gradient that the learner reports."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from tests.run import updates


class NormsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.rollouts = updates.make_rollouts(updates.make_parts(), 8)

  @parameterized.product(tied=(True, False), num_microbatches=(1, 4))
  def test_the_norms_of_sets_are_of_their_part_of_the_gradient(
    self, tied, num_microbatches
  ):
    parts = updates.make_parts(tied)
    params = parts.init_params_fn(jax.random.key(0))
    sets = np.array(
      [[1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1], [0] * 8, [1] * 8],
      bool,
    )
    # A row that is not valid belongs to no set, whatever the set says.
    is_valid = jnp.arange(8) != 1
    whole, seen, _ = updates.update(
      *(parts, params, self.rollouts, is_valid, num_microbatches),
      row_sets=jnp.asarray(sets),
    )
    # Zero advantages leave a row in the batch, without a gradient.
    of_sets = [
      updates.gradient(
        updates.update(
          parts,
          params,
          self.rollouts._replace(
            advantages=self.rollouts.advantages * is_inside
          ),
          is_valid,
        )[0]
      )
      for is_inside in sets
    ]
    np.testing.assert_allclose(
      seen.grad_norms_of_sets, [*map(optax.tree.norm, of_sets)], rtol=1e-4
    )
    self.assertEqual(float(seen.grad_norms_of_sets[2]), 0.0)
    np.testing.assert_allclose(
      seen.grad_norms_of_sets[3], seen.grad_norm, rtol=1e-5
    )
    both = jax.tree.map(jnp.add, *of_sets[:2])
    self.assertLess(updates.distance(both, updates.gradient(whole)), 1e-5)

  @parameterized.parameters(True, False)
  def test_the_output_projection_norm_leaves_out_the_input_embedding(
    self, tied
  ):
    parts = updates.make_parts(tied)
    params = parts.init_params_fn(jax.random.key(0))
    state, seen, _ = updates.update(parts, params, self.rollouts)
    gradient = updates.gradient(state)
    if not tied:
      expected = optax.tree.norm(gradient['unembedding'])
      np.testing.assert_allclose(
        seen.output_projection_grad_norm, expected, rtol=1e-4
      )
      return
    # The rows of tokens that are no input, 12 and more, get no other gradient;
    # the whole norm lies between theirs and that of the embedding.
    actual = float(seen.output_projection_grad_norm)
    self.assertGreater(
      actual, float(jnp.linalg.norm(gradient['embedding'][12:]))
    )
    untied = dict(params, unembedding=params['embedding'])
    apart = updates.make_parts(tied=False)
    _, seen_apart, _ = updates.update(apart, untied, self.rollouts)
    np.testing.assert_allclose(
      actual, seen_apart.output_projection_grad_norm, rtol=1e-5
    )
    self.assertNotAlmostEqual(
      actual, float(optax.tree.norm(gradient['embedding'])), places=3
    )
