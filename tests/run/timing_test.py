"""Tests of the seconds of events, and of mu."""

import json
import math

import jax.numpy as jnp
from absl.testing import absltest

from replay_rl.run import budget
from replay_rl.run import timing
from tests.report import trained


def _line(seed, rollouts, rows):
  return {
    'seed': seed,
    'ledger/rollouts': rollouts,
    'ledger/trained_rollouts': rows,
  }


def _after(*lines):
  return {line['seed']: budget.OfSeed(line, (), False) for line in lines}


class StopwatchTest(absltest.TestCase):
  def test_seconds_add_up_by_name_until_they_are_read(self):
    ticks = iter([10.0, 13.0, 20.0, 20.5, 30.0, 34.0, 50.0, 51.0])
    watch = timing.Stopwatch(lambda: next(ticks))
    learn = watch.timed('learn', lambda x, y: x + y)
    judge = watch.timed('judge', lambda: 'right')
    self.assertEqual(learn(jnp.float32(1), 2), 3)
    self.assertEqual(judge(), 'right')
    learn(1, 2)
    self.assertEqual(watch.read(), {'learn': 3 + 4, 'judge': 0.5})
    self.assertEqual(watch.read(), {})
    judge()
    self.assertEqual(watch.read(), {'judge': 1.0})


class FieldsTest(absltest.TestCase):
  def test_mu_is_of_the_rollouts_of_this_iteration_by_hand(self):
    before = _after(_line(3, 100, 1000), _line(4, 100, 2000))
    lines = [_line(3, 116, 1030), _line(4, 116, 2010)]
    seconds = {'generate': 8.0, 'judge': 1.0, 'learn': 5.0}
    # 8 s for 32 rollouts; 5 s for 40 rows.
    self.assertEqual(
      timing.fields(seconds, before, lines),
      {
        'generate_seconds': 8.0,
        'judge_seconds': 1.0,
        'learn_seconds': 5.0,
        'mu': 0.25 / 0.125,
      },
    )

  def test_the_first_iteration_did_all_that_there_is(self):
    fields = timing.fields(
      {'generate': 8.0, 'learn': 1.0}, {}, [_line(3, 4, 1)]
    )
    self.assertEqual(fields['mu'], 2.0)

  def test_without_a_row_or_a_rollout_there_is_no_mu(self):
    for line in (_line(3, 4, 0), _line(3, 0, 4)):
      seconds = {'generate': 8.0, 'learn': 1.0}
      self.assertTrue(math.isnan(timing.fields(seconds, {}, [line])['mu']))

  def test_where_nothing_was_timed_there_is_nothing_to_say(self):
    self.assertEqual(timing.fields({}, {}, [_line(3, 4, 1)]), {})


class TrainedTest(absltest.TestCase):
  def test_a_run_writes_the_seconds_of_each_event_beside_its_metrics(self):
    lines = trained.lines('timing.jsonl')
    self.assertLen(lines, 4)
    metrics = trained.lines('metrics.jsonl')
    for line in lines:
      parts = [
        line[f'{event}_seconds']
        for event in ('generate', 'judge', 'remember', 'learn', 'publish')
      ]
      self.assertGreater(min(parts), 0)
      self.assertLess(sum(parts), line['seconds'])
      # Two seeds, each with 16 rollouts and 2 updates of 8 rows.
      mu = (line['generate_seconds'] / 32) / (line['learn_seconds'] / 32)
      self.assertAlmostEqual(line['mu'], mu)
    self.assertNotIn('seconds', json.dumps(metrics))
