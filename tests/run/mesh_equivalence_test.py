"""Tests that a mesh changes nothing: learner, sampler and whole runs."""

import functools
import tempfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from replay_rl import base
from replay_rl import train
from replay_rl.lm import layers
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import learner
from replay_rl.run import maker as maker_lib
from replay_rl.run import microbatches
from replay_rl.run import placement
from replay_rl.run import programs
from replay_rl.run import state as run_state
from tests import tiny
from tests.replay import buffers

ONE = (1, 1, 1)
# Tied as in Qwen3, untied as in Qwen2.5: biases and norms of heads, and more
# query heads than heads of keys and values.
MODELS = {
  'qwen3': {'num_kv_heads': 4, 'qk_norm': True, 'tied_embeddings': True},
  'qwen25': {
    'num_kv_heads': 4,
    'num_heads': 8,
    'qk_norm': False,
    'qkv_bias': True,
    'tied_embeddings': False,
    'num_layers': 2,
  },
}
# Every mesh, and each model on two of them.
CASES = (
  ('qwen3', (1, 8, 1)),
  ('qwen3', (1, 2, 4)),
  ('qwen25', (2, 2, 2)),
  ('qwen25', (1, 2, 4)),
)
_OPTIMIZER = optax.chain(
  optax.trace(decay=0.0),  # Keeps the gradient as its state.
  # A large eps: else Adam turns the rounding of a gradient near zero into a
  # full step.
  optax.adamw(1e-2, eps=1e-3),
)


def settings(name, **changes):
  shape = {'num_heads': 4, 'd_model': 16, 'd_ff': 32} | MODELS[name]
  return {f'model__{field}': value for field, value in shape.items()} | {
    'evaluation__num_prompts': 8,
    **changes,
  }


@functools.cache
def _parts(name, **changes):
  config = tiny.config(**settings(name, **changes))
  return build.experiment(config, build.planned_shape(config)).parts


def _functions(name, **changes):
  parts = _parts(name, **changes)
  return parts.bind(parts.hyper)


def _params(parts, mesh):
  """Returns weights on a mesh, norms and biases unlike their first values."""
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype('f'),
    parts.init_params_fn(jax.random.key(0)),
  )
  axes = model.logical_axes(parts.transformer)
  return jax.device_put(params, placement.of_params(axes, mesh))


def _batch(parts, num_rows):
  rng = np.random.default_rng(1)
  num_tokens = parts.transformer.max_context
  tokens = rng.integers(32, size=(num_rows, num_tokens)).astype(np.int32)
  # Rows of 1 to 4 sampled tokens: each weighs the same in the mean of all.
  lengths = rng.integers(1, 5, num_rows)
  columns = np.arange(num_tokens)[None]
  mask = (columns >= 4) & (columns < 4 + lengths[:, None])
  rollouts = buffers.make_rows(
    range(num_rows),
    tokens=tokens,
    loss_mask=mask,
    behavior_logprobs=np.where(mask, -3.0, 0.0),
    advantages=rng.normal(size=num_rows),
  )
  is_valid = np.arange(num_rows) != 3
  zeros = np.zeros(num_rows, np.float32)
  return base.Batch(
    rollouts, np.arange(num_rows), is_valid, is_valid, zeros, np.int32(num_rows)
  )


@functools.cache
def _updated(
  name, sizes, num_microbatches, compute_dtype='float32', packed=None
):
  parts = _parts(name, model__compute_dtype=compute_dtype)
  mesh = buffers.make_mesh(sizes)
  functions = _functions(name, model__compute_dtype=compute_dtype).update
  functions = functions._replace(optimizer=_OPTIMIZER)

  @jax.jit
  def update(params, batch):
    state, outcome, status = learner.update(
      learner.init(params, functions),
      batch._replace(rollouts=mesh_lib.split_rows(batch.rollouts)),
      functions=functions,
      num_updates_since_fresh=0,
      num_microbatches=num_microbatches,
      packed=packed,
    )
    return state, outcome, status.num_columns

  with jax.set_mesh(mesh):
    return jax.device_get(update(_params(parts, mesh), _batch(parts, 16)))


def _distance(tree, reference):
  difference = jax.tree.map(np.subtract, tree, reference)
  return float(optax.tree.norm(difference) / optax.tree.norm(reference))


def _products(function, *arguments):
  """Returns the matrix products of a function, in calls as well."""

  def walk(jaxpr):
    for equation in jaxpr.eqns:
      if equation.primitive.name == 'dot_general':
        yield equation
      for value in equation.params.values():
        inner = getattr(value, 'jaxpr', value)
        if hasattr(inner, 'eqns'):
          yield from walk(inner)

  return list(walk(jax.make_jaxpr(function)(*arguments).jaxpr))


class UpdateTest(parameterized.TestCase):
  @parameterized.parameters(*CASES)
  def test_loss_and_updated_weights_are_those_of_one_device(self, name, sizes):
    one, seen_one, _ = _updated(name, ONE, 1)
    # Two microbatches: rows of each are on all devices.
    eight, seen, _ = _updated(name, sizes, 2)
    gradients = (state.opt_state[0].trace for state in (eight, one))
    # Sums of some hundred float32 in another order: a few units of 6e-8.
    self.assertLess(_distance(*gradients), 2e-6)
    np.testing.assert_allclose(seen.loss, seen_one.loss, rtol=2e-6)
    chex.assert_trees_all_close(seen, seen_one, rtol=1e-5, atol=1e-6)
    # 1e-2 a step, divided by at least eps.
    chex.assert_trees_all_close(eight.params, one.params, atol=2e-6)
    moved = _distance(one.params, jax.device_get(_first(name)))
    self.assertGreater(moved, 1e-3)

  @parameterized.parameters(CASES[2])
  def test_rows_are_packed_alike_on_every_mesh(self, name, sizes):
    # Rows of 4 to 7 columns, 16 in all.
    capacity = _parts(name).shape.num_tokens - 1
    packed = microbatches.Packing(2 * capacity, 3)
    one, seen_one, _ = _updated(name, ONE, 1)
    eight, seen, num_columns = _updated(name, sizes, 1, packed=packed)
    gradients = (state.opt_state[0].trace for state in (eight, one))
    self.assertLess(_distance(*gradients), 2e-6)
    np.testing.assert_allclose(seen.loss, seen_one.loss, rtol=2e-6)
    chex.assert_trees_all_equal(seen.is_clipped, seen_one.is_clipped)
    # All devices that split rows have as many sequences as the others.
    num_parts = sizes[0] * sizes[1]
    of_step = 2 * capacity * num_parts * -(-3 // num_parts)
    self.assertEqual(num_columns % of_step, 0)

  @parameterized.parameters(*MODELS)
  def test_gradients_are_float32_where_the_rest_is_bfloat16(self, name):
    whole, *_ = _updated(name, ONE, 1, 'bfloat16')
    split, *_ = _updated(name, ONE, 4, 'bfloat16')
    gradients = [state.opt_state[0].trace for state in (split, whole)]
    # A sum that is rounded to bfloat16 on its way is off by 1e-3.
    self.assertLess(_distance(*gradients), 1e-5)
    exact, *_ = _updated(name, ONE, 1)
    self.assertLess(_distance(gradients[1], exact.opt_state[0].trace), 0.1)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients[1]):
      self.assertEqual(leaf.dtype, np.float32)
      rounded = np.asarray(leaf.astype(jnp.bfloat16), np.float32)
      same = np.mean((rounded == leaf)[leaf != 0])
      self.assertLess(same, 0.1, jax.tree_util.keystr(path))


def _first(name):
  return _params(_parts(name), buffers.make_mesh(ONE))


class PrecisionTest(parameterized.TestCase):
  @parameterized.parameters(jnp.bfloat16, jnp.float32)
  def test_factors_are_bfloat16_and_gradients_are_summed_in_float32(
    self, dtype
  ):
    def loss(x, weight):
      return jnp.sum(layers.matmul('td,df->tf', dtype, x, weight))

    actual = _products(
      jax.grad(loss, argnums=(0, 1)),
      jnp.ones((2, 3), jnp.bfloat16),
      jnp.ones((3, 4)),
    )
    for product in actual:
      self.assertEqual(
        [factor.aval.dtype for factor in product.invars], 2 * [jnp.bfloat16]
      )
    results = [product.outvars[0].aval for product in actual]
    self.assertEqual(
      sorted((aval.shape, aval.dtype) for aval in results),
      [((2, 3), jnp.float32), ((2, 4), dtype), ((3, 4), jnp.float32)],
    )

  def test_what_is_added_to_the_residual_stream_is_summed_in_float32(self):
    # Over heads and over the inside of the feed-forward layer, which cross
    # devices.
    parts = _parts('qwen25', model__compute_dtype='bfloat16')
    tokens = jnp.ones((3, 6), jnp.int32)
    actual = _products(
      _functions('qwen25', model__compute_dtype='bfloat16').update.logprobs_fn,
      _params(parts, buffers.make_mesh(ONE)),
      tokens,
    )
    added = [
      product.outvars[0].aval.dtype
      for product in actual
      if product.outvars[0].aval.shape == (3, 5, 16)
    ]
    self.assertEqual(added, 4 * [jnp.float32])  # Two in each of two layers.


@functools.cache
def _completions(name, sizes):
  parts = _parts(name)
  mesh = buffers.make_mesh(sizes)
  rng = np.random.default_rng(2)
  length = parts.shape.prompt_length
  prompts = base.Prompts(
    tokens=rng.integers(32, size=(16, length)).astype(np.int32),
    lengths=rng.integers(1, length + 1, 16).astype(np.int32),
    prompt_id=np.arange(16, dtype=np.uint32),
    references=None,
  )
  with jax.set_mesh(mesh):

    @jax.jit
    def generate(params, prompts):
      prompts = mesh_lib.split_rows(prompts)
      return [
        generate_fn(params, jax.random.key(3), prompts, prompts.prompt_id)
        for generate_fn in (parts.greedy_fn, _functions(name).generate_fn)
      ]

    return jax.device_get(generate(_params(parts, mesh), prompts))


class GenerateTest(parameterized.TestCase):
  @parameterized.parameters(*CASES)
  def test_samples_are_those_of_one_device(self, name, sizes):
    actual = _completions(name, sizes)
    for eight, one in zip(actual, _completions(name, ONE), strict=True):
      np.testing.assert_array_equal(eight.tokens, one.tokens)
      np.testing.assert_array_equal(eight.lengths, one.lengths)
      chex.assert_trees_all_close(eight, one, rtol=1e-5, atol=1e-5)
    self.assertGreater(len(np.unique(actual[0].responses)), 5)


class MemoryTest(parameterized.TestCase):
  @parameterized.parameters(*CASES)
  def test_a_device_keeps_its_share_of_weights_and_optimizer(self, name, sizes):
    parts, mesh = _parts(name), buffers.make_mesh(sizes)
    with jax.set_mesh(mesh):
      config = tiny.config()
      run = programs.build(
        parts,
        build.task(config),
        maker_lib.settings_of(config, mesh=mesh, sampler_mesh=None),
      ).init(
        _params(parts, mesh),
        jnp.zeros(1, jnp.uint32),
        run_state.of_seeds(parts.hyper, 1),
      )
    _, fsdp, tensor = sizes
    kept = run.learner.opt_state[1][0]
    for tree in (run.learner.params, kept.mu, kept.nu):
      total, on_device = 0, 0
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        total += leaf.nbytes
        on_device += leaf.addressable_shards[0].data.nbytes
        # A matrix: embed, and heads, mlp or vocab.
        if not jax.tree_util.keystr(path).endswith(("norm']", "bias']")):
          self.assertEqual(
            leaf.addressable_shards[0].data.nbytes * fsdp * tensor,
            leaf.nbytes,
            jax.tree_util.keystr(path),
          )
      # Norms and biases are split over one axis or none, and are small.
      self.assertLess(on_device * fsdp * tensor, 1.5 * total)


def _run(sizes):
  config = tiny.config(
    **settings('qwen3'),
    num_iterations=2,
    checkpoint__every=2,
    replay__num_prompts=5,
    replay__weights='unsolved() * max_age_batches(limit=0)',
    sampler__num_distinct_prompts=7,
    sampler__prompts=tiny.REPLAYED_PROMPTS,
    mesh__shape=dict(zip(mesh_lib.AXES, sizes, strict=True)),
  )
  with tempfile.TemporaryDirectory() as folder:
    return jax.device_get(train.train(config, folder))


class RunTest(parameterized.TestCase):
  # The other meshes are those of one update, above; an evaluation, and a mesh
  # for the sampler, are in programs_mesh_test.py.
  def test_eight_devices_give_the_run_of_one(self):
    eight, one = _run((2, 2, 2)), _run(ONE)
    buffers.assert_integers_equal(eight.buffer, one.buffer)
    chex.assert_trees_all_equal(eight.buffer.prompts, one.buffer.prompts)
    # The second generation has prompts 4 and 5, and two of 1 to 3 again: 0 is
    # among the next four of the training set.
    indices = one.buffer.prompts.stream_index[0].tolist()
    self.assertContainsSubset([4, 5], indices)
    self.assertEqual(one.buffer.prompts.num_replayed.tolist(), [2])
    self.assertEqual(one.buffer.prompts.num_replaced.tolist(), [1])
    first, second = one.buffer.rollouts.prompt_id[0, ::4].reshape(2, 4)
    self.assertContainsSubset(second[2:], first[1:])
    chex.assert_trees_all_equal(eight.ledger, one.ledger)
    # Adam's step of 1e-2 turns with the sign of a gradient near zero.
    chex.assert_trees_all_close(
      eight.learner.params, one.learner.params, atol=1e-4
    )
