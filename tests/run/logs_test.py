"""Tests of what a run writes."""

import contextlib
import io
import json
import math
import pathlib

import jax
import jax.numpy as jnp
from absl.testing import absltest

from replay_rl.disk import event_file
from replay_rl.run import events
from replay_rl.run import ledger
from replay_rl.run import logs
from replay_rl.run import metrics
from replay_rl.run import state
from tests.run import tiny_run


class LinesTest(absltest.TestCase):
  def test_each_seed_gets_a_line_with_its_own_numbers(self):
    parts = tiny_run.parts()
    params = parts.init_params_fn(jax.random.key(0))
    run = jax.jit(
      jax.vmap(lambda seed, hyper: state.init(parts, params, seed, hyper))
    )(jnp.array([4, 9], jnp.uint32), state.of_seeds(parts.hyper, 2))
    counted = [
      ledger.add(
        ledger.init(),
        rollouts=8,
        inserted_rollouts=inserted,
        trained_rollouts=trained,
      )
      for inserted, trained in ((5, 4), (0, 24))
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
      'replay_ratio_inserted': 0.8,
    }
    self.assertEqual(first, first | expected)
    for name in 'loss', 'replay_ratio_inserted':
      self.assertTrue(math.isnan(second.pop(name)), name)
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
      marks={},
      open_writers=lambda: [event_file.EventFile(folder / 'tensorboard', 0)],
      samples=True,
    ) as log:
      lines = [
        {'iteration': 0, 'seed': seed, 'reward': 0.5, 'loss': math.nan}
        | {'ledger/generated_tokens': 7, 'histogram/uses': [1, 2]}
        for seed in (3, 4)
      ]
      self.assertEqual(log.progress.tasks[0].description, 'arm: compiling')
      log.write(lines, seconds=2.0, of_events={'learn_seconds': 0.5})
      self.assertEqual(log.progress.tasks[0].description, 'arm')
      log.write_samples([{'iteration': 0, 'prompt': '1+1', 'reward': 1.0}])
      marks = log.marks()
    logs.check(folder, marks)
    self.assertCountEqual(
      marks, ['metrics.jsonl', 'timing.jsonl', 'samples.jsonl']
    )
    written = (folder / 'metrics.jsonl').read_text().splitlines()
    self.assertEqual([json.loads(line)['seed'] for line in written], [3, 4])
    self.assertNotIn('seconds', written[0])
    self.assertEqual(
      json.loads((folder / 'timing.jsonl').read_text()),
      {'iteration': 0, 'seconds': 2.0, 'process': 0, 'learn_seconds': 0.5},
    )
    self.assertEqual(
      json.loads((folder / 'samples.jsonl').read_text()),
      {'iteration': 0, 'prompt': '1+1', 'reward': 1.0},
    )
    for seed in (3, 4):
      (written,) = (folder / f'tensorboard/seed{seed}').iterdir()
      self.assertIn(b'reward', written.read_bytes())

  def test_a_name_with_markup_is_shown_as_it_is(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    printed = io.StringIO()
    with (
      contextlib.redirect_stdout(printed),
      logs.open_all(
        folder,
        name='a[/x][bold]b',
        num_iterations=1,
        iteration=0,
        marks={},
        open_writers=list,
        samples=False,
      ),
    ):
      pass
    self.assertIn('a[/x][bold]b', printed.getvalue())


class UnstartedTest(absltest.TestCase):
  def test_a_folder_that_lost_its_checkpoints_is_refused(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    logs.check_unstarted(folder, first=0, lines_per_iteration=2, every=3)
    path = folder / 'metrics.jsonl'
    path.write_text('{}\n' * 12)
    logs.check_unstarted(folder, first=0, lines_per_iteration=2, every=3)
    path.write_text('{}\n' * 14)
    with self.assertRaisesRegex(
      ValueError, '= 7: must be at most 6 where .* has no checkpoint; restore'
    ):
      logs.check_unstarted(folder, first=0, lines_per_iteration=2, every=3)
