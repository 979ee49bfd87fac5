"""Tests of what a run writes."""

import json
import math
import pathlib

import jax
import jax.numpy as jnp
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.run import events
from replay_rl.run import ledger
from replay_rl.run import logs
from replay_rl.run import metrics
from replay_rl.run import state
from tests.run import tiny_run


class LineWriterTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path) / 'lines.jsonl'

  def _write(self, first, iterations):
    writer = logs.LineWriter(self.path, first, has_gaps=False)
    for iteration in iterations:
      for seed in range(2):
        writer.write(iteration=iteration, seed=seed, value=iteration / 3)
    writer.close()

  def test_a_resumed_file_equals_an_uninterrupted_one(self):
    self._write(0, range(6))
    whole = self.path.read_bytes()
    for cut in (0, 1, 40, 41, 170, len(whole) - 1, len(whole)):
      # All lines of iterations 0 to 2 are there, and some of those after.
      kept = b''.join(whole.splitlines(keepends=True)[:6])
      self.path.write_bytes(kept + whole[len(kept) : len(kept) + cut])
      self._write(3, range(3, 6))
      self.assertEqual(self.path.read_bytes(), whole)

  def test_lines_that_are_missing_are_an_error_and_nothing_is_lost(self):
    self._write(0, range(4))
    lines = self.path.read_bytes().splitlines(keepends=True)
    damaged = b''.join([*lines[:2], b'{"iter\n', *lines[3:]])
    self.path.write_bytes(damaged)
    with self.assertRaisesRegex(
      ValueError, '= 1: must be at least the 3 of the checkpoint'
    ):
      logs.LineWriter(self.path, 3, has_gaps=False)
    self.assertEqual(self.path.read_bytes(), damaged)

  def test_a_missing_file_of_a_resumed_run_is_an_error(self):
    with self.assertRaisesRegex(
      ValueError, '= 0: must be at least the 3 of the checkpoint'
    ):
      logs.LineWriter(self.path, 3, has_gaps=False)

  def test_lines_with_gaps_between_them_are_cut_to_where_the_run_is(self):
    for iteration in (1, 4, 7):
      writer = logs.LineWriter(self.path, iteration, has_gaps=True)
      writer.write(iteration=iteration)
      writer.close()
    whole = self.path.read_bytes()
    logs.LineWriter(self.path, 8, has_gaps=True).close()
    self.assertEqual(self.path.read_bytes(), whole)
    logs.LineWriter(self.path, 7, has_gaps=True).close()
    self.assertEqual(
      self.path.read_text(), '{"iteration": 1}\n{"iteration": 4}\n'
    )

  def test_what_is_not_finite_is_written_as_null(self):
    writer = logs.LineWriter(self.path, 0, has_gaps=False)
    writer.write(iteration=0, a=math.nan, b=math.inf, c=[1, 2], d=1.5)
    writer.close()
    self.assertEqual(
      json.loads(self.path.read_text()),
      {'iteration': 0, 'a': None, 'b': None, 'c': [1, 2], 'd': 1.5},
    )


class LinesTest(absltest.TestCase):
  def test_each_seed_gets_a_line_with_its_own_numbers(self):
    parts = tiny_run.parts()
    params = parts.init_params_fn(jax.random.key(0))
    run = jax.jit(
      jax.vmap(lambda seed, hyper: state.init(parts, params, seed, hyper))
    )(jnp.array([4, 9], jnp.uint32), state.of_seeds(parts.hyper, 2))
    counted = [
      ledger.add(ledger.init(), rollouts=8, trained_rollouts=trained)
      for trained in (4, 24)
    ]
    run = run._replace(
      clock=run.clock._replace(iteration=jnp.array([3, 5], jnp.int32)),
      learner=run.learner._replace(step=jnp.array([6, 7], jnp.int32)),
      ledger=jax.tree.map(lambda *x: jnp.stack(x), *counted),
    )
    values = {
      'reward': jnp.array([0.1, -2.5]),
      'buffer/num_valid': jnp.array([16, 32], jnp.int32),
      'histogram/uses': jnp.array([[1, 2], [3, 4]], jnp.int32),
    }
    loss = metrics.Mean(jnp.array([0.75, 0.0]), jnp.array([3.0, 0.0]))
    updates = metrics.UpdateMetrics(
      {'loss': loss},
      {'gap': jnp.array([0.0, 0.5])},
      {'updates/applied': jnp.array([3, 0], jnp.int32)},
    )
    first, second = logs.lines(
      run, events.Measured(values, updates), parts.transformer, mu=1.5
    )
    # A line is of the iteration just done; a float32 reads as it was written.
    expected = {
      'iteration': 2,
      'seed': 4,
      'learner_step': 6,
      'reward': 0.1,
      'loss': 0.25,
      'gap': 0.0,
      'updates/applied': 3,
      'buffer/num_valid': 16,
      'histogram/uses': [1, 2],
      'ledger/rollouts': 8,
      'ledger/trained_rollouts': 4,
      'ledger/cost_units': 4 + 1.5 * 8,
      'replay_ratio': 0.5,
    }
    self.assertEqual(first, first | expected)
    self.assertTrue(math.isnan(second.pop('loss')))
    expected = {
      'iteration': 4,
      'seed': 9,
      'learner_step': 7,
      'reward': -2.5,
      'gap': 0.5,
      'updates/applied': 0,
      'buffer/num_valid': 32,
      'histogram/uses': [3, 4],
      'ledger/trained_rollouts': 24,
      'ledger/cost_units': 24 + 1.5 * 8,
      'replay_ratio': 3.0,
    }
    self.assertEqual(second, second | expected)
    # A cycle without an event of learning reports the other events alone.
    first, _ = logs.lines(
      run, events.Measured(values, None), parts.transformer, mu=1.5
    )
    self.assertNotIn('loss', first)
    self.assertEqual(first['reward'], 0.1)


class LogTest(absltest.TestCase):
  def test_a_line_per_seed_seconds_apart_and_tensorboard_files(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    with logs.open_all(
      folder,
      name='arm',
      num_iterations=1,
      iteration=0,
      tensorboard=True,
      samples=True,
    ) as log:
      lines = [
        {'iteration': 0, 'seed': seed, 'reward': 0.5, 'loss': math.nan}
        | {'ledger/generated_tokens': 7, 'histogram/uses': [1, 2]}
        for seed in (3, 4)
      ]
      log.write(lines, seconds=2.0)
      log.write_samples([{'iteration': 0, 'prompt': '1+1', 'reward': 1.0}])
    written = (folder / 'metrics.jsonl').read_text().splitlines()
    self.assertEqual([json.loads(line)['seed'] for line in written], [3, 4])
    self.assertNotIn('seconds', written[0])
    self.assertEqual(
      json.loads((folder / 'timing.jsonl').read_text()),
      {'iteration': 0, 'seconds': 2.0, 'process': 0},
    )
    self.assertEqual(
      json.loads((folder / 'samples.jsonl').read_text()),
      {'iteration': 0, 'prompt': '1+1', 'reward': 1.0},
    )
    (written,) = (folder / 'tensorboard').iterdir()
    self.assertIn(b'reward/seed4', written.read_bytes())
