"""Tests of meshes."""

import jax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.run import mesh


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
    ({'data': 0, 'fsdp': 1, 'tensor': 1}, 'must be positive'),
    ({'data': -1, 'fsdp': 3, 'tensor': 1}, '3 must divide the 8 devices'),
    ({'data': 4, 'fsdp': 4, 'tensor': 1}, 'needs 16 devices of 8'),
  )
  def test_refuses_a_shape_that_does_not_fit(self, shape, message):
    with self.assertRaisesRegex(ValueError, f'mesh.shape.*{message}'):
      mesh.make(shape)

  def test_a_spec_splits_the_axes_of_the_table_and_no_other(self):
    self.assertEqual(
      mesh.spec(('layers', 'embed', None, 'mlp')),
      jax.P(None, ('fsdp',), None, ('tensor',)),
    )

  def test_rows_are_split_over_data_and_fsdp(self):
    with jax.set_mesh(mesh.make({'data': 2, 'fsdp': 2, 'tensor': 2})):
      rows = jax.jit(mesh.split_rows)(jax.numpy.zeros((8, 3)))
    self.assertEqual(rows.addressable_shards[0].data.shape, (2, 3))


if __name__ == '__main__':
  absltest.main()
