"""Tests of whole runs of a task in text, from data set to samples."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import tempfile
from unittest import mock

import chex
import jax
import numpy as np
from absl.testing import absltest

from replay_rl import train
from replay_rl.configs import models
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import stopped
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.text import beside as beside_lib
from tests import tiny_text


def _lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def _then_stop(test):
  """Returns a `Beside.give` that asks the run to stop at its third call."""
  give, calls = beside_lib.Beside.give, []

  def watched(self, *arguments):
    calls.append(arguments)
    test.assertLess(len(calls), 5)
    if len(calls) == 3:
      os.kill(os.getpid(), signal.SIGTERM)
    give(self, *arguments)

  return watched


class TextRunTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def test_a_stopped_run_continues_bit_for_bit(self):
    config = tiny_text.config(
      self.folder,
      num_iterations=4,
      num_seeds=2,
      evaluation__every=2,
      evaluation__num_prompts=3,
      logging__samples_every=2,
      sampler__weight_lag=5,
      sampler__num_slots=8,
      replay__updates_per_iteration=2.5,
      replay__weights='proportional(exponent=0.6)',
      replay__feedback='reweighted_advantage_magnitude()',
      loss__row_weights='per_importance_weights(exponent=0.4)',
      optimizer__gate='gradient_gate(threshold=0.1, window=2, squared=False)',
    )
    whole, parted = self.folder / 'whole', self.folder / 'parted'
    expected = train.train(config, whole)
    train.train(config, parted, stop_after=3)
    # Judging beside generation changes no byte.
    beside = config_lib.changed(
      config, {'text.judge_every': 2, 'text.num_workers': 2}
    )
    with (
      self.assertWarnsRegex(UserWarning, '^text.judge_every is 2 now, was'),
      self.assertRaisesRegex(SystemExit, '^143$'),
      mock.patch.object(beside_lib.Beside, 'give', _then_stop(self)),
    ):
      train.train(beside, parted)
    # With half of the responses in flight, after three iterations.
    self.assertTrue((parted / 'stopped' / '3').is_dir())
    self._check_refused(parted, expected)
    actual = train.train(beside, parted)
    self.assertEmpty(list((parted / 'stopped').iterdir()))
    chex.assert_trees_all_equal(actual, expected)
    for name in ('metrics.jsonl', 'samples.jsonl'):
      self.assertEqual(
        (parted / name).read_bytes(), (whole / name).read_bytes()
      )
    lines = _lines(whole / 'metrics.jsonl')
    # Something was right, and something learned from.
    self.assertGreater(sum(line['accuracy'] for line in lines), 0)
    self.assertGreater(max(line['grad_norm'] or 0 for line in lines), 0)
    for line in lines:
      self.assertLess(line['sampler_learner_gap'], 1e-5)
      self.assertEqual(
        sum(v for k, v in line.items() if k.startswith('verifier/')), 32
      )
    self.assertIn('eval/pass_at_2', lines[2])
    samples = _lines(whole / 'samples.jsonl')
    self.assertLen(samples, 2 * 2 * 4)
    problems = {
      f'Question: {problem.problem}\nAnswer:': problem.answer
      for problem in tiny_text.PROBLEMS
    }
    for sample in samples:
      self.assertEqual(problems[sample['prompt']], sample['reference'])

  def _check_refused(self, workdir, run):
    """Checks that no run without pieces goes on, unless it is further."""

    def restore(num_iterations):
      clock = run.clock._replace(iteration=np.full(2, num_iterations))
      restored = checkpoint.Restored(run._replace(clock=clock), {})
      return restored, stopped.restore(
        *(workdir, run, restored, contextlib.ExitStack()),
        in_flight=None,
        check_files=lambda marks: None,
        upload=None,
      )

    with self.assertRaisesRegex(
      ValueError, "stopped': must be continued with the text.judge_every and"
    ):
      restore(3)
    restored, found = restore(4)
    self.assertEqual(found, (None, restored))

  def test_the_file_of_a_reward_function_is_recorded(self):
    path = self.folder / 'mine.py'
    config = tiny_text.config(self.folder, text__reward_fn=f'{path}:f')
    hashes = []
    for value in (1.0, 1.0, 2.0):
      path.write_text(
        'def f(prompts, completions, references):\n'
        f'  return [{value}] * len(prompts)\n'
      )
      task = build.task(config)
      self.addCleanup(task_lib.close, task)
      experiment = build.experiment(config, task.shape)
      made_of = train.record(config, experiment, task)
      hashes.append(made_of['sources']['reward_fn_mine'])
    self.assertEqual(hashes[0], hashes[1])
    self.assertNotEqual(hashes[0], hashes[2])

  def test_a_run_starts_from_the_weights_of_a_checkpoint(self):
    config = tiny_text.config(self.folder, num_iterations=1)
    task = build.task(config)
    self.addCleanup(task_lib.close, task)
    experiment = build.experiment(config, task.shape)
    parts = experiment.parts
    params = jax.tree.map(
      lambda leaf: leaf + 0.01, parts.init_params_fn(jax.random.key(5))
    )
    stored = self.folder / 'checkpoint'
    hf.save(
      stored,
      parts.transformer,
      params,
      dtype='float32',
      max_file_bytes=10**9,
      max_position_embeddings=64,
      eos_ids=task.shape.eos_ids,
      bos_id=None,
      tokenizer_folder=None,
    )
    config.model.checkpoint = str(stored)
    chex.assert_trees_all_equal(
      build.base_weights(config, experiment, task), params
    )
    run = train.train(config, self.folder / 'run')
    moved = jax.tree.map(
      lambda new, old: float(np.abs(new[0] - old).max()),
      run.learner.params,
      params,
    )
    # Two updates of at most the learning rate each.
    self.assertLess(max(jax.tree.leaves(moved)), 0.021)
    # A byte of its files that differs is other data.
    readable = (stored / 'config.json').read_text()
    (stored / 'config.json').write_text(readable + ' ')
    with self.assertRaisesRegex(
      ValueError, 'have the data of the run that it holds; model.checkpoint = '
    ):
      train.train(config, self.folder / 'run')

    # The folder alone gives the shape as well.
    shapeless = models.of_checkpoint(str(stored), compute_dtype='float32')
    alone = dataclasses.replace(config, model=shapeless)
    self.assertEqual(
      build.experiment(alone, task.shape).parts.transformer, parts.transformer
    )

    config.model.d_ff = 48
    with self.assertRaisesRegex(
      ValueError, r'model.checkpoint = .* d_ff = 48 \(there: 32\)'
    ):
      differing = build.experiment(config, task.shape)
      build.base_weights(config, differing, task)
