"""Tests of the table of costs to a level, on a sweep of real runs."""

import math
import pathlib

from absl.testing import absltest

from replay_rl.report import level_table
from replay_rl.report import sweep_data
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import results
from tests import tiny
from tests.report import swept

_FIRST, _, _THIRD, _ = swept.NAMES


def _costs(sweep, **changes):
  settings = {'level': 0.0, 'num_evaluations': 2, 'mu': 2.0} | changes
  return level_table.costs_of(sweep, **settings)


class LevelTableTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.sweep = sweep_data.read(swept.folder())

  def _arms(self, scores=None, **changes):
    sweep = swept.with_scores(self.sweep, scores or {})
    costs = _costs(
      sweep._replace(arms=(sweep.arms[0], sweep.arms[2])), **changes
    )
    return *costs.arms, costs.budget

  def test_costs_are_those_of_the_first_evaluation_at_the_level(self):
    # At 144 and 240, of the other arm at 120 and 200, see `swept.folder`.
    first, other, budget = self._arms()
    self.assertEqual((first.arm.name, other.arm.name), (_FIRST, _THIRD))
    self.assertEqual(first.costs.tolist(), [144.0] * 6)
    self.assertEqual(other.costs.tolist(), [120.0] * 6)
    self.assertEqual(first.learner_steps.tolist(), [6.0] * 6)
    self.assertEqual(
      first.generated_tokens.tolist(),
      [seed.generated_tokens[0] for seed in first.arm.seeds],
    )
    self.assertEqual(budget, math.inf)

  def test_another_mu_prices_the_same_runs(self):
    first, other, _ = self._arms(mu=10.0)
    self.assertEqual(first.costs.tolist(), [3 * (16 + 160.0)] * 6)
    self.assertEqual(other.costs.tolist(), [3 * (8 + 160.0)] * 6)

  def test_no_seed_is_given_more_than_one_that_did_not_get_there_had(self):
    for first, other, expected, budget in (
      ([0.1, 0.9], [0.1, 0.1], math.inf, 200.0),
      ([0.9, 0.9], [0.1, 0.1], 144.0, 200.0),
      ([0.1, 0.9], [0.1, 0.9], 240.0, math.inf),
    ):
      scores = {_FIRST: [first] * 6, _THIRD: [other] * 6}
      arm, _, limit = self._arms(scores, level=0.5, num_evaluations=1)
      self.assertEqual((arm.median, limit), (expected, budget))
      # What is over the budget is censored in every unit.
      self.assertEqual(
        arm.learner_steps.tolist(),
        [6.0 if expected == 144 else math.inf if expected == math.inf else 10.0]
        * 6,
      )

  def test_a_cell_that_was_never_evaluated_stays_in_the_table(self):
    base = tiny.config(num_iterations=1, evaluation__every_cost=1000.0)
    out = pathlib.Path(self.create_tempdir().full_path)
    cells = cells_lib.make(
      base, [{'replay.batch_size': 8}, {'replay.batch_size': 4}]
    )
    local.run(cells, out, say=print, allow_code_change=False)
    results.write(cells, out)
    with self.assertRaisesRegex(ValueError, "it lacks .'eval/greedy'"):
      sweep_data.read(out)
    path = out / results.EVALUATIONS
    header, *rows = path.read_text().splitlines()
    self.assertLen(rows, 2)
    path.write_text(
      '\n'.join([f'{header},eval/greedy', *(f'{x},' for x in rows)])
    )
    costs = _costs(sweep_data.read(out), level=0.5, num_evaluations=1)
    self.assertEqual([arm.median for arm in costs.arms], [math.inf] * 2)
    self.assertEqual([arm.num_censored for arm in costs.arms], [1, 1])
    self.assertEqual(costs.budget, 40.0)

  def test_the_cheapest_row_is_the_first_and_holm_counts_all(self):
    costs = _costs(self.sweep)
    baseline = level_table.baseline_of(costs, name=_FIRST, beginning='')
    rows = level_table.rows(costs, baseline)
    self.assertEqual(
      [row.costs.median for row in rows], [120.0, 120.0, 144.0, 144.0]
    )
    of_first = next(row for row in rows if row.costs is baseline)
    self.assertIsNone(of_first.comparison)
    self.assertEqual(of_first.interval, (144.0, 144.0))
    third = rows[0]
    self.assertAlmostEqual(third.comparison.saving, 1 / 6)
    # Three arms are compared; p is one in 10,001 before.
    self.assertAlmostEqual(third.adjusted_p, 3 / 10_001)

  def test_the_best_of_the_baselines_is_taken(self):
    costs = _costs(self.sweep)
    for beginning, expected in (
      ('batch_size', _THIRD),
      ('batch_size=8', _FIRST),
    ):
      baseline = level_table.baseline_of(costs, name=None, beginning=beginning)
      self.assertEqual(baseline.arm.name, expected)
