"""Tests of spending and savings, with values worked out by hand."""

import contextlib
import io
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import parameterized

from replay_rl.report import levels
from replay_rl.report import readings
from replay_rl.report import runs
from replay_rl.report import table
from tests.report import synthetic

INF = np.inf
NAN = np.nan

# Two iterations make a window. Its means are, in seed 0, .2, .4, .6 and .8,
# after 50, 150, 250 and 350 tokens and 2.5, 7.5, 12.5 and 17.5 cost units: .5
# is reached after 200 and 10. In seed 1 they are .1, .3, .5 and .7: after 252.5
# and 12.5.
SLOW = [[0.1, 0.3, 0.5, 0.7, 0.9], [0.0, 0.2, 0.4, 0.6, 0.8]]
# Seed 0 has .5 at once, after 50 and 2.5; seed 1 has .3 and .5, after 151.5 and
# 7.5.
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

  def compare(self, arm, *, baseline=None, thresholds=(0.5,), window=20):
    baseline = self.run_of('base', SLOW) if baseline is None else baseline
    arms = [baseline, arm]
    rule = readings.choose(arms, window)
    results = table.make(
      arms, baseline='base', thresholds=thresholds, rule=rule
    )
    return results.arms

  def test_aes_is_of_the_accuracy_and_the_length_of_the_last_window(self):
    # The window has two iterations of 10 rollouts.
    more = {'accuracy': 0.5, 'response_length': 400.0}
    base = self.run_of('base', SLOW, more=more)
    arm = self.run_of(
      'arm', SLOW, more={'accuracy': 0.6, 'response_length': 300.0}
    )
    lengths = arm.values['response_length']
    lengths[0, :3], lengths[0, 3:] = 0.0, (200.0, 400.0)
    base, arm = self.compare(arm, baseline=base)
    self.assertEqual(base.aes, ())
    np.testing.assert_allclose(arm.accuracy, [0.6, 0.6])
    np.testing.assert_allclose(arm.response_length, [300.0, 300.0])
    # A quarter shorter, a fifth more.
    for (score, interval), expected in zip(
      arm.aes, (0.25 + 3 * 0.2, 0.25 + 5 * 0.2), strict=True
    ):
      self.assertAlmostEqual(score, expected)
      self.assertIsNone(interval)  # Two seeds are too few.

  def test_spending_and_the_saving_of_medians(self):
    base, arm = self.compare(self.run_of('fast', FAST))
    tokens = base.milestones[0].spent['generated_tokens']
    np.testing.assert_allclose(tokens.per_seed, [200, 252.5])
    self.assertAlmostEqual(tokens.median, 226.25)
    np.testing.assert_allclose(base.reward, [0.8, 0.7])
    self.assertIsNone(tokens.saving)
    self.assertEqual(base.milestones[0].wall_clock, '')

    milestone = arm.milestones[0]
    self.assertEqual((milestone.threshold, milestone.num_reached), (0.5, 2))
    tokens = milestone.spent['generated_tokens']
    np.testing.assert_allclose(tokens.per_seed, [50, 151.5])
    comparison = tokens.saving.comparison
    self.assertAlmostEqual(comparison.saving, 1 - 100.75 / 226.25)
    self.assertIsNone(comparison.interval)  # Two seeds are too few.
    self.assertIsNone(tokens.saving.adjusted)
    cost = milestone.spent['cost_units']
    np.testing.assert_allclose(cost.per_seed, [2.5, 7.5])
    self.assertAlmostEqual(cost.saving.comparison.saving, 1 - 5 / 11.25)
    self.assertIsNone(milestone.spent['seconds'].saving)
    np.testing.assert_allclose(milestone.spent['seconds'].per_seed, [0.5, 1.5])

  def test_a_seed_that_did_not_reach_counts_as_infinite(self):
    _, arm = self.compare(self.run_of('half', HALF, more={'entropy': 0.5}))
    milestone = arm.milestones[0]
    tokens = milestone.spent['generated_tokens']
    self.assertEqual(milestone.num_reached, 1)
    np.testing.assert_array_equal(tokens.per_seed, [50, INF])
    self.assertEqual(tokens.median, INF)
    self.assertEqual(tokens.saving.comparison.saving, -INF)
    self.assertEqual(milestone.wall_clock, 'not improved')
    np.testing.assert_array_equal(milestone.entropy, [0.5, INF])

  def test_one_censored_seed_of_the_baseline_blanks_nothing(self):
    low = [0.1] * 5
    baseline = self.run_of('base', [SLOW[0]] * 6 + [low])
    arm = self.run_of('fast', [FAST[0]] * 5 + [low] * 2)
    base, arm = self.compare(arm, baseline=baseline)
    cost = base.milestones[0].spent['cost_units']
    np.testing.assert_allclose(cost.per_seed, [10] * 6 + [INF])
    self.assertEqual(base.milestones[0].num_reached, 6)
    saving = arm.milestones[0].spent['cost_units'].saving
    self.assertAlmostEqual(saving.comparison.saving, 0.75)
    self.assertEqual(saving.comparison.interval[1], 0.75)
    self.assertLess(saving.adjusted, 0.2)

  def test_an_arm_that_ended_early_is_not_said_to_be_dearer(self):
    # It has spent 12.5 units at its last window, and reached nothing.
    short = self.run_of('short', [[0.1] * 4] * 2)
    for rewards, expected in (
      (SLOW, -INF),
      ([[0.1, 0.3, 0.4, 0.4, 0.7]] * 2, NAN),
    ):
      base = self.run_of(f'base{expected}', rewards)._replace(name='base')
      _, arm = self.compare(short, baseline=base)
      saving = arm.milestones[0].spent['cost_units'].saving
      np.testing.assert_equal(saving.comparison.saving, expected)

  def test_p_values_are_adjusted_for_the_arms_at_a_level(self):
    names = ('base', 'a', 'b', 'c')
    arms = [
      self.run_of(name, rewards)
      for name, rewards in zip(
        names,
        ([SLOW[0]] * 6, [FAST[0]] * 6, [FAST[0]] * 6, [[0.1] * 5] * 6),
        strict=True,
      )
    ]
    rows = table.make(
      arms,
      baseline='base',
      thresholds=(0.5, 0.99),
      rule=readings.choose(arms, 20),
    ).arms
    of_a, of_b, of_c = (
      x.milestones[0].spent['cost_units'].saving for x in rows[1:]
    )
    # All of 10,000 resamples save something, in two of three arms.
    smallest = 1 / 10_001
    self.assertEqual(of_a.comparison.p_value, smallest)
    self.assertEqual(of_a.adjusted, 3 * smallest)
    self.assertEqual(of_b.adjusted, 3 * smallest)
    self.assertEqual((of_c.comparison.saving, of_c.adjusted), (-INF, 1.0))
    # Nobody reaches .99, and nothing is known.
    saving = rows[1].milestones[1].spent['cost_units'].saving
    self.assertTrue(np.isnan(saving.comparison.saving))
    self.assertIsNone(saving.adjusted)

  def test_the_statistics_are_those_of_levels(self):
    rng = np.random.default_rng(0)
    spent = {
      name: readings.Spent(rng.lognormal(4, 0.3, 8), INF) for name in 'abc'
    }
    actual = table.savings(spent, 'b')
    expected = [
      levels.compare(spent[x].per_seed, spent['b'].per_seed, seed=0)
      for x in 'ac'
    ]
    self.assertEqual([actual[x].comparison for x in 'ac'], expected)
    self.assertEqual(
      [actual[x].adjusted for x in 'ac'],
      levels.holm([one.p_value for one in expected]),
    )

  def test_arms_may_have_other_seeds(self):
    _, arm = self.compare(self.run_of('fast', FAST[:1]))
    saving = arm.milestones[0].spent['generated_tokens'].saving
    self.assertAlmostEqual(saving.comparison.saving, 1 - 50 / 226.25)

  def test_entropy_is_averaged_and_read_where_the_level_is(self):
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
    # Before the iterations are 0, 90, 91, 93 and 96 seconds: 90.5 and 92 on
    # average before those of the second and the third window.
    np.testing.assert_allclose(
      arm.milestones[0].spent['seconds'].per_seed, [91.25, 92]
    )

  def test_optional_values_may_be_absent(self):
    _, arm = self.compare(self.run_of('fast', FAST, seconds=None))
    for values in (arm.entropy, arm.replay_ratio, arm.generation_flops):
      np.testing.assert_array_equal(values, [NAN, NAN])
    self.assertTrue(np.isnan(arm.seconds_per_iteration))
    self.assertEqual(arm.milestones[0].wall_clock, 'unknown')
    self.assertEqual(arm.milestones[0].num_reached, 2)

  # The median of the baseline is 2.25 s, that of the arm one iteration.
  @parameterized.parameters(
    (1.0, 'improved'), (2.25, 'not improved'), (5.0, 'not improved')
  )
  def test_wall_clock_is_judged_from_the_data(self, seconds, expected):
    _, arm = self.compare(self.run_of('fast', FAST, seconds=seconds))
    self.assertEqual(arm.milestones[0].wall_clock, expected)

  def test_wall_clock_of_another_machine_or_number_of_seeds_is_unknown(self):
    _, arm = self.compare(self.run_of('fast', FAST, hardware='a TPU'))
    self.assertEqual(arm.milestones[0].wall_clock, 'unknown')
    base = self.run_of('one', SLOW[:1])._replace(name='base')
    _, arm = self.compare(self.run_of('two', FAST), baseline=base)
    self.assertEqual(arm.milestones[0].wall_clock, 'unknown')

  def test_any_arm_can_be_the_baseline(self):
    arms = [self.run_of('slow', SLOW), self.run_of('fast', FAST)]
    results = table.make(
      arms,
      baseline='fast',
      thresholds=(0.5,),
      rule=readings.choose(arms, 20),
    )
    self.assertEqual([arm.name for arm in results.arms], ['slow', 'fast'])
    saving = results.arms[0].milestones[0].spent['generated_tokens'].saving
    self.assertAlmostEqual(saving.comparison.saving, 1 - 226.25 / 100.75)
    self.assertIsNone(
      results.arms[1].milestones[0].spent['generated_tokens'].saving
    )

  def test_a_baseline_that_is_no_arm_is_named(self):
    arms = [self.run_of('slow', SLOW)]
    with self.assertRaisesRegex(
      ValueError, r"= 'x': must be one of \['slow'\]"
    ):
      table.make(
        arms,
        baseline='x',
        thresholds=(0.5,),
        rule=readings.choose(arms, 20),
      )
