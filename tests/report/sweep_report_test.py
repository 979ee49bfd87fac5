"""Tests of the report of a sweep: its table, its files and its figures."""

import argparse
import contextlib
import csv
import io
import math
import os
import pathlib
from unittest import mock

import numpy as np
from absl.testing import parameterized

from replay_rl.report import __main__ as program
from replay_rl.report import level_table
from replay_rl.report import sweep_data
from replay_rl.report import sweep_drawing
from replay_rl.report import sweep_figures
from replay_rl.report import sweep_heat_map
from replay_rl.report import sweep_saving
from tests.report import swept

_FIGURES = (
  *('curves', 'frontier', 'heat_map_cost', 'heat_map_score'),
  *('matched_budgets', 'saving', 'seed_costs'),
)
_ARM, _SAME, _OTHER, _LAST = swept.NAMES


def _rows(path):
  return list(csv.DictReader(path.read_text('utf-8').splitlines()))


def _table(figure):
  return [dict(zip(figure.columns, row, strict=True)) for row in figure.rows]


class SweepReportTest(parameterized.TestCase):
  def _main(self, *arguments):
    """Returns the exit status and what was printed, without wrapped lines."""
    out, err = io.StringIO(), io.StringIO()
    with (
      mock.patch.dict(os.environ, {'COLUMNS': '200'}),
      contextlib.redirect_stdout(out),
      contextlib.redirect_stderr(err),
    ):
      status = program.main(['sweep', str(swept.folder()), *arguments])
    return status, ' '.join(out.getvalue().split()), err.getvalue()

  def test_it_writes_a_table_and_figures_with_their_numbers(self):
    out = pathlib.Path(self.create_tempdir().full_path) / 'out'
    status, said, err = self._main('--level=0', '--mu=2', f'--out={out}')
    self.assertEqual((status, err), (0, ''))
    self.assertEqual(
      sorted(x.name for x in out.iterdir()),
      sorted(
        [f'{x}.{end}' for x in _FIGURES for end in ('png', 'csv')]
        + ['index.html', 'seeds.csv', 'table.csv']
      ),
    )
    for name in _FIGURES:
      self.assertStartsWith((out / f'{name}.png').read_bytes(), b'\x89PNG')
      self.assertIn(f'{out / name}.png: ', said)
      rows = _rows(out / f'{name}.csv')
      self.assertNotEmpty(rows)
    # The baseline is the cheapest; of equal ones, the first.
    self.assertIn(f'Against {_OTHER}', said)
    self.assertRegex(said, r'4 0.01 6 0 120 \S+ 6 baseline 120 to 120 4 ')
    self.assertRegex(
      said, r'8 0.01 6 0 144 \S+ 6 -20% 1.0000 144 to 144 -20% to -20% 8 '
    )
    table = _rows(out / 'table.csv')
    self.assertEqual(
      [row['arm'] for row in table], [_OTHER, _LAST, _ARM, _SAME]
    )
    self.assertEqual(table[2]['replay.batch_size'], '8')
    self.assertEqual(table[2]['saving'], '-0.2')
    self.assertEqual(table[2]['median_learner_steps'], '6')
    self.assertEqual((table[0]['saving'], table[0]['budget']), ('', 'inf'))
    seeds = _rows(out / 'seeds.csv')
    self.assertLen(seeds, 24)
    self.assertEqual(
      (seeds[0]['cost'], seeds[0]['cost_at_end']), ('144', '240')
    )

  def test_a_level_that_none_reaches_is_never(self):
    # Written twice, since equal sweeps give equal bytes.
    other, out = (
      pathlib.Path(self.create_tempdir(x).full_path) for x in ('one', 'two')
    )
    self._main('--level=2', '--mu=2', f'--out={other}')
    status, said, _ = self._main('--level=2', '--mu=2', f'--out={out}')
    for path in out.iterdir():
      self.assertEqual(path.read_bytes(), (other / path.name).read_bytes())
    self.assertEqual(status, 0)
    self.assertIn(
      '8 0.01 6 6 never never never baseline never to never 8 ', said
    )
    self.assertIn('all within 200 cost units', said)
    seeds = _rows(out / 'seeds.csv')
    self.assertEqual({row['cost'] for row in seeds}, {'inf'})
    maps = _rows(out / 'heat_map_cost.csv')
    self.assertEqual({row['value'] for row in maps}, {''})

  @parameterized.parameters(
    (('--baseline=no',), "--baseline = 'no': must be one of"),
    (('--baselines=no',), "--baselines = 'no': must be the beginning of"),
    (('--mu=-1',), '--mu = -1.0: must be a finite number >= 0'),
    (('--mu=inf',), '--mu = inf: must be a finite'),
    (('--level=nan',), '--level = nan: must be a finite'),
    (('--num_evaluations=0',), 'num_evaluations = 0: must be at least 1'),
    (('--heat_map=batch_size',), "--heat_map = 'batch_size': must be two"),
    (('--heat_map=a,b',), "field = 'a': must be one in which the arms of"),
    (('--panels=capacity',), "field = 'capacity': must be one in which"),
    (('--color=capacity',), "field = 'capacity': must be one in which"),
  )
  def test_what_cannot_be_is_one_line(self, arguments, complaint):
    out = pathlib.Path(self.create_tempdir().full_path) / 'out'
    status, said, err = self._main(
      '--level=0', '--mu=2', f'--out={out}', *arguments
    )
    self.assertEqual((status, said), (2, ''))
    self.assertStartsWith(err, f'error: {complaint}')
    self.assertEqual(err.count('\n'), 1)
    self.assertFalse(out.exists())

  def test_a_folder_without_a_sweep_is_one_line(self):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      status = program.main(['sweep', 'nowhere', '--level=0', '--mu=2'])
    self.assertEqual(status, 2)
    self.assertStartsWith(err.getvalue(), "error: path = 'nowhere/evaluations")

  def test_runs_are_still_compared_without_a_command(self):
    with mock.patch.object(
      program, 'render', side_effect=ValueError('x')
    ) as it:
      with contextlib.redirect_stderr(io.StringIO()):
        self.assertEqual(program.main(['runs/a', '--out=b']), 2)
    (options,) = it.call_args.args
    self.assertEqual((options.runs, options.out), (['runs/a'], 'b'))


class FiguresTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.sweep = sweep_data.read(swept.folder())

  def _layout(self, sweep, **changes):
    fields = {'panels': None, 'color': None} | changes
    return sweep_drawing.layout(sweep, **fields)

  def test_curves_are_medians_and_quartiles(self):
    sweep = swept.with_scores(
      self.sweep,
      {_ARM: [[0.0, 1.0], [0.2, 1.0], [0.3, 1.0], [0.6, 1.0], [1, 1]]},
    )
    rows = _table(
      sweep_figures.score_curves(sweep, self._layout(sweep), mu=2.0)
    )
    first = next(row for row in rows if row['arm'] == _ARM)
    self.assertEqual(list(first.values()), [_ARM, 5, 144.0, 0.2, 0.3, 0.6])

  def test_an_arm_that_was_never_evaluated_is_named(self):
    nan = [[math.nan, math.nan]] * 6
    sweep = swept.with_scores(self.sweep, {_ARM: nan})
    figure = sweep_figures.score_curves(sweep, self._layout(sweep), mu=2.0)
    self.assertNotIn(_ARM, {row[0] for row in figure.rows})
    self.assertIn(f'Never measured: {_ARM}.', figure.caption)
    figure = sweep_figures.matched_budgets(sweep, mu=2.0)
    self.assertNotIn(_ARM, {row[0] for row in figure.rows})
    self.assertIn(f'Never measured: {_ARM}.', figure.caption)

  def test_the_frontier_is_what_any_arm_has_reached_so_far(self):
    sweep = swept.with_scores(
      self.sweep, {_ARM: [[0.5, 0.2]], _OTHER: [[0.1, 0.7]]}
    )
    groups = {'all': [arm for arm in sweep.arms if arm.name in (_ARM, _OTHER)]}
    rows = sweep_figures.frontier(sweep, groups, mu=2.0).rows
    self.assertEqual(
      rows,
      [
        ('all', 120.0, 0.1, _OTHER),
        ('all', 144.0, 0.5, _ARM),
        ('all', 200.0, 0.7, _OTHER),
      ],
    )

  def test_a_heat_map_shows_the_best_of_the_arms_at_a_place(self):
    values = dict(zip(swept.NAMES, (3.0, 4.0, math.inf, 2.0), strict=True))
    x, y = self.sweep.fields
    for is_low_best, expected in ((True, [2.0, 3.0]), (False, [2.0, 4.0])):
      figure = sweep_heat_map.heat_map(
        *(self.sweep, x, x, values),
        panels=None,
        name='a',
        what='b',
        is_low_best=is_low_best,
      )
      places = {(r[1], r[2]): (r[3], r[5]) for r in figure.rows}
      self.assertEqual(places['4', '4'], (2, expected[0]))
      self.assertEqual(places['8', '8'], (2, expected[1]))
      self.assertEqual(places['4', '8'][0], 0)
    figure = sweep_heat_map.heat_map(
      *(self.sweep, x, x, values),
      panels=y,
      name='a',
      what='b',
      is_low_best=True,
    )
    places = {r[:3]: (r[3], r[4]) for r in figure.rows}
    self.assertEqual(places['0.005', '8', '8'], (1, _SAME))
    self.assertEqual(places['0.01', '4', '4'], (1, None))

  def _question(self, **changes):
    asked = {
      **{'level': 0.0, 'num_evaluations': 2, 'mu': 2.0},
      **{'baseline': _ARM, 'baselines': ''},
    }
    return sweep_saving.Question(**(asked | changes))

  def test_the_saving_follows_mu(self):
    rows = _table(sweep_saving.saving(self.sweep, self._question()))
    of_arm = {row['mu']: row for row in rows if row['arm'] == _OTHER}
    self.assertContainsSubset({1.0, 5.28, 6.84, 20.0}, of_arm)
    for mu, row in of_arm.items():
      # Two updates of 4 against 8 rows, beside 16 rollouts.
      self.assertAlmostEqual(row['saving'], 1 - (8 + 16 * mu) / (16 + 16 * mu))
      self.assertAlmostEqual(row['low'], row['saving'])
    self.assertNotIn(_ARM, {row['arm'] for row in rows})

  def test_the_baseline_is_the_best_at_each_mu(self):
    # At two the first pays 144 for the level and the other 200; where rollouts
    # cost nothing, 48 against 40.
    scores = {_ARM: [[1.0, 1.0]] * 6, _OTHER: [[0.0, 1.0]] * 6}
    sweep = swept.with_scores(self.sweep, scores)
    sweep = sweep._replace(arms=(sweep.arms[0], sweep.arms[2]))
    question = self._question(level=0.5, num_evaluations=1, baseline=None)
    with mock.patch.object(sweep_saving, 'MUS', (0.0, 1.0)):
      rows = _table(sweep_saving.saving(sweep, question))
    chosen = {row['mu']: row['baseline'] for row in rows}
    self.assertEqual((chosen[0.0], chosen[5.28]), (_OTHER, _ARM))

  def test_baselines_named_together_are_not_compared(self):
    question = self._question(baseline=None, baselines='batch_size=8')
    rows = _table(sweep_saving.saving(self.sweep, question))
    self.assertEqual({row['arm'] for row in rows}, {_OTHER, _LAST})

  def test_matched_budgets_are_those_that_all_arms_spent(self):
    scores = {name: [[0.0, 1.0]] * 6 for name in swept.NAMES}
    figure = sweep_figures.matched_budgets(
      swept.with_scores(self.sweep, scores), mu=2.0
    )
    rows = [row for row in _table(figure) if row['arm'] == _ARM]
    self.assertEqual([row['cost'] for row in rows], [144.0, 172.0, 200.0])
    np.testing.assert_allclose(
      [row['mean'] for row in rows], [0, 28 / 96, 56 / 96]
    )
    nan = {name: [[math.nan, math.nan]] for name in swept.NAMES}
    with self.assertRaisesRegex(
      ValueError, 'costs in common of the arms in .*'
    ):
      sweep_figures.matched_budgets(swept.with_scores(self.sweep, nan), mu=2.0)

  def test_seeds_that_did_not_get_there_are_shown_at_their_end(self):
    sweep = swept.with_scores(self.sweep, {_ARM: [[1, 1], [0, 0], [1, 1]]})
    question = self._question(level=0.5, num_evaluations=1)
    costs = question.costs(sweep)
    rows = level_table.rows(costs, question.baseline_of(costs))
    figure = sweep_figures.seed_costs(rows, level=0.5, mu=2.0)
    self.assertEqual(
      [row[1:] for row in figure.rows if row[0] == _ARM],
      [(0, 144.0, 240.0), (1, math.inf, 240.0), (2, 144.0, 240.0)],
    )


class LayoutTest(parameterized.TestCase):
  def _of(self, *numbers):
    """Returns a sweep of a grid of so many values of fields a.x, a.y, ..."""
    sweep = sweep_data.read(swept.folder())
    fields = tuple(f'a.{x}' for x in 'xyz'[: len(numbers)])
    arms = []
    for place in np.ndindex(*numbers):
      values = list(map(str, place))
      parts = [f'{x[2:]}={v}' for x, v in zip(fields, values, strict=True)]
      named = dict(zip(fields, values, strict=True))
      arms.append(sweep.arms[0]._replace(name=','.join(parts), fields=named))
    return sweep._replace(arms=tuple(arms), fields=fields)

  def test_a_few_arms_have_colours_of_their_own(self):
    sweep = self._of(6)
    layout = sweep_drawing.layout(sweep, panels=None, color=None)
    self.assertEqual(list(layout.panels), [''])
    self.assertLen({look.color for look in layout.looks.values()}, 6)
    self.assertLen(layout.legend, 6)

  def test_a_hundred_arms_are_spread(self):
    sweep = self._of(10, 10)
    layout = sweep_drawing.layout(sweep, panels=None, color=None)
    self.assertLen(layout.panels, 10)
    self.assertEqual([len(x) for x in layout.panels.values()], [10] * 10)
    self.assertLen({look.color for look in layout.looks.values()}, 10)
    self.assertLen(layout.legend, 10)
    self.assertEqual(layout.heading, 'colour: y')
    self.assertIn('x = 9', layout.panels)

  def test_a_third_field_has_dashes(self):
    sweep = self._of(2, 4, 3)
    layout = sweep_drawing.layout(sweep, panels=None, color=None)
    self.assertLen(layout.panels, 2)
    self.assertLen({look.dash for look in layout.looks.values()}, 3)
    self.assertLen(layout.legend, 4 + 3)

  def test_many_values_have_a_short_legend(self):
    sweep = self._of(100)
    layout = sweep_drawing.layout(sweep, panels=None, color=None)
    self.assertLen(layout.panels, 1)
    self.assertLen({look.color for look in layout.looks.values()}, 100)
    self.assertLen(layout.legend, 12)
    self.assertEqual(layout.legend[0][0], '0')
    self.assertEqual(layout.legend[-1][0], '99')

  def test_what_is_asked_for_is_done(self):
    sweep = self._of(3, 4)
    layout = sweep_drawing.layout(sweep, panels='a.y', color='a.y')
    self.assertEqual(list(layout.panels), [f'y = {i}' for i in range(4)])
    self.assertEqual(layout.heading, 'colour: y')
    with self.assertRaisesRegex(
      ValueError, "panels = 'a.x': must have at most"
    ):
      sweep_drawing.layout(self._of(17, 2), panels='a.x', color=None)

  def test_texts_beside_numbers_are_grey(self):
    shades = sweep_drawing.colors(['1', '2', 'no buffer'])
    self.assertEqual(shades['no buffer'], sweep_drawing.GREY)
    self.assertLen(set(shades.values()), 3)
    self.assertLen(set(sweep_drawing.colors(list('abcdefgh')).values()), 8)

  def test_a_legend_leaves_out_what_all_names_say(self):
    look = sweep_drawing.Look('red', '-')
    looks = {'a=1,b=2': look, 'a=1,b=3': look}
    self.assertEqual(
      [text for text, _ in sweep_drawing.shortened(looks)], ['b=2', 'b=3']
    )
    self.assertEqual(sweep_drawing.shortened({'a=1': look})[0][0], 'a=1')


class CommandTest(parameterized.TestCase):
  def test_help_names_the_commands(self):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), self.assertRaises(SystemExit):
      program.main(['--help'])
    for name in program.COMMANDS:
      self.assertIn(f'`{name} --help`', out.getvalue())

  def test_flags_of_a_command_are_its_own(self):
    for command in program.COMMANDS.values():
      command.add_flags(argparse.ArgumentParser())
