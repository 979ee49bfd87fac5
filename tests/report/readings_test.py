"""Tests of where levels are read; the same curve in pieces costs the same."""

import contextlib
import io
import math
import pathlib
import tempfile

import numpy as np
from absl.testing import parameterized

from replay_rl.report import levels
from replay_rl.report import readings
from replay_rl.report import runs
from tests.report import synthetic
from tests.report import trained

INF = np.inf
_MU = 5.28
_NUM_FRESH = 496
_SCALE = 8000  # Rollouts.


def _curve(rollouts):
  """Accuracy of the policy after so many rollouts, from .2 up to .85."""
  return 0.2 + 0.65 * (1 - np.exp(-rollouts / _SCALE))


def _rollouts_to(level):
  return -_SCALE * math.log(1 - (level - 0.2) / 0.65)


def _old_rule(rewards, totals, level):
  """The total at which the mean of the last five iterations has the level."""
  means = np.convolve(rewards, np.ones(5) / 5, 'valid')
  return totals[4:][np.argmax(means >= level)]


def _observe(num_rollouts, num_seeds):
  """Rows of an arm that learns along the curve, so many rollouts at a time."""
  rng = np.random.default_rng(num_rollouts)
  before = np.arange(0, 30_000, num_rollouts)
  accuracy = np.broadcast_to(_curve(before), (num_seeds, len(before)))
  rewards = rng.binomial(num_rollouts, accuracy) / num_rollouts
  rows = synthetic.rows_of_rewards(rewards.tolist())
  for row in rows:
    total = (row['iteration'] + 1) * num_rollouts
    row['ledger/rollouts'] = total
    row['ledger/generated_tokens'] = 5 * total
    row['ledger/cost_units'] = total * (1 + _MU)
  return rows, rewards


class FairnessTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.runs, cls.rewards = [], []
    for num_rollouts in (
      *(_NUM_FRESH, _NUM_FRESH // 2, _NUM_FRESH // 4, 4 * _NUM_FRESH),
    ):
      rows, rewards = _observe(num_rollouts, num_seeds=60)
      path = pathlib.Path(folder.name) / str(num_rollouts)
      with contextlib.redirect_stderr(io.StringIO()):
        cls.runs.append(runs.read(synthetic.write_run(path, rows)))
      cls.rewards.append(rewards)

  @parameterized.parameters(0.5, 0.6, 0.7)
  def test_a_curve_costs_the_same_in_however_many_pieces(self, level):
    rule = readings.choose(self.runs, 5 * _NUM_FRESH)
    truth = _rollouts_to(level) * (1 + _MU)
    for run in self.runs:
      spent = readings.spent(run, level, runs.COST, rule)
      ratio = np.median(spent.per_seed) / truth
      self.assertBetween(ratio, 0.97, 1.03, run.name)

  @parameterized.parameters(0.5, 0.6, 0.7)
  def test_with_equal_iterations_it_does_not(self, level):
    medians = [
      np.median(
        [
          _old_rule(of_seed, run.column(runs.COST)[0], level)
          for of_seed in rewards
        ]
      )
      for run, rewards in zip(self.runs, self.rewards, strict=True)
    ]
    whole, half, quarter, four = medians
    self.assertLess(half / whole, 0.95)
    self.assertLess(quarter / whole, 0.9)
    self.assertGreater(four / whole, 1.3)


class WindowTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.enterContext(contextlib.redirect_stderr(io.StringIO()))

  def run_of(self, name, num_iterations=10, rollouts=10):
    rows = synthetic.rows_of_rewards([[0.5] * num_iterations] * 2)
    for row in rows:
      row['ledger/rollouts'] = rollouts * (row['iteration'] + 1)
    return runs.read(synthetic.write_run(self.root / name, rows))

  def test_the_default_is_five_times_the_largest_iteration(self):
    arms = [self.run_of('a'), self.run_of('b', rollouts=14)]
    rule = readings.choose(arms, None)
    self.assertEqual((rule.window, rule.score), (70, 'reward'))
    self.assertIn('a centred window of 70 rollouts in every', rule.in_words())
    self.assertIn("since 'a' has no evaluations at equal", rule.in_words())

  @parameterized.parameters(14, 60)
  def test_a_window_between_the_bounds_is_taken(self, window):
    arms = [
      self.run_of('a', num_iterations=6),
      self.run_of('b', rollouts=14),
    ]
    self.assertEqual(readings.choose(arms, window).window, window)

  @parameterized.parameters(13, 61, None)
  def test_any_other_is_refused(self, window):
    arms = [
      self.run_of('a', num_iterations=6),
      self.run_of('b', rollouts=14),
    ]
    with self.assertRaisesRegex(
      ValueError,
      f"window_rollouts = {window or 70}: must be at least 14, .*of 'b', and "
      "at most 60, those of a seed of 'a'",
    ):
      readings.choose(arms, window)

  def test_a_run_without_its_first_lines_is_read_from_the_second(self):
    rows = synthetic.rows_of_rewards([[9.0, 9.0, 0.2, 0.6, 0.6]])[1:]
    run = runs.read(synthetic.write_run(self.root / 'a', rows))
    np.testing.assert_array_equal(
      readings.rollouts_per_iteration(run), [[0, 10, 10, 10]]
    )
    np.testing.assert_allclose(
      readings.smoothed(run, 'reward', 10)[0], [0.2, 0.6, 0.6]
    )
    # Iteration 2 begins after 10 cost units.
    np.testing.assert_allclose(
      readings.spent_before(run, runs.COST, 10)[0], [10, 15, 20]
    )

  def test_values_are_read_where_they_are_known(self):
    run = self.run_of('a', num_iterations=3)
    run.values['entropy'] = np.array([[3.0, 2.0, 1.0]] * 2)
    # The means of two are 2.5 after 2.5 units and 1.5 after 7.5.
    for costs, expected in (
      ([2.5, 5.0], [2.5, 2]),
      ([2.4, INF], [np.nan, INF]),
      ([7.6, 7.5], [np.nan, 1.5]),
    ):
      actual = readings.value_when(run, 'entropy', np.array(costs), 20)
      np.testing.assert_allclose(actual, expected)


class EvaluationTest(parameterized.TestCase):
  """Of a run of the train program with evaluations at equal cost."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.run_ = runs.read(str(trained.folder()))

  def scored(self, scores, **changes):
    """The run with other scores in the iterations that were evaluated."""
    column = np.full_like(self.run_.column(runs.GREEDY), np.nan)
    column[:, 1:] = scores
    return self.run_._replace(
      values=self.run_.values | {runs.GREEDY: column}, **changes
    )

  def test_evaluations_at_equal_cost_are_the_rule(self):
    rule = readings.choose([self.run_], 64)
    self.assertEqual(rule, readings.Rule(window=64, every_cost=50.0, why=''))
    self.assertEqual(rule.score, 'eval/greedy')
    self.assertIn('evaluated every 50 cost units', rule.in_words())
    self.assertIn('windows of 64 rollouts', rule.in_words())

  def test_the_first_of_two_evaluations_at_the_level_counts(self):
    run = self.scored([[0.5, 0.5, 0.1], [0.5, 0.1, 0.5]])
    rule = readings.choose([run], 64)
    cost = readings.spent(run, 0.5, runs.COST, rule)
    np.testing.assert_allclose(cost.per_seed, [96, INF])
    # The last evaluation of the second seed has no next one.
    self.assertEqual(cost.limit, 144)
    self.assertEqual(
      cost.per_seed[0],
      levels.cost_to_level(
        [96, 144, 192], [0.5, 0.5, 0.1], 0.5, num_evaluations=2
      ),
    )
    tokens = readings.spent(run, 0.5, runs.TOKENS, rule)
    self.assertEqual(tokens.per_seed[0], run.column(runs.TOKENS)[0, 1])
    seconds = readings.spent(run, 0.5, runs.SECONDS, rule)
    self.assertEqual(seconds.per_seed[0], run.column(runs.SECONDS)[0, 1])

  def test_other_settings_of_one_arm_fall_back_to_the_window(self):
    config = self.run_.config
    evaluation = config['evaluation']
    for changed, why in (
      ({'mu': 9.0}, 'mu, the steps of cost or the prompts'),
      (
        {'evaluation': evaluation | {'num_prompts': 9}},
        'mu, the steps of cost or the prompts',
      ),
      (
        {'evaluation': evaluation | {'every_cost': 51.0}},
        'mu, the steps of cost or the prompts',
      ),
      (
        {'evaluation': evaluation | {'every_cost': None}},
        "'b' has no evaluations at equal steps of cost",
      ),
      (
        {'evaluation': evaluation | {'every_cost': 40.0}},
        "'b' has 3 evaluations of a seed in 192 cost units, and not one every",
      ),
    ):
      other = self.run_._replace(name='b', config=config | changed)
      rule = readings.choose([self.run_, other], 64)
      self.assertEqual((rule.every_cost, rule.score), (None, 'reward'))
      self.assertStartsWith(rule.why, why)

  def test_a_single_evaluation_is_too_few(self):
    run = self.run_._replace(
      values=self.run_.values
      | {runs.GREEDY: np.full((2, 4), np.nan), runs.COST: np.full((2, 4), 1.0)}
    )
    self.assertIn('fewer than 2', readings.choose([run], 64).why)
