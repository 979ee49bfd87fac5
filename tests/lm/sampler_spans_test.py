"""Tests of weights that change while a response is written."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import arguments
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import model
from replay_rl.lm import sampler
from tests.lm import sampler_test
from tests.lm import small_models

_R = 6
_MODEL = sampler_test._TIED
_NO_END = {'eos_ids': (sampler_test._V - 1,), 'max_new_tokens': _R}


def _ring(num_kept):
  """Returns different weights of one model, stacked."""
  trees = [
    model.init(_MODEL, jax.random.key(seed))[1] for seed in range(num_kept)
  ]
  return trees, jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _spans(*pairs):
  slots, first_tokens = zip(*pairs, strict=True)
  return arguments.Spans(np.int32(slots), np.int32(first_tokens))


def _respond(params, spans=None, **options):
  return jax.device_get(
    sampler_test.respond(params=params, spans=spans, **_NO_END, **options)
  )


class SpansTest(parameterized.TestCase):
  def test_each_token_has_the_slot_of_its_span(self):
    spans = _spans((3, 0), (1, 2), (0, 2), (0, 5), (0, 9))
    self.assertEqual(spans.slots_of_tokens(5).tolist(), [3, 3, 0, 0, 0])

  def test_the_same_weights_in_all_slots_sample_as_one(self):
    (params, *_), _ = _ring(1)
    ring = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params)
    one = _respond(params)
    several = _respond(ring, _spans((2, 0), (0, 1), (1, 4)))
    np.testing.assert_array_equal(one.tokens, several.tokens)
    np.testing.assert_allclose(
      one.behavior_logprobs, several.behavior_logprobs, atol=1e-6
    )

  def test_a_span_without_tokens_changes_nothing(self):
    _, ring = _ring(3)
    short = _respond(ring, _spans((0, 0), (2, 3)))
    long = _respond(ring, _spans((0, 0), (1, 3), (2, 3), (1, _R), (0, _R)))
    for one, other in zip(short, long, strict=True):
      np.testing.assert_array_equal(one, other)

  @parameterized.parameters(1.0, None)
  def test_log_probs_are_of_the_weights_of_each_token_and_an_old_cache(
    self, temperature
  ):
    trees, ring = _ring(3)
    spans = _spans((1, 0), (0, 2), (2, 3))
    slots = [1, 1, 0, 2, 2, 2]
    completions = _respond(ring, spans, temperature=temperature)
    # The prompts of these rows fill all columns.
    row = max(range(2, 24, 4), key=lambda row: completions.lengths[row])
    response = completions.responses[row]
    graphdef, _ = small_models.init(_MODEL)

    def logprobs(slots):
      """Returns `[R, V]`, one token after the other, without a jit."""
      x, cache = model.extend(
        graphdef,
        trees[slots[0]],
        sampler_test.PROMPTS.tokens[row : row + 1],
        cache_lib.init(_MODEL, batch_size=1, num_columns=5),
        is_valid=jnp.ones((1, 5), bool),
      )
      cache = cache_lib.grow(cache, _R)
      rows = [model.unembed(graphdef, trees[slots[0]], x[:, -1])]
      for token, slot in zip(response[:-1], slots[1:], strict=True):
        x, cache = model.extend(
          graphdef,
          trees[slot],
          np.int32([[token]]),
          cache,
          is_valid=jnp.ones((1, 1), bool),
        )
        rows.append(model.unembed(graphdef, trees[slot], x[:, -1]))
      return np.asarray(jax.nn.log_softmax(jnp.concatenate(rows)))

    if temperature is None:
      num_tokens = completions.lengths[row]
      self.assertGreater(num_tokens, 3)
      expected = np.argmax(logprobs(slots), axis=1)[:num_tokens]
      np.testing.assert_array_equal(response[:num_tokens], expected)
      return
    actual = completions.full_logprobs[row, 5:]
    expected = logprobs(slots)[np.arange(_R), response]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    # The test would notice a span that starts a token later.
    late = logprobs([1, 1, 1, 2, 2, 2])[np.arange(_R), response]
    self.assertGreater(np.abs(actual - late).max(), 1e-2)

  def test_seeds_at_once_have_the_responses_that_each_has_alone(self):
    trees, ring = _ring(3)
    turned = jax.tree.map(lambda leaf: leaf[::-1], ring)
    both = jax.tree.map(lambda *x: jnp.stack(x), ring, turned)
    spans = _spans((0, 0), (2, 3))
    graphdef, _ = small_models.init(_MODEL)

    def respond(params):
      return sampler.generate(
        graphdef,
        params,
        jax.random.key(0),
        sampler_test.PROMPTS,
        sampler_test.row_ids(24),
        spans=spans,
        **{**sampler_test._OPTIONS, **_NO_END},
      ).responses

    np.testing.assert_array_equal(
      jax.vmap(respond)(both), [respond(ring), respond(turned)]
    )
