"""Tests of attention, of each of its implementations."""

import functools
import math
import re
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax import export
from jax._src.cudnn import fused_attention_stablehlo

from replay_rl.fit import topology
from replay_rl.lm import attention
from replay_rl.parallel import mesh as mesh_lib
from tests import tpu_library

_interpreted = functools.partial(
  attention._splash_of_device, is_interpreted=True
)


def _inputs(num_tokens, head_dim=8):
  """Returns queries of 2 rows, 2 x 3 heads, and their keys and values."""
  rng = np.random.default_rng(0)
  shapes = (
    (2, 2, 3, num_tokens, head_dim),
    *2 * ((2, 2, num_tokens, head_dim),),
  )
  return tuple(rng.normal(size=shape).astype('f') for shape in shapes)


def _ids(num_tokens):
  """Returns segments of several lengths, and padding at the end of a row."""
  columns = np.arange(num_tokens)
  first = 1 + (columns >= 3) + (columns >= num_tokens // 2)
  second = np.where(columns < num_tokens - 5, 7, 0)
  return np.stack([first, second]).astype(np.int32)


def _with_gradients(attend, inputs, ids):
  weights = np.random.default_rng(1).normal(size=inputs[0].shape).astype('f')

  def loss(inputs):
    heads = attend(*inputs, ids)
    return jnp.sum(heads * weights), heads

  (_, heads), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(inputs)
  return heads, grads


class PlainTest(parameterized.TestCase):
  @parameterized.parameters(1, 2)
  def test_two_heads_by_hand(self, num_queries):
    # One group of two heads, head_dim 4, three columns of which two are open.
    # The first head scores ln 9 higher on the second column: weights .1, .9.
    # The second head asks nothing: weights .5, .5.
    q_BKGTd = jnp.zeros((1, 1, 2, num_queries, 4))
    q_BKGTd = q_BKGTd.at[0, 0, 0, :, 0].set(2 * math.log(9))
    keys_BKSd = jnp.zeros((1, 1, 3, 4)).at[0, 0, 1, 0].set(1.0)
    values_BKSd = jnp.array([[[[10.0] * 4, [20.0] * 4, [99.0] * 4]]])
    mask_BTS = jnp.array([[[True, True, False]] * num_queries])
    heads = attention.plain(q_BKGTd, keys_BKSd, values_BKSd, mask_BTS)
    self.assertEqual(heads.shape, (1, 1, 2, num_queries, 4))
    np.testing.assert_allclose(heads[0, 0, 0], 19.0, rtol=1e-6)
    np.testing.assert_allclose(heads[0, 0, 1], 15.0, rtol=1e-6)

  def test_tokens_attend_to_those_before_them_with_their_id(self):
    q, keys, values = _inputs(6)
    ids = np.array([[1, 1, 4, 4, 4, 0]] * 2, np.int32)
    heads = attention.causal(q, keys, values, ids)
    for first, end in ((0, 2), (2, 5), (5, 6)):
      part = slice(first, end)
      alone = attention.causal(
        *(q[:, :, :, part], keys[:, :, part], values[:, :, part]), None
      )
      np.testing.assert_allclose(heads[:, :, :, part], alone, atol=1e-6)
    # The first token of a segment attends to itself alone.
    for first in (0, 2, 5):
      np.testing.assert_allclose(
        heads[:, :, 1, first], values[:, :, first], rtol=1e-6
      )


class SameResultTest(parameterized.TestCase):
  @parameterized.product(num_tokens=(256, 300, 700), has_ids=(True, False))
  def test_chunks_have_the_heads_and_gradients_of_the_whole(
    self, num_tokens, has_ids
  ):
    ids = _ids(num_tokens) if has_ids else None
    inputs = _inputs(num_tokens)
    chex.assert_trees_all_close(
      _with_gradients(attention.chunked, inputs, ids),
      _with_gradients(attention.causal, inputs, ids),
      rtol=1e-4,
      atol=1e-5,
    )

  def test_the_kernel_for_tpus_has_them_too(self):
    inputs, ids = _inputs(150), _ids(150)
    chex.assert_trees_all_close(
      _with_gradients(_interpreted, inputs, ids),
      _with_gradients(attention.causal, inputs, ids),
      rtol=1e-4,
      atol=1e-5,
    )

  def test_gradients_of_chunks_are_summed_in_float32(self):
    inputs = _inputs(1024)
    exact = _with_gradients(attention.causal, inputs, None)[1]
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), inputs)
    errors = [
      float(
        jnp.linalg.norm(grads[2].astype('f') - exact[2])
        / jnp.linalg.norm(exact[2])
      )
      for grads in (
        _with_gradients(attend, rounded, None)[1]
        for attend in (attention.causal, attention.chunked)
      )
    ]
    self.assertLess(errors[1], 1.1 * errors[0])

  def test_no_array_has_the_scores_of_all_pairs(self):
    inputs = _inputs(700)
    for attend, expected in (
      (attention.causal, True),
      (attention.chunked, False),
    ):
      text = str(
        jax.make_jaxpr(functools.partial(_with_gradients, attend, ids=None))(
          inputs=inputs
        )
      )
      # Also no loop that stacks the scores of its steps.
      sizes = [
        math.prod(map(int, shape.split(',')))
        for shape in re.findall(r'f32\[([\d,]+)\]', text)
      ]
      self.assertEqual(max(sizes) >= 2 * 2 * 3 * 700 * 700, expected)


class ChoiceTest(parameterized.TestCase):
  @parameterized.parameters(
    ('cpu', 512, 'bfloat16', False, attention.causal),
    ('cpu', 513, 'bfloat16', False, attention.chunked),
    ('tpu', 512, 'bfloat16', True, attention.causal),
    ('tpu', 513, 'float32', True, attention.splash),
    ('gpu', 512, 'bfloat16', False, attention.causal),
    ('gpu', 513, 'bfloat16', False, attention.cudnn),
    ('gpu', 513, 'bfloat16', True, attention.chunked),
    ('gpu', 513, 'float32', False, attention.chunked),
  )
  def test_it_is_of_platform_and_shape(
    self, platform, num_tokens, dtype, is_packed, expected
  ):
    actual = attention.choose(
      platform,
      num_tokens=num_tokens,
      head_dim=128,
      dtype=dtype,
      is_packed=is_packed,
    )
    self.assertEqual(actual, expected)

  def test_cudnn_takes_no_heads_that_are_wide_or_odd(self):
    for head_dim in (136, 100):
      actual = attention.choose(
        *('gpu',),
        num_tokens=4096,
        head_dim=head_dim,
        dtype='bfloat16',
        is_packed=False,
      )
      self.assertEqual(actual, attention.chunked)

  def test_a_mesh_says_which_platform(self):
    self.assertEqual(attention.platform(), 'cpu')
    device = jax.sharding.AbstractDevice('TPU v5e', 1, 'tpu')
    mesh = jax.sharding.AbstractMesh((1,), ('data',), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
      self.assertEqual(attention.platform(), 'tpu')


class KernelsTest(parameterized.TestCase):
  @tpu_library.needed
  def test_a_tpu_compiles_rows_and_heads_of_each_chip(self):
    chips = topology.make('v5e:2x2').devices
    mesh = mesh_lib.make({'data': 1, 'fsdp': 2, 'tensor': 2}, chips)
    split = jax.sharding.PartitionSpec(('data', 'fsdp'), 'tensor')
    with jax.set_mesh(mesh):
      shapes = [
        jax.ShapeDtypeStruct(
          leaf.shape,
          jnp.bfloat16,
          sharding=jax.sharding.NamedSharding(mesh, split),
        )
        for leaf in _inputs(600, head_dim=64)
      ]
      compiled = (
        jax.jit(
          lambda *inputs: _with_gradients(
            attention.automatic, inputs, jnp.asarray(_ids(600))
          )
        )
        .lower(*shapes)
        .compile()
      )
    text = compiled.as_text() or ''
    # Forward, and the gradients of queries and of keys and values.
    self.assertEqual(text.count('custom_call_target="tpu_custom_call"'), 3)
    for operation in ('all-gather', 'all-reduce', 'all-to-all'):
      self.assertNotIn(f' {operation}(', text)
    self.assertNotRegex(text, r'\[[\d,]*600,600\]')

  def test_a_gpu_gets_the_call_of_cudnn(self):
    # An odd number of tokens, as in rows whose last token is not read.
    shapes = [
      jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16) for leaf in _inputs(599)
    ]
    kernels = ('__cudnn$fmhaSoftmax', '__cudnn$fmhaSoftmaxBackward')
    with (
      mock.patch.object(
        fused_attention_stablehlo, 'check_cudnn_version', return_value=91000
      ),
      mock.patch.object(
        fused_attention_stablehlo, 'check_compute_capability', return_value=True
      ),
    ):
      exported = export.export(
        jax.jit(lambda *inputs: _with_gradients(attention.cudnn, inputs, None)),
        platforms=['cuda'],
        disabled_checks=[
          export.DisabledSafetyCheck.custom_call(name) for name in kernels
        ],
      )(*shapes)
    called = re.findall(r'custom_call @([\w$]+)', exported.mlir_module())
    self.assertContainsSubset(kernels, called)
    self.assertEqual(exported.out_avals[0].shape, shapes[0].shape)

  def test_cudnn_refuses_ids(self):
    with self.assertRaisesRegex(ValueError, r'^ids = .*: must be None$'):
      attention.cudnn(*_inputs(8), _ids(8))
