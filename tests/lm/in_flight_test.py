"""Tests of generation in pieces, beside generation as one program."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import continuous
from replay_rl.lm import decoding
from replay_rl.lm import in_flight
from replay_rl.lm import model
from replay_rl.lm import prefill
from replay_rl.parallel import mesh as mesh_lib
from tests.lm import continuous_test
from tests.lm import small_models

_R = continuous_test._R
_PROMPTS, _IDS = continuous_test._PROMPTS, continuous_test._IDS
_EOS = (1, 4)
_SAMPLED = {'temperature': 0.8, 'top_k': 5, 'top_p': 0.9}
_GREEDY = {'temperature': None, 'top_k': None, 'top_p': None}


def _model():
  return small_models.init(continuous_test._QWEN3)


def _start(num_slots=8, max_new_tokens=_R, rollout_id=_IDS):
  return in_flight.init(
    *_model(),
    _PROMPTS,
    rollout_id,
    max_new_tokens=max_new_tokens,
    num_slots=num_slots,
  )


def _step(state, chunk=3, params=None, eos_ids=_EOS, **options):
  graphdef, initial = _model()
  return in_flight.step(
    graphdef,
    initial if params is None else params,
    jax.random.key(0),
    state,
    chunk=chunk,
    eos_ids=eos_ids,
    **{**_SAMPLED, **options},
  )


def _finish(state, steps, between=lambda state: state, **options):
  """Returns the responses of a state, and how many each harvest had."""
  counts = []
  while not in_flight.is_over(state):
    state, harvested = in_flight.harvest(_step(between(state), **options))
    steps = in_flight.collect(steps, harvested)
    counts.append(int(harvested.is_valid.sum()))
  return _completions(steps), counts


def _completions(steps):
  return jax.device_get(
    decoding.completions(prefill.repeat(_PROMPTS, 3), steps, _EOS, 0)
  )


def _expected(options, num_slots=8):
  return continuous_test._respond(num_slots=num_slots, **options)


class InFlightTest(parameterized.TestCase):
  @parameterized.parameters((3, _SAMPLED), (1, _SAMPLED), (99, _GREEDY))
  def test_chunks_have_every_bit_of_the_whole_program(self, chunk, options):
    actual, counts = _finish(
      _start(), decoding.empty(24, _R), chunk=chunk, **options
    )
    self.assertEqual(sum(counts), 24)
    chex.assert_trees_all_equal(actual, _expected(options))

  def test_a_state_that_was_stored_goes_on_bit_for_bit(self):
    state, harvested = in_flight.harvest(_step(_start()))
    steps = in_flight.collect(decoding.empty(24, _R), harvested)
    stored = jax.tree.map(np.array, jax.device_get((state, steps)))
    self.assertLess(stored[1].is_sampled.any(axis=1).sum(), 24)
    actual, _ = _finish(
      *stored, between=lambda state: jax.tree.map(np.array, state)
    )
    chex.assert_trees_all_equal(actual, _expected(_SAMPLED))

  def test_a_harvest_has_what_ended_since_the_one_before(self):
    expected = _expected(_SAMPLED)
    state, seen = _start(), []
    while not in_flight.is_over(state):
      # Nothing ends between two harvests without a step.
      state, harvested = in_flight.harvest(_step(state))
      for row in np.flatnonzero(harvested.is_valid):
        number = int(harvested.rows[row])
        length = expected.lengths[number]
        seen.append(number)
        np.testing.assert_array_equal(
          harvested.steps.tokens[row, :length],
          expected.responses[number, :length],
        )
        self.assertEqual(int(harvested.steps.is_sampled[row].sum()), length)
      state, harvested = in_flight.harvest(state)
      self.assertFalse(harvested.is_valid.any())
    self.assertCountEqual(seen, range(24))
    # What is over stays as it is.
    again, harvested = in_flight.harvest(_step(state))
    chex.assert_trees_all_equal(again, state)
    self.assertFalse(harvested.is_valid.any())

  def test_a_step_ends_after_its_chunk_or_where_slots_are_to_be_filled(self):
    state = _start()
    ticks = []
    while not in_flight.is_over(state):
      stepped = _step(state)
      ticks.append(int(stepped.num_ticks - state.num_ticks))
      # Eight slots: one that is free is enough, as long as a response waits.
      is_due = stepped.num_started[0] < 24 and not stepped.slots.is_busy.all()
      self.assertTrue(ticks[-1] == 3 or is_due or in_flight.is_over(stepped))
      state, _ = in_flight.harvest(stepped)
    self.assertEqual(max(ticks), 3)
    self.assertLess(min(ticks), 3)

  def test_other_weights_sample_the_tokens_from_then_on(self):
    _, params = _model()
    halved = jax.tree.map(lambda leaf: 0.5 * leaf, params)
    state, _ = in_flight.harvest(_step(_start(), chunk=1))
    one, other = (
      _step(state, params=weights, chunk=1).slots
      for weights in (params, halved)
    )
    has_token = state.slots.num_drawn == 1
    tokens = [x.steps.tokens[has_token] for x in (state.slots, one, other)]
    for later in tokens[1:]:
      np.testing.assert_array_equal(later[:, 0], tokens[0][:, 0])
    self.assertFalse((tokens[1][:, 1] == tokens[2][:, 1]).all())

  def test_mapped_seeds_write_one_column_without_copies_of_the_cache(self):
    keys = jax.random.split(jax.random.key(8), 2)
    graphdef, params = _model()

    def step(key, state):
      return in_flight.step(
        *(graphdef, params, key, state), chunk=3, eos_ids=_EOS, **_SAMPLED
      )

    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), _start())
    mapped = jax.jit(jax.vmap(step))
    lines = mapped.lower(keys, state).as_text().splitlines()
    cache_lines = [x for x in lines if 'tensor<2x1x8x4x15x6xf32>' in x]
    # Keys and values are each written at one place for all seeds.
    one_column = ', tensor<5xi32>, tensor<2x1x8x4x1x6xf32>)'
    self.assertLen([x for x in cache_lines if one_column in x], 2)
    self.assertEmpty([line for line in cache_lines if '.select' in line])
    # Together they stop where the first of them would.
    together = mapped(keys, state)
    alone = [step(key, _start()) for key in keys]
    first = min(int(one.num_ticks) for one in alone)
    self.assertEqual(together.num_ticks.tolist(), [first, first])
    for seed, one in enumerate(alone):
      np.testing.assert_array_equal(
        together.slots.steps.tokens[seed, :, :first],
        one.slots.steps.tokens[:, :first],
      )

  def test_a_mesh_splits_the_rows_and_changes_no_token(self):
    mesh = mesh_lib.make({'data': 2, 'fsdp': 2, 'tensor': 1})
    graphdef, _ = jax.eval_shape(
      functools.partial(
        model.init, continuous_test._QWEN3, constrain_fn=mesh_lib.constrain
      ),
      jax.random.key(0),
    )
    _, params = _model()
    with jax.set_mesh(mesh):
      state = in_flight.init(
        *(graphdef, params, _PROMPTS, _IDS), max_new_tokens=_R, num_slots=8
      )
      places = continuous.places(
        lambda axes: jax.sharding.NamedSharding(mesh, mesh_lib.spec(axes))
      )
      state = jax.device_put(state, places)
      self.assertEqual(state.num_started.tolist(), [2, 2, 2, 2])
      steps = decoding.empty(24, _R)
      while not in_flight.is_over(state):
        state = in_flight.step(
          *(graphdef, params, jax.random.key(0), state),
          **{'chunk': 3, 'eos_ids': _EOS, **_SAMPLED},
        )
        state, harvested = in_flight.harvest(state)
        steps = in_flight.collect(steps, harvested)
    expected = _expected(_SAMPLED)
    np.testing.assert_array_equal(_completions(steps).tokens, expected.tokens)

  @parameterized.parameters(
    (24, 'num_slots = 24: must be below the 24 responses, so that some'),
    (0, r'num_slots = 0: must be in \[1, inf\)'),
    (2.0, 'num_slots = 2.0: must be of type int'),
  )
  def test_a_wrong_number_of_slots_is_named(self, num_slots, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      _start(num_slots)

  def test_rows_that_do_not_fit_are_refused(self):
    with self.assertRaisesRegex(ValueError, '^max_new_tokens = 99: must be at'):
      _start(max_new_tokens=99)
    with self.assertRaisesRegex(ValueError, '^rollout_id = 23 ids: must be a'):
      _start(rollout_id=_IDS[:23])

  @parameterized.parameters(
    ({'chunk': 0}, r'chunk = 0: must be in \[1, inf\)'),
    ({'chunk': None}, 'chunk = None: must be of type int'),
    ({'eos_ids': ()}, r'eos_ids = \(\): must be at least one token'),
    ({'top_k': 99}, 'top_k = 99: must be at most vocab_size = '),
    ({'temperature': 0.0}, 'temperature = 0.0: must be'),
  )
  def test_a_wrong_setting_of_a_step_is_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      _step(_start(), **changes)
