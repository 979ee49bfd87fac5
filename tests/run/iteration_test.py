"""Tests of an iteration: what each of act, judge, remember and learn does."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.run import build
from replay_rl.run import iteration
from replay_rl.run import ledger
from tests import tiny


def _first_token_is_low(responses, lengths, references):
  # Random weights earn it half of the time.
  del lengths, references
  return (responses[:, 0] < 16).astype(jnp.float32)


@functools.cache
def _compiled(changes):
  parts = build.parts(tiny.config(**dict(changes)))
  task = dataclasses.replace(parts.task, reward_fn=_first_token_is_low)
  parts = parts._replace(task=task)
  run = jax.jit(
    lambda: iteration.init(
      parts, parts.init_params_fn(jax.random.key(1)), jnp.uint32(7)
    )
  )()
  return parts, run, jax.jit(functools.partial(iteration.iterate, parts=parts))


def _history(num_iterations, **changes):
  """Returns parts, and the state before and metrics of each iteration."""
  parts, run, iterate = _compiled(tuple(changes.items()))
  runs, measured = [run], []
  for _ in range(num_iterations):
    run, metrics = iterate(run)
    runs.append(run)
    measured.append(jax.device_get(metrics))
  return parts, runs, measured


class IterationTest(parameterized.TestCase):
  def test_the_four_steps_one_by_one_are_the_iteration(self):
    parts, runs, measured = _history(2)
    run = runs[1]
    prompts = iteration.draw_prompts(run, parts)
    run, generation = jax.jit(functools.partial(iteration.act, parts=parts))(
      run, prompts
    )
    rewards = iteration.judge(generation, parts)
    run, fresh, remembered = jax.jit(
      functools.partial(iteration.remember, parts=parts)
    )(run, generation, rewards)
    run, learned = jax.jit(functools.partial(iteration.learn, parts=parts))(
      run, fresh
    )
    chex.assert_trees_all_close(
      run.learner, runs[2].learner, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(remembered['reward'], measured[1]['reward'])
    np.testing.assert_allclose(
      learned['loss'], measured[1]['loss'], rtol=1e-4, atol=1e-6
    )

  def test_rollouts_carry_the_version_of_the_weights_that_sampled_them(self):
    # Two updates an iteration, 16 rollouts an iteration, 32 slots.
    _, runs, _ = _history(3)
    versions = runs[3].buffer.rollouts.policy_version
    self.assertEqual(versions.tolist(), [4] * 16 + [2] * 16)
    _, lagged, _ = _history(3, sampler__weight_lag=2)
    versions = lagged[3].buffer.rollouts.policy_version
    self.assertEqual(versions.tolist(), [2] * 16 + [0] * 16)

  def test_groups_are_the_rollouts_of_one_prompt(self):
    parts, runs, _ = _history(2)
    rows = jax.device_get(runs[2].buffer.rollouts)
    self.assertEqual(
      rows.group_id.tolist(), np.repeat(np.arange(8), 4).tolist()
    )
    prompts = rows.tokens[:, : parts.task.prompt_length].reshape(8, 4, -1)
    np.testing.assert_array_equal(prompts, prompts[:, :1].repeat(4, axis=1))
    self.assertGreater(len({tuple(group[0]) for group in prompts}), 4)

  def test_stored_behaviour_is_what_the_old_weights_say(self):
    parts, runs, _ = _history(2)
    rows = runs[2].buffer.rollouts
    second = jax.tree.map(lambda leaf: leaf[16:], rows)
    logprobs, _ = parts.logprobs_fn(runs[1].learner.params, second.tokens)
    gap = jnp.where(second.loss_mask, logprobs - second.behavior_logprobs, 0.0)
    self.assertLess(float(jnp.max(jnp.abs(gap))), 1e-5)
    newer, _ = parts.logprobs_fn(runs[2].learner.params, second.tokens)
    moved = jnp.where(second.loss_mask, newer - second.behavior_logprobs, 0.0)
    self.assertGreater(float(jnp.max(jnp.abs(moved))), 1e-3)

  def test_the_first_update_is_on_policy_to_rounding(self):
    _, _, measured = _history(1, replay__updates_per_iteration=1)
    self.assertLess(measured[0]['sampler_learner_gap'], 1e-5)
    self.assertLess(measured[0]['abs_log_ratio/fresh'], 1e-5)
    self.assertAlmostEqual(float(measured[0]['ess']), 1.0, places=4)
    self.assertEqual(measured[0]['clip_fraction/fresh'], 0)
    self.assertTrue(np.isnan(measured[0]['clip_fraction/replayed']))

  def test_the_ledger_counts_what_the_metrics_say(self):
    _, runs, measured = _history(3)
    totals = {
      name: ledger.total(counter)
      for name, counter in runs[3].ledger._asdict().items()
    }
    self.assertEqual(totals['rollouts'], 3 * 16)
    self.assertEqual(totals['prompt_tokens'], 3 * 16 * 4)
    self.assertEqual(totals['updates'], 3 * 2)
    self.assertEqual(totals['trained_rollouts'], 3 * 2 * 8)
    self.assertEqual(totals['trained_prompt_tokens'], 3 * 2 * 8 * 4)
    lengths = sum(m['response_length'] * 16 for m in measured)
    self.assertAlmostEqual(totals['generated_tokens'], lengths, places=3)
    self.assertBetween(totals['trained_tokens'], 48, 48 * 4)

  def test_histograms_count_every_use_and_every_rollout_that_left(self):
    _, runs, measured = _history(5)
    for metrics in measured:
      self.assertEqual(metrics['histogram/staleness'].sum(), 16)
      self.assertEqual(metrics['histogram/steps_since_last_use'].sum(), 16)
      left_now = metrics['histogram/uses']
      if left_now.sum():
        self.assertAlmostEqual(
          float(metrics['never_used_fraction']),
          left_now[0] / left_now.sum(),
          places=6,
        )
      else:
        self.assertTrue(np.isnan(metrics['never_used_fraction']))
    left = sum(m['histogram/uses'] for m in measured)
    self.assertEqual(left.sum(), (5 - 2) * 16)
    # Bins hold 0, 1, 2, and 3 or more uses: what left and what stayed was
    # used as often as updates had rows, unless the last bin hides some.
    stayed = runs[5].buffer.times_sampled
    used = int(jnp.sum(stayed)) + int(left @ np.arange(4))
    self.assertBetween(used, 5 * 16 - 2 * int(left[3]) - 5, 5 * 16)

  def test_groups_without_variance_stay_out_of_buffer_and_batch(self):
    changes = {
      'replay__drop_zero_variance': True,
      'replay__compose': 'fresh_only()',
    }
    _, runs, measured = _history(4, **changes)
    stored = sum(16 * (1 - m['zero_variance_fraction']) for m in measured)
    self.assertLess(stored, 4 * 16)
    self.assertEqual(int(runs[4].buffer.num_inserted), round(stored))
    for metrics in measured:
      self.assertEqual(
        metrics['batch/num_valid'],
        round(16 * (1 - metrics['zero_variance_fraction'])),
      )

  def test_prioritized_replay_anchors_the_fresh_rows(self):
    changes = {
      'replay__compose': 'fresh_anchored(replay_fraction=0.5, warmup_steps=2)',
      'replay__weights': 'advantage_magnitude(exponent=0.5) * max_age(limit=1)',
      'replay__draw': 'gumbel_top_k()',
      'replay__updates_per_iteration': 1,
      'loss__advantage': 'group_standardized(eps=1e-6)',
    }
    _, _, measured = _history(5, **changes)
    for index, metrics in enumerate(measured):
      self.assertEqual(metrics['batch/num_fresh'], 16)
      self.assertEqual(metrics['batch/num_valid'], 16 + 8 * (index >= 2))
      # Two iterations fit the buffer, and one learner step is the age limit.
      self.assertEqual(
        metrics['histogram/staleness'].tolist(), [16, 8 * (index >= 2), 0, 0]
      )

  def test_the_same_seed_repeats_and_another_differs(self):
    _, runs, _ = _history(2)
    _, again, _ = _history(2)
    chex.assert_trees_all_equal(runs[2], again[2])
    _, _, iterate = _compiled(())
    other, _ = iterate(runs[0]._replace(seed=jnp.uint32(8)))
    difference = jax.tree.map(
      jnp.subtract, other.learner.params, runs[1].learner.params
    )
    self.assertGreater(float(optax.tree.norm(difference)), 1e-3)

  def test_no_program_copies_the_buffer(self):
    # The buffer is 4000 rows of 8 tokens; the rest of the program is small.
    parts, run, _ = _compiled((('replay__capacity', 4000),))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.buffer.rollouts))
    temporary = []
    for function, arguments in (
      (iteration.iterate, (run,)),
      (iteration.act, (run, iteration.draw_prompts(run, parts))),
    ):
      compiled = (
        jax.jit(functools.partial(function, parts=parts), donate_argnums=0)
        .lower(*arguments)
        .compile()
      )
      temporary.append(compiled.memory_analysis().temp_size_in_bytes)
    self.assertLess(temporary[0] - temporary[1], size)


if __name__ == '__main__':
  absltest.main()
