"""Tests of runs with functions of a user's own."""

import contextlib
import functools
import importlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
from unittest import mock

import chex

from replay_rl import train
from replay_rl.run import stopping
from tests import tiny
from tests import train_test

# A rule of a user's own module, one that lets nothing be drawn, and a schedule.
_RULES = """
from replay_rl import base
from replay_rl.run import schedule


def my_rule(state, step, *, x: base.Scalar):
  return x + state.rollouts.rewards


def nothing(state, step):
  return 0.0 * state.rollouts.rewards


def only_at_first(state, step):
  return (step < 3) + nothing(state, step)


def more_each_time(iteration):
  learn = schedule.Learn(num_updates=2 * iteration)
  return schedule.Generate(), schedule.Remember(), learn
"""


class UserFunctionsTest(train_test.TrainTestCase):
  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.create_tempdir().full_path)
    self.source = folder / 'my_rules.py'
    self.source.write_text(_RULES)
    self.enter_context(mock.patch.object(sys, 'path', [str(folder), *sys.path]))
    self.enter_context(mock.patch.dict(sys.modules))  # Forgets it at the end.
    self.rules = importlib.import_module('my_rules')

  def test_a_rule_trains_and_continues_only_as_it_was(self):
    own = {
      'num_iterations': 2,
      'schedule': 'my_rules:more_each_time()',
      'replay__updates_per_iteration': None,
    }
    config = tiny.config(**own)
    named = tiny.config(**own, replay__weights='my_rules:my_rule(x=2.0)')
    my_rule = functools.partial(self.rules.my_rule, x=2.0)
    whole, parted = self.workdir('whole'), self.workdir('parted')
    expected = train.train(named, whole)
    self.assertEqual(expected.learner.step.tolist(), [0 + 2])
    losses = [line['loss'] for line in train_test.read_lines(whole)]
    self.assertIsNone(losses[0])  # Without an update there is none.
    self.assertIsNotNone(losses[1])
    train.train(config, parted, stop_after=1, weights=my_rule)

    for workdir in (whole, parted):
      written = json.loads((workdir / 'config.json').read_text())
      record = written['functions']['replay.weights']
      self.assertEqual(record['text'], 'my_rules:my_rule(x=2.0)')
      ((name, digest),) = record['functions'].items()
      self.assertEqual(name, 'my_rules:my_rule')
      self.assertRegex(digest, '^[0-9a-f]{64}$')

    with self.assertRaisesRegex(
      ValueError, r'have the functions of .* replay.weights = .*uniform\(\)'
    ):
      train.train(config, parted)
    self.source.write_text(_RULES.replace('x + ', 'x - '))
    with self.assertRaisesRegex(
      ValueError, 'have the functions of .* replay.weights = .*my_rules'
    ):
      train.train(config, parted, weights=my_rule)
    self.source.write_text(_RULES)
    actual = train.train(config, parted, weights=my_rule)
    chex.assert_trees_all_equal(actual, expected)
    self.assertEqual(
      (parted / 'metrics.jsonl').read_bytes(),
      (whole / 'metrics.jsonl').read_bytes(),
    )

  def test_a_rule_that_lets_nothing_be_drawn_stops_the_run(self):
    workdir = self.workdir()
    with self.assertRaisesRegex(
      stopping.EmptyUpdatesError,
      '^generations in a row without a valid row = 10: must be below 10 '
      'before the first update; replay.weights = '
      "'my_rules:nothing\\(\\)' gives no stored rollout a positive weight",
    ):
      train.train(
        tiny.config(num_iterations=12),
        workdir,
        weights=self.rules.nothing,
      )
    lines = train_test.read_lines(workdir)
    self.assertLen(lines, 10)  # Of two updates each.
    for line in lines:
      self.assertEqual(line['updates/empty'], 2)
      self.assertEqual(line['updates/applied'], 0)
      self.assertEqual(line['learner_step'], 0)
      self.assertIsNone(line['loss'])

  def test_a_run_that_has_learned_goes_on_without_rows_and_says_so(self):
    workdir = self.workdir()
    with contextlib.redirect_stdout(io.StringIO()) as out:
      train.train(
        tiny.config(num_iterations=13),
        workdir,
        weights=self.rules.only_at_first,
      )
    lines = train_test.read_lines(workdir)
    self.assertLen(lines, 13)
    self.assertEqual(lines[-1]['learner_step'], 3)
    # The fourth update of the second iteration was not the first of it.
    self.assertEqual(
      [line['updates/empty'] for line in lines], [0, 1] + 11 * [2]
    )
    told = ' '.join(out.getvalue().split())
    self.assertEqual(told.count('generations in a row'), 1)
    self.assertIn(
      'seed 0: no valid row in 10 generations in a row; replay.weights = '
      "'my_rules:only_at_first()' gives no stored rollout a positive weight",
      told,
    )


class ReadmeTest(train_test.TrainTestCase):
  def test_the_example_of_a_new_rule_runs_as_it_is_printed(self):
    text = (train_test.ROOT / 'README.md').read_text()
    (example,) = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
    self.assertLessEqual(len(example.strip().splitlines()), 16)
    workdir = self.workdir()
    script = example.replace('runs/mine', str(workdir))
    script = script.replace(
      'config = quickstart.get_config()',
      'config = quickstart.get_config()\n'
      f'config.cache_dir = {tiny.CACHE!r}\n'
      'config.num_iterations = config.num_seeds = 1\n'
      'config.evaluation.every = 0\n'
      'config.model.num_layers = 1\n'
      'config.logging.writers = None\n'
      'config.warm_start.num_steps = 0\n',
    )
    self.assertNotEqual(script, example)
    # From a file, because the run records the source of the rule.
    path = self.create_tempfile('mine.py', script).full_path
    environment = os.environ | {
      'PYTHONPATH': str(train_test.ROOT),
      'JAX_PLATFORMS': 'cpu',
    }
    subprocess.run([sys.executable, path], check=True, env=environment)
    self.assertLen(train_test.read_lines(workdir), 1)
