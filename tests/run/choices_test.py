"""Tests of choices written as calls."""

import jax.numpy as jnp
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import buffer
from replay_rl.replay import rules
from replay_rl.replay import sampling
from replay_rl.run import choices


def _area(width, *, height, offset):
  return width * height + offset


class CallsTest(parameterized.TestCase):
  def test_binds_the_constants_that_the_text_gives(self):
    chosen = choices.choose('f', 'area(height=3, offset=-1)', {'area': _area})
    self.assertEqual(chosen(2), 5)

  def test_takes_offered_values_for_the_others(self):
    chosen = choices.choose(
      'f', 'area(height=3)', {'area': _area}, {'offset': 4}
    )
    self.assertEqual(chosen(2), 10)

  def test_a_product_multiplies_in_any_number_of_factors(self):
    rows = {'policy_version': jnp.zeros(1, jnp.int32)}
    state = buffer.init(rows, capacity=3)
    age = jnp.array([0, 1, 2])
    state = state._replace(
      rollouts=_Versions(policy_version=10 - age),
      times_sampled=jnp.array([0, 5, 0]),
    )
    rule = choices.product(
      'f', 'recency(half_life=1) * max_age(limit=1) * max_uses(limit=9)'
    )
    weights = rule(state, jnp.int32(10))
    self.assertEqual(weights.tolist(), [1.0, 0.5, 0.0])

  def test_finds_functions_by_the_arguments_they_take(self):
    found = choices.functions_like(rules, 'state', 'step')
    self.assertIn('max_age', found)
    self.assertNotIn('product', found)
    draws = choices.functions_like(sampling, 'rng_key', 'weights', 'num_draws')
    self.assertEqual(
      set(draws), {'blocked_inverse_cdf', 'gumbel_top_k', 'private_shards'}
    )

  @parameterized.parameters(
    ('area', 'must be a call'),
    ('area(3, offset=1)', 'must be a call'),
    ('area(', 'must be a call'),
    ('(lambda: 1)()', 'must be a call'),
    ('volume(height=1)', 'volume is not one of area'),
    ('area(height=1)', r"also needs \['offset'\]"),
    ('area(height=1, offset=1, x=2)', "no constant 'x'"),
    ('area(**{"height": 1})', 'no constant None'),
    ('area(height=open("x"), offset=1)', 'height must be a number'),
  )
  def test_refuses_what_it_cannot_resolve(self, text, message):
    with self.assertRaisesRegex(ValueError, f'^f = .*{message}'):
      choices.choose('f', text, {'area': _area})

  def test_a_text_cannot_replace_an_offered_value(self):
    with self.assertRaisesRegex(ValueError, "no constant 'offset'"):
      choices.choose(
        'f', 'area(height=1, offset=2)', {'area': _area}, {'offset': 4}
      )


class _Versions:
  def __init__(self, policy_version):
    self.policy_version = policy_version


if __name__ == '__main__':
  absltest.main()
