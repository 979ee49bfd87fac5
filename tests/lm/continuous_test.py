"""Tests of continuous batching, beside generation in lock step."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.lm import arguments
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import continuous
from replay_rl.lm import decoding
from replay_rl.lm import model
from replay_rl.lm import prefill
from replay_rl.lm import sampler
from replay_rl.parallel import mesh as mesh_lib
from tests.lm import sampler_test
from tests.lm import small_models

_R = 11
# Eight prompts of 1 to 5 tokens, and three responses to each.
_PROMPTS = jax.tree.map(lambda leaf: leaf[:8], sampler_test.PROMPTS)
_IDS = 7 + sampler_test.row_ids(24)
_QWEN3 = sampler_test._QWEN3


@functools.cache
def _respond(config=_QWEN3, **options):
  return jax.device_get(
    sampler_test.respond(
      config,
      _PROMPTS,
      _IDS,
      **{'max_new_tokens': _R, 'eos_ids': (1, 4), **options},
    )
  )


def _timetable(
  lengths, num_slots, num_parts=1, vmapped=None, longest=4, chunk=None
):
  """Returns the responses that get a token at each step, tokens, and columns.

  Args:
    lengths: of the responses. Token n of response i is 100 i + n.
    num_slots: S.
    num_parts: of the mesh.
    vmapped: lengths of several runs, in place of `lengths`.
    longest: R.
    chunk: steps between two harvests; None for `decode`.
  """
  config = dataclasses.replace(_QWEN3, d_model=1)
  num_rows = len(lengths)
  ticks, columns = [], []

  def read(tokens, cache, is_valid):
    # What is read at a step is the latest token, which the prompt is not.
    del is_valid
    jax.debug.callback(
      lambda column: columns.append(int(column)), cache.num_columns
    )
    return tokens[:, None].astype(jnp.float32), cache

  def draw(lengths, x, rollout_id, number, is_sampled):
    jax.debug.callback(
      lambda ids, busy: ticks.append(sorted(ids[busy].tolist())),
      rollout_id,
      is_sampled,
    )
    tokens = jnp.where(
      number == 0,
      100 * rollout_id.astype(jnp.int32),
      x[:, 0].astype(jnp.int32) + 1,
    )
    zeros = jnp.zeros(num_slots)
    step = decoding.Step(tokens, zeros, zeros, x[:, 0], is_sampled)
    return step, number + 1 == lengths[rollout_id]

  def decode(lengths):
    prefix = prefill.Prefix(
      -1.0 - jnp.arange(num_rows, dtype=jnp.float32)[:, None],
      cache_lib.init(config, batch_size=num_rows, num_columns=2),
    )
    ids = jnp.arange(num_rows, dtype=jnp.uint32)
    sizes = {'num_slots': num_slots, 'max_new_tokens': longest}
    functions = {
      'read_fn': read,
      'draw_fn': functools.partial(draw, lengths),
    }
    if chunk is None:
      return continuous.decode(config, prefix, ids, **functions, **sizes)

    def advance(carry):
      state, steps = carry
      state = continuous.step(state, **functions, chunk=chunk)
      state, harvested = continuous.harvest(state)
      return state, continuous.collect(steps, harvested)

    return jax.lax.while_loop(
      lambda carry: ~continuous.is_over(carry[0]),
      advance,
      (
        continuous.init(config, prefix, ids, **sizes),
        decoding.empty(num_rows, longest),
      ),
    )[1]

  decode = jax.jit(jax.vmap(decode) if vmapped else decode)
  arguments = jnp.array(vmapped or lengths)
  if num_parts > 1:
    mesh = mesh_lib.make({'data': num_parts, 'fsdp': 1, 'tensor': 1})
    with jax.set_mesh(mesh):
      steps = decode(arguments)
  else:
    steps = decode(arguments)
  jax.effects_barrier()
  return ticks, jax.device_get(steps), columns


class TimetableTest(parameterized.TestCase):
  def _check(self, steps, lengths):
    for row, length in enumerate(lengths):
      expected = [100 * row + n for n in range(length)]
      self.assertEqual(steps.tokens[row, :length].tolist(), expected)
      self.assertEqual(
        steps.is_sampled[row].tolist(), [n < length for n in range(4)]
      )
      # The first token follows from the prompt, the others from a token.
      self.assertEqual(
        steps.entropy[row, :length].tolist(), [-1.0 - row, *expected[:-1]]
      )

  def test_the_next_response_starts_when_one_ends(self):
    lengths = [3, 1, 2, 1, 1, 4, 1]
    ticks, steps, _ = _timetable(lengths, 2)
    self.assertEqual(
      ticks, [[0, 1], [0, 2], [0, 2], [3, 4], [5, 6], [5], [5], [5]]
    )
    self._check(steps, lengths)

  def test_the_columns_behind_the_prompts_are_a_ring(self):
    # Prompts of two columns; a response reads at most three of its tokens.
    _, _, columns = _timetable([4, 1, 2], 1)
    self.assertEqual(columns, [2, 3, 4, 2, 3, 4, 2])
    # One token, which nothing reads, still has a column to be written to.
    ticks, _, columns = _timetable([1, 1, 1], 1, longest=1)
    self.assertEqual(ticks, [[0], [1], [2]])
    self.assertEqual(columns, [2, 2, 2])

  def test_slots_wait_until_a_sixteenth_of_them_is_free(self):
    # 2 of 32: responses 0 and 1 leave together, after the second step.
    lengths = [1, 2] + 30 * [4] + [1, 1]
    ticks, steps, _ = _timetable(lengths, 32)
    most = list(range(2, 32))
    self.assertEqual(ticks, [[0, 1, *most], [1, *most], [*most, 32, 33], most])
    self._check(steps, lengths)
    # Nobody waits for a second one if only one response is left to start.
    lengths = [1, 2] + 30 * [4] + [1]
    ticks, steps, _ = _timetable(lengths, 32)
    self.assertEqual(ticks[1], [1, *most, 32])
    self._check(steps, lengths)

  @parameterized.parameters(1, 2, 3)
  def test_the_chunk_changes_neither_timetable_nor_columns(self, chunk):
    # With 32 slots, one that is free waits for a second one.
    lengths = [1, 2] + 30 * [4] + [1, 1]
    for slots, of_rows in ((2, [3, 1, 2, 1, 1, 4, 1]), (32, lengths)):
      ticks, steps, columns = _timetable(of_rows, slots, chunk=chunk)
      expected_ticks, _, expected_columns = _timetable(of_rows, slots)
      self.assertEqual(ticks, expected_ticks)
      self.assertEqual(columns, expected_columns)
      self._check(steps, of_rows)

  def test_each_part_of_a_mesh_has_its_own_queue(self):
    # Responses 0 to 3, and 4 to 7, in one slot each.
    lengths = [1, 1, 1, 1, 2, 3, 1, 1]
    ticks, steps, _ = _timetable(lengths, 2, num_parts=2)
    self.assertEqual(ticks, [[0, 4], [1, 4], [2, 5], [3, 5], [5], [6], [7]])
    self._check(steps, lengths)

  def test_mapped_runs_end_with_the_last_of_them(self):
    both = ([1, 1, 1], [1, 4, 1])
    _, steps, _ = _timetable(both[0], 1, vmapped=both)
    for index, lengths in enumerate(both):
      self._check(jax.tree.map(lambda leaf, i=index: leaf[i], steps), lengths)


class ContinuousTest(parameterized.TestCase):
  @parameterized.parameters(
    (5, {'temperature': None}),
    (5, {}),
    (8, {'temperature': 0.8, 'top_k': 5, 'top_p': 0.9}),
  )
  def test_responses_are_those_of_lock_step(self, num_slots, options):
    expected = _respond(**options)
    actual = _respond(num_slots=num_slots, **options)
    # Long and short ones, and some that are cut.
    self.assertGreater(len(np.unique(expected.lengths)), 3)
    self.assertBetween(int(expected.is_finished.sum()), 8, 23)
    is_other = np.any(actual.responses != expected.responses, axis=1)
    # Another shape may round otherwise: 0 of 24 on the CPU of these tests.
    self.assertEqual(is_other.sum(), 0, f'{is_other.sum()} of 24 differ')
    for field in base.Completions._fields:
      value, other = getattr(actual, field), getattr(expected, field)
      if value.dtype == np.float32:
        np.testing.assert_allclose(value, other, atol=2e-5)
      else:
        np.testing.assert_array_equal(value, other)

  def test_a_response_of_one_token_needs_no_column(self):
    actual = _respond(max_new_tokens=1, num_slots=7)
    first_tokens = _respond().responses[:, :1]
    np.testing.assert_array_equal(actual.responses, first_tokens)

  def test_layers_in_a_scan_and_other_architectures(self):
    config = dataclasses.replace(sampler_test._QWEN25, num_layers=9)
    expected, actual = _respond(config), _respond(config, num_slots=6)
    np.testing.assert_array_equal(actual.tokens, expected.tokens)
    np.testing.assert_allclose(
      actual.full_logprobs, expected.full_logprobs, atol=1e-4
    )

  def test_as_many_slots_as_responses_are_lock_step(self):
    expected = _respond()
    for num_slots in (24, 25):
      actual = _respond(num_slots=num_slots)
      for value, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(value, other)

  def test_a_group_has_the_responses_of_prompts_one_by_one(self):
    repeated = jax.tree.map(lambda x: np.repeat(x, 3, axis=0), _PROMPTS)
    options = {'max_new_tokens': _R, 'eos_ids': (1, 4)}
    alone = sampler_test.respond(_QWEN3, repeated, _IDS, **options)
    np.testing.assert_array_equal(_respond().tokens, alone.tokens)
    np.testing.assert_allclose(
      _respond().full_logprobs, alone.full_logprobs, atol=2e-5
    )

  def test_seeds_can_be_mapped_without_copies_of_the_cache(self):
    graphdef, params = small_models.init(_QWEN3)
    generate = functools.partial(
      sampler.generate,
      graphdef,
      **{**sampler_test._OPTIONS, 'max_new_tokens': _R, 'eos_ids': (1, 4)},
      num_slots=5,
    )
    keys = jax.random.split(jax.random.key(8), 3)
    mapped = jax.jit(jax.vmap(generate, in_axes=(None, 0, None, None)))
    together = mapped(params, keys, _PROMPTS, _IDS)
    for seed, key in enumerate(keys):
      alone = generate(params, key, _PROMPTS, _IDS)
      for field in base.Completions._fields:
        np.testing.assert_allclose(
          getattr(together, field)[seed], getattr(alone, field), atol=2e-5
        )
    # A mapped loop condition selects between the old and the new cache.
    lines = mapped.lower(params, keys, _PROMPTS, _IDS).as_text().splitlines()
    cache_type = 'tensor<3x1x5x4x15x6xf32>'
    cache_lines = [line for line in lines if cache_type in line]
    self.assertNotEmpty(cache_lines)
    self.assertEmpty([line for line in cache_lines if '.select' in line])

  def test_a_mesh_does_not_change_a_response(self):
    config = dataclasses.replace(_QWEN3, vocab_size=12)
    mesh = mesh_lib.make({'data': 2, 'fsdp': 2, 'tensor': 2})
    graphdef, params = small_models.init(config)
    split = jax.tree.map(
      lambda leaf, axes: jax.device_put(
        leaf, jax.sharding.NamedSharding(mesh, mesh_lib.spec(axes))
      ),
      params,
      model.logical_axes(config),
    )
    on_mesh, _ = jax.eval_shape(
      functools.partial(model.init, config, constrain_fn=mesh_lib.constrain),
      jax.random.key(0),
    )
    options = {**sampler_test._OPTIONS, 'max_new_tokens': _R, 'num_slots': 8}

    def generate(graphdef, params, prompts, ids):
      return sampler.generate(
        graphdef, params, jax.random.key(0), prompts, ids, **options
      )

    # Each of the four parts has six rows: one and a half groups of four.
    prompts = jax.tree.map(lambda leaf: leaf[:6], _PROMPTS)
    with jax.set_mesh(mesh):
      actual = jax.jit(generate, static_argnums=0)(
        on_mesh, split, prompts, _IDS
      )
    alone = generate(graphdef, params, prompts, _IDS)
    np.testing.assert_array_equal(actual.responses, alone.responses)
    np.testing.assert_allclose(
      actual.behavior_logprobs, alone.behavior_logprobs, atol=2e-5
    )
    with (
      jax.set_mesh(mesh),
      self.assertRaisesRegex(
        ValueError,
        '^num_slots = 6: must be a multiple of 4, the parts into which the '
        'mesh splits rows$',
      ),
    ):
      options['num_slots'] = 6
      generate(on_mesh, split, prompts, _IDS)

  def test_one_span_is_allowed_and_several_are_refused(self):
    _, params = small_models.init(_QWEN3)
    ring = jax.tree.map(lambda leaf: jnp.stack([0.5 * leaf, leaf]), params)

    def respond(*first_tokens):
      slots = np.ones(len(first_tokens), np.int32)
      return sampler_test.respond(
        _QWEN3,
        _PROMPTS,
        _IDS,
        params=ring,
        max_new_tokens=_R,
        eos_ids=(1, 4),
        num_slots=5,
        spans=arguments.Spans(slots, np.int32(first_tokens)),
      )

    np.testing.assert_array_equal(respond(0).tokens, _respond().tokens)
    with self.assertRaisesRegex(
      ValueError, '^num_slots = 5: must be None with several spans, whose'
    ):
      respond(0, 2)

  @parameterized.parameters(0, -1, 2.0)
  def test_a_wrong_number_of_slots_is_named(self, num_slots):
    with self.assertRaisesRegex(ValueError, f'^num_slots = {num_slots}: must'):
      sampler_test.respond(num_slots=num_slots)
