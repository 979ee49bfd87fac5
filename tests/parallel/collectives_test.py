"""Tests of what compiled programs exchange: no more than they must."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.lm import layers
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.rl import losses
from replay_rl.run import build
from replay_rl.run import learner
from replay_rl.run import placement
from tests import tiny

_MESHES = ((1, 8, 1), (2, 2, 2), (1, 2, 4))
_ROWS, _CHUNK = 1024, 6
_EXCHANGE = re.compile(
  r'= (\(.*?\)|\S+) (?:all-gather|all-reduce|reduce-scatter|all-to-all'
  r'|collective-permute)(?:-start)?\('
)


def exchanged(compiled):
  """Returns the shape of each array that the devices of a program exchange."""
  return [
    tuple(int(size) for size in sizes.split(',') if size)
    for found in _EXCHANGE.findall(compiled.as_text())
    for sizes in re.findall(r'\w\[([\d,]*)\]', found)
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
def _compiled(sizes):
  """Returns an update in two microbatches, and generation, as compiled."""
  parts = build.parts(_config())
  mesh = mesh_lib.make(dict(zip(mesh_lib.AXES, sizes, strict=True)))
  split = placement.of_params(model.logical_axes(parts.transformer), mesh)
  whole = jax.sharding.NamedSharding(mesh, jax.P())

  def shapes(tree, shardings):
    return jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding
      ),
      tree,
      shardings,
    )

  def rows(*shape, dtype=np.int32):
    return jax.ShapeDtypeStruct((_ROWS, *shape), dtype, sharding=whole)

  num_tokens = parts.transformer.max_context
  rollouts = base.Rollout(
    tokens=rows(num_tokens),
    loss_mask=rows(num_tokens, dtype=bool),
    behavior_logprobs=rows(num_tokens, dtype=np.float32),
    rewards=rows(dtype=np.float32),
    advantages=rows(dtype=np.float32),
    group_id=rows(),
    policy_version=rows(),
  )
  prompts = base.Prompts(rows(parts.task.prompt_length), rows(), None)

  def update(state, rollouts):
    return learner.update(
      state,
      mesh_lib.split_rows(rollouts),
      jnp.ones(_ROWS, bool),
      logprobs_fn=parts.logprobs_fn,
      loss_fn=functools.partial(
        losses.clipped_surrogate, clip_low=0.2, clip_high=0.2, dual_clip=None
      ),
      normalizer_fn=losses.token_mean,
      optimizer=parts.optimizer,
      num_microbatches=2,
    )

  def generate(params, prompts):
    return parts.generate_fn(
      params, jax.random.key(0), mesh_lib.split_rows(prompts)
    )

  params = jax.eval_shape(parts.init_params_fn, jax.random.key(0))
  state = jax.eval_shape(
    functools.partial(learner.init, optimizer=parts.optimizer), params
  )
  places = base.LearnerState(
    params=split,
    opt_state=optax.tree.map_params(
      parts.optimizer,
      lambda _, place: place,
      state.opt_state,
      split,
      transform_non_params=lambda _: whole,
    ),
    step=whole,
  )
  with jax.set_mesh(mesh):
    return (
      jax.jit(update, out_shardings=(places, None))
      .lower(shapes(state, places), rollouts)
      .compile(),
      jax.jit(generate).lower(shapes(params, split), prompts).compile(),
      parts.transformer,
    )


class CollectivesTest(parameterized.TestCase):
  @parameterized.product(sizes=_MESHES, name=('update', 'generate'))
  def test_nothing_larger_than_a_weight_or_the_own_rows(self, sizes, name):
    update, generate, transformer = _compiled(sizes)
    parts = build.parts(_config())
    data, fsdp, tensor = sizes
    if name == 'update':
      program, num_rows = update, _ROWS // 2
      num_tokens, num_unembedded = transformer.max_context - 1, _CHUNK
    else:
      program, num_rows = generate, _ROWS
      num_tokens, num_unembedded = parts.task.prompt_length, 1
    V, D = transformer.vocab_size, transformer.d_model
    # Of one layer, collected along fsdp.
    weights = 2 * transformer.d_ff * D // tensor
    own_rows = num_rows // (data * fsdp) * num_tokens * D
    # To which each device adds the logits of its share of the vocabulary.
    unembedded = num_rows // data * num_unembedded * D
    found = exchanged(program)
    self.assertNotEmpty(found)
    for shape in found:
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

  @parameterized.parameters(*_MESHES)
  def test_each_device_gets_the_logits_of_its_own_rows(self, *sizes):
    transformer = build.parts(_config()).transformer
    graphdef, params = jax.eval_shape(
      functools.partial(
        model.init, transformer, constrain_fn=mesh_lib.constrain
      ),
      jax.random.key(0),
    )
    mesh = mesh_lib.make(dict(zip(mesh_lib.AXES, sizes, strict=True)))
    hidden = jax.ShapeDtypeStruct((_ROWS, transformer.d_model), jnp.float32)
    with jax.set_mesh(mesh):
      program = jax.jit(functools.partial(model.unembed, graphdef))
      place = program.lower(params, hidden).compile().output_shardings
    data, fsdp, tensor = sizes
    V = transformer.vocab_size
    self.assertEqual(
      place.shard_shape((_ROWS, V)), (_ROWS // (data * fsdp), V // tensor)
    )


if __name__ == '__main__':
  absltest.main()
