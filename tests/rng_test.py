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

  def test_a_stream_is_the_same_in_every_process_and_under_jit(self):
    plain = rng.stream_key(3, 'prompts', 7)
    traced = jax.jit(lambda s, i: rng.stream_key(s, 'prompts', i))(
      jnp.uint32(3), jnp.int32(7)
    )
    self.assertEqual(
      jax.random.key_data(plain).tolist(), jax.random.key_data(traced).tolist()
    )


if __name__ == '__main__':
  absltest.main()
