"""Tests of the figures of the papers, on a sweep of real runs."""

import contextlib
import csv
import io
import json
import math
import pathlib

import numpy as np
from absl.testing import parameterized

from replay_rl.report import __main__ as program
from replay_rl.report import closed_forms
from replay_rl.report import paper_figures
from replay_rl.report import sweep_data
from replay_rl.report import sweep_runs
from tests.report import swept

_BATCH, _RATE = swept.AXES
_COMPOSE, _CAPACITY = 'replay.compose', 'replay.capacity'
# What each takes, as in section 6 of the protocol of the study.
_NEEDED = {
  'A1': [_COMPOSE],
  'A2': [],
  'A3': [_CAPACITY],
  'A4': [_CAPACITY, _RATE],
  'A5': ['replay.keep', 'loss.policy'],
  'A12': ['sampler.weight_lag', 'schedule'],
  'A13': [_CAPACITY],
  'A14': [_CAPACITY, _BATCH],
  'A18': ['replay.draw', 'replay.weights'],
  'B_main': ['name'],
  'B_ablations': ['replay.keep'],
}


class PaperFiguresTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.sweep = sweep_data.read(swept.folder())

  def _as(self, names, values=None):
    """Returns the sweep as if other fields had differed, by new -> old name.

    `values` changes values of the last new field.
    """
    *_, last = names
    arms = []
    for arm in self.sweep.arms:
      fields = {new: arm.fields[old] for new, old in names.items()}
      fields[last] = (values or {}).get(fields[last], fields[last])
      arms.append(arm._replace(fields=fields))
    return self.sweep._replace(arms=tuple(arms), fields=tuple(names))

  def _rows(self, name, sweep):
    figures = paper_figures.draw(name, sweep, 2.0)
    for figure in figures:
      self.assertStartsWith(figure.png, b'\x89PNG')
    return [
      [dict(zip(figure.columns, row, strict=True)) for row in figure.rows]
      for figure in figures
    ]

  def test_every_figure_of_the_protocol_has_a_name(self):
    self.assertEqual(list(paper_figures.FIGURES), list(_NEEDED))

  @parameterized.parameters(*(x for x, y in _NEEDED.items() if y))
  def test_a_field_that_the_sweep_lacks_is_named(self, name):
    none = self.sweep.only(self.sweep.arms[:1])
    with self.assertRaisesRegex(
      ValueError, rf'fields of .* = \[\]: must have .*for figure {name}$'
    ) as raised:
      paper_figures.draw(name, none, 2.0)
    self.assertTrue(any(x in str(raised.exception) for x in _NEEDED[name]))

  def test_a1_is_the_best_buffer_against_none(self):
    sweep = self._as({_RATE: _RATE, _COMPOSE: _BATCH}, {'8': 'fresh_only()'})
    scores = dict(
      zip(
        swept.NAMES, ([[0, 0]], [[0.2, 0.2]], [[1, 1]], [[0, 0]]), strict=True
      )
    )
    (rows,) = self._rows('A1', swept.with_scores(sweep, scores))
    self.assertEqual(
      {(row['arm'], row['median']) for row in rows},
      {('buffer=no buffer', 0.2), ('buffer=best buffer', 1.0)},
    )
    all_have_one = self._as({_COMPOSE: _BATCH}, {'8': 'x', '4': 'y'})
    with self.assertRaisesRegex(
      ValueError, "replay.compose of .* = .'x', 'y'.: must be fresh_only"
    ):
      self._rows('A1', all_have_one)

  def test_a2_has_every_histogram_of_every_run(self):
    (rows,) = self._rows('A2', self.sweep)
    self.assertEqual({row['cell'] for row in rows}, set(swept.NAMES))
    ages = [row for row in rows if row['histogram'] == 'staleness']
    of_first = [row for row in ages if row['cell'] == swept.NAMES[0]]
    self.assertEqual([row['bin'] for row in of_first], ['0', '1', '2', '≥ 3'])
    # 8 rows in each of 12 updates of 6 seeds.
    self.assertEqual(sum(row['count'] for row in of_first), 8 * 12 * 6)
    self.assertAlmostEqual(sum(row['expected'] for row in of_first), 8 * 12 * 6)
    self.assertBetween(of_first[0]['p_value'], 1e-3, 1)
    self.assertLess(of_first[0]['total_variation'], 0.1)
    # The mean number of uses is no surprise, which the test of them knows.
    uses = [
      row
      for row in rows
      if (row['histogram'], row['cell']) == ('uses', swept.NAMES[0])
    ]
    counts, expected = (
      np.array([row[key] for row in uses]) for key in ('count', 'expected')
    )
    fit = closed_forms.fit(counts, expected, ddof=1)
    self.assertAlmostEqual(uses[0]['p_value'], fit.p_value)

  def test_a3_has_the_gain_of_each_k(self):
    sweep = self._as({_RATE: _RATE, _CAPACITY: _BATCH})
    curves, gains = self._rows('A3', sweep)
    self.assertEqual({x['arm'] for x in curves}, {'capacity=4', 'capacity=8'})
    self.assertEqual(
      [(row['capacity'], row['k']) for row in gains],
      [('4', 1), ('4', 2), ('8', 1), ('8', 2)],
    )
    smallest, other = gains[1], gains[3]
    self.assertEqual(smallest['gain'], 0.0)
    self.assertAlmostEqual(
      other['gain'], other['best_pass_at_k'] - smallest['best_pass_at_k']
    )

  def test_a4_is_a_frontier_of_each_buffer(self):
    (rows,) = self._rows('A4', self._as({_RATE: _RATE, _CAPACITY: _BATCH}))
    self.assertEqual({row['group'] for row in rows}, {'4', '8'})

  @parameterized.parameters(
    ('A5', 'loss.policy', {'policy=4', 'policy=8'}),
    ('A12', 'sampler.weight_lag', {'weight_lag=4', 'weight_lag=8'}),
    ('A13', _CAPACITY, {'capacity=4', 'capacity=8'}),
    ('A18', 'replay.draw', {'draw=4', 'draw=8'}),
  )
  def test_curves_of_a_field(self, name, field, expected):
    (rows,) = self._rows(name, self._as({_RATE: _RATE, field: _BATCH}))
    self.assertEqual({row['arm'] for row in rows}, expected)

  def test_only_arms_without_a_buffer_are_in_a12(self):
    sweep = self._as(
      {'sampler.weight_lag': _RATE, _COMPOSE: _BATCH}, {'8': 'fresh_only()'}
    )
    # Those with a buffer would be the best.
    scores = {name: [[1.0, 1.0]] * 6 for name in swept.NAMES[2:]}
    (rows,) = self._rows('A12', swept.with_scores(sweep, scores))
    # Of batch size 8, whose first evaluation is at 144.
    self.assertEqual(min(row['cost'] for row in rows), 144.0)
    self.assertEqual(
      {row['arm'] for row in rows}, {'weight_lag=0.01', 'weight_lag=0.005'}
    )

  def test_a13_is_the_mean_of_the_entropy_over_cost(self):
    run = sweep_runs.runs_of(self.sweep, self.sweep.arms[0])
    middles, values = sweep_runs.curve(run, 'entropy', 2.0)
    # An iteration costs 48, so bins of (288 - 48) / 40 are within one; the
    # whole mean is that of the trapezoids.
    np.testing.assert_allclose(middles[[0, -1]], [51.0, 285.0])
    of_seed = run[0].column('entropy')[2]
    np.testing.assert_allclose(
      values[2].mean(), (of_seed[1:] + of_seed[:-1]).mean() / 2
    )
    np.testing.assert_allclose(
      values[2, 0], of_seed[0] + (of_seed[1] - of_seed[0]) / 16
    )
    empty, _ = sweep_runs.curve(run, 'no_such_metric', 2.0)
    self.assertEqual(empty.size, 0)

  def test_a14_shows_the_arm_of_the_highest_score_in_both_maps(self):
    fields = {_CAPACITY: _BATCH, 'replay.updates_per_iteration': _BATCH}
    sweep = self._as(fields)
    scores = dict(
      zip(
        swept.NAMES,
        ([[0.2, 0.1]], [[0.5, 0.9]], [[0.88, 0.89]], [[0.1, 0.1]]),
        strict=True,
      )
    )
    accuracy, cost = self._rows('A14', swept.with_scores(sweep, scores))
    found = {
      row[_CAPACITY]: (one['value'], row['value'])
      for one, row in zip(accuracy, cost, strict=True)
      if row['arms']
    }
    # .5 is below 98 % of .9; .88 is not below that of .89.
    self.assertEqual(found, {'4': (0.89, 120.0), '8': (0.9, 240.0)})

  def test_a_seed_that_was_never_evaluated_has_no_cost(self):
    sweep = swept.with_scores(self.sweep, {swept.NAMES[0]: [[math.nan] * 2]})
    seed = sweep.arms[0].seeds[0]
    self.assertEqual(paper_figures.cost_to_share(seed, 0.98, 2.0), math.inf)

  def test_b_main_compares_with_what_has_no_buffer(self):
    sweep = self._as({'name': _RATE, _COMPOSE: _BATCH}, {'8': 'fresh_only()'})
    chosen = sweep._replace(arms=(sweep.arms[0], sweep.arms[3]))
    (rows,) = self._rows('B_main', chosen)
    by_name = {row['method']: row for row in rows}
    self.assertEqual(by_name['0.01']['aes_1_3_5'], 0.0)
    self.assertEqual([row['cost'] for row in rows], [200.0, 200.0])
    self.assertEqual(rows[0]['seeds'], 6)

  def test_b_ablations_have_a_panel_of_each_setting(self):
    sweep = self._as({'replay.keep': _RATE, 'replay.draw': _BATCH})
    (rows,) = self._rows('B_ablations', sweep)
    self.assertEqual(
      [(row['field'], row['value'], row['arms']) for row in rows],
      [
        ('replay.draw', '4', 2),
        ('replay.draw', '8', 2),
        ('replay.keep', '0.005', 2),
        ('replay.keep', '0.01', 2),
      ],
    )


class CommandTest(parameterized.TestCase):
  def _main(self, *arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      status = program.main(['figure', *arguments])
    return status, out.getvalue(), err.getvalue()

  def test_it_writes_the_figure_at_the_mu_of_the_runs(self):
    out = pathlib.Path(self.create_tempdir().full_path)
    status, said, _ = self._main(
      'B_ablations', str(swept.folder()), f'--out={out}'
    )
    self.assertEqual((status, said), (2, ''))
    status, said, _ = self._main('A2', str(swept.folder()), f'--out={out}')
    self.assertEqual(status, 0)
    self.assertStartsWith(said, f'{out}/A2.png: Bars')
    with open(out / 'A2.csv') as file:
      self.assertNotEmpty(list(csv.DictReader(file)))

  def test_the_mu_of_the_runs(self):
    sweep = sweep_data.read(swept.folder())
    self.assertEqual(sweep_runs.mu_of(sweep), 2.0)
    folder = pathlib.Path(self.create_tempdir().full_path)
    for index, name in enumerate(swept.NAMES):
      (folder / name).mkdir()
      header = json.loads((swept.folder() / name / 'config.json').read_text())
      header['config']['mu'] = float(index)
      (folder / name / 'config.json').write_text(json.dumps(header))
    other = sweep._replace(path=folder / 'x.csv')
    with self.assertRaisesRegex(
      ValueError, '--mu = None: must be given, since'
    ):
      sweep_runs.mu_of(other)

  @parameterized.parameters(
    (('A3',), 'error: fields of .*must have replay.capacity, in which'),
    (('A2', '--mu=-1'), 'error: --mu = -1.0: must be a finite'),
  )
  def test_what_cannot_be_is_one_line(self, arguments, complaint):
    name, *more = arguments
    status, said, err = self._main(name, str(swept.folder()), *more)
    self.assertEqual((status, said), (2, ''))
    self.assertRegex(err, complaint)
    self.assertEqual(err.count('\n'), 1)

  def test_an_unknown_name_is_answered_with_those_there_are(self):
    err = io.StringIO()
    with (
      contextlib.redirect_stderr(err),
      self.assertRaises(SystemExit) as ended,
    ):
      program.main(['figure', 'A99', 'x'])
    self.assertEqual(ended.exception.code, 2)
    self.assertIn('B_ablations', err.getvalue())
