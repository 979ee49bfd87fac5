"""Tests for `replay_rl.lm.sampler`."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.lm import model
from replay_rl.lm import sampler
from replay_rl.lm import scoring
from replay_rl.parallel import mesh as mesh_lib
from tests.lm import small_models

_V, _EOS, _PAD = 11, 1, 0
_TIED, _QWEN3, _QWEN25 = (
  dataclasses.replace(config, vocab_size=_V, max_context=16)
  for config in (
    dataclasses.replace(small_models.TIED, num_layers=1),
    small_models.QWEN3,
    small_models.QWEN25,
  )
)


def _prompts(lengths, columns):
  rng = np.random.default_rng(1)
  tokens = rng.integers(2, _V, (len(lengths), columns))
  tokens = np.where(np.arange(columns) < np.array(lengths)[:, None], tokens, 0)
  return base.Prompts(
    tokens=np.asarray(tokens, np.int32),
    lengths=np.asarray(lengths, np.int32),
    prompt_id=np.zeros(len(lengths), np.uint32),
    references=(),
  )


_LENGTHS = [1, 3, 5, 2] * 6
PROMPTS = _prompts(_LENGTHS, 5)
_R = 6
_OPTIONS = {
  'max_new_tokens': _R,
  'eos_ids': (_EOS,),
  'pad_id': _PAD,
  'temperature': 1.0,
  'top_k': None,
  'top_p': None,
}


def row_ids(num_rows):
  return np.arange(num_rows, dtype=np.uint32)


def respond(
  config=_TIED, prompts=PROMPTS, ids=None, seed=0, params=None, **options
):
  graphdef, initial = small_models.init(config)
  return sampler.generate(
    graphdef,
    initial if params is None else params,
    jax.random.key(seed),
    prompts,
    row_ids(len(prompts.lengths)) if ids is None else ids,
    **{**_OPTIONS, **options},
  )


def _rows(prompts, rows):
  return jax.tree.map(lambda leaf: leaf[np.array(rows)], prompts)


_score = jax.jit(
  functools.partial(scoring.token_logprobs, chunk_size=None, remat=False),
  static_argnums=0,
  static_argnames='temperature',
)


class GenerateTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('tied', _TIED, 1.0, None),
    ('qwen3_tempered', _QWEN3, 0.7, None),
    ('qwen25_truncated', _QWEN25, 1.3, 4),
  )
  def test_sampler_and_learner_agree_on_log_probabilities(
    self, config, temperature, top_k
  ):
    completions = respond(config, temperature=temperature, top_k=top_k)
    logprobs, entropy = _score(
      *small_models.init(config), completions.tokens, temperature=temperature
    )
    mask = completions.loss_mask
    # Some rows must have stopped early, and some not.
    self.assertBetween(int(completions.is_finished.sum()), 1, 23)
    for ours, learners in (
      (completions.full_logprobs, logprobs),
      (completions.entropy, entropy),
    ):
      difference = np.abs(ours - np.where(mask, learners, 0.0)).max()
      self.assertLess(difference, 1e-5)
    if top_k is None:
      np.testing.assert_array_equal(
        completions.behavior_logprobs, completions.full_logprobs
      )

  def test_responses_follow_their_prompts_and_stop_at_the_end_token(self):
    completions = jax.device_get(respond())
    self.assertEqual(completions.tokens.shape, (24, 5 + _R))
    self.assertEqual(completions.tokens.dtype, np.int32)
    for row, length in enumerate(_LENGTHS):
      response = completions.responses[row]
      is_end = response == _EOS
      count = int(np.argmax(is_end)) + 1 if is_end.any() else _R
      self.assertEqual(int(completions.lengths[row]), count)
      self.assertEqual(bool(completions.is_finished[row]), is_end.any())
      np.testing.assert_array_equal(response[count:], _PAD)
      np.testing.assert_array_equal(
        completions.tokens[row],
        [
          *PROMPTS.tokens[row, :length],
          *response[:count],
          *[_PAD] * (5 + _R - length - count),
        ],
      )
      columns = np.arange(5 + _R)
      is_response = (columns >= length) & (columns < length + count)
      np.testing.assert_array_equal(completions.loss_mask[row], is_response)
      for field in ('behavior_logprobs', 'full_logprobs', 'entropy'):
        values = getattr(completions, field)[row]
        self.assertEqual(values.dtype, np.float32)
        np.testing.assert_array_equal(values != 0, is_response)

  def test_greedy_tokens_are_the_argmax_of_the_learner(self):
    completions = respond(temperature=None)
    graphdef, params = small_models.init(_TIED)
    logits = jax.jit(model.apply, static_argnums=0)(
      graphdef, params, completions.tokens
    )
    best = np.argmax(logits, axis=-1)[:, :-1]
    mask = np.asarray(completions.loss_mask)[:, 1:]
    np.testing.assert_array_equal(
      np.asarray(completions.tokens)[:, 1:][mask], best[mask]
    )
    for field in ('behavior_logprobs', 'full_logprobs', 'entropy'):
      np.testing.assert_array_equal(getattr(completions, field), 0.0)

  @parameterized.parameters((None, None), (None, 0.6), (5, 0.8))
  def test_draws_have_the_frequencies_of_the_formula(self, top_k, top_p):
    num_draws, temperature = 4096, 1.5
    prompts = _rows(PROMPTS, [2] * num_draws)
    completions = respond(
      prompts=prompts,
      max_new_tokens=1,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
    )
    graphdef, params = small_models.init(_TIED)
    logits = jax.jit(model.apply, static_argnums=0)(
      graphdef, params, PROMPTS.tokens
    )
    full = np.exp(np.float64(jax.nn.log_softmax(logits[2, 4] / temperature)))
    order = np.argsort(-full)
    kept = order if top_k is None else order[:top_k]
    if top_p is not None:
      mass = np.cumsum(full[kept] / full[kept].sum())
      kept = kept[: np.argmax(mass >= top_p) + 1]
    probs = np.zeros(_V)
    probs[kept] = full[kept] / full[kept].sum()
    completions = jax.device_get(completions)
    tokens = completions.responses[:, 0]

    def chi_square_per_degree(probs):
      counts = np.bincount(tokens, minlength=_V)
      self.assertEqual(counts[probs == 0].sum(), 0)
      is_possible = probs > 0
      expected = num_draws * probs[is_possible]
      chi_square = np.sum((counts[is_possible] - expected) ** 2 / expected)
      return chi_square / (is_possible.sum() - 1)

    self.assertLess(chi_square_per_degree(probs), 3.0)
    # The test would notice a temperature of 1.
    wrong = probs**temperature
    self.assertGreater(chi_square_per_degree(wrong / wrong.sum()), 9.0)
    columns = 5 * np.ones(num_draws, int)
    rows = np.arange(num_draws)
    for recorded, table in (
      (completions.behavior_logprobs, probs),
      (completions.full_logprobs, full),
    ):
      np.testing.assert_allclose(
        recorded[rows, columns], np.log(table[tokens]), atol=1e-5
      )
    # Every token that can be drawn was, so the recorded ones sum to 1.
    _, first = np.unique(tokens, return_index=True)
    recorded = np.exp(completions.behavior_logprobs[first, columns[first]])
    np.testing.assert_allclose(recorded.sum(), 1.0, atol=1e-5)

  def test_any_of_several_tokens_ends_a_response(self):
    whole = respond(eos_ids=(_V - 1,))
    ends = (2, 7)
    completions = respond(eos_ids=ends)
    stops = set()
    for long, short, length in zip(
      np.asarray(whole.responses),
      np.asarray(completions.responses),
      np.asarray(completions.lengths),
      strict=True,
    ):
      is_end = np.isin(long, ends)
      if is_end.any():
        self.assertEqual(length, np.argmax(is_end) + 1)
        stops.add(int(short[length - 1]))
    self.assertEqual(stops, set(ends))

  @parameterized.parameters({}, {'top_k': 5, 'top_p': 0.9})
  def test_batches_and_the_order_of_rows_do_not_change_a_response(
    self, **options
  ):
    eight = _rows(PROMPTS, range(8))
    ids = np.array([7, 2**32 - 1, 3, 0, 11, 12, 2**31, 5], np.uint32)
    whole = respond(prompts=eight, ids=ids, **options)
    order = [6, 3, 0, 5, 1, 7, 2, 4]
    for batches in ([[0, 1, 2, 3], [4, 5, 6, 7]], [order[:4], order[4:]]):
      for rows in batches:
        part = respond(
          prompts=_rows(eight, rows), ids=ids[np.array(rows)], **options
        )
        for field in base.Completions._fields:
          expected = np.asarray(getattr(whole, field))[np.array(rows)]
          if expected.dtype == np.float32:
            np.testing.assert_allclose(
              getattr(part, field), expected, atol=1e-5
            )
          else:
            np.testing.assert_array_equal(getattr(part, field), expected)

  def test_the_padding_of_prompts_does_not_matter(self):
    completions = respond()
    padding = ((0, 0), (0, 3))
    tokens = np.pad(PROMPTS.tokens, padding, constant_values=_V - 1)
    wider = respond(prompts=PROMPTS._replace(tokens=tokens))
    np.testing.assert_array_equal(wider.responses, completions.responses)
    np.testing.assert_allclose(
      np.asarray(wider.full_logprobs)[:, :11],
      completions.full_logprobs,
      atol=1e-5,
    )

  def test_tokens_have_the_key_of_their_rollout_and_position(self):
    # Logits of a model of zeros are equal, so the noise alone decides.
    _, params = small_models.init(_TIED)
    zeros = jax.tree.map(jnp.zeros_like, params)
    actual = respond(params=zeros, eos_ids=(_PAD,), pad_id=_PAD, seed=5)
    for row in range(3):
      row_key = jax.random.fold_in(jax.random.key(5), row)
      for t in range(int(actual.lengths[row])):
        noise = jax.random.gumbel(jax.random.fold_in(row_key, t), (_V,))
        self.assertEqual(actual.responses[row, t], jnp.argmax(noise))

  def test_the_loop_ends_with_the_last_row(self):
    graphdef, params = small_models.init(_TIED)
    greedy = np.asarray(respond(temperature=None).responses)
    is_fit = (greedy[:, 0] != greedy[:, 1]) & (greedy[:, 0] > 1)
    row = int(np.argmax(is_fit))
    self.assertTrue(is_fit[row])
    first, second = int(greedy[row, 0]), int(greedy[row, 1])
    prompts = _rows(PROMPTS, [row])
    calls = []
    extend = model.extend

    def counted(*args, **kwargs):
      jax.debug.callback(lambda: calls.append(None))
      return extend(*args, **kwargs)

    for eos_id, length in ((first, 1), (second, 2)):
      calls.clear()
      with mock.patch.object(model, 'extend', counted):
        # The function without jit, so that no earlier trace is reused.
        generate = functools.partial(
          sampler._generate.__wrapped__,
          graphdef,
          **{**_OPTIONS, 'eos_ids': (eos_id,), 'temperature': None},
          num_slots=None,
          spans=None,
        )
        completions = jax.jit(generate)(
          params, jax.random.key(0), prompts, row_ids(1)
        )
        jax.block_until_ready(completions)
        jax.effects_barrier()
      # Prefill draws the first token, each step of the loop one more.
      self.assertLen(calls, length)
      self.assertEqual(int(completions.lengths[0]), length)

  def test_seeds_can_be_mapped_without_copies_of_the_cache(self):
    graphdef, params = small_models.init(_TIED)
    num_seeds = 6
    generate = functools.partial(
      sampler.generate, graphdef, **{**_OPTIONS, 'max_new_tokens': 11}
    )
    keys = jax.random.split(jax.random.key(8), num_seeds)
    scales = 1 + 0.1 * np.arange(num_seeds, dtype='f')
    stacked = jax.tree.map(
      lambda leaf: np.stack([np.asarray(leaf) * scale for scale in scales]),
      params,
    )
    prompts = jax.tree.map(lambda leaf: leaf[:num_seeds, None], PROMPTS)
    ids = 100 + row_ids(num_seeds)[:, None]
    mapped = jax.jit(jax.vmap(generate))
    # Mapped again with the seed that ends first in front.
    arguments = (stacked, keys, prompts, ids)
    steps = np.asarray(mapped(*arguments).lengths).max(axis=1)
    self.assertLess(steps.min(), steps.max())
    order = np.argsort(steps)
    arguments = jax.tree.map(lambda leaf: leaf[order], arguments)
    together = mapped(*arguments)
    for seed in range(num_seeds):
      alone = generate(*jax.tree.map(lambda leaf, i=seed: leaf[i], arguments))
      for field in base.Completions._fields:
        np.testing.assert_allclose(
          getattr(together, field)[seed], getattr(alone, field), atol=1e-5
        )
    # A mapped loop condition selects between the old and the new cache.
    lines = mapped.lower(*arguments).as_text().splitlines()
    cache_type = f'tensor<{num_seeds}x1x1x2x15x6xf32>'
    cache_lines = [line for line in lines if cache_type in line]
    self.assertNotEmpty(cache_lines)
    self.assertEmpty([line for line in cache_lines if '.select' in line])

  def test_a_mesh_does_not_change_a_response(self):
    config = dataclasses.replace(
      _QWEN25, num_layers=1, vocab_size=12, num_kv_heads=2
    )
    _, params = small_models.init(config)
    mesh = mesh_lib.make({'data': 2, 'fsdp': 2, 'tensor': 2})
    split = jax.tree.map(
      lambda leaf, axes: jax.device_put(
        leaf, jax.sharding.NamedSharding(mesh, mesh_lib.spec(axes))
      ),
      params,
      model.logical_axes(config),
    )
    graphdef, _ = jax.eval_shape(
      functools.partial(model.init, config, constrain_fn=mesh_lib.constrain),
      jax.random.key(0),
    )

    def generate(params, prompts, ids):
      return sampler.generate(
        graphdef,
        params,
        jax.random.key(0),
        *mesh_lib.split_rows((prompts, ids)),
        **_OPTIONS,
      )

    with jax.set_mesh(mesh):
      on_mesh = jax.jit(generate)(split, PROMPTS, row_ids(24))
    alone = respond(config)
    np.testing.assert_array_equal(on_mesh.responses, alone.responses)
    np.testing.assert_allclose(
      on_mesh.behavior_logprobs, alone.behavior_logprobs, atol=1e-5
    )
