"""Tests of the scores of arms at equal cost, on the arms of a real sweep."""

import numpy as np
from absl.testing import absltest

from replay_rl.report import sweep_curves
from replay_rl.report import sweep_data
from tests.report import swept

_GREEDY = sweep_data.GREEDY
# Evaluations are at 144 and 240 at mu = 2, of the others at 120 and 200.
_ARM, _SAME, _OTHER, _ = swept.NAMES


class SweepCurvesTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.sweep = sweep_data.read(swept.folder())

  def _arms(self, scores):
    sweep = swept.with_scores(self.sweep, scores)
    return [arm for arm in sweep.arms if arm.name in scores]

  def test_scores_are_linear_between_evaluations(self):
    (arm,) = self._arms({_ARM: [[0.0, 1.0], [0.5, 0.5]]})
    costs, scores = sweep_curves.curve(arm, _GREEDY, 2.0)
    self.assertEqual(costs.tolist(), [144.0, 240.0])
    self.assertEqual(scores.tolist(), [[0.0, 1.0], [0.5, 0.5]])
    at = sweep_curves.at_cost(arm, _GREEDY, 2.0, 168.0)
    np.testing.assert_allclose(at, [0.25, 0.5])
    for cost in (143.0, 241.0):
      self.assertTrue(
        np.isnan(sweep_curves.at_cost(arm, _GREEDY, 2.0, cost)).all()
      )
    # 48 rollouts and 48 uses are 96 at mu = 1.
    self.assertEqual(sweep_curves.curve(arm, _GREEDY, 1.0)[0][0], 96.0)

  def test_a_seed_that_was_never_evaluated_leaves_no_curve(self):
    (arm,) = self._arms({_ARM: [[0.0, 1.0], [np.nan, np.nan]]})
    self.assertEqual(sweep_curves.curve(arm, _GREEDY, 2.0)[0].size, 0)
    self.assertTrue(
      np.isnan(sweep_curves.at_cost(arm, _GREEDY, 2.0, 150.0)).all()
    )
    np.testing.assert_equal(sweep_curves.highest(arm, _GREEDY), [1.0, np.nan])

  def test_what_all_arms_have_in_common(self):
    arms = self._arms({_ARM: [[0, 1]], _OTHER: [[0, 1]]})
    self.assertEqual(
      sweep_curves.common_range(arms, _GREEDY, 2.0), (144.0, 200.0)
    )
    none = self._arms({_ARM: [[0, 1]], _OTHER: [[np.nan, np.nan]]})
    self.assertEqual(
      sweep_curves.common_range(none, _GREEDY, 2.0), (144.0, 240.0)
    )
    self.assertIsNone(sweep_curves.common_range(none[1:], _GREEDY, 2.0))

  def test_the_best_arm_has_the_highest_curve_at_common_costs(self):
    # At 144 to 200 the first is at .0 to .58, and the other at .3 to 1.
    arms = self._arms({_ARM: [[0.0, 1.0]], _OTHER: [[0.0, 1.0]]})
    self.assertEqual(sweep_curves.best(arms, _GREEDY, 2.0).name, _OTHER)
    # What the first has above 200 alone, where it is the better, is no merit.
    arms = self._arms({_ARM: [[0.4, 0.9]], _OTHER: [[0.6, 0.6]]})
    self.assertEqual(sweep_curves.best(arms, _GREEDY, 2.0).name, _OTHER)
    # The median over seeds, not the mean.
    arms = self._arms({_ARM: [[0, 0], [0, 0], [1, 1]], _SAME: [[0.2, 0.2]]})
    self.assertEqual(sweep_curves.best(arms, _GREEDY, 2.0).name, _SAME)
    (never,) = self._arms({_ARM: [[np.nan, np.nan]]})
    with self.assertRaisesRegex(ValueError, 'eval/greedy of .* = nothing: mu'):
      sweep_curves.best([never], _GREEDY, 2.0)

  def test_arms_that_differ_in_the_task_are_strata(self):
    self.assertEqual(list(sweep_curves.strata(self.sweep)), list(swept.NAMES))
    # As if the batch size had been the task.
    tasks = self.sweep._replace(
      fields=('task', self.sweep.fields[1]),
      arms=tuple(
        arm._replace(
          fields={'task': x, self.sweep.fields[1]: y},
          name=f'task={x},learning_rate={y}',
        )
        for arm in self.sweep.arms
        for x, y in [arm.fields.values()]
      ),
    )
    together = sweep_curves.strata(tasks)
    self.assertEqual(
      list(together), ['learning_rate=0.01', 'learning_rate=0.005']
    )
    self.assertEqual([len(arms) for arms in together.values()], [2, 2])


class InterquartileMeanTest(absltest.TestCase):
  def test_by_hand(self):
    scores = np.array([0.0, 1, 2, 3, 4, 5, 6, 100])
    mean, interval = sweep_curves.interquartile_mean([scores], seed=0)
    self.assertEqual(mean, 3.5)  # Of 2 to 5.
    assert interval is not None
    self.assertBetween(interval[0], 0.5, 3.0)
    self.assertBetween(interval[1], 4.0, 60.0)

  def test_of_all_strata_together(self):
    mean, interval = sweep_curves.interquartile_mean(
      [np.zeros(6), np.ones(6)], seed=0
    )
    self.assertEqual((mean, interval), (0.5, (0.5, 0.5)))
    # Each stratum keeps its share in every resample, so only one varies.
    varied = np.array([0.0, 0, 0, 1, 1, 1])
    _, ends = sweep_curves.interquartile_mean([np.ones(6), varied], seed=0)
    assert ends is not None
    self.assertGreaterEqual(ends[0], 0.5)

  def test_five_seeds_have_no_interval(self):
    scores = np.arange(6.0)
    self.assertIsNone(sweep_curves.interquartile_mean([scores[:5]], seed=0)[1])
    self.assertIsNone(
      sweep_curves.interquartile_mean([scores, scores[:5]], seed=0)[1]
    )
    self.assertIsNotNone(sweep_curves.interquartile_mean([scores], seed=0)[1])
