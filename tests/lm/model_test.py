"""Tests for `replay_rl.lm.model`, and of `layers` and `cache` through it."""

import dataclasses
import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import cache as cache_lib
from replay_rl.lm import layers
from replay_rl.lm import model
from replay_rl.lm import scoring
from tests.lm import small_models

_apply = jax.jit(model.apply, static_argnums=0)
_grow = jax.jit(cache_lib.grow, static_argnums=1)
_whole = functools.partial(scoring.token_logprobs, chunk_size=None, remat=False)
_token_logprobs = jax.jit(_whole, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _extend(graphdef, params, tokens, cache, is_valid=None):
  if is_valid is None:
    is_valid = np.ones(tokens.shape, bool)
  x, cache = model.extend(graphdef, params, tokens, cache, is_valid=is_valid)
  return model.unembed(graphdef, params, x), cache


def _oracle_logits(config, params, tokens):
  """A transformer in numpy: one row, one head and one query at a time."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  d = config.head_dim

  def norm(x, scale):
    return x / np.sqrt(np.mean(x**2) + config.norm_eps) * scale

  def rotate(x, position):
    result = np.empty_like(x)
    for i in range(d // 2):
      freq = config.rope_theta ** (-2 * i / d)
      if config.rope_scaling is not None:
        factor, low, high, original = config.rope_scaling
        turns = original * freq / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0), 1)
        freq = kept * freq + (1 - kept) * freq / factor
      z = complex(x[i], x[i + d // 2]) * np.exp(1j * position * freq)
      result[i], result[i + d // 2] = z.real, z.imag
    return result

  stream = [params['embedding'][token] for token in tokens]
  for n in range(config.num_layers):
    layer = {name: leaf[n] for name, leaf in params['layers'].items()}
    queries, keys, values = [], [], []
    for position, x in enumerate(stream):
      h = norm(x, layer['attention_norm'])
      q = np.einsum('d,dhk->hk', h, layer['query'])
      k, v = np.einsum('d,dchk->chk', h, layer['key_value'])
      if config.qkv_bias:
        q = q + layer['query_bias']
        k, v = k + layer['key_value_bias'][0], v + layer['key_value_bias'][1]
      if config.qk_norm:
        q = np.array([norm(head, layer['query_norm']) for head in q])
        k = np.array([norm(head, layer['key_norm']) for head in k])
      queries.append([rotate(head, position) for head in q])
      keys.append([rotate(head, position) for head in k])
      values.append(v)
    for t, x in enumerate(stream):
      for head in range(config.num_heads):
        shared = head // (config.num_heads // config.num_kv_heads)
        scores = np.array(
          [queries[t][head] @ keys[s][shared] for s in range(t + 1)]
        ) / math.sqrt(d)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        mixed = sum(weights[s] * values[s][shared] for s in range(t + 1))
        x = x + mixed @ layer['output'][head]
      h = norm(x, layer['mlp_norm'])
      gate, up = np.einsum('d,dcf->cf', h, layer['gate_up'])
      stream[t] = x + (gate / (1 + np.exp(-gate)) * up) @ layer['down']
  hidden = np.array([norm(x, params['final_norm']) for x in stream])
  return hidden @ params.get('unembedding', params['embedding']).T


class ForwardTest(parameterized.TestCase):
  @parameterized.named_parameters(*small_models.VARIANTS)
  def test_logits_equal_a_transformer_written_out_in_numpy(self, config):
    graphdef, params = small_models.init(config)
    tokens = small_models.tokens((2, 7))
    logits = _apply(graphdef, params, tokens)
    self.assertEqual(logits.dtype, jnp.float32)
    for row in range(2):
      expected = _oracle_logits(config, params, tokens[row])
      np.testing.assert_allclose(logits[row], expected, atol=1e-5, rtol=1e-5)

  def test_scanned_and_unrolled_layers_agree(self):
    graphdef, params = small_models.init(small_models.QWEN25)
    tokens = small_models.tokens((2, 4))

    def two_steps(params):
      cache = cache_lib.init(small_models.QWEN25, batch_size=2, num_columns=5)
      _, cache = _extend(graphdef, params, tokens[:, :3], cache)
      logits, cache = _extend(graphdef, params, tokens[:, 3:], cache)
      return logits, model.apply(graphdef, params, tokens), cache

    unrolled, full_unrolled, cache = jax.jit(two_steps)(params)
    self.assertIsInstance(cache.layers, list)
    with mock.patch.object(layers, 'UNROLL_LIMIT', 1):
      # A new function, as jax.jit remembers the trace of the other.
      scanned, full_scanned, cache = jax.jit(lambda p: two_steps(p))(params)
    self.assertIsInstance(cache.layers, layers.KeyValues)
    np.testing.assert_allclose(scanned, unrolled, atol=1e-5)
    np.testing.assert_allclose(full_scanned, full_unrolled, atol=1e-5)
    np.testing.assert_allclose(scanned[:, 0], full_scanned[:, 3], atol=1e-5)

  def test_later_tokens_have_exactly_no_gradient(self):
    graphdef, params = small_models.init(small_models.QWEN25)
    tokens = jnp.arange(6, dtype=jnp.int32)[None]

    def logit_after_third(embedding):
      logits = model.apply(graphdef, {**params, 'embedding': embedding}, tokens)
      return jnp.sum(jnp.square(logits[0, 2]))

    gradient = jax.jit(jax.grad(logit_after_third))(params['embedding'])
    is_read = np.any(np.asarray(gradient) != 0, axis=1)
    np.testing.assert_array_equal(is_read, np.arange(23) < 3)

  def test_padding_on_either_side_or_in_between_changes_nothing(self):
    graphdef, params = small_models.init(small_models.TIED)
    tokens = small_models.tokens((3, 7))
    is_valid = np.array(
      [
        [0, 0, 0, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 1, 1],
      ],
      bool,
    )
    padded = _apply(graphdef, params, tokens, is_valid=is_valid)
    padded = np.asarray(padded)
    self.assertTrue(np.all(np.isfinite(padded)))
    left = _apply(graphdef, params, tokens[:1, 3:])
    right = _apply(graphdef, params, tokens[1:2, :4])
    whole = _apply(graphdef, params, tokens, is_valid=np.ones((3, 7), bool))
    np.testing.assert_allclose(padded[0, 3:], left[0], atol=1e-5)
    np.testing.assert_allclose(padded[1, :4], right[0], atol=1e-5)
    kept = np.array([0, 1, 5, 6])
    joined = _apply(graphdef, params, tokens[2:, kept])
    np.testing.assert_allclose(padded[2, kept], joined[0], atol=1e-5)
    # Without a mask, left padding does change what follows.
    self.assertGreater(np.abs(np.asarray(whole)[0, 3:] - left[0]).max(), 0.1)

  def test_decoding_after_gaps_equals_the_full_forward(self):
    graphdef, params = small_models.init(small_models.TIED)
    tokens = small_models.tokens((2, 6))
    lengths, rows = np.array([4, 2]), np.arange(2)
    cache = cache_lib.init(small_models.TIED, batch_size=2, num_columns=4)
    logits, cache = _extend(
      graphdef,
      params,
      tokens[:, :4],
      cache,
      is_valid=np.arange(4)[None] < lengths[:, None],
    )
    full = np.asarray(_apply(graphdef, params, tokens))
    logits = np.asarray(logits)
    np.testing.assert_allclose(logits[0], full[0, :4], atol=1e-5)
    np.testing.assert_allclose(logits[1, :2], full[1, :2], atol=1e-5)
    cache = _grow(cache, 3)
    for t in range(2):
      logits, cache = _extend(
        graphdef, params, tokens[rows, lengths + t][:, None], cache
      )
      np.testing.assert_allclose(
        np.asarray(logits)[:, 0], full[rows, lengths + t], atol=1e-5
      )
    np.testing.assert_array_equal(cache.num_tokens, lengths + 2)
    self.assertEqual(cache.num_columns, 6)
    np.testing.assert_array_equal(
      cache.is_valid, [[1, 1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 1, 1, 0]]
    )

  def test_bfloat16_computes_near_float32_and_returns_float32(self):
    graphdef, params = small_models.init(small_models.QWEN3)
    low, _ = small_models.init(
      dataclasses.replace(small_models.QWEN3, compute_dtype='bfloat16')
    )
    tokens = small_models.tokens((2, 7))
    exact = _apply(graphdef, params, tokens)
    rounded = _apply(low, params, tokens)
    self.assertEqual(rounded.dtype, jnp.float32)
    difference = np.abs(exact - rounded).max()
    self.assertLess(difference, 0.2)
    self.assertGreater(difference, 1e-4)

  def test_rounded_matrices_give_the_same_bits(self):
    config = dataclasses.replace(
      small_models.QWEN25, compute_dtype='bfloat16', qk_norm=True
    )
    graphdef, params = small_models.init(config)
    rounded = model.rounded(config, params)
    types = {
      jax.tree_util.keystr(path): str(leaf.dtype)
      for path, leaf in jax.tree_util.tree_leaves_with_path(rounded)
    }
    kept = {name for name, dtype in types.items() if dtype == 'float32'}
    self.assertEqual(set(types.values()), {'float32', 'bfloat16'})
    for name in types:
      is_small = 'norm' in name or 'bias' in name
      self.assertEqual(is_small, name in kept, name)
    tokens = small_models.tokens((2, 6))
    np.testing.assert_array_equal(
      _apply(graphdef, rounded, tokens), _apply(graphdef, params, tokens)
    )
    whole = dataclasses.replace(config, compute_dtype='float32')
    jax.tree.map(
      np.testing.assert_array_equal, model.rounded(whole, params), params
    )

  def test_seeds_can_be_mapped(self):
    graphdef, params = small_models.init(small_models.QWEN3)
    tokens = small_models.tokens((2, 3, 5))
    stacked = jax.tree.map(
      lambda leaf: np.stack([leaf, -np.asarray(leaf)]), params
    )

    def score(params, tokens):
      return _whole(graphdef, params, tokens, temperature=1.0)

    together, _ = jax.jit(jax.vmap(score))(stacked, tokens)
    for seed in range(2):
      alone, _ = _token_logprobs(
        graphdef,
        jax.tree.map(lambda leaf, i=seed: leaf[i], stacked),
        tokens[seed],
        temperature=1.0,
      )
      np.testing.assert_allclose(together[seed], alone, atol=1e-5)
    shapes = jax.eval_shape(
      jax.vmap(lambda key: model.init(small_models.QWEN3, key)[1]),
      jax.random.split(jax.random.key(0), 2),
    )
    self.assertEqual(
      jax.tree.map(jnp.shape, shapes), jax.tree.map(jnp.shape, stacked)
    )

  def test_tokens_of_wrong_type_or_rank_raise(self):
    graphdef, params = small_models.init(small_models.TIED)
    with self.assertRaisesRegex(AssertionError, 'rank'):
      model.apply(graphdef, params, jnp.zeros((3,), jnp.int32))
    with self.assertRaisesRegex(AssertionError, 'type'):
      model.apply(graphdef, params, jnp.zeros((3, 2)))
    with self.assertRaisesRegex(AssertionError, 'shape'):
      model.apply(
        graphdef,
        params,
        small_models.tokens((2, 3)),
        is_valid=jnp.ones((2, 4), bool),
      )


def _temporary_bytes(config, **options):
  """Returns the memory that a gradient of 8 rows of 64 tokens needs."""
  graphdef, params = jax.eval_shape(
    functools.partial(model.init, config), jax.random.key(0)
  )

  def loss(params, tokens):
    logprobs, _ = scoring.token_logprobs(
      graphdef, params, tokens, temperature=1.0, **options
    )
    return jnp.sum(logprobs)

  tokens = jax.ShapeDtypeStruct((8, 65), jnp.int32)
  compiled = jax.jit(jax.grad(loss)).lower(params, tokens).compile()
  return compiled.memory_analysis().temp_size_in_bytes


_TOKENS = small_models.tokens((3, 6))


def _scores_and_gradient(function):
  """Jits a function and the gradient of a weighted sum of what it returns."""
  weights = np.random.default_rng(2).normal(size=(2, 3, 5)).astype('f')

  def loss(params, temperature):
    scores = function(params, temperature)
    return jnp.sum(scores[..., -5:] * weights), scores

  def scores_and_gradient(params, temperature):
    gradient, scores = jax.grad(loss, has_aux=True)(params, temperature)
    return scores, gradient

  return jax.jit(scores_and_gradient)


@functools.cache
def _defined_scores_and_gradient(temperature):
  graphdef, params = small_models.init(small_models.QWEN3)

  def definition(params, temperature):
    logits = model.apply(graphdef, params, _TOKENS)
    log_softmax = jax.nn.log_softmax(logits / temperature)[:, :-1]
    picked = jnp.take_along_axis(log_softmax, _TOKENS[:, 1:, None], axis=2)
    entropy = -jnp.sum(jnp.exp(log_softmax) * log_softmax, axis=-1)
    return jnp.stack([picked[..., 0], entropy])

  return _scores_and_gradient(definition)(params, temperature)


class TokenLogprobsTest(parameterized.TestCase):
  def test_chunks_save_the_memory_of_logits(self):
    # Logits of 8 x 64 x 4000 float32 are 8 MB; the rest is less than 1 MB.
    config = dataclasses.replace(
      small_models.TIED, vocab_size=4000, num_layers=1, max_context=64
    )
    whole = _temporary_bytes(config, chunk_size=None, remat=False)
    self.assertGreater(whole, 16e6)
    self.assertLess(_temporary_bytes(config, chunk_size=4, remat=False), 5e6)

  @parameterized.parameters(4, 12)  # Unrolled, and scanned.
  def test_remat_saves_the_memory_of_activations(self, num_layers):
    config = dataclasses.replace(
      small_models.TIED, num_layers=num_layers, d_ff=512, max_context=64
    )
    # Gate and up of a layer are 8 x 64 x 1024 float32: 2 MB.
    kept = _temporary_bytes(config, chunk_size=None, remat=False)
    again = _temporary_bytes(config, chunk_size=None, remat=True)
    self.assertGreater(kept - again, (num_layers - 2) * 1e6)

  def test_a_chunk_of_no_token_raises(self):
    graphdef, params = small_models.init(small_models.TIED)
    with self.assertRaisesRegex(ValueError, 'chunk_size = 0: must be None or'):
      scoring.token_logprobs(
        graphdef,
        params,
        small_models.tokens((2, 3)),
        temperature=1.0,
        chunk_size=0,
        remat=False,
      )

  @parameterized.parameters((None, True), (1, False), (2, True), (5, False))
  def test_values_and_gradients_equal_the_definition(self, chunk_size, remat):
    graphdef, params = small_models.init(small_models.QWEN3)
    score = functools.partial(
      scoring.token_logprobs, graphdef, chunk_size=chunk_size, remat=remat
    )
    ours = _scores_and_gradient(
      lambda params, temperature: jnp.stack(
        score(params, _TOKENS, temperature=temperature)
      )
    )
    for temperature in (1.0, 0.7):
      expected, expected_gradient = _defined_scores_and_gradient(temperature)
      scores, gradient = ours(params, temperature)
      np.testing.assert_array_equal(scores[:, :, 0], 0.0)
      np.testing.assert_allclose(scores[:, :, 1:], expected, atol=1e-5)
      jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4),
        gradient,
        expected_gradient,
      )
