"""Tests of collectives and FLOPs, of programs whose costs are known by hand."""

import functools

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl.fit import hlo
from replay_rl.fit import hlo_costs

# A row of 32 numbers on each of 8 devices, times 8 rows: 1024 bytes a device.
_SHAPE = (64, 32)
_SPLIT = jax.P('a')
_NEXT = [(i, (i + 1) % 8) for i in range(8)]


def _compiled(function, out_spec=_SPLIT) -> jax.stages.Compiled:
  """Returns a program of 8 devices."""
  mesh = jax.make_mesh((8,), ('a',), (jax.sharding.AxisType.Auto,))
  sharding = jax.NamedSharding(mesh, jax.P('a'))
  return (
    jax.jit(
      jax.shard_map(
        function,
        mesh=mesh,
        in_specs=jax.P('a'),
        out_specs=out_spec,
        check_vma=False,
      )
    )
    .lower(jax.ShapeDtypeStruct(_SHAPE, jnp.float32, sharding=sharding))
    .compile()
  )


def _collectives(function, out_spec=_SPLIT):
  """Returns kind, bytes and executions of each."""
  module = hlo.parse(_compiled(function, out_spec).as_text())
  return [
    (actual.kind, actual.num_bytes, *actual.times)
    for actual in hlo_costs.collectives(module)
  ]


def _shift(x):
  return jax.lax.ppermute(x, 'a', _NEXT)


def _repeat(function, length, x):
  return jax.lax.scan(lambda c, _: (function(c) + 1, None), x, length=length)[0]


class CollectivesTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      'gather',
      lambda x: jax.lax.all_gather(x, 'a', tiled=True),
      jax.P(),
      # All 8 parts of 1024 bytes come out.
      ('all-gather', 8192),
    ),
    ('sum', lambda x: jax.lax.psum(x, 'a'), jax.P(), ('all-reduce', 1024)),
    (
      'scatter',
      lambda x: jax.lax.psum_scatter(x, 'a', tiled=True),
      jax.P('a'),
      # 1024 bytes go in, an eighth comes out.
      ('reduce-scatter', 1024),
    ),
    (
      'exchange',
      lambda x: jax.lax.all_to_all(x, 'a', 1, 0, tiled=True),
      jax.P('a'),
      ('all-to-all', 1024),
    ),
    ('shift', _shift, jax.P('a'), ('collective-permute', 1024)),
  )
  def test_each_kind_has_its_bytes(self, function, out_spec, expected):
    (actual,) = _collectives(function, out_spec)
    self.assertEqual(actual, (*expected, 1, hlo.EXACT))

  def test_those_in_loops_count_as_often_as_they_are_executed(self):
    inner = functools.partial(_repeat, _shift, 3)
    expected = ('collective-permute', 1024, 15, hlo.EXACT)
    self.assertEqual(
      _collectives(functools.partial(_repeat, inner, 5)), [expected]
    )

  def test_a_loop_that_may_end_early_bounds_them(self):
    def program(x):
      return jax.lax.while_loop(
        lambda carry: (carry[0] < 7) & (carry[1][0, 0] > 0.0),
        lambda carry: (carry[0] + 1, jax.lax.psum(carry[1], 'a')),
        (0, x),
      )[1]

    self.assertEqual(
      _collectives(program), [('all-reduce', 1024, 7, hlo.AT_MOST)]
    )

  def test_a_program_of_each_device_alone_has_none(self):
    self.assertEqual(_collectives(lambda x: x + 1), [])

  def test_a_plain_jit_that_gathers_is_seen(self):
    mesh = jax.make_mesh((8,), ('a',), (jax.sharding.AxisType.Auto,))
    split = jax.NamedSharding(mesh, jax.P('a'))
    whole = jax.NamedSharding(mesh, jax.P())
    text = (
      jax.jit(lambda x: x * 2, out_shardings=whole)
      .lower(jax.ShapeDtypeStruct((1024,), jnp.float32, sharding=split))
      .compile()
      .as_text()
    )
    (actual,) = hlo_costs.collectives(hlo.parse(text))
    self.assertEqual((actual.kind, actual.num_bytes), ('all-gather', 4096))
    self.assertEqual(actual.shape, 'f32[1024]')

  def test_a_start_and_its_done_are_one(self):
    text = """ENTRY %main (p: bf16[4]) -> bf16[32] {
  %p = bf16[4]{0} parameter(0)
  %s = (bf16[4]{0}, bf16[32]{0}, u32[]) all-gather-start(%p), dimensions={0}
  ROOT %d = bf16[32]{0} all-gather-done(%s), metadata={op_name="a/b"}
}
"""
    (actual,) = hlo_costs.collectives(hlo.parse(text))
    self.assertEqual(
      actual,
      hlo_costs.Collective(
        'all-gather', 64, hlo.Times(1, hlo.EXACT), 'bf16[32]', ''
      ),
    )

  def test_a_wrapped_start_and_its_done_are_one(self):
    text = """%wrapped (x: f32[16]) -> f32[2] {
  %x = f32[16] parameter(0)
  ROOT %r = f32[2] reduce-scatter(%x), metadata={op_name="jit(f)/psum_scatter"}
}

ENTRY %main (p: f32[16]) -> f32[2] {
  %p = f32[16] parameter(0)
  %s = ((f32[16]), f32[2], u32[]) async-start(%p), calls=%wrapped
  %u = ((f32[16]), f32[2], u32[]) async-update(%s), calls=%wrapped
  ROOT %d = f32[2] async-done(%u), calls=%wrapped
}
"""
    (actual,) = hlo_costs.collectives(hlo.parse(text))
    self.assertEqual(
      actual,
      hlo_costs.Collective(
        'reduce-scatter',
        64,
        hlo.Times(1, hlo.EXACT),
        'f32[2]',
        'jit(f)/psum_scatter',
      ),
    )

  def test_a_chain_of_fusions_is_one(self):
    def fusion(name, channel, chain):
      chain_id = f', frontend_attributes={{chain_id="{chain}"}}'
      return f"""%f.{name} (x.{name}: f32[2]) -> f32[8] {{
  %x.{name} = f32[2] parameter(0)
  ROOT %g.{name} = f32[8] all-gather(%x.{name}), channel_id={channel}{chain_id}
}}

"""

    names = 'abcd'
    # The third has a channel of its own, the fourth a chain.
    text = (
      ''.join(map(fusion, names, (1, 1, 2, 1), (0, 0, 0, 1)))
      + 'ENTRY %main (p: f32[2]) -> f32[8] {\n  %p = f32[2] parameter(0)\n'
    )
    for name in names:
      text += f'  %c.{name} = f32[8] fusion(%p), calls=%f.{name}\n'
    text += '  ROOT %r = f32[8] copy(%c.a)\n}\n'
    self.assertLen(hlo_costs.collectives(hlo.parse(text)), 3)

  def test_those_that_are_never_executed_are_left_out(self):
    text = """%unused (x: f32[2]) -> f32[2] {
  %x = f32[2] parameter(0)
  ROOT %r = f32[2] all-reduce(%x)
}

ENTRY %main (p: f32[2]) -> f32[2] {
  ROOT %p = f32[2] parameter(0)
}
"""
    self.assertEqual(hlo_costs.collectives(hlo.parse(text)), [])


class FlopsTest(parameterized.TestCase):
  @parameterized.named_parameters(
    # 8 x 32 times 32 x 8: 2 * 8 * 8 * 32.
    ('a_product', lambda x: x @ x.T, 4096),
    # Five times 8 x 32 times 32 x 32.
    (
      'a_loop',
      lambda x: _repeat(lambda c: c @ jnp.ones((32, 32)), 5, x),
      5 * 2 * 8 * 32 * 32,
    ),
    (
      'a_batch',
      lambda x: jnp.einsum('bij,bjk->bik', *[x.reshape(4, 8, 8)] * 2),
      2 * 4 * 8 * 8 * 8,
    ),
    ('no_product', lambda x: x * x, 0),
  )
  def test_products_are_counted(self, function, expected):
    module = hlo.parse(_compiled(function).as_text())
    self.assertEqual(hlo_costs.flops(module), hlo.Times(expected, hlo.EXACT))

  @parameterized.named_parameters(
    # As a TPU writes products of matrices, and of a batch of 8 of them.
    ('matrices', (5, 3), (3, 7), (5, 7), 'dim_labels=bf_io->bf', 2 * 5 * 3 * 7),
    (
      'a_batch_as_a_window_with_holes',
      (8, 4, 3),
      (8, 3, 6),
      (8, 4, 6),
      'window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf',
      2 * 8 * 4 * 3 * 6,
    ),
    (
      'two_batch_axes',
      (8, 2, 4, 3),
      (8, 2, 3, 6),
      (8, 2, 4, 6),
      'window={size=8x2 stride=7x1 lhs_dilate=8x2}, dim_labels=01bf_01io->01bf',
      2 * 8 * 2 * 4 * 3 * 6,
    ),
    # Outputs 0, 1, 2 see 2, 3 and 2 of the 3 inputs.
    (
      'padding',
      (1, 3, 1),
      (3, 1, 1),
      (1, 3, 1),
      'window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f',
      2 * 7,
    ),
    # Of 3 inputs, output 0 sees 0 and 2, output 1 sees 1.
    (
      'a_window_with_holes',
      (1, 3, 1),
      (2, 1, 1),
      (1, 2, 1),
      'window={size=2 rhs_dilate=2}, dim_labels=b0f_0io->b0f',
      2 * 3,
    ),
    (
      'groups_of_the_batch',
      (4, 3),
      (3, 6),
      (1, 6),
      'dim_labels=bf_io->bf, batch_group_count=4',
      2 * 3 * 6,
    ),
  )
  def test_convolutions_are_counted(
    self, left, right, result, attributes, expected
  ):
    def shape(sizes):
      return f'f32[{",".join(map(str, sizes))}]'

    text = f"""ENTRY %main (p: {shape(left)}, q: {shape(right)}) -> f32[] {{
  %p = {shape(left)} parameter(0)
  %q = {shape(right)} parameter(1)
  ROOT %r = {shape(result)} convolution(%p, %q), {attributes}
}}
"""
    self.assertEqual(hlo_costs.flops(hlo.parse(text)).number, expected)

  def test_a_convolution_has_the_flops_that_the_compiler_gives_it(self):
    def program(x, kernel):
      return jax.lax.conv_general_dilated(
        x, kernel, (2, 1), ((1, 2), (0, 1)), lhs_dilation=(1, 2)
      )

    compiled = (
      jax.jit(program)
      .lower(
        jax.ShapeDtypeStruct((2, 3, 9, 6), jnp.float32),
        jax.ShapeDtypeStruct((4, 3, 3, 2), jnp.float32),
      )
      .compile()
    )
    self.assertEqual(
      hlo_costs.flops(hlo.parse(compiled.as_text())).number,
      compiled.cost_analysis()['flops'],
    )
