"""Tests of meshes."""

import jax
from absl.testing import parameterized

from replay_rl.parallel import mesh


class MeshTest(parameterized.TestCase):
  @parameterized.parameters(
    ((1, 1, 1), (1, 1, 1)),
    ((2, 2, 2), (2, 2, 2)),
    ((-1, 2, 1), (4, 2, 1)),
    ((2, -1, 4), (2, 1, 4)),
  )
  def test_minus_one_takes_the_devices_that_are_left(self, sizes, expected):
    made = mesh.make(dict(zip(mesh.AXES, sizes, strict=True)))
    self.assertEqual(tuple(made.shape[axis] for axis in mesh.AXES), expected)
    self.assertEqual(made.axis_names, mesh.AXES)

  @parameterized.parameters(
    ({'data': 1, 'fsdp': 1}, 'must name the axes'),
    ({'data': -1, 'fsdp': -1, 'tensor': 1}, 'at most one -1'),
    ({'data': 0, 'fsdp': 1, 'tensor': 1}, 'must have positive sizes'),
    ({'data': -2, 'fsdp': 1, 'tensor': 1}, 'must have positive sizes'),
    ({'data': 1.0, 'fsdp': 1, 'tensor': 1}, 'must have positive sizes'),
    ({'data': '1', 'fsdp': 1, 'tensor': 1}, 'must have positive sizes'),
    ({'data': -1, 'fsdp': 3, 'tensor': 1}, 'divides the 8 devices, not 3'),
    ({'data': 4, 'fsdp': 4, 'tensor': 1}, 'must use at most 8 devices'),
  )
  def test_refuses_a_shape_that_does_not_fit(self, shape, message):
    with self.assertRaisesRegex(ValueError, f'mesh.shape.*{message}'):
      mesh.make(shape)

  def test_fsdp_joins_data_and_every_device_keeps_its_rows(self):
    shape = {'data': 2, 'fsdp': 2, 'tensor': 2}
    joined = mesh.joined(shape)
    self.assertEqual(joined, {'data': 4, 'fsdp': 1, 'tensor': 2})
    one, other = (
      jax.sharding.NamedSharding(mesh.make(sizes), mesh.spec(['rows']))
      for sizes in (shape, joined)
    )
    self.assertEqual(
      one.devices_indices_map((8,)), other.devices_indices_map((8,))
    )

  def test_a_spec_splits_the_axes_of_the_table_and_no_other(self):
    self.assertEqual(
      mesh.spec(('layers', 'embed', None, 'mlp')),
      jax.P(None, ('fsdp',), None, ('tensor',)),
    )

  def test_what_a_mesh_does_not_divide_is_refused_with_the_numbers(self):
    made = mesh.make({'data': 2, 'fsdp': 2, 'tensor': 2})
    sizes = [('rows', 'rows', 8), ('heads', 'heads', 4), ('any', 'seeds', 3)]
    mesh.check(made, 'field', sizes)
    with self.assertRaisesRegex(
      ValueError,
      "^field = {'data': 2, 'fsdp': 2, 'tensor': 2}: must split rows = 6 into "
      'data x fsdp = 4 equal parts$',
    ):
      mesh.check(made, 'field', [*sizes, ('rows', 'rows', 6)])
    with self.assertRaisesRegex(
      ValueError, 'K = 1 into tensor = 2 equal parts'
    ):
      mesh.check(made, 'field', [('K', 'kv_heads', 1)])

  def test_outside_of_a_mesh_there_is_one_part(self):
    self.assertEqual(mesh.num_current_parts('rows'), 1)
    with jax.set_mesh(mesh.make({'data': 2, 'fsdp': 2, 'tensor': 2})):
      actual = [mesh.num_current_parts(axis) for axis in ('rows', 'heads')]
    self.assertEqual(actual, [4, 2])

  def test_an_array_stays_as_it_is_on_one_device(self):
    x = jax.numpy.zeros((3, 2))
    self.assertIs(mesh.constrain(x, ('rows',)), x)
    with jax.set_mesh(mesh.make({'data': 1, 'fsdp': 1, 'tensor': 1})):
      self.assertIs(mesh.constrain(x, ('rows',)), x)

  def test_rows_are_split_over_data_and_fsdp(self):
    with jax.set_mesh(mesh.make({'data': 2, 'fsdp': 2, 'tensor': 2})):
      rows = jax.jit(mesh.split_rows)(jax.numpy.zeros((8, 3)))
    self.assertEqual(rows.addressable_shards[0].data.shape, (2, 3))
