"""Tests of spending and savings, with values worked out by hand."""

import contextlib
import io
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.report import runs
from replay_rl.report import table
from tests.report import synthetic

INF = np.inf
NAN = np.nan

# Means of two: seed 0 -, .2, .4, .6, .8 and seed 1 -, .1, .3, .5, .7, so that
# both reach .5 at iteration 3, after 400 and 404 tokens, 20 cost units each.
SLOW = [[0.1, 0.3, 0.5, 0.7, 0.9], [0.0, 0.2, 0.4, 0.6, 0.8]]
# Seed 0 reaches .5 at iteration 1, after 200 tokens and 10 cost units; seed 1
# at iteration 2, after 303 tokens and 15 cost units.
FAST = [[0.4, 0.6, 0.8, 0.8, 0.8], [0.2, 0.4, 0.6, 0.8, 0.8]]
# Seed 1 never reaches .5.
HALF = [[0.4, 0.6, 0.8, 0.8, 0.8], [0.2, 0.2, 0.2, 0.2, 0.2]]


class MakeTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.enterContext(contextlib.redirect_stderr(io.StringIO()))

  def run_of(self, name, rewards, *, seconds=1.0, more=None, **options):
    rows = synthetic.rows_of_rewards(rewards, **(more or {}))
    seconds = None if seconds is None else [seconds] * len(rewards[0])
    return runs.read(
      synthetic.write_run(self.root / name, rows, seconds=seconds, **options)
    )

  def compare(self, arm, *, baseline=None, thresholds=(0.5,), window=2):
    baseline = self.run_of('base', SLOW) if baseline is None else baseline
    results = table.make(
      [baseline, arm], baseline='base', thresholds=thresholds, window=window
    )
    return results.arms

  def test_spending_and_savings_of_paired_seeds(self):
    base, arm = self.compare(self.run_of('fast', FAST))
    tokens = base.milestones[0].spent['generated_tokens']
    np.testing.assert_array_equal(tokens.per_seed, [400, 404])
    self.assertEqual(tokens.median, 402)
    np.testing.assert_allclose(base.reward, [0.8, 0.7])
    self.assertIsNone(tokens.saving)
    self.assertEqual(base.milestones[0].wall_clock, '')

    milestone = arm.milestones[0]
    self.assertEqual((milestone.threshold, milestone.num_reached), (0.5, 2))
    tokens = milestone.spent['generated_tokens']
    np.testing.assert_array_equal(tokens.per_seed, [200, 303])
    # 1 - 200 / 400 and 1 - 303 / 404.
    np.testing.assert_allclose(tokens.saving.per_seed, [0.5, 0.25])
    self.assertAlmostEqual(tokens.saving.median, 0.375)
    np.testing.assert_allclose(tokens.saving.interval, [0.25, 0.5])
    cost = milestone.spent['cost_units']
    np.testing.assert_array_equal(cost.per_seed, [10, 15])
    np.testing.assert_allclose(cost.saving.per_seed, [0.5, 0.25])
    self.assertIsNone(milestone.spent['seconds'].saving)
    np.testing.assert_array_equal(milestone.spent['seconds'].per_seed, [2, 3])

  def test_a_seed_that_did_not_reach_counts_as_infinite(self):
    _, arm = self.compare(self.run_of('half', HALF, more={'entropy': 0.5}))
    milestone = arm.milestones[0]
    tokens = milestone.spent['generated_tokens']
    self.assertEqual(milestone.num_reached, 1)
    np.testing.assert_array_equal(tokens.per_seed, [200, INF])
    self.assertEqual(tokens.median, INF)
    np.testing.assert_allclose(tokens.saving.per_seed, [0.5, -INF])
    self.assertEqual(tokens.saving.median, -INF)
    self.assertIsNone(tokens.saving.interval)
    self.assertEqual(milestone.wall_clock, 'not improved')
    np.testing.assert_array_equal(milestone.entropy, [0.5, INF])

  def test_savings_are_unknown_where_the_baseline_did_not_reach(self):
    baseline = self.run_of('base', HALF)
    _, arm = self.compare(self.run_of('fast', FAST), baseline=baseline)
    saving = arm.milestones[0].spent['generated_tokens'].saving
    np.testing.assert_allclose(saving.per_seed, [0, NAN])
    self.assertTrue(np.isnan(saving.median))
    self.assertIsNone(saving.interval)
    self.assertEqual(arm.milestones[0].wall_clock, 'unknown')

  def test_arms_with_other_seeds_are_compared_by_their_medians(self):
    _, arm = self.compare(self.run_of('fast', FAST[:1]))
    saving = arm.milestones[0].spent['generated_tokens'].saving
    self.assertEqual(saving.per_seed.size, 0)
    self.assertAlmostEqual(saving.median, 1 - 200 / 402)
    self.assertIsNone(saving.interval)

  def test_the_window_delays_the_crossing(self):
    fast = self.run_of('fast', FAST)
    _, arm = self.compare(fast, window=1)
    tokens = arm.milestones[0].spent['generated_tokens']
    np.testing.assert_array_equal(tokens.per_seed, [200, 303])
    _, arm = self.compare(fast, baseline=fast._replace(name='base'), window=3)
    tokens = arm.milestones[0].spent['generated_tokens']
    # Means of three: .6 at once, and .4, .6 in seed 1.
    np.testing.assert_array_equal(tokens.per_seed, [300, 404])

  def test_entropy_is_smoothed_and_read_at_the_crossing(self):
    rows = synthetic.rows_of_rewards(FAST)
    for row in rows:
      row['entropy'] = 1.0 - 0.1 * row['iteration']
      row['replay_ratio'] = 0.5 * row['iteration'] + row['seed']
      row['replay_ratio_inserted'] = 2.0 * row['replay_ratio']
      row['ledger/prefill_flops'] = 10.0
      row['ledger/decode_flops'] = 20.0
      row['ledger/training_flops'] = 90.0
    fast = runs.read(synthetic.write_run(self.root / 'fast', rows))
    _, arm = self.compare(fast)
    # Means of iterations 0, 1 and of 1, 2; at the end of 3, 4.
    np.testing.assert_allclose(arm.milestones[0].entropy, [0.95, 0.85])
    np.testing.assert_allclose(arm.entropy, [0.65, 0.65])
    np.testing.assert_allclose(arm.reward, [0.8, 0.8])
    np.testing.assert_allclose(arm.replay_ratio, [2, 3])
    np.testing.assert_allclose(arm.replay_ratio_inserted, [4, 6])
    np.testing.assert_allclose(arm.generation_flops, [0.25, 0.25])

  def test_what_events_took_is_a_median_without_compilation(self):
    path = pathlib.Path(
      synthetic.write_run(self.root / 'a', synthetic.rows_of_rewards(FAST))
    )
    mus = [900.0, 1.0, None, 5.0, 4.0]
    (path / 'timing.jsonl').write_text(
      ''.join(
        json.dumps(
          {'iteration': i, 'seconds': 1.0, 'process': 0}
          | {'learn_seconds': 10.0 - i, 'mu': mu}
        )
        + '\n'
        for i, mu in enumerate(mus)
      )
    )
    untimed, arm = self.compare(runs.read(str(path)))
    self.assertEqual(arm.timed, {'learn_seconds': 7.5, 'mu': 4.0})
    self.assertEqual(arm.mu, 'unknown')
    self.assertEqual(untimed.timed, {})

  def test_seconds_per_iteration_leave_out_compilation(self):
    arm, _ = self.compare(
      self.run_of('fast', FAST),
      baseline=runs.read(
        synthetic.write_run(
          self.root / 'base',
          synthetic.rows_of_rewards(SLOW),
          seconds=[90.0, 1.0, 2.0, 3.0, 40.0],
        )
      ),
    )
    self.assertEqual(arm.seconds_per_iteration, 2.5)
    np.testing.assert_array_equal(
      arm.milestones[0].spent['seconds'].per_seed, [96, 96]
    )

  def test_optional_values_may_be_absent(self):
    _, arm = self.compare(self.run_of('fast', FAST, seconds=None))
    for values in (arm.entropy, arm.replay_ratio, arm.generation_flops):
      np.testing.assert_array_equal(values, [NAN, NAN])
    self.assertTrue(np.isnan(arm.seconds_per_iteration))
    self.assertEqual(arm.milestones[0].wall_clock, 'unknown')
    self.assertEqual(arm.milestones[0].num_reached, 2)

  # The baseline takes 4 s, the arm 2 and 3 iterations.
  @parameterized.parameters(
    (1.0, 'improved'), (1.6, 'not improved'), (5.0, 'not improved')
  )
  def test_wall_clock_is_judged_from_the_data(self, seconds, expected):
    _, arm = self.compare(self.run_of('fast', FAST, seconds=seconds))
    self.assertEqual(arm.milestones[0].wall_clock, expected)

  def test_wall_clock_of_another_machine_or_number_of_seeds_is_unknown(self):
    _, arm = self.compare(self.run_of('fast', FAST, hardware='a TPU'))
    self.assertEqual(arm.milestones[0].wall_clock, 'unknown')
    base = self.run_of('one', SLOW[:1])._replace(name='base')
    arm = table.make(
      [base, self.run_of('two', FAST)],
      baseline='base',
      thresholds=(0.5,),
      window=2,
    ).arms[1]
    self.assertEqual(arm.milestones[0].wall_clock, 'unknown')

  def test_any_arm_can_be_the_baseline(self):
    arms = [self.run_of('slow', SLOW), self.run_of('fast', FAST)]
    results = table.make(arms, baseline='fast', thresholds=(0.5,), window=2)
    self.assertEqual([arm.name for arm in results.arms], ['slow', 'fast'])
    saving = results.arms[0].milestones[0].spent['generated_tokens'].saving
    np.testing.assert_allclose(saving.per_seed, [-1, 1 - 404 / 303])
    self.assertIsNone(
      results.arms[1].milestones[0].spent['generated_tokens'].saving
    )

  def test_wrong_arguments_are_named(self):
    arms = [self.run_of('slow', SLOW)]
    with self.assertRaisesRegex(
      ValueError, r"= 'x': must be one of \['slow'\]"
    ):
      table.make(arms, baseline='x', thresholds=(0.5,), window=2)
    for window in (0, 6):
      with self.assertRaisesRegex(
        ValueError, f"smooth = {window}: must be .* 5 iterations of run 'slow'"
      ):
        table.make(arms, baseline='slow', thresholds=(0.5,), window=window)


class SavingTest(absltest.TestCase):
  def test_the_interval_of_four_seeds_spans_what_resampling_can_give(self):
    # The median of 4 draws is the lowest value if at least three draws are:
    # 4 (1/4)^3 (3/4) + (1/4)^4 = 13 / 256, more than 2.5 %. So is the highest.
    baseline = np.full(4, 100.0)
    saving = table.saving(
      100 * (1 - np.array([0.1, 0.2, 0.3, 0.4])), baseline, is_paired=True
    )
    np.testing.assert_allclose(saving.interval, [0.1, 0.4], atol=1e-9)
    self.assertAlmostEqual(saving.median, 0.25)

  def test_pairs_stay_together(self):
    # Seeds differ by a factor of ten, but each saves exactly one half.
    baseline = np.array([10.0, 100.0, 1000.0])
    paired = table.saving(baseline / 2, baseline, is_paired=True)
    np.testing.assert_allclose(paired.interval, [0.5, 0.5])
    unpaired = table.saving(baseline / 2, baseline, is_paired=False)
    self.assertAlmostEqual(unpaired.median, 0.5)
    self.assertLess(unpaired.interval[0], -3)

  def test_medians_ignore_how_far_a_seed_is_off(self):
    spent = np.array([10.0, 50.0, 90.0])
    baseline = np.array([40.0, 100.0, 1000.0])
    # Seeds save .75, .5 and .91; the medians are 50 and 100.
    paired = table.saving(spent, baseline, is_paired=True)
    self.assertAlmostEqual(paired.median, 0.75)
    unpaired = table.saving(spent, baseline, is_paired=False)
    self.assertAlmostEqual(unpaired.median, 0.5)

  def test_nobody_reached_is_unknown(self):
    nobody = np.array([INF, INF])
    for is_paired in (True, False):
      saving = table.saving(nobody, nobody, is_paired=is_paired)
      self.assertTrue(np.isnan(saving.median))
