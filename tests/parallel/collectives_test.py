"""Tests of what compiled programs exchange: no more than they must."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import optax
from absl.testing import parameterized

from replay_rl import base
from replay_rl.lm import layers
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import learner
from replay_rl.run import placement
from replay_rl.run import state as run_state
from tests import tiny
from tests.replay import buffers

_MESHES = ((1, 8, 1), (2, 2, 2))
_ROWS, _CHUNK = 1024, 6
_EXCHANGE = re.compile(
  r'= (\(.*?\)|\S+) (?:all-gather|all-reduce|reduce-scatter|all-to-all'
  r'|collective-permute)(?:-start)?\('
)


def exchanged(compiled):
  """Returns the shape of each array that the devices of a program exchange."""
  return [
    tuple(int(size) for size in sizes.split(',') if size)
    for actual in _EXCHANGE.findall(compiled.as_text())
    for sizes in re.findall(r'\w\[([\d,]*)\]', actual)
  ]


def _config():
  # Scanned layers; rows that weigh much more than weights. Nothing is run, and
  # for tiny sizes the compiler would choose other exchanges.
  return tiny.config(
    task='addition(num_digits=3, forget_probability=0.5)',
    model__vocab_size=1032,
    model__d_model=128,
    model__num_layers=layers.UNROLL_LIMIT + 1,
    model__num_heads=8,
    model__num_kv_heads=4,
    model__head_dim=24,
    model__d_ff=384,
    model__tied_embeddings=False,
    model__qkv_bias=True,
    optimizer__logits_chunk=_CHUNK,
    optimizer__remat=True,
    evaluation__num_prompts=8,
  )


@functools.cache
def _parts_and_functions():
  config = _config()
  parts = build.experiment(config, build.planned_shape(config)).parts
  return parts, parts.bind(parts.hyper)


def _shapes(tree, shardings):
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    tree,
    shardings,
  )


@functools.cache
def _compiled_generation(sizes, num_slots=None):
  """Returns generation of groups of two, as compiled."""
  parts, functions = _parts_and_functions()
  mesh = buffers.make_mesh(sizes)
  prompts = jax.eval_shape(
    lambda: run_state.empty_prompts(parts.shape, _ROWS // 2)
  )
  params = jax.eval_shape(parts.init_params_fn, jax.random.key(0))
  split = placement.of_params(model.logical_axes(parts.transformer), mesh)

  def generate(params, prompts):
    rollout_id = mesh_lib.split_rows(jnp.arange(_ROWS, dtype=jnp.uint32))
    return functions.generate_fn(
      params, jax.random.key(0), prompts, rollout_id, num_slots=num_slots
    )

  whole = jax.tree.map(lambda _: mesh_lib.whole(mesh), prompts)
  with jax.set_mesh(mesh):
    lowered = jax.jit(generate).lower(
      _shapes(params, split), _shapes(prompts, whole)
    )
    return lowered.compile()


@functools.cache
def _compiled(sizes):
  """Returns an update in two microbatches, and generation, as compiled."""
  parts, functions = _parts_and_functions()
  mesh = buffers.make_mesh(sizes)
  split = placement.of_params(model.logical_axes(parts.transformer), mesh)
  whole = jax.sharding.NamedSharding(mesh, jax.P())

  rollouts = jax.eval_shape(
    lambda: buffers.make_rows(range(_ROWS), parts.transformer.max_context)
  )
  rollouts = _shapes(rollouts, jax.tree.map(lambda _: whole, rollouts))

  def update(state, rollouts):
    zeros = jnp.zeros(_ROWS)
    batch = base.Batch(
      rollouts=mesh_lib.split_rows(rollouts),
      slots=jnp.arange(_ROWS),
      is_valid=zeros == 0,
      is_fresh=zeros == 0,
      probs=zeros,
      num_eligible=jnp.int32(_ROWS),
    )
    state, outcome, _ = learner.update(
      state,
      batch,
      functions=functions.update,
      num_updates_since_fresh=0,
      num_microbatches=2,
    )
    return state, outcome

  params = jax.eval_shape(parts.init_params_fn, jax.random.key(0))
  state = jax.eval_shape(
    functools.partial(learner.init, functions=functions.update), params
  )
  places = jax.tree.map(lambda _: whole, state)._replace(
    params=split,
    opt_state=optax.tree.map_params(
      functions.update.optimizer,
      lambda _, place: place,
      state.opt_state,
      split,
      transform_non_params=lambda _: whole,
    ),
  )
  with jax.set_mesh(mesh):
    return (
      jax.jit(update, out_shardings=(places, None))
      .lower(_shapes(state, places), rollouts)
      .compile(),
      _compiled_generation(sizes),
      parts.transformer,
    )


class CollectivesTest(parameterized.TestCase):
  @parameterized.product(sizes=_MESHES, name=('update', 'generate'))
  def test_nothing_larger_than_a_weight_or_the_own_rows(self, sizes, name):
    update, generate, transformer = _compiled(sizes)
    parts, _ = _parts_and_functions()
    data, fsdp, tensor = sizes
    if name == 'update':
      program, num_rows = update, _ROWS // 2
      num_tokens, num_unembedded = transformer.max_context - 1, _CHUNK
    else:
      program, num_rows = generate, _ROWS
      num_tokens, num_unembedded = parts.shape.prompt_length, 1
    V, D = transformer.vocab_size, transformer.d_model
    # Of one layer, collected along fsdp.
    weights = 2 * transformer.d_ff * D // tensor
    own_rows = num_rows // (data * fsdp) * num_tokens * D
    # To which each device adds the logits of its share of the vocabulary.
    unembedded = num_rows // data * num_unembedded * D
    actual = exchanged(program)
    self.assertNotEmpty(actual)
    for shape in actual:
      # Neither to look up embeddings nor for logits.
      self.assertNotIn(V, shape)
      self.assertNotEqual(shape, (V // tensor, D))
      # Neither all layers nor all rows.
      self.assertNotIn(transformer.num_layers, shape)
      self.assertLessEqual(
        math.prod(shape), max(weights, own_rows, unembedded), shape
      )
    self.assertGreater(
      own_rows * data * fsdp, max(weights, own_rows, unembedded)
    )

  @parameterized.parameters(*_MESHES)
  def test_rows_stay_where_they_are(self, *sizes):
    update, generate, transformer = _compiled(sizes)
    # Microbatches included; the look-up alone exchanges, and not their last.
    for shape in exchanged(update):
      self.assertNotIn(transformer.max_context, shape)
    # What the last tokens of the prompts were read as.
    self.assertNotIn((_ROWS, transformer.d_model), exchanged(generate))

  @parameterized.parameters(*_MESHES)
  def test_no_logits_and_no_cache(self, *sizes):
    update, generate, transformer = _compiled(sizes)
    vocabulary = transformer.vocab_size // sizes[2]
    for shape in exchanged(update):
      if len(shape) > 2:
        self.assertNotEqual(shape[-1], vocabulary)
    num_columns = transformer.max_context - 1
    for shape in exchanged(generate):
      self.assertNotEqual(shape[-2:], (num_columns, transformer.head_dim))
      # Prefill writes keys and values of the prompts alone.
      self.assertNotEqual(shape[-1:], (num_columns,))

  def test_slots_start_and_end_responses_on_their_own_device(self):
    slots = exchanged(_compiled_generation((2, 2, 2), num_slots=_ROWS // 4))
    parts, _ = _parts_and_functions()
    num_columns = parts.transformer.max_context - 1
    self.assertNotEmpty(slots)
    for shape in slots:
      # Neither a cache, also of the prompts, nor responses.
      for columns in (num_columns, parts.shape.prompt_length):
        self.assertNotEqual(shape[-2:], (columns, parts.transformer.head_dim))
      self.assertNotEqual(shape[-1:], (parts.shape.max_new_tokens,))
      self.assertNotIn(_ROWS, shape)

  @parameterized.parameters(*_MESHES)
  def test_each_device_gets_the_logits_of_its_own_rows(self, *sizes):
    transformer = _parts_and_functions()[0].transformer
    graphdef, params = jax.eval_shape(
      functools.partial(
        model.init, transformer, constrain_fn=mesh_lib.constrain
      ),
      jax.random.key(0),
    )
    mesh = buffers.make_mesh(sizes)
    hidden = jax.ShapeDtypeStruct((_ROWS, transformer.d_model), jnp.float32)
    with jax.set_mesh(mesh):
      program = jax.jit(functools.partial(model.unembed, graphdef))
      place = program.lower(params, hidden).compile().output_shardings
    data, fsdp, tensor = sizes
    V = transformer.vocab_size
    self.assertEqual(
      place.shard_shape((_ROWS, V)), (_ROWS // (data * fsdp), V // tensor)
    )
