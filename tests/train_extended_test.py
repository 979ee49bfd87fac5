"""Tests of a run that gets more iterations after its end."""

import json
import pathlib

import chex
from absl.testing import absltest

from replay_rl import train
from tests import tiny

_FILES = ('metrics.jsonl', 'samples.jsonl')


def _config(num_iterations):
  return tiny.config(
    num_iterations=num_iterations,
    checkpoint__every=3,
    logging__samples_every=3,
  )


class ExtendedTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)

  def test_an_extended_run_is_the_long_run_bit_for_bit(self):
    train.train(_config(2), self.root / 'a')
    extended = train.train(_config(4), self.root / 'a')  # Without a warning.
    whole = train.train(_config(4), self.root / 'b')
    chex.assert_trees_all_equal(extended, whole)
    for name in _FILES:
      first, second = ((self.root / x / name).read_bytes() for x in 'ab')
      self.assertEqual(first, second)
    self.assertLen((self.root / 'a/metrics.jsonl').read_text().splitlines(), 4)
    record = json.loads((self.root / 'a/config.json').read_text())
    self.assertEqual(record['config']['num_iterations'], 4)
    self.assertEqual(
      record['changes'],
      [{'newest_checkpoint': 2, 'config': {'num_iterations': [2, 4]}}],
    )
    with self.assertRaisesRegex(ValueError, r'num_iterations = 3 \(there: 4\)'):
      train.train(_config(3), self.root / 'a')
    # A file of a config may compute other fields from the number.
    other = _config(8)
    other.optimizer.warmup_steps = other.num_iterations // 4
    with self.assertRaisesRegex(
      ValueError, r'holds; optimizer.warmup_steps = 2 \(there: 0\)$'
    ):
      train.train(other, self.root / 'a')


if __name__ == '__main__':
  absltest.main()
