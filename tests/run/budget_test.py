"""Tests of what ends a run, and of when it is evaluated."""

import functools

import chex
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import train
from replay_rl.run import budget
from replay_rl.run import build
from replay_rl.run import config as config_lib
from tests import tiny
from tests import train_test


def _evaluation(**changes):
  settings = {'every': 0, 'every_cost': None}
  return config_lib.Evaluation(
    **(settings | changes),
    num_prompts=1,
    num_samples=1,
    temperature=1.0,
    top_p=None,
  )


def _line(seed, iteration, cost, *, tokens=0, updates=0, **more):
  return {
    'seed': seed,
    'iteration': iteration,
    'ledger/cost_units': cost,
    'ledger/generated_tokens': tokens,
    'ledger/updates': updates,
    **more,
  }


def _score(value):
  return {budget.SCORE: value}


def _ends(stop, lines):
  return budget.is_over(budget.after({}, lines, stop))


class IsOverTest(parameterized.TestCase):
  @parameterized.parameters(
    functools.partial(budget.max_cost, cost_units=10.0),
    functools.partial(budget.max_tokens, generated_tokens=10),
    functools.partial(budget.max_updates, updates=10),
  )
  def test_a_limit_must_be_reached_by_every_seed(self, stop):
    lines = [
      _line(0, 0, 10, tokens=10, updates=10),
      _line(1, 0, 9, tokens=9, updates=9),
    ]
    self.assertTrue(_ends(stop, lines[:1]))
    self.assertFalse(_ends(stop, lines))
    more = _line(1, 1, 11, tokens=10, updates=12)
    self.assertTrue(_ends(stop, [*lines, more]))

  def test_without_a_limit_nothing_ends(self):
    self.assertFalse(_ends(None, [_line(0, 0, 1e9)]))
    self.assertFalse(
      _ends(functools.partial(budget.max_updates, updates=1), [])
    )

  @parameterized.parameters(
    ([0.7, 0.7], True),
    ([0.7, None, 0.8], True),  # Iterations without an evaluation between.
    ([0.7, 0.69, 0.7], False),
    ([0.7], False),
    ([0.7, 0.7, 0.1], True),  # It stays ended while others go on.
    ([np.float32(0.7) - 1e-8] * 2, True),  # As a mean in float32 may be.
  )
  def test_a_level_takes_two_evaluations_in_a_row(self, scores, expected):
    stop = functools.partial(budget.level, greedy=0.7, num_evaluations=2)
    lines = [
      _line(0, i, i, **({} if score is None else _score(score)))
      for i, score in enumerate(scores)
    ]
    self.assertEqual(_ends(stop, lines), expected)

  def test_seeds_may_end_by_different_limits(self):
    stop = budget.first_of(
      functools.partial(budget.level, greedy=0.5, num_evaluations=1),
      functools.partial(budget.max_cost, cost_units=100.0),
    )
    one, other = _line(0, 0, 10, **_score(0.6)), _line(1, 1, 100, **_score(0.0))
    self.assertTrue(_ends(stop, [one, other]))
    self.assertFalse(_ends(stop, [one, _line(1, 1, 99, **_score(0.4))]))

  def test_the_progress_before_stays_as_it_was(self):
    before = budget.after({}, [_line(0, 0, 1, **_score(0.1))], None)
    budget.after(before, [_line(0, 1, 2, **_score(0.2))], None)
    self.assertEqual(before[0].latest[budget.COST], 1)
    self.assertLen(before[0].evaluations, 1)

  @parameterized.parameters(
    (budget.max_cost, {'cost_units': 0.0}),
    (budget.max_tokens, {'generated_tokens': 0}),
    (budget.max_updates, {'updates': 1.5}),
    (budget.level, {'greedy': float('nan'), 'num_evaluations': 1}),
    (budget.level, {'greedy': 0.5, 'num_evaluations': 0}),
  )
  def test_what_cannot_be_is_refused(self, function, constants):
    with self.assertRaisesRegex(ValueError, '= .*: must be'):
      function(_line(0, 0, 1), [], **constants)


class SeedsDueTest(parameterized.TestCase):
  @parameterized.parameters((0, []), (1, [0, 1, 2, 3]), (2, [1, 3]))
  def test_by_iterations_all_seeds_are(self, every, expected):
    for i in range(4):
      lines = [_line(0, i, i), _line(1, i, i)]
      self.assertEqual(
        budget.seeds_due({}, lines, _evaluation(every=every)),
        {0, 1} if i in expected else frozenset(),
      )

  def test_by_cost_a_seed_is_at_each_multiple_of_its_own(self):
    evaluation = _evaluation(every_cost=10.0)
    progress, due = {}, []
    for i, costs in enumerate(
      [(4, 0), (9, 12), (10, 19), (19, 20), (35, 21), (39, 35)]
    ):
      lines = [_line(seed, i, cost) for seed, cost in enumerate(costs)]
      due.append(set(budget.seeds_due(progress, lines, evaluation)))
      progress = budget.after(progress, lines, None)
    self.assertEqual(due, [set(), {1}, {0}, {1}, {0}, {1}])


class RulesTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'evaluation__every': 2, 'evaluation__every_cost': 5.0},
      'evaluation.every = 2: must be 0 where evaluation.every_cost = 5.0',
    ),
    (
      {'stop': 'level(greedy=0.5, num_evaluations=2)'},
      'stop = .*: must have no level where nothing is evaluated',
    ),
    (
      {'stop': 'max_updates(updates=9) + level(greedy=1, num_evaluations=2)'},
      'stop = .*: must have no level where nothing is evaluated',
    ),
    ({'stop': 'max_updates(updates=0)'}, 'stop.updates = 0: must be'),
    ({'stop': 'never()'}, 'stop = .*: must be one call .* of level, max_cost'),
    ({'evaluation__every_cost': -1.0}, 'evaluation.every_cost = -1.0: must be'),
  )
  def test_what_cannot_be_is_refused(self, changes, complaint):
    config = tiny.config(**changes)
    with self.assertRaisesRegex(ValueError, complaint):
      build.experiment(config, build.planned_shape(config))


class TrainTest(train_test.TrainTestCase):
  def test_a_run_ends_at_its_cost_and_a_resumed_one_at_the_same(self):
    # An iteration trains on 2 x 8 rollouts and generates 16, at mu = 2: 48.
    config = tiny.config(
      num_iterations=50,
      evaluation__every_cost=100.0,
      stop='max_cost(cost_units=250)',
      checkpoint__every=2,
    )
    whole, parted = self.workdir('whole'), self.workdir('parted')
    expected = train.train(config, whole)
    lines = train_test.read_lines(whole)
    self.assertEqual(
      [line['ledger/cost_units'] for line in lines],
      [48.0 * i for i in range(1, 7)],
    )
    self.assertEqual(
      [line['iteration'] for line in lines if budget.SCORE in line], [2, 4]
    )
    train.train(config, parted, stop_after=3)
    for _ in range(2):  # The second time it has ended.
      chex.assert_trees_all_equal(train.train(config, parted), expected)
      self.assertEqual(
        (parted / 'metrics.jsonl').read_bytes(),
        (whole / 'metrics.jsonl').read_bytes(),
      )

  def test_a_higher_limit_continues_a_run(self):
    workdir = self.workdir()
    config = tiny.config(num_iterations=50, stop='max_updates(updates=4)')
    train.train(config, workdir)
    self.assertLen(train_test.read_lines(workdir), 2)
    config.stop = 'max_updates(updates=6)'
    train.train(config, workdir)  # Without a warning, which would raise.
    self.assertLen(train_test.read_lines(workdir), 3)


if __name__ == '__main__':
  absltest.main()
