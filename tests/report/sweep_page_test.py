"""Tests of the page of a sweep: its statistics are those of the report."""

import contextlib
import io
import itertools
import json
import math
import pathlib
import re
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.report import __main__ as program
from replay_rl.report import curves
from replay_rl.report import level_table
from replay_rl.report import levels
from replay_rl.report import sweep_curves
from replay_rl.report import sweep_data
from replay_rl.report import sweep_page
from replay_rl.report import sweep_page_numbers
from replay_rl.report import sweep_page_view
from replay_rl.report import sweep_report
from replay_rl.report import sweep_saving
from replay_rl.report import words
from tests.report import node as scripts
from tests.report import swept

INF = math.inf
EVIL = '</script><script>alert("$x & y")</script>'


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


class SweepTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.sweep = sweep_data.read(swept.folder())

  def question(self, **changes):
    return sweep_saving.Question(0.2, 2, 2.0, None, '')._replace(**changes)

  def packed(self, sweep, question):
    """What the page has for its script."""
    text = sweep_page.make(sweep, question)
    found = re.search(
      r'<script type="application/json" id="sweep">(.*)</script>', text
    )
    return json.loads(found[1])

  def test_the_table_is_that_of_the_report_at_any_level_and_mu(self):
    packed = self.packed(self.sweep, self.question())
    scores = np.concatenate(
      [
        seed.scores['eval/greedy'][seed.evaluated()]
        for arm in self.sweep.arms
        for seed in arm.seeds
      ]
    )
    cases = [
      (float(level), mu)
      for level in np.quantile(scores, (0, 0.2, 0.5, 0.8))
      for mu in (0.0, 2.0, 9.5)
    ]
    found = node(
      'cases.map(([level, mu]) => '
      'compareAll(sweep.arms, level, mu, sweep.settings))',
      cases=cases,
      sweep=packed,
    )
    num_censored = 0
    for (level, mu), actual in zip(cases, found, strict=True):
      costs = level_table.costs_of(
        self.sweep, level=level, num_evaluations=2, mu=mu
      )
      baseline = level_table.baseline_of(costs, name=None, beginning='')
      rows = {x.costs.arm.name: x for x in level_table.rows(costs, baseline)}
      self.assertEqual(float(actual['budget']), costs.budget)
      names = [arm.name for arm in self.sweep.arms]
      self.assertEqual(names[actual['baseline']], baseline.arm.name)
      for name, row in zip(names, actual['rows'], strict=True):
        expected = rows[name]
        np.testing.assert_allclose(floats(row['costs']), expected.costs.costs)
        num_censored += row['numCensored']
        self.assertEqual(row['numCensored'], expected.costs.num_censored)
        self.assertAlmostEqual(float(row['median']), expected.costs.median)
        if expected.comparison is None:
          self.assertIsNone(row['comparison'])
          continue
        np.testing.assert_allclose(
          float(row['comparison']['saving']), expected.comparison.saving
        )
        self.assertEqual(
          row['comparison']['interval'] is None,
          expected.comparison.interval is None,
        )
    self.assertBetween(num_censored, 1, 6 * 4 * len(cases) - 1)

  def test_curves_are_those_of_the_report(self):
    packed = self.packed(self.sweep, self.question())
    found = node('sweep.arms.map((arm) => curveOf(arm, 3.5))', sweep=packed)
    for arm, actual in zip(self.sweep.arms, found, strict=True):
      costs, scores = sweep_curves.curve(arm, 'eval/greedy', 3.5)
      low, middle, high = curves.quartiles(scores)
      for name, expected in (
        *(('cost', costs), ('low', low), ('middle', middle), ('high', high)),
      ):
        np.testing.assert_allclose([x[name] for x in actual], expected)

  def test_curves_of_seeds_that_differ_end_with_the_first(self):
    rng = np.random.default_rng(0)

    def cut(seed, start, end):
      at = slice(start, end)
      scores = rng.uniform(size=len(seed.iterations))
      # Seeds of the sweep spend alike, which others need not.
      generated = seed.generated + rng.integers(9, size=len(scores))
      return seed._replace(
        iterations=seed.iterations[at],
        trained=seed.trained[at],
        generated=generated[at],
        generated_tokens=seed.generated_tokens[at],
        learner_steps=seed.learner_steps[at],
        scores={'eval/greedy': scores[at]},
      )

    first = self.sweep.arms[0]
    # Two evaluations are few, so each seed goes on where the one before ended.
    seeds = [
      cut(self._joined(first.seeds[i : i + 2]), i % 2, 4 - i // 2)
      for i in range(4)
    ]
    arm = first._replace(seeds=tuple(seeds))
    costs, scores = sweep_curves.curve(arm, 'eval/greedy', 3.5)
    self.assertGreater(len(costs), 1)
    sweep = self.sweep._replace(arms=(arm,), scores=('eval/greedy',))
    actual = node(
      'curveOf(s.arms[0], 3.5)', s=self.packed(sweep, self.question())
    )
    expected = np.stack([costs, *curves.quartiles(scores)], axis=1)
    np.testing.assert_allclose(
      [[x[k] for k in ('cost', 'low', 'middle', 'high')] for x in actual],
      expected,
    )

  def _joined(self, seeds):
    """One seed with the evaluations of two, one after the other."""
    one, other = seeds
    columns = {
      name: np.concatenate([mine, mine[-1] + yours])
      for name in (
        *('iterations', 'learner_steps', 'generated_tokens', 'generated'),
        'trained',
      )
      for mine, yours in [(getattr(one, name), getattr(other, name))]
    }
    return one._replace(**columns)

  def test_savings_against_mu_take_the_best_baseline_of_each(self):
    question = self.question(level=0.0, baselines='batch_size=8')
    packed = self.packed(self.sweep, question)
    mus = [0.5, 2.0, 20.0]
    found = node(
      'savingsByMu(sweep.arms, [3, 2], 0, mus, sweep.settings, true)',
      mus=mus,
      sweep=packed,
    )
    for place, lines in zip((3, 2), found, strict=True):
      for mu, actual in zip(mus, lines, strict=True):
        costs = question.costs(self.sweep, mu)
        compared = levels.compare(
          costs.arms[place].costs, question.baseline_of(costs).costs, seed=0
        )
        self.assertEqual(actual['mu'], mu)
        self.assertAlmostEqual(actual['saving'], compared.saving)
        np.testing.assert_allclose(
          actual['interval'], compared.interval, atol=1e-9
        )

  def test_the_baseline_that_was_asked_for_is_taken_and_listed_first(self):
    question = self.question(baseline=swept.NAMES[2])
    packed = self.packed(self.sweep, question)
    for choice, expected in (
      ({}, 2),
      ({'baseline': None, 'baselines': 'batch_size=4'}, 2),
      ({'baseline': None}, 2),
      ({'baseline': swept.NAMES[1]}, 1),
    ):
      actual = node(
        'compareAll(s.arms, 0, 2, {...s.settings, ...choice}).baseline',
        s=packed,
        choice=choice,
      )
      self.assertEqual(actual, expected)
    text = sweep_page.make(self.sweep, question)
    options = re.findall('<option value="[^"]*">([^<]*)<', text)
    self.assertEqual(
      options,
      [swept.NAMES[2], 'the cheapest arm', *swept.NAMES[:2], swept.NAMES[3]],
    )

  def test_the_page_needs_no_other_file_and_has_the_same_bytes(self):
    text = sweep_page.make(self.sweep, self.question())
    again = sweep_page.make(sweep_data.read(swept.folder()), self.question())
    self.assertEqual(text, again)
    self.assertIn("default-src 'none'", text)
    links = re.findall(r'(?:https?:|src=|href=|import|url\()[^\s]*', text)
    self.assertEqual(
      links, ["http://www.w3.org/2000/svg',", 'url(#${clip})`});']
    )
    self.assertNotIn('$', re.sub(r'<script>.*</script>', '', text, flags=re.S))
    self.assertIn('data-field="replay.batch_size" data-value="8">8</b', text)
    self.assertIn('<th data-name="optimizer.learning_rate"', text)

  def test_texts_of_a_sweep_are_escaped(self):
    arms = [
      arm._replace(
        name=arm.name + EVIL,
        fields={field: EVIL + x for field, x in arm.fields.items()},
      )
      for arm in self.sweep.arms
    ]
    sweep = self.sweep._replace(
      arms=tuple(arms), path=pathlib.Path(f'{EVIL[10:14]}/x.csv')
    )
    text = sweep_page.make(sweep, self.question(baselines=EVIL))
    self.assertNotIn('alert("', text.replace('alert(\\"', ''))
    self.assertLen(re.findall('<script', text), 2)
    self.assertLen(re.findall('</script', text), 2)
    packed = self.packed(sweep, self.question(baselines=EVIL))
    self.assertEqual(packed['arms'][0]['name'], swept.NAMES[0] + EVIL)
    self.assertEqual(packed['settings']['baselines'], EVIL)

  def test_a_seed_that_was_never_evaluated_is_censored(self):
    first = self.sweep.arms[0]
    seed = first.seeds[0]
    scores = {'eval/greedy': np.full_like(seed.scores['eval/greedy'], np.nan)}
    seeds = (seed._replace(scores=scores), *first.seeds[1:])
    sweep = self.sweep._replace(arms=(first._replace(seeds=seeds),))
    packed = self.packed(sweep, self.question())
    ours = packed['arms'][0]['seeds'][0]
    self.assertEqual((ours['scores'], ours['generated']), ([], []))
    self.assertEqual(ours['end']['trained'], seed.trained[-1])
    actual, curve = node(
      '[costsToLevel(s.arms, -1, 2, s.settings), curveOf(s.arms[0], 2)]',
      s=packed,
    )
    self.assertEqual(actual['costs'][0][0], 'Infinity')
    self.assertEqual(actual['budget'], seed.costs(2)[-1])
    self.assertEqual(curve, [])

  def test_the_command_writes_the_page_and_says_where(self):
    with tempfile.TemporaryDirectory() as out:
      stdout = io.StringIO()
      with (
        contextlib.redirect_stdout(stdout),
        mock.patch.object(sweep_report, '_figures', lambda *_: []),
      ):
        code = program.main(
          [
            'sweep',
            str(swept.folder()),
            '--level=0.2',
            '--mu=2',
            f'--out={out}',
          ]
        )
      self.assertEqual(code, 0)
      text = (pathlib.Path(out) / 'index.html').read_text('utf-8')
    self.assertEndsWith(stdout.getvalue(), f'{out}/index.html\n')
    self.assertEqual(text, sweep_page.make(self.sweep, self.question()))


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
