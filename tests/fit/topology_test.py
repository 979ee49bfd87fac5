"""Tests of the chips to compile for."""

import importlib.util
import math
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized

from replay_rl.fit import chips
from replay_rl.fit import topology
from tests import tpu_library


class NamesTest(parameterized.TestCase):
  def test_slices_grow_and_their_generations_have_a_memory(self):
    for generation in topology.SLICES:
      self.assertIn(generation, chips.DEVICES)
      sizes = [topology.num_chips(n) for n in topology.slices(generation)]
      self.assertEqual(sizes, sorted(set(sizes)))
    self.assertEqual(topology.num_chips('v5e:4x4'), 16)
    self.assertEqual(topology.slices('v5p')[0], 'v5p:2x2x1')

  def test_an_unknown_generation_is_refused(self):
    with self.assertRaisesRegex(ValueError, "smallest = 'v1': .*'v5e'"):
      topology.slices('v1')

  @parameterized.parameters(
    'v5e', 'v5e:', 'v5e:4', 'v5e:4x', 'v1:2x2', 'cpu', 'cpu:0', 'cpu:2x2', ''
  )
  def test_an_unknown_name_is_refused_with_those_there_are(self, name):
    message = f"topology = '{name}': must be one of v5e: with 1x1, 2x2"
    with self.assertRaisesRegex(ValueError, message):
      topology.make(name)

  def test_meshes_use_every_chip_and_split_weights_alone(self):
    actual = list(topology.meshes(4))
    self.assertEqual(
      [(m['data'], m['fsdp'], m['tensor']) for m in actual],
      [(1, 1, 4), (1, 2, 2), (1, 4, 1)],
    )
    self.assertTrue(
      all(math.prod(mesh.values()) == 24 for mesh in topology.meshes(24))
    )
    self.assertLen(list(topology.meshes(24)), 8)


class CpuTest(parameterized.TestCase):
  def test_virtual_devices_share_the_memory_of_this_machine(self):
    two, eight = topology.make('cpu:2'), topology.make('cpu:8')
    self.assertEqual(list(eight.devices), jax.devices('cpu'))
    self.assertLen(two.devices, 2)
    self.assertEqual(two.memory, 4 * eight.memory)
    self.assertGreater(eight.memory, 1e7)

  def test_a_memory_that_is_given_counts(self):
    self.assertEqual(topology.make('cpu:2', memory=5.0).memory, 5.0)

  def test_more_than_jax_has_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'must be at most the 8 devices'):
      topology.make('cpu:9')


class TpuTest(parameterized.TestCase):
  def test_without_the_library_the_error_names_the_extra(self):
    with mock.patch.object(importlib.util, 'find_spec', return_value=None):
      with self.assertRaisesRegex(
        ValueError,
        r"'v5e:2x2': must be cpu.*libtpu.*pip install -e '\.\[tpu\]'",
      ):
        topology.make('v5e:2x2')

  @tpu_library.needed
  def test_every_slice_is_known_to_the_library(self):
    for generation in topology.SLICES:
      for name in topology.slices(generation):
        actual = topology.make(name)
        self.assertLen(actual.devices, topology.num_chips(name), name)
        self.assertEqual(actual.memory, chips.named(generation).memory)

  @tpu_library.needed
  def test_a_slice_that_there_is_not_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'v5e:3x3': must be .*INVALID"):
      topology.make('v5e:3x3')

  @tpu_library.needed
  def test_a_program_compiles_for_a_slice_that_is_not_here(self):
    actual = topology.make('v5e:2x2')
    mesh = jax.sharding.Mesh(np.array(actual.devices), ('a',))
    argument = jax.ShapeDtypeStruct(
      (8, 128), np.float32, sharding=jax.NamedSharding(mesh, jax.P('a'))
    )
    compiled = jax.jit(lambda x: x + 1).lower(argument).compile()
    memory = compiled.memory_analysis()
    self.assertEqual(memory.argument_size_in_bytes, 2 * 128 * 4)
