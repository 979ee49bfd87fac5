"""Tests of the page of a sweep: what it says is what the report says."""

import contextlib
import io
import json
import pathlib
import re
import tempfile
from unittest import mock

import numpy as np
from absl.testing import parameterized

from replay_rl.report import __main__ as program
from replay_rl.report import curves
from replay_rl.report import level_table
from replay_rl.report import levels
from replay_rl.report import sweep_curves
from replay_rl.report import sweep_data
from replay_rl.report import sweep_page
from replay_rl.report import sweep_page_numbers
from replay_rl.report import sweep_report
from replay_rl.report import sweep_saving
from tests.report import node as scripts
from tests.report import swept

EVIL = '</script><script>alert("$x & y")</script>'


def node(code, **values):
  """Runs the statistics of the page."""
  return scripts.run(sweep_page_numbers.SCRIPT, code, **values)


def floats(values):
  """Returns numbers, of which some are not finite."""
  return np.array([float(x) for x in values])


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
