"""Tests of the figures: which are drawn, what their histograms say."""

import contextlib
import io
import pathlib
import tempfile
from unittest import mock

import matplotlib
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.report import drawing
from replay_rl.report import figures
from replay_rl.report import readings
from replay_rl.report import runs
from tests.report import synthetic
from tests.report import trained

PNG = b'\x89PNG\r\n\x1a\n'


class HistogramTest(parameterized.TestCase):
  @parameterized.parameters(
    (4, [1, 2, 3, 4]), (3, [1, 2, 7]), (2, [1, 9]), (1, [10])
  )
  def test_folding_keeps_the_sum_in_the_open_last_bin(self, num_bins, expected):
    folded = figures.fold(np.array([1, 2, 3, 4]), num_bins)
    np.testing.assert_array_equal(folded, expected)

  @parameterized.parameters(
    (3, False, ['0', '1', '≥ 2']),
    (1, False, ['≥ 0']),
    (4, True, ['new', '0', '1', '≥ 2']),
    (2, True, ['new', '≥ 0']),
    (1, True, ['new']),
  )
  def test_the_last_bin_is_labelled_as_open(self, num_bins, has_new, expected):
    self.assertEqual(figures.bin_labels(num_bins, has_new=has_new), expected)


class StyleTest(absltest.TestCase):
  def test_the_baseline_is_grey_and_no_two_arms_look_alike(self):
    run = runs.Run(
      'a', {}, {}, '', '', *[np.zeros(1)] * 2, {}, {}, *[np.zeros(1)] * 2, {}
    )
    arms = [run._replace(name=name) for name in 'abcdefghijklm']
    styled = drawing.style(arms, 'c')
    self.assertEqual([arm.run.name for arm in styled], list('abcdefghijklm'))
    self.assertLen({(arm.color, arm.dash) for arm in styled}, 13)
    self.assertNotIn(styled[2].color, [arm.color for arm in styled[:2]])
    self.assertEqual(drawing.style(arms[2:3], 'c'), [styled[2]])


class MakeTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.enterContext(contextlib.redirect_stderr(io.StringIO()))

  def test_full_runs_give_every_figure_and_leave_the_style_alone(self):
    run = runs.read(str(trained.folder()))
    # Names that mean something to matplotlib: mathematics, a hidden entry.
    names = [r'$\bad$', '_hidden']
    before = dict(matplotlib.rcParams)
    arms = [run._replace(name=name) for name in names]
    rule = readings.choose(arms, 32)
    self.assertEqual(rule.score, runs.GREEDY)
    drawn = figures.make(arms, baseline=names[0], thresholds=(0.5,), rule=rule)
    self.assertEqual(
      [figure.name for figure in drawn],
      [
        *('held_out', 'reward', 'entropy', 'histograms', 'off_policy'),
        'evaluation',
      ],
    )
    for figure in drawn:
      self.assertTrue(figure.png.startswith(PNG))
      self.assertTrue(figure.caption.endswith('.'))
    # The levels are marked in the figure of the score that is read.
    self.assertIn('levels of the table', drawn[0].caption)
    self.assertNotIn('levels of the table', drawn[1].caption)
    self.assertIn('windows of 32 rollouts', drawn[1].caption)
    with mock.patch.object(drawing, 'png', lambda _: b''):
      held_out, reward, *_ = figures.make(
        arms,
        baseline=names[0],
        thresholds=(0.5,),
        rule=rule._replace(every_cost=None),
      )
    self.assertNotIn('levels of the table', held_out.caption)
    self.assertIn('levels of the table', reward.caption)
    self.assertEqual(dict(matplotlib.rcParams), before)

  def test_runs_without_optional_values_give_the_reward_alone(self):
    rows = synthetic.rows_of_rewards(
      [[0.1, 0.2, 0.3]], entropy=None, **{'eval/pass_at_1': None}
    )
    run = runs.read(synthetic.write_run(self.root / 'a', rows))
    drawn = figures.make(
      [run], baseline='a', thresholds=(0.5,), rule=readings.choose([run], 20)
    )
    self.assertEqual([figure.name for figure in drawn], ['reward'])
    self.assertIn('levels of the table', drawn[0].caption)

  def test_a_histogram_that_an_arm_lacks_is_said_to_be_absent(self):
    rows = synthetic.rows_of_rewards([[0.1, 0.2, 0.3]])
    full = [row | {'histogram/uses': [0, 1, 2]} for row in rows]
    arms = [
      runs.read(synthetic.write_run(self.root / name, content))
      for name, content in (('with', full), ('without', rows))
    ]
    rule = readings.choose(arms, 10)
    drawn = figures.make(arms, baseline='with', thresholds=(0.5,), rule=rule)
    self.assertEqual(
      [figure.name for figure in drawn], ['reward', 'histograms']
    )
    self.assertIn("Not recorded for 'uses': without.", drawn[1].caption)
