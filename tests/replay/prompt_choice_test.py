"""Tests for `replay_rl.replay.prompt_choice`, beside an obvious twin."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import prompt_choice
from replay_rl.replay import prompt_table
from tests.replay import buffers

CHOOSE = jax.jit(prompt_choice.replayed_prompts, static_argnames='fraction')
# One that draws all that may be drawn.
CONSTANTS: dict[str, Any] = {
  'fraction': 1.0,
  'center': 0.5,
  'width': 0.25,
  'max_visits': 1000,
  'cooldown': 0,
}
KEY = jax.random.key(0)
_GROUP_SIZE = 4
# Correct rollouts of each prompt of a generation, by its index.
_VISITS = (
  {0: 2, 1: 1, 2: 4, 3: 0},
  {4: 2, 1: 3, 5: 4, 6: 1},
  {7: 2, 1: 2, 5: 1, 8: 0},
)


def _state(visits, *, first=0, num_entries=16):
  """Returns a buffer that has seen these generations, and no rows."""
  state = buffers.make_state(1)._replace(rollouts=None)
  table = prompt_table.init(num_entries)
  for generation, correct in enumerate(visits, first):
    rewards = np.arange(_GROUP_SIZE) < np.array([*correct.values()])[:, None]
    indices = jnp.asarray([*correct], jnp.uint32)
    table = prompt_table.visit(
      table,
      indices * 7 + 1,
      jnp.asarray(rewards, jnp.float32),
      jnp.uint32(generation % 2**32),
      stream_index=indices,
    )
  num_batches = jnp.uint32((first + len(visits)) % 2**32)
  return state._replace(prompts=table, num_batches=num_batches)


def _new(first, num_prompts):
  return first + jnp.arange(num_prompts, dtype=jnp.uint32)


def _drawn(state, new, **constants):
  """Returns the set of the drawn prompts, of which none is drawn twice."""
  result = CHOOSE(state, new, KEY, **CONSTANTS | constants).tolist()
  num_new = next(
    (
      place
      for place, (one, other) in enumerate(
        zip(result, new.tolist(), strict=True)
      )
      if one != other
    ),
    len(result),
  )
  drawn = result[num_new:]
  assert len({*drawn}) == len(drawn)
  return {*drawn}


class EligibleTest(parameterized.TestCase):
  @parameterized.parameters(
    # Prompts 2, 3 and 8 have no or only correct rollouts. So did 5 at its first
    # visit, and 1 has another rate at each of its three visits.
    ({}, {0, 1, 4, 5, 6, 7}),
    ({'cooldown': 1}, {0, 4, 6}),
    ({'cooldown': 2}, {0}),
    ({'cooldown': 3}, set()),
    ({'max_visits': 3}, {0, 4, 5, 6, 7}),
    ({'max_visits': 2}, {0, 4, 6, 7}),
    ({'max_visits': 2, 'cooldown': 1}, {0, 4, 6}),
  )
  def test_by_hand(self, constants, expected):
    for first in (0, 2**32 - 2):  # The number of the generation wraps around.
      state = _state(_VISITS, first=first)
      self.assertEqual(_drawn(state, _new(20, 8), **constants), expected)

  def test_a_new_prompt_is_not_drawn_too(self):
    new = _new(4, 8)  # In the second epoch, say.
    self.assertEqual(_drawn(_state(_VISITS), new), {0, 1})
    self.assertEqual(
      CHOOSE(_state(_VISITS), new, KEY, **CONSTANTS)[:6].tolist(),
      [*range(4, 10)],
    )

  def test_an_entry_without_a_prompt_is_not_drawn(self):
    state = _state(())
    table = prompt_table.of_buffer(state, 'a test')
    state = state._replace(
      prompts=table._replace(latest_rate=jnp.full(16, 0.5)),
      num_batches=jnp.uint32(9),
    )
    self.assertEqual(_drawn(state, _new(20, 4)), set())

  @parameterized.parameters((0.2, 4), (0.5, 5), (0.5, 9), (1.0, 9))
  def test_random_visits_draw_what_the_twin_allows(self, fraction, num_prompts):
    rng = np.random.default_rng(num_prompts)
    num_short = num_full = 0
    for trial in range(20):
      visits = [
        dict(
          zip(
            rng.choice(20, 6, replace=False).tolist(),
            rng.integers(_GROUP_SIZE + 1, size=6).tolist(),
            strict=True,
          )
        )
        for _ in range(6)
      ]
      # Prompts below 20 are new in some trials.
      new = _new(int(rng.integers(14, 24)), num_prompts)
      limits = {
        'max_visits': int(rng.integers(2, 5)),
        'cooldown': int(rng.integers(0, 5)),
      }
      allowed = {
        prompt
        for prompt in range(20)
        if prompt not in new.tolist()
        and (seen := [i for i, x in enumerate(visits) if prompt in x])
        and len(seen) < limits['max_visits']
        and all(
          prompt not in visits[-ago] for ago in range(1, limits['cooldown'] + 1)
        )
        and 0 < visits[seen[-1]][prompt] < _GROUP_SIZE
      }
      wanted = round(fraction * num_prompts)
      num_drawn = min(wanted, len(allowed))
      result = CHOOSE(
        _state(visits, num_entries=32),
        new,
        jax.random.key(trial),
        **CONSTANTS | limits | {'fraction': fraction},
      ).tolist()
      num_new = num_prompts - num_drawn
      self.assertEqual(result[:num_new], new[:num_new].tolist())
      self.assertLen({*result}, num_prompts)
      self.assertContainsSubset(result[num_new:], allowed)
      num_short += num_drawn < wanted
      num_full += num_drawn == wanted
    self.assertGreater(num_full, 0)
    self.assertGreater(num_short, 0 if num_prompts == 9 else -1)


class DrawTest(parameterized.TestCase):
  def _p_value(self, center, width):
    """Compares pairs of draws with the formula for this center and width."""
    state = _state(({0: 1, 1: 2, 2: 3, 3: 4}, {4: 2}))
    constants = CONSTANTS.copy()
    constants.update(fraction=0.5, center=0.4, width=0.2)
    draws = jax.jit(
      jax.vmap(
        lambda key: prompt_choice.replayed_prompts(
          state, _new(20, 4), key, **constants
        )
      )
    )(jax.random.split(KEY, 20_000))
    np.testing.assert_array_equal(draws[:, :2], [[20, 21]] * 20_000)
    pairs, counts = np.unique(draws[:, 2:], axis=0, return_counts=True)
    rates = {0: 0.25, 1: 0.5, 2: 0.75, 4: 0.5}
    weights = {
      x: np.exp(-((rate - center) ** 2) / (2 * width**2))
      for x, rate in rates.items()
    }
    total = sum(weights.values())
    expected = {
      (x, y): weights[x] / total * weights[y] / (total - weights[x])
      for x, y in itertools.permutations(weights, 2)
    }
    self.assertEqual([*map(tuple, pairs.tolist())], sorted(expected))
    shares = np.array([expected[pair] for pair in sorted(expected)])
    return scipy.stats.chisquare(counts, shares * 20_000).pvalue

  def test_frequencies_are_those_of_the_formula_and_of_no_other(self):
    self.assertGreater(self._p_value(0.4, 0.2), 1e-3)
    for center, width in ((0.4, 0.25), (0.45, 0.2), (0.4, np.inf)):
      self.assertLess(self._p_value(center, width), 1e-6)

  def test_under_vmap_each_is_as_alone(self):
    new = jnp.stack([_new(20, 4), _new(5, 4)])
    keys = jax.random.split(KEY, 2)
    states = [_state(_VISITS), _state(_VISITS[::-1], first=7)]
    choose = functools.partial(prompt_choice.replayed_prompts, **CONSTANTS)
    together = jax.vmap(choose)(
      jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), new, keys
    )
    for seed in range(2):
      np.testing.assert_array_equal(
        choose(states[seed], new[seed], keys[seed]), together[seed]
      )

  def test_in_order_takes_the_new_ones(self):
    self.assertEqual(
      prompt_choice.in_order(_state(_VISITS), _new(5, 4), KEY).tolist(),
      [5, 6, 7, 8],
    )


class RefusedTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'fraction': 0.0}, r'fraction = 0.0: must be in \(0, 1\]'),
    ({'fraction': 1.5}, r'fraction = 1.5: must be in \(0, 1\]'),
    (
      {'fraction': 0.1},
      'fraction = 0.1: must give at least one of the 4 prompts of a generation',
    ),
    ({'center': -0.1}, r'center = -0.1: must be in \[0, 1\]'),
    ({'width': 0.01}, r'width = 0.01: must be in \[0.1, inf\]'),
    ({'max_visits': 1}, r'max_visits = 1: must be in \[2, inf\)'),
    ({'cooldown': -1}, r'cooldown = -1: must be in \[0, inf\)'),
  )
  def test_a_constant_that_means_nothing(self, constants, message):
    with self.assertRaisesRegex(ValueError, f'^{message}$'):
      prompt_choice.replayed_prompts(
        _state(_VISITS), _new(20, 4), KEY, **CONSTANTS | constants
      )

  def test_a_buffer_without_a_table(self):
    with self.assertRaisesWithLiteralMatch(
      ValueError,
      'replay.num_prompts = None: must be given for replayed_prompts',
    ):
      prompt_choice.replayed_prompts(
        buffers.make_state(2), _new(0, 4), KEY, **CONSTANTS
      )


if __name__ == '__main__':
  absltest.main()
