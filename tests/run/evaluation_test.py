"""Tests of evaluation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from replay_rl.run import build
from replay_rl.run import evaluation
from tests import tiny


class EvaluateTest(absltest.TestCase):
  def test_scores_by_hand(self):
    greedy = np.array([[1.0], [0.0]])
    # One right of four, and two right of four; .9 is not right.
    sampled = np.array([[1.0, 0.0, 0.9, 0.0], [1.0, 1.0, 0.0, 0.0]])
    scores = evaluation.summarize(greedy, sampled)
    self.assertEqual(
      list(scores),
      [
        'eval/greedy',
        'eval/mean_at_n',
        'eval/pass_at_1',
        'eval/pass_at_2',
        'eval/pass_at_4',
      ],
    )
    self.assertAlmostEqual(scores['eval/greedy'], 0.5)
    self.assertAlmostEqual(scores['eval/mean_at_n'], 3.9 / 8)
    self.assertAlmostEqual(scores['eval/pass_at_1'], (1 / 4 + 2 / 4) / 2)
    # Two of four: 1 - 3/6 for the first, 1 - 1/6 for the second.
    self.assertAlmostEqual(scores['eval/pass_at_2'], (1 / 2 + 5 / 6) / 2)
    self.assertAlmostEqual(scores['eval/pass_at_4'], 1.0)

  def test_samples_the_same_prompts_at_every_call(self):
    parts = build.parts(tiny.config())
    params = parts.init_params_fn(jax.random.key(0))

    def first_digit(responses, lengths, references):
      del responses, lengths
      return references[:, 0].astype(jnp.float32)

    task = dataclasses.replace(parts.task, reward_fn=first_digit)
    rewards = functools.partial(
      evaluation.sample_rewards,
      params,
      task=task,
      generate_fn=parts.unbiased_fn,
      num_prompts=6,
      num_samples=3,
    )
    found = np.asarray(rewards(jnp.uint32(0)))
    self.assertEqual(found.shape, (6, 3))
    # All samples of a row answer one prompt, and prompts differ.
    np.testing.assert_array_equal(found, found[:, :1].repeat(3, axis=1))
    self.assertGreater(len(set(found[:, 0])), 1)
    np.testing.assert_array_equal(found, rewards(jnp.uint32(0)))
    self.assertFalse(np.array_equal(found, rewards(jnp.uint32(1))))


if __name__ == '__main__':
  absltest.main()
