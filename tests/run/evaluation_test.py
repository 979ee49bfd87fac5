"""Tests of evaluation during a run."""

import dataclasses
import math
from fractions import Fraction

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.run import build
from replay_rl.run import evaluation
from replay_rl.run import generation as generation_lib
from replay_rl.run import state
from tests import tiny
from tests.run import tiny_run


def exact(n, c, k):
  return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


class IsFiniteTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.run = tiny_run.started(tiny_run.parts(), seed=0)

  def _is_finite(self, **changes) -> bool:
    return bool(
      evaluation.is_finite(
        self.run.learner._replace(**changes),
        self.run.hyper,
        parts=tiny_run.parts(),
        num_rows=1,
      )
    )

  def test_the_weights_of_a_new_run_are_good(self):
    self.assertTrue(self._is_finite())

  @parameterized.parameters(np.nan, np.inf)
  def test_one_bad_number_of_the_optimizer_is_seen(self, bad):
    leaves, structure = jax.tree.flatten(self.run.learner.opt_state)
    last = max(i for i, leaf in enumerate(leaves) if leaf.dtype == jnp.float32)
    leaves[last] = leaves[last].at[(0,) * leaves[last].ndim].set(bad)
    self.assertFalse(
      self._is_finite(opt_state=jax.tree.unflatten(structure, leaves))
    )

  def test_weights_whose_products_overflow_are_seen(self):
    # Their norm, of about 1e18, is finite.
    params = jax.tree.map(lambda leaf: 1e16 * leaf, self.run.learner.params)
    self.assertTrue(np.isfinite(optax.tree.norm(params)))
    self.assertFalse(self._is_finite(params=params))

  def test_weights_whose_norm_overflows_are_seen(self):
    params = jax.tree.map(
      lambda leaf: jnp.full_like(leaf, 3e38), self.run.learner.params
    )
    self.assertFalse(self._is_finite(params=params))


class EvaluateTest(absltest.TestCase):
  def test_scores_by_hand(self):
    greedy = np.array([[1.0], [0.0]])
    # One right of four, and two right of four; .9 is not right.
    sampled = np.array([[1.0, 0.0, 0.9, 0.0], [1.0, 1.0, 0.0, 0.0]])
    settings = tiny.config(evaluation__temperature=0.1).evaluation
    scores = evaluation.summarize(greedy, sampled, settings)
    self.assertEqual(
      list(scores),
      [
        'eval/greedy',
        'eval/mean_at_n',
        'eval/pass_at_1',
        'eval/pass_at_2',
        'eval/pass_at_4',
        'eval/temperature',
        'eval/top_p',
      ],
    )
    self.assertAlmostEqual(scores['eval/greedy'], 0.5)
    self.assertAlmostEqual(scores['eval/mean_at_n'], 3.9 / 8)
    self.assertAlmostEqual(scores['eval/pass_at_1'], (1 / 4 + 2 / 4) / 2)
    # Two of four: 1 - 3/6 for the first, 1 - 1/6 for the second.
    self.assertAlmostEqual(scores['eval/pass_at_2'], (1 / 2 + 5 / 6) / 2)
    self.assertAlmostEqual(scores['eval/pass_at_4'], 1.0)
    # All tokens are drawn from.
    self.assertEqual(
      (scores['eval/temperature'], scores['eval/top_p']), (0.1, 1)
    )
    settings = dataclasses.replace(settings, top_p=0.95)
    scores = evaluation.summarize(greedy, sampled, settings)
    self.assertEqual(scores['eval/top_p'], 0.95)

  def test_temperature_and_top_p_are_inputs_of_the_program(self):
    parts = tiny_run.experiment(
      evaluation__temperature=0.7, evaluation__top_p=0.9
    ).parts
    # Float32 has neither number.
    self.assertEqual(
      parts.hyper['evaluation'], {'temperature': 0.7, 'top_p': 0.9}
    )
    run = tiny_run.started(parts, seed=0)
    task = build.task(tiny.config())
    prompts = evaluation.prompts_of_seed(run.seed, task=task, num_prompts=6)

    @jax.jit
    def samples(policy):
      return evaluation.samples_of_seed(
        policy, prompts, parts=parts, num_samples=3
      )

    def sampled(**numbers):
      numbers = {'temperature': 1.0, 'top_p': 1.0} | numbers
      hyper = {**run.hyper, 'evaluation': state.as_arrays(numbers)}
      policy = generation_lib.policy(run)._replace(hyper=hyper)
      (greedy, _), (drawn, _) = samples(policy)
      return greedy.responses.repeat(3, 0), drawn.responses

    greedy, plain = sampled()
    self.assertFalse(np.array_equal(plain, greedy))
    for numbers in {'temperature': 0.001}, {'top_p': 1e-6}:
      again, cold = sampled(**numbers)
      np.testing.assert_array_equal(again, greedy)
      np.testing.assert_array_equal(cold, greedy)
    _, between = sampled(temperature=0.7)
    self.assertFalse(np.array_equal(between, plain))
    self.assertEqual(samples._cache_size(), 1)
    # The run samples at its own settings, and the evaluation at its own.
    bound = parts.bind(parts.hyper)
    self.assertEqual(bound.generate_fn.keywords['temperature'], 1.0)
    self.assertEqual(bound.evaluate_fn.keywords['temperature'], 0.7)
    self.assertEqual(bound.evaluate_fn.keywords['top_p'], 0.9)

  def test_at_temperature_1_they_are_those_of_a_constant_bit_for_bit(self):
    parts = tiny_run.experiment(
      sampler__temperature=0.5, sampler__top_k=3, loss__policy='reinforce()'
    ).parts
    run = tiny_run.started(parts, seed=0)
    task = build.task(tiny.config())
    prompts = evaluation.prompts_of_seed(run.seed, task=task, num_prompts=6)
    # Here the temperature is a constant of the program, there an input.
    constant = parts.bind(parts.hyper).evaluate_fn
    self.assertEqual(
      {name: constant.keywords[name] for name in ('temperature', 'top_k')},
      {'temperature': 1.0, 'top_k': None},
    )
    fixed = tiny_run.with_functions(parts, evaluate_fn=constant)

    @jax.jit
    def both(policy):
      return [
        evaluation.samples_of_seed(policy, prompts, parts=x, num_samples=8)[1]
        for x in (parts, fixed)
      ]

    actual, expected = both(generation_lib.policy(run))
    chex.assert_trees_all_equal(actual, expected)

  def test_samples_the_same_prompts_with_the_same_noise_at_every_call(self):
    parts = tiny_run.parts()
    task = dataclasses.replace(
      build.task(tiny.config()),
      reward_fn=lambda responses, lengths, references: (
        100.0 * references[:, 0] + responses[:, 0]
      ),
    )

    def rewards(run):
      prompts = evaluation.prompts_of_seed(run.seed, task=task, num_prompts=6)
      samples = evaluation.samples_of_seed(
        generation_lib.policy(run), prompts, parts=parts, num_samples=3
      )
      return evaluation.rewards_of_seed(*samples, task=task, num_prompts=6)

    rewards = jax.jit(rewards)
    run = tiny_run.started(parts, seed=0)
    greedy, sampled = jax.device_get(rewards(run))
    self.assertEqual((greedy.shape, sampled.shape), ((6, 1), (6, 3)))
    # All samples of a row answer one prompt, and prompts differ.
    np.testing.assert_array_equal(sampled // 100, (greedy // 100).repeat(3, 1))
    self.assertGreater(len(set(greedy[:, 0] // 100)), 1)
    # Samples of a prompt differ, and repeat later in the run.
    self.assertGreater(len(np.unique(sampled % 100)), 2)
    self.assertTrue((sampled != sampled[:, :1]).any())
    later = run._replace(
      clock=run.clock._replace(num_rollouts=jnp.uint32(64), iteration=4)
    )
    for again, first in zip(rewards(later), (greedy, sampled), strict=True):
      np.testing.assert_array_equal(again, first)
    other = rewards(run._replace(seed=jnp.uint32(1)))
    self.assertFalse(np.array_equal(other[0] // 100, greedy // 100))


class PassAtKTest(parameterized.TestCase):
  def test_by_hand(self):
    # Of the 6 pairs among 4 samples: with c = 1, 3 miss; with c = 2, 1 misses.
    np.testing.assert_allclose(
      evaluation.pass_at_k(4, [0, 1, 2, 3, 4], k=2), [0, 3 / 6, 5 / 6, 1, 1]
    )

  @parameterized.parameters(1, 2, 5, 16)
  def test_equals_the_binomials_for_all_small_counts(self, k):
    cases = [(n, c) for n in range(k, 17) for c in range(n + 1)]
    num_samples, num_correct = np.array(cases).T
    np.testing.assert_allclose(
      evaluation.pass_at_k(num_samples, num_correct, k=k),
      [exact(n, c, k) for n, c in cases],
      rtol=1e-12,
    )

  @parameterized.parameters(1, 2, 100, 511, 1023, 1024)
  def test_is_stable_for_many_samples(self, k):
    num_correct = np.array([0, 1, 2, 10, 512, 1023, 1024])
    np.testing.assert_allclose(
      evaluation.pass_at_k(1024, num_correct, k=k),
      [exact(1024, c, k) for c in num_correct.tolist()],
      rtol=1e-11,
    )

  def test_the_mean_over_runs_is_the_chance_that_one_of_k_is_right(self):
    rng = np.random.default_rng(0)
    num_correct = rng.binomial(8, 0.3, 20000)
    np.testing.assert_allclose(
      evaluation.pass_at_k(8, num_correct, k=4).mean(), 1 - 0.7**4, atol=0.01
    )

  @parameterized.parameters(
    (4, 2, 5, r'k = 5: must be between 1 and num_samples = 4'),
    ([8, 4], 2, 5, r'k = 5: must be between 1 and num_samples = \[8, 4\]'),
    (4, 2, 0, 'k = 0: must be between 1'),
    (4, [2, 5], 1, r'num_correct = \[2, 5\]: must be between 0'),
    (4, -1, 1, 'num_correct = -1: must be between 0'),
    (4, 0.5, 1, 'num_correct = 0.5: must be integers'),
    (4.0, 2, 1, 'num_samples = 4.0: must be integers'),
  )
  def test_wrong_counts_raise(self, num_samples, num_correct, k, message):
    with self.assertRaisesRegex(ValueError, message):
      evaluation.pass_at_k(num_samples, num_correct, k=k)
