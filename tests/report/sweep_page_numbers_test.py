"""Tests of the statistics of the page of a sweep, against the report's."""

import itertools
import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.report import levels
from replay_rl.report import sweep_page_numbers
from replay_rl.report import sweep_page_view
from replay_rl.report import words
from tests.report import node as scripts

INF = math.inf


def node(code, **values):
  """Runs the statistics of the page."""
  return scripts.run(sweep_page_numbers.SCRIPT, code, **values)


def view(code, **values):
  """Runs what the page draws with, as far as it needs no browser."""
  return scripts.run(
    sweep_page_numbers.SCRIPT + sweep_page_view.SCRIPT, code, **values
  )


def floats(values):
  """Returns numbers, of which some are not finite."""
  return np.array([float(x) for x in values])


class LevelTest(absltest.TestCase):
  def test_costs_are_those_of_the_table(self):
    rng = np.random.default_rng(0)
    scores = [
      *([0.5, 0.7, 0.7], [0.7, 0.6, 0.7, 0.8], [0.5, 0.6, 0.7], []),
      [float(np.float32(0.7))] * 2,
      *rng.uniform(0.6, 0.8, (20, 9)).round(2).tolist(),
    ]
    for number in (1, 2, 3):
      actual = node(
        'scores.map((s) => costToLevel(s.map((x, i) => 10 * (i + 1)), s, 0.7, '
        '{numEvaluations, tolerance: 1e-6}))',
        scores=scores,
        numEvaluations=number,
      )
      expected = [
        levels.cost_to_level(
          [10 * (i + 1) for i in range(len(s))], s, 0.7, num_evaluations=number
        )
        for s in scores
      ]
      np.testing.assert_array_equal(floats(actual), expected)

  def test_what_costs_more_than_a_censored_seed_had_is_not_reached(self):
    def arm(scores, trained, end):
      seed = {
        'trained': trained,
        'generated': [0] * len(trained),
        'scores': scores,
        'end': {'trained': end, 'generated': 0},
      }
      return {'seeds': [seed]}

    for end, expected in ((40, [40.0, INF]), (39, [INF, INF])):
      actual = node(
        'costsToLevel(arms, 0.5, 1, {numEvaluations: 1, tolerance: 0})',
        arms=[arm([0.1, 0.5], [20, 40], 40), arm([0.1], [20], end)],
      )
      self.assertEqual(floats(sum(actual['costs'], [])).tolist(), expected)
      self.assertEqual(actual['budget'], end)


class BootstrapTest(parameterized.TestCase):
  @parameterized.parameters(1, 2, 3, 4, 5)
  def test_medians_of_all_resamples_are_counted(self, number):
    values = [8.0, 1.0, 4.0, 2.0, 16.0][:number]
    found = {}
    for drawn in itertools.product(values, repeat=number):
      middle = float(np.median(drawn))
      found[middle] = found.get(middle, 0) + 1 / number**number
    actual = {}
    for point in node('medians(values)', values=values):
      value = point['value']
      actual[value] = actual.get(value, 0) + point['share']
    self.assertEqual(list(actual), sorted(actual))
    for value in found | actual:
      self.assertAlmostEqual(actual.get(value, 0), found.get(value, 0))

  @parameterized.parameters(8, 9, 28)
  def test_intervals_are_those_of_the_report(self, num_seeds):
    rng = np.random.default_rng(num_seeds)
    for num_censored in (0, 2):
      arm, baseline = np.exp(rng.normal((4, 4.2), 0.3, (num_seeds, 2))).T
      arm[:num_censored] = INF
      baseline[: num_censored // 2] = INF
      self._compare(arm, baseline)
      self._compare(baseline, arm)

  def _compare(self, arm, baseline):
    expected = levels.compare(arm, baseline, seed=0)
    actual = node(
      'compare(arm, baseline, {minSeeds: 6, tail: 0.025})',
      arm=arm.tolist(),
      baseline=baseline.tolist(),
    )
    self.assertAlmostEqual(actual['saving'], expected.saving)
    self.assertAlmostEqual(actual['pValue'], expected.p_value, delta=0.02)
    # The ends of a drawn interval are those of 10,000 resamples.
    np.testing.assert_allclose(
      1 - floats(actual['interval']), 1 - np.array(expected.interval), rtol=0.04
    )

  @parameterized.parameters(
    ([60, 50, INF], [100, 90, 200]),
    ([60, INF, INF], [100, 90, 200]),
    ([60, 50, 80], [100, INF, INF]),
    ([INF] * 7, [INF] * 7),
    ([1.0, 2, 3, 4, 5], [1.0, 2, 3, 4, 5, 6]),
    ([60.0] * 6, [60.0] * 6),
    ([60.0] * 6, [INF] * 6),
    ([INF] * 6, [60.0] * 6),
  )
  def test_what_is_censored_or_too_few_is_as_in_the_report(self, arm, baseline):
    expected = levels.compare(
      np.array(arm, float), np.array(baseline, float), seed=0
    )
    actual = node(
      'compare(arm, baseline, {minSeeds: 6, tail: 0.025})',
      arm=arm,
      baseline=baseline,
    )
    np.testing.assert_allclose(float(actual['saving']), expected.saving)
    if expected.interval is None:
      self.assertIsNone(actual['interval'])
      self.assertIsNone(actual['pValue'])
    else:
      np.testing.assert_allclose(
        floats(actual['interval']), expected.interval, atol=1e-9
      )
      self.assertAlmostEqual(actual['pValue'], expected.p_value, places=3)

  def test_resamples_without_any_median_are_left_out(self):
    arm = [60.0, 50, 70, 55, 65, INF, INF, INF]
    baseline = [66.0, 56, 76, 61, 71, INF, INF, INF]
    expected = levels.compare(np.array(arm), np.array(baseline), seed=0)
    actual = node(
      'compare(arm, baseline, {minSeeds: 6, tail: 0.025})',
      arm=arm,
      baseline=baseline,
    )
    self.assertAlmostEqual(actual['pValue'], expected.p_value, delta=0.02)
    self.assertEqual(floats(actual['interval']).tolist(), [-INF, 1.0])

  def test_p_values_are_adjusted_as_in_the_report(self):
    p_values = [0.04, 0.01, 0.02, 0.9, 0.02]
    actual = node('holm(p)', p=[*p_values[:2], None, *p_values[2:]])
    self.assertIsNone(actual.pop(2))
    np.testing.assert_allclose(actual, levels.holm(p_values))


class ChoiceTest(parameterized.TestCase):
  ARM = {'name': 'Reuse=4,rate=0.1', 'fields': {'x.rate': '0.1', 'y': ''}}

  @parameterized.parameters(
    ('', {}, True),
    ('reuse 0.1', {}, True),
    ('reuse 0.2', {}, False),
    ('', {'x.rate': []}, True),
    ('', {'x.rate': ['0.2', '0.1']}, True),
    ('', {'x.rate': ['0.2']}, False),
    ('', {'x.rate': ['0.1'], 'y': ['3']}, False),
    ('', {'y': ['']}, True),
  )
  def test_filters(self, text, allowed, expected):
    actual = node(
      'passes(arm, {words, allowed})',
      arm=self.ARM,
      words=text,
      allowed=allowed,
    )
    self.assertEqual(actual, expected)

  def test_unknown_values_come_last_in_both_ways(self):
    values = [2, None, INF, 1, 2]
    for is_descending, expected in (
      (False, [3, 0, 4, 2, 1]),
      (True, [2, 0, 4, 3, 1]),
    ):
      actual = node(
        'order([0, 1, 2, 3, 4], (i) => values[i], down)',
        values=values,
        down=is_descending,
      )
      self.assertEqual(actual, expected)

  def test_numbers_are_written_as_in_the_report(self):
    amounts = [0, 1, 12.345, 999.9, 1234, 99950, 2.5e6, 3e9, 4e12, INF]
    shares = [0.4, -0.126, 0, -0.001, 1, -INF]
    actual = node(
      '[amounts.map(amount), shares.map(percent)]',
      amounts=amounts,
      shares=shares,
    )
    self.assertEqual(actual[0], [words.amount(x) for x in amounts])
    self.assertEqual(actual[1], [words.percent(x) for x in shares])
    self.assertEqual(
      node('[null, 0, 0.00004, 0.01234].map(probability)'),
      ['', '< 0.0001', '< 0.0001', '0.0123'],
    )

  def test_ticks_are_round_and_within(self):
    for low, high, number, expected in (
      (0, 100_000, 5, [0, 20_000, 40_000, 60_000, 80_000, 100_000]),
      (0.21, 0.86, 7, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
      (-0.6, 0.2, 4, [-0.6, -0.4, -0.2, 0, 0.2]),
      (3, 3, 4, [3]),
    ):
      actual = node(
        'ticks(low, high, number)', low=low, high=high, number=number
      )
      np.testing.assert_allclose(actual, expected)

  def test_the_nearest_curve_within_reach_is_found(self):
    lines = [
      {'place': 7, 'points': [[0, 0], [100, 0]]},
      {'place': 3, 'points': [[0, 20], [100, 40]]},
      {'place': 5, 'points': [[200, 200]]},
    ]
    for (x, y), expected in (
      ((50, 5), 7),
      ((50, 24), 3),
      ((198, 201), 5),
      ((50, -17), None),
    ):
      actual = node('nearest(lines, x, y, 16)', lines=lines, x=x, y=y)
      self.assertEqual(actual, expected)

  def test_paths_have_gaps_where_nothing_is_known(self):
    self.assertEqual(
      view('pathOf([[0, 1], [2, 3], null, [4, 5], [6, 7.25]])'),
      'M0.0 1.0L2.0 3.0M4.0 5.0L6.0 7.3',
    )
    self.assertEqual(
      view('bandOf([[0, 1, 2], [3, 4, 5], null, [6, 7, 8]])'),
      'M0.0 1.0L3.0 4.0L3.0 5.0L0.0 2.0Z',
    )
    self.assertEqual(view("['a.b.c', 'd'].map(label)"), ['c', 'd'])
