"""Tests of the bounds of time and of the arithmetic of replay."""

from absl.testing import absltest

from replay_rl.fit import bounds
from replay_rl.fit import chips
from replay_rl.fit import memory as memory_lib
from replay_rl.lm import architecture
from replay_rl.run import build
from tests import tiny


def _parts(config):
  return build.experiment(config, build.planned_shape(config)).parts


class BoundsTest(absltest.TestCase):
  def test_replay_by_hand(self):
    parts = _parts(tiny.config(replay__batch_size=12))
    longest = parts.shape.max_new_tokens
    # 4 prompts of 4; two and three updates of 12 rows in turn; a buffer of 32.
    self.assertEqual(
      bounds.replay(parts, updates_per_iteration=2.5, mu=2.0),
      bounds.ReplayCounts(
        fresh_rollouts=16,
        generated_tokens=16 * longest,
        updates=2.5,
        trained_rollouts=30,
        trained_tokens=30 * longest,
        replay_ratio=30 / 16,
        cost_units=30 + 2 * 16,
        buffer_iterations=2.0,
      ),
    )

  def _times(self, *, flops, bandwidth, **changes):
    config = tiny.config(num_seeds=2, **changes)
    parts = _parts(config)
    device = chips.Device(1.0, flops, bandwidth, '')
    mesh = memory_lib.abstract_mesh({'data': 2, 'fsdp': 2, 'tensor': 2})
    actual = bounds.times(
      config,
      parts,
      mesh,
      device,
      updates_per_iteration=config.replay.updates_per_iteration,
      cache_bytes=1000,
    )
    return actual, parts.transformer, parts.shape

  def test_bound_by_flops(self):
    for remat, passes in ((False, 3), (True, 4)):
      actual, transformer, shape = self._times(
        flops=1.0, bandwidth=1e30, optimizer__remat=remat
      )
      columns = shape.num_tokens

      def forward(tokens, context, transformer=transformer):
        weights = 2 * architecture.num_matmul_weights(transformer)
        # Two matrices of 2 heads x 8 channels in one layer.
        return tokens * (weights + 2 * 2 * 16 * context) / 8

      prompt = shape.prompt_length
      # Four prompts, each read once for its group.
      self.assertAlmostEqual(actual.prefill, 2 * forward(4 * prompt, prompt))
      self.assertAlmostEqual(
        actual.decode, 2 * forward(16 * shape.max_new_tokens, columns)
      )
      self.assertAlmostEqual(
        actual.learner, 2 * 2 * passes * forward(8 * columns, columns)
      )

  def test_bound_by_bandwidth(self):
    for dtype, itemsize in (('float32', 4), ('bfloat16', 2)):
      actual, transformer, shape = self._times(
        flops=1e30, bandwidth=1.0, model__compute_dtype=dtype
      )
      num_params = architecture.num_params(transformer)
      self.assertAlmostEqual(actual.prefill, 0.0)
      self.assertAlmostEqual(
        actual.decode,
        2 * shape.max_new_tokens * (itemsize * num_params / 2 + 1000),
      )
      # Three reads of four and three writes, in float32.
      self.assertAlmostEqual(actual.learner, 2 * 2 * 7 * 4 * num_params / 8)

  def test_slots_take_rounds_of_steps_for_fewer_rows(self):
    by_flops, by_bytes = (
      [
        self._times(sampler__num_slots=num_slots, **limits)[0].decode
        for num_slots in (None, 16, 99, 8, 6)
      ]
      for limits in (
        {'flops': 1.0, 'bandwidth': 1e30},
        {'flops': 1e30, 'bandwidth': 1.0},
      )
    )
    # 16 responses: one round, two of 8, three of 6.
    for times, factors in (
      (by_flops, (1, 1, 1, 1, 18 / 16)),
      (by_bytes, (1, 1, 1, 2, 3)),
    ):
      for seconds, factor in zip(times, factors, strict=True):
        self.assertAlmostEqual(seconds / times[0], factor)

  def test_an_unknown_device_is_answered_with_those_there_are(self):
    self.assertEqual(chips.named('h200').memory, 141e9)
    with self.assertRaisesRegex(ValueError, "device = 'abacus': .*'h100'"):
      chips.named('abacus')
