"""Whole runs whose updates pack their rows."""

import chex
import numpy as np
from absl.testing import parameterized

from replay_rl import train
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from tests import tiny
from tests import train_test
from tests.run import tiny_run

# All that scores tokens: the reference, the weights before the updates and the
# statistic. Some groups are not valid.
_CHANGES = {
  'num_iterations': 2,
  # With a small epsilon, Adam would make steps of rounding errors.
  'optimizer__transform': 'adamw(b1=0.9, b2=0.98, eps=1.0, weight_decay=0.0)',
  'optimizer__learning_rate': 1.0,
  'replay__drop_zero_variance': True,
  'loss__policy': (
    'm2po() + reference_kl(coefficient=0.1) + '
    'decoupled_ppo(clip_low=0.2, clip_high=0.2, max_ratio=2.0)'
  ),
  'loss__statistics': 'second_moment_cutoff(limit=0.04)',
}


class PackedRunTest(train_test.TrainTestCase):
  def test_it_continues_bit_for_bit_and_is_the_padded_run_to_rounding(self):
    config = tiny.config(
      optimizer__packed_tokens=16, optimizer__microbatch_rows=2, **_CHANGES
    )
    padded, whole, parted = map(self.workdir, ('padded', 'whole', 'parted'))
    train.train(tiny.config(**_CHANGES), padded)
    expected = train.train(config, whole)
    train.train(config, parted, stop_after=1)
    actual = train.train(config, parted)
    chex.assert_trees_all_equal(actual, expected)
    self.assertEqual(
      *((path / 'metrics.jsonl').read_bytes() for path in (whole, parted))
    )
    for lines in zip(*map(train_test.read_lines, (whole, padded)), strict=True):
      packed, other = lines
      self.assertEqual(packed.keys(), other.keys())
      for name in packed.keys() - {'batch/padding_fraction'}:
        np.testing.assert_allclose(
          *(np.asarray(line[name], float) for line in lines),
          rtol=1e-3,
          atol=1e-5,
          err_msg=name,
        )


class PackedConfigTest(parameterized.TestCase):
  @parameterized.parameters(
    (None, 'causal, for padded rows of 7 tokens on cpu.'),
    (600, 'chunked, for packed rows of 600 tokens on cpu.'),
  )
  def test_the_attention_of_the_learner_is_said(self, tokens, expected):
    config = tiny.config(optimizer__packed_tokens=tokens)
    parts = build.experiment(config, build.planned_shape(config)).parts
    mesh = mesh_lib.make(tiny_run.ONE_DEVICE)
    self.assertEqual(
      build.attention_note(parts, mesh), f'Attention of the learner: {expected}'
    )

  @parameterized.parameters(
    (6, None, 'must be None or at least 7, the tokens that the model reads of'),
    (2**20, 2**12, 'must be at most 524287, because the tokens of optimizer.'),
  )
  def test_sizes_that_do_not_fit_are_refused(self, tokens, rows, complaint):
    config = tiny.config(
      optimizer__packed_tokens=tokens, optimizer__microbatch_rows=rows
    )
    with self.assertRaisesRegex(
      ValueError, f'^optimizer.packed_tokens = {tokens}: {complaint}'
    ):
      build.experiment(config, build.planned_shape(config))
