"""Tests of the named streams."""

import jax
import jax.numpy as jnp
from absl.testing import absltest

from replay_rl import rng


class StreamKeyTest(absltest.TestCase):
  def test_every_part_of_the_name_changes_the_key(self):
    names = [
      (0, 'a'),
      (1, 'a'),
      (0, 'b'),
      (0, 'a', 0),
      (0, 'a', 1),
      (0, 'a', 1, 0),
      (0, 'a', 0, 1),
    ]
    keys = {
      tuple(jax.random.key_data(rng.stream_key(*n)).tolist()) for n in names
    }
    self.assertLen(keys, len(names))

  def test_an_int_and_an_array_are_the_same_seed(self):
    for seed in (0, 2**31, 2**32 - 1):
      keys = [rng.stream_key(s, 'a') for s in (seed, jnp.uint32(seed))]
      self.assertEqual(*(jax.random.key_data(key).tolist() for key in keys))

  def test_names_that_share_a_part_are_told_apart(self):
    names = ('prompts', 'promptss', 'prompt', 'rompts', 'promqts')
    keys = {
      tuple(jax.random.key_data(rng.stream_key(0, name)).tolist())
      for name in names
    }
    self.assertLen(keys, len(names))

  def test_the_name_is_folded_in_as_its_crc32(self):
    # CRC-32 of '123456789', its published check value; hash() would be another
    # number in each process, and no run could be continued.
    expected = jax.random.fold_in(jax.random.key(3), 0xCBF43926)
    self.assertEqual(
      jax.random.key_data(rng.stream_key(3, '123456789')).tolist(),
      jax.random.key_data(expected).tolist(),
    )

  def test_a_stream_is_the_same_in_every_process_and_under_jit(self):
    plain = rng.stream_key(3, 'prompts', 7)
    traced = jax.jit(lambda s, i: rng.stream_key(s, 'prompts', i))(
      jnp.uint32(3), jnp.int32(7)
    )
    self.assertEqual(
      jax.random.key_data(plain).tolist(), jax.random.key_data(traced).tolist()
    )
