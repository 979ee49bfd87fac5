"""Tests of the events of a run, and of cycles of them."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from replay_rl.run import events
from replay_rl.run import generation as generation_lib
from replay_rl.run import ledger
from replay_rl.run import metrics
from replay_rl.run import schedule
from tests.run import tiny_run


@functools.cache
def _compiled(changes, functions=()):
  """Returns an experiment, the first run, and a cycle as one program."""
  experiment = tiny_run.experiment(dict(functions), **dict(changes))
  actions = events.in_jax(experiment.parts, tiny_run.task())
  cycle = jax.jit(
    functools.partial(events.cycle, actions=actions), static_argnums=1
  )
  return experiment, tiny_run.started(experiment.parts, seed=7), cycle


def _history(num_iterations, functions=(), **changes):
  """Returns parts, and the state before and metrics of each cycle."""
  experiment, run, cycle = _compiled(
    tuple(changes.items()), tuple(dict(functions).items())
  )
  runs, measured = [run], []
  for iteration in range(num_iterations):
    run, actual = cycle(run, experiment.schedule(iteration))
    runs.append(run)
    measured.append(tiny_run.numbers(actual))
  return experiment.parts, runs, measured


class CycleTest(parameterized.TestCase):
  def test_the_events_one_by_one_are_the_cycle(self):
    parts, runs, measured = _history(2, sampler__weight_lag=4)
    run, task = runs[1], tiny_run.task()

    @jax.jit
    def generate_and_judge(run):
      prompts = generation_lib.draw_prompts(run, parts, task)
      generation = generation_lib.generate(
        generation_lib.policy(run), prompts, parts
      )
      return generation, generation_lib.judge(generation, task)

    generation, (rewards, judged) = generate_and_judge(run)
    run, fresh, remembered = jax.jit(
      functools.partial(events.remember, parts=parts)
    )(events.publish(run), generation, rewards)
    run, learned = jax.jit(
      functools.partial(events.learn, parts=parts, num_updates=2)
    )(run, fresh)
    chex.assert_trees_all_close(
      run.learner, runs[2].learner, rtol=1e-5, atol=1e-6
    )
    chex.assert_trees_all_close(run.sampler, runs[2].sampler, atol=1e-6)
    # A cycle adds that it is done, and what it observes, and nothing else.
    self.assertEqual(int(run.clock.iteration), 1)
    self.assertEqual(run.clock._replace(iteration=jnp.int32(2)), runs[2].clock)
    observed = metrics.of_buffer(run.buffer, num_bins=parts.histogram_bins)
    values = judged | remembered | observed
    actual = tiny_run.numbers(events.Measured(values, learned))
    self.assertEqual(set(actual), set(measured[1]))
    for name in ('reward', 'accuracy'):
      np.testing.assert_allclose(actual[name], measured[1][name])
    np.testing.assert_allclose(
      actual['loss'], measured[1]['loss'], rtol=1e-4, atol=1e-6
    )

  def test_updates_of_several_events_are_reported_together(self):
    _, runs, measured = _history(1)
    _, run, cycle = _compiled(())
    whole = schedule.synchronous(0, updates_per_iteration=2)
    run, actual = cycle(
      run, (*whole[:-1], schedule.Learn(1), schedule.Learn(1))
    )
    chex.assert_trees_all_close(run, runs[1], atol=1e-6)
    chex.assert_trees_all_close(
      tiny_run.numbers(actual), measured[0], rtol=1e-4, atol=1e-6
    )
    run, actual = cycle(run, whole[:-1])
    self.assertIsNone(actual.updates)
    self.assertEqual(int(run.learner.step), 2)

  @parameterized.parameters(
    ((schedule.Remember(),), 'must have a Generate before Remember'),
    (
      (schedule.Generate(), schedule.Learn(1), schedule.Remember()),
      'must have a Remember before Learn',
    ),
  )
  def test_an_event_without_what_it_needs_is_refused(self, order, message):
    _, run, cycle = _compiled(())
    with self.assertRaisesRegex(ValueError, f'^schedule = .*: {message}'):
      cycle(run, order)

  def test_half_an_update_a_cycle_is_one_in_every_second(self):
    _, runs, measured = _history(4, replay__updates_per_iteration=0.5)
    self.assertEqual([int(run.learner.step) for run in runs], [0, 0, 1, 1, 2])
    for index, values in enumerate(measured):
      self.assertEqual(values['updates/applied'], index % 2)
      self.assertEqual(np.isnan(values['loss']), index % 2 == 0)
      self.assertEqual(values['histogram/staleness'].sum(), 8 * (index % 2))

  def test_the_same_seed_repeats_and_another_differs(self):
    _, runs, _ = _history(2)
    _, again, _ = _history(2)
    chex.assert_trees_all_equal(runs[2], again[2])
    experiment, _, cycle = _compiled(())
    other, _ = cycle(
      runs[0]._replace(seed=jnp.uint32(8)), experiment.schedule(0)
    )
    difference = jax.tree.map(
      jnp.subtract, other.learner.params, runs[1].learner.params
    )
    self.assertGreater(float(optax.tree.norm(difference)), 1e-3)

  def test_no_program_copies_the_buffer(self):
    # The buffer is 4000 rows of 8 tokens; the rest of the program is small.
    experiment, run, _ = _compiled((('replay__capacity', 4000),))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.buffer.rollouts))
    order = experiment.schedule(0)
    actions = events.in_jax(experiment.parts, tiny_run.task())
    temporary = []
    for cycle in (order, order[:1]):
      compiled = (
        jax.jit(
          functools.partial(events.cycle, events=cycle, actions=actions),
          donate_argnums=0,
        )
        .lower(run)
        .compile()
      )
      temporary.append(compiled.memory_analysis().temp_size_in_bytes)
    self.assertLess(temporary[0] - temporary[1], size)


class PublishTest(parameterized.TestCase):
  @parameterized.parameters(0, 2)
  def test_cycle_i_generates_with_the_weights_of_cycle_i_minus_n(self, n):
    # Two updates a cycle: the weights at its beginning are of step 2 i.
    _, runs, _ = _history(5, sampler__weight_lag=2 * n)
    for iteration, run in enumerate(runs):
      there = max(iteration - n, 0)
      actual = generation_lib.policy(run)
      self.assertEqual(int(actual.version), 2 * there)
      chex.assert_trees_all_equal(actual.params, runs[there].learner.params)
    # Three cycles are stored in 32 slots: the last of them over the first.
    versions = runs[3].buffer.rollouts.policy_version
    self.assertEqual(
      versions.tolist(), [2 * max(2 - n, 0)] * 16 + [2 * max(1 - n, 0)] * 16
    )

  def test_without_a_ring_each_update_publishes_itself(self):
    _, (run, *_), _ = _history(1)
    self.assertIs(events.publish(run), run)


class GenerateTest(parameterized.TestCase):
  def test_rollouts_say_which_they_are_and_share_what_a_group_shares(self):
    parts, runs, _ = _history(2)
    rows = jax.device_get(runs[2].buffer.rollouts)
    self.assertEqual(rows.rollout_id.tolist(), list(range(32)))
    self.assertEqual(
      rows.group_id.tolist(), np.repeat(np.arange(8), 4).tolist()
    )
    prompts = rows.tokens[:, : parts.shape.prompt_length].reshape(8, 4, -1)
    np.testing.assert_array_equal(prompts, prompts[:, :1].repeat(4, axis=1))
    prompt_ids = rows.prompt_id.reshape(8, 4)
    np.testing.assert_array_equal(prompt_ids, prompt_ids[:, :1].repeat(4, 1))
    # One-digit sums: a hundred prompts, and a hash that tells them apart.
    different = {tuple(group[0]) for group in prompts}
    self.assertGreater(len(different), 4)
    self.assertLen(set(prompt_ids[:, 0].tolist()), len(different))

  def test_a_generation_cut_in_two_samples_the_same_rollouts(self):
    parts, runs, _ = _history(2)
    run, task = runs[2], tiny_run.task()
    half_parts = parts._replace(num_prompts=2)

    def generated(parts, run):
      prompts = generation_lib.draw_prompts(run, parts, task)
      return jax.jit(functools.partial(generation_lib.generate, parts=parts))(
        generation_lib.policy(run), prompts
      )

    whole = generated(parts, run)
    first = generated(half_parts, run)
    clock = run.clock._replace(num_rollouts=run.clock.num_rollouts + 8)
    second = generated(half_parts, run._replace(clock=clock))
    both = jax.tree.map(lambda *x: jnp.concatenate(x), first, second)
    self.assertEqual(whole.rollout_id.tolist(), list(range(32, 48)))
    self.assertEqual(
      whole.group_id.tolist(), np.repeat(np.arange(8, 12), 4).tolist()
    )
    chex.assert_trees_all_close(both, whole, atol=1e-5)
    chex.assert_trees_all_equal(both.prompts, whole.prompts)
    chex.assert_trees_all_equal(
      (both.completions.tokens, both.rollout_id, both.group_id),
      (whole.completions.tokens, whole.rollout_id, whole.group_id),
    )
    # The negative control: without the ids, rows would repeat.
    again = generated(half_parts, run)
    chex.assert_trees_all_equal(again, first)
    self.assertGreater(len(np.unique(whole.completions.responses, axis=0)), 8)

  def test_stored_behaviour_is_what_the_old_weights_say(self):
    parts, runs, _ = _history(2)
    logprobs_fn = jax.jit(parts.bind(parts.hyper).update.logprobs_fn)
    second = jax.tree.map(lambda leaf: leaf[16:], runs[2].buffer.rollouts)
    gaps = [
      jnp.where(
        second.loss_mask,
        logprobs_fn(run.learner.params, second.tokens)[0]
        - second.behavior_logprobs,
        0.0,
      )
      for run in runs[1:]
    ]
    self.assertLess(float(jnp.max(jnp.abs(gaps[0]))), 1e-5)
    self.assertGreater(float(jnp.max(jnp.abs(gaps[1]))), 1e-3)

  def test_the_first_update_is_on_policy_to_rounding(self):
    _, _, measured = _history(1, replay__updates_per_iteration=1)
    self.assertLess(measured[0]['sampler_learner_gap'], 1e-5)
    self.assertLess(measured[0]['abs_log_ratio/fresh'], 1e-5)
    self.assertAlmostEqual(float(measured[0]['ess']), 1.0, places=4)
    self.assertEqual(measured[0]['clip_fraction/fresh'], 0)
    self.assertTrue(np.isnan(measured[0]['clip_fraction/replayed']))


class ReplayTest(parameterized.TestCase):
  def test_the_ledger_counts_what_the_metrics_say(self):
    _, runs, measured = _history(3)
    totals = {
      name: ledger.total(counter)
      for name, counter in runs[3].ledger._asdict().items()
    }
    lengths = sum(m['response_length'] * 16 for m in measured)
    self.assertBetween(totals['trained_tokens'], 48, 48 * 4)
    self.assertEqual(
      totals,
      totals
      | {
        'rollouts': 3 * 16,
        'prompt_tokens': 3 * 16 * 4,
        'generated_tokens': round(lengths),
        'updates': 3 * 2,
        'trained_rollouts': 3 * 2 * 8,
        'trained_prompt_tokens': 3 * 2 * 8 * 4,
      },
    )

  def test_histograms_count_every_use_and_every_rollout_that_left(self):
    _, runs, measured = _history(5)
    for values in measured:
      self.assertEqual(values['histogram/staleness'].sum(), 16)
      self.assertEqual(values['histogram/steps_since_last_use'].sum(), 16)
      left_now = values['histogram/uses']
      if left_now.sum():
        self.assertAlmostEqual(
          float(values['never_used_fraction']),
          left_now[0] / left_now.sum(),
          places=6,
        )
      else:
        self.assertTrue(np.isnan(values['never_used_fraction']))
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
      'replay__weights': None,
      'replay__draw': None,
      'replay__batch_size': None,
    }
    _, runs, measured = _history(4, **changes)
    stored = sum(16 * (1 - m['zero_variance_fraction']) for m in measured)
    self.assertLess(stored, 4 * 16)
    self.assertEqual(int(runs[4].buffer.num_inserted), round(stored))
    self.assertIn(1.0, [m['zero_variance_fraction'] for m in measured])
    for values in measured:
      num_kept = round(16 * (1 - values['zero_variance_fraction']))
      # Without a row there is neither an update nor a mean over updates.
      np.testing.assert_equal(values['batch/num_valid'], num_kept or np.nan)
      self.assertEqual(values['updates/empty'], 0 if num_kept else 2)

  def test_prioritized_replay_anchors_the_fresh_rows(self):
    changes = {
      'replay__compose': 'fresh_anchored(replay_fraction=0.5, warmup_steps=2)',
      'replay__weights': 'advantage_magnitude(exponent=0.5) * max_age(limit=1)',
      'replay__draw': 'gumbel_top_k()',
      'replay__batch_size': None,
      'replay__updates_per_iteration': 1,
      'loss__advantage': 'group_standardized(eps=1e-6)',
    }
    _, _, measured = _history(5, **changes)
    for index, values in enumerate(measured):
      self.assertEqual(values['batch/num_fresh'], 16)
      self.assertEqual(values['batch/num_valid'], 16 + 8 * (index >= 2))
      # Two iterations fit the buffer, and one learner step is the age limit.
      self.assertEqual(
        values['histogram/staleness'].tolist(), [16, 8 * (index >= 2), 0, 0]
      )

  def test_the_gradient_is_measured_by_age(self):
    changes = {
      'replay__compose': 'fresh_anchored(replay_fraction=0.5, warmup_steps=0)',
      'replay__batch_size': None,
      'replay__updates_per_iteration': 1,
      'logging__age_buckets': (1,),
      'logging__age_grad_norms': True,
    }
    _, _, measured = _history(2, **changes)
    # At first all rows are fresh. Then a third of them is one step old.
    names = ('grad_norm/age_0', 'grad_norm/age_1_or_more', 'grad_norm')
    fresh, replayed, whole = (float(measured[0][name]) for name in names)
    np.testing.assert_allclose(fresh, whole, rtol=1e-5)
    self.assertTrue(np.isnan(replayed))
    fresh, replayed, whole = (float(measured[1][name]) for name in names)
    self.assertGreater(replayed, 0)
    self.assertNotAlmostEqual(fresh, whole, places=4)
    self.assertBetween(whole, abs(fresh - replayed), fresh + replayed)


def _one_more_than_the_reward(rewards, group_id):
  """Advantages that are all positive, and so all priorities."""
  del group_id
  return rewards + 1.0


def _hundred_and_the_id(batch, outcome):
  del outcome
  return 100.0 + batch.rollouts.rollout_id.astype(jnp.float32)


def _never_again(batch, outcome):
  del outcome
  return jnp.zeros(batch.is_valid.shape)


class FeedbackTest(parameterized.TestCase):
  CHANGES = {
    'replay__weights': 'proportional(exponent=1.0)',
    'replay__draw': 'gumbel_top_k()',
    'replay__batch_size': 4,
    'replay__updates_per_iteration': 4,
  }

  def _first_cycle(self, **functions):
    functions = {'advantage': _one_more_than_the_reward, **functions}
    _, runs, _ = _history(1, functions, **self.CHANGES)
    return jax.device_get(runs[1].buffer)

  def test_priorities_of_the_rows_of_updates_are_those_of_the_feedback(self):
    plain = self._first_cycle()
    actual = self._first_cycle(feedback=_hundred_and_the_id)
    was_used = actual.times_sampled > 0
    self.assertBetween(int(was_used.sum()), 4, 15)
    expected = np.where(
      was_used, 100.0 + actual.rollouts.rollout_id, plain.priorities
    )
    np.testing.assert_array_equal(actual.priorities, expected)
    # Rollouts that are new have the magnitude of their advantage.
    np.testing.assert_array_equal(
      plain.priorities[:16], plain.rollouts.advantages[:16]
    )

  def test_the_next_update_draws_by_them(self):
    actual = self._first_cycle(feedback=_never_again)
    # Four updates of four rows, none of which may come twice.
    self.assertEqual(actual.times_sampled[:16].tolist(), [1] * 16)
    self.assertEqual(actual.priorities.tolist(), [0] * 32)
    without = self._first_cycle()
    self.assertNotEqual(without.times_sampled[:16].tolist(), [1] * 16)
