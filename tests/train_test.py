"""Tests of whole runs: the real main, resuming, seeds, meshes, bad input."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import io
import json
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time
from unittest import mock

import chex
import jax
import numpy as np
from absl.testing import flagsaver
from absl.testing import parameterized

from replay_rl import command_line
from replay_rl import train
from replay_rl.run import checkpoint
from replay_rl.run import logs
from replay_rl.run import stopping
from tests import configs_test
from tests import tiny

ROOT = pathlib.Path(__file__).parents[1]
_QUICKSTART = f'--config={ROOT}/configs/quickstart.py'
_SMALL = (
  '--config.num_seeds=1',
  '--config.num_iterations=2',
  '--config.warm_start.num_steps=0',
  '--config.sampler.num_prompts=2',
  '--config.model.num_layers=1',
)


def read_lines(workdir) -> list[dict]:
  text = (pathlib.Path(workdir) / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def run_main(*arguments) -> None:
  """Runs the program as a command line would, in this process."""
  argv = ['train', *arguments]
  # ml_collections looks for overrides in sys.argv.
  with flagsaver.flagsaver(), mock.patch.object(sys, 'argv', argv):
    train.main(command_line.parse(argv))


class TrainTestCase(parameterized.TestCase):
  def workdir(self, name='run') -> pathlib.Path:
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name) / name


class ConfigsTest(TrainTestCase):
  @parameterized.parameters(
    *(f'quickstart.py:{arm}' for arm in configs_test.ARMS['quickstart']),
    'countdown.py',
    'modular_arithmetic.py',
  )
  def test_every_config_runs_through_main(self, config):
    workdir = self.workdir()
    # The arms of a file evaluate alike.
    every = 2 * (config in ('quickstart.py:on_policy', 'countdown.py'))
    run_main(
      f'--config={ROOT}/configs/{config}',
      f'--workdir={workdir}',
      f'--config.cache_dir={tiny.CACHE}',
      f'--config.evaluation.every={every}',
      '--config.evaluation.every_cost=None',
      '--config.stop=None',  # A level, which needs evaluations.
      *_SMALL,
    )
    lines = read_lines(workdir)
    self.assertEqual([line['iteration'] for line in lines], [0, 1])
    self.assertEqual('eval/greedy' in lines[1], every > 0)
    self.assertTrue((workdir / 'config.json').exists())
    self.assertTrue((workdir / 'tensorboard').exists())
    self.assertEqual(len((workdir / 'timing.jsonl').read_text().split('\n')), 3)

  def test_every_config_in_jax_is_in_that_list(self):
    in_jax = [
      name
      for name in (*configs_test.ARMS, *configs_test.WITHOUT_ARMS)
      if configs_test.experiment(name).get_config().text is None
    ]
    # tests/configs/methods_test.py has the arms of methods.
    self.assertCountEqual(
      in_jax, ['quickstart', 'countdown', 'modular_arithmetic', 'methods']
    )


def _refused(field, value, complaint):
  """Returns a flag, and what a message says of it."""
  return f'--config.{field}={value}', f'{field} = {value!r}: {complaint}'


class BadInputTest(TrainTestCase):
  @parameterized.parameters(
    _refused(
      'replay.weights',
      'fifo()',
      'must be one call with keyword constants, or several joined by *, '
      'such as name(x=1), of advantage_magnitude, ',
    ),
    _refused('replay.keep', 'fifo() * fifo()', 'must be one call with keyword'),
    (
      '--config.replay.draw=blocked_inverse_cdf(stratified="no")',
      "replay.draw.stratified = 'no': must be of type bool",
    ),
    _refused(
      'replay.weights',
      'max_age(limit=1, limit=2)',
      'must give limit once, as name=value',
    ),
    *(
      (
        f'--config.loss.policy=clipped_surrogate({constants})',
        f'loss.policy.{complaint}: must be in ',
      )
      for constants, complaint in (
        ('clip_low=0.2, clip_high=0.2, dual_clip=0.5', 'dual_clip = 0.5'),
        ('clip_low=-5, clip_high=0.2, dual_clip=None', 'clip_low = -5'),
      )
    ),
    (
      '--config.loss.policy=truncated_importance_sampling(max_ratio=-2)',
      'loss.policy.max_ratio = -2: must be in [1e-06, inf]',
    ),
    *(
      (
        f'--config.loss.advantage=group_standardized(eps={eps})',
        f'loss.advantage.eps = {eps}: must be in [1e-12, 1000]',
      )
      for eps in (-1, 0)
    ),
    (
      '--config.loss.normalizer=constant(tokens_per_row=0)',
      'loss.normalizer.tokens_per_row = 0: must be in [1, 1e+09]',
    ),
    (
      '--config.replay.compose=fresh_only()',
      "replay.weights = 'uniform()': must be None, because replay.compose",
    ),
    ('--config.replay.capcity=3', 'capcity'),
    ('--config.replay.capacity=abc', 'abc'),
    ('--config.replay.capacity=3', 'replay.capacity = 3: must be at least'),
    ('--config.replay.weights=max_age(limit=-1)', 'limit = -1: must be'),
    ('--config.replay.keep=positive_bias(fraction=2)', 'fraction = 2: must'),
    ('--config.mesh.shape={"data": 1}', 'must name the axes'),
    (
      '--config.mesh.shape={"data": -1, "fsdp": 2, "tensor": 4}',
      'must split model.num_kv_heads = 2 into tensor = 4 equal parts',
    ),
    (
      '--config.mesh.sampler_shape={"data": 1, "fsdp": 2, "tensor": 1}',
      'mesh.sampler_shape = ',
    ),
  )
  def test_main_ends_with_one_line_that_names_field_and_value(
    self, flag, message
  ):
    self._ends_with_one_line(message, _QUICKSTART, flag)

  def test_a_batch_size_that_the_arm_ignores_is_refused(self):
    self._ends_with_one_line(
      'replay.batch_size = 8: must be None, because replay.compose ignores it '
      "(replay.compose = 'fresh_only()')",
      f'{_QUICKSTART}:on_policy',
      '--config.replay.batch_size=8',
    )

  def _ends_with_one_line(self, message, *arguments):
    workdir = self.workdir()
    printed = io.StringIO()
    with (
      contextlib.redirect_stderr(printed),
      self.assertRaises(SystemExit) as raised,
    ):
      run_main(
        *arguments,
        f'--workdir={workdir}',
        f'--config.cache_dir={tiny.CACHE}',
      )
    # Python prints the text of an exit, and a line break.
    lines = (printed.getvalue() or raised.exception.code).splitlines()
    self.assertLen(lines, 1)
    self.assertRegex(lines[0], f'^error: .*{re.escape(message)}')
    self.assertFalse(workdir.exists())

  def test_a_workdir_that_cannot_be_written_is_refused(self):
    file = self.create_tempfile('file').full_path
    with self.assertRaisesRegex(ValueError, 'workdir = .*must be a folder'):
      train.train(tiny.config(), pathlib.Path(file) / 'run')

  def test_a_workdir_of_another_config_is_refused(self):
    workdir = self.workdir()
    train.train(tiny.config(num_iterations=1), workdir)
    before = (workdir / 'metrics.jsonl').read_bytes()
    other = tiny.config(num_iterations=1, replay__batch_size=4)
    with self.assertRaisesRegex(
      ValueError, r'replay\.batch_size = 4 \(there: 8\)'
    ):
      train.train(other, workdir)
    self.assertEqual((workdir / 'metrics.jsonl').read_bytes(), before)

  def test_a_loss_that_is_not_finite_stops_and_names_the_last_checkpoint(self):
    workdir = self.workdir()
    # Of a user; the ranges of the config allow no such rate.
    config = tiny.config(
      num_iterations=6,
      optimizer__transform='tests.user_functions:exploding(factor=1e30)',
    )
    with self.assertRaisesRegex(
      stopping.DivergedError,
      r'(loss|grad_norm) = (nan|inf) in iteration \d of seed 0: must be finite',
    ):
      train.train(config, workdir)


class ResumeTest(TrainTestCase):
  def test_stopped_runs_continue_bit_for_bit(self):
    config = tiny.config(
      num_iterations=4,
      num_seeds=2,
      checkpoint__every=2,
      logging__samples_every=2,
      sampler__num_slots=6,
      sampler__weight_lag=5,
      replay__updates_per_iteration=2.5,
      replay__weights='proportional(exponent=0.6)',
      replay__feedback='reweighted_advantage_magnitude()',
      replay__num_prompts=8,
      sampler__prompts=tiny.REPLAYED_PROMPTS,
      loss__row_weights='per_importance_weights(exponent=0.4)',
      loss__policy='decoupled_ppo(clip_low=0.2, clip_high=0.2, max_ratio=2.0) '
      '+ reference_kl(coefficient=0.1)',
      optimizer__gate='ess_scaled_rate(on_policy_ess=0.9)',
    )
    whole, parted = self.workdir('whole'), self.workdir('parted')
    expected = train.train(config, whole)
    train.train(config, parted, stop_after=3)  # Between two checkpoints.
    actual = train.train(config, parted)
    chex.assert_trees_all_equal(actual, expected)
    for name in ('metrics.jsonl', 'samples.jsonl'):
      self.assertEqual(
        (parted / name).read_bytes(), (whole / name).read_bytes()
      )
    of_seed_0 = [line for line in read_lines(whole) if line['seed'] == 0]
    self.assertEqual(
      [line['updates/applied'] for line in of_seed_0], [2, 3, 2, 3]
    )
    self.assertIn(0.5, [x['prompts/replayed_fraction'] for x in of_seed_0])
    priorities = np.asarray(actual.buffer.priorities)
    magnitudes = np.abs(np.asarray(actual.buffer.rollouts.advantages))
    self.assertFalse(np.allclose(priorities, magnitudes))

  def test_a_continued_run_is_in_memory_once(self):
    config = tiny.config(num_iterations=6, checkpoint__every=6)
    whole, parted = self.workdir('whole'), self.workdir('parted')
    lines = logs.lines

    def num_bytes_at_the_end(workdir):
      sizes = []

      def lines_and_size(*args):
        gc.collect()
        sizes.append(sum(array.nbytes for array in jax.live_arrays()))
        return lines(*args)

      with mock.patch.object(logs, 'lines', lines_and_size):
        train.train(config, workdir)
      return sizes[-1]

    expected = num_bytes_at_the_end(whole)
    train.train(config, parted, stop_after=3)
    # A second run would be 80 kB more.
    self.assertLess(num_bytes_at_the_end(parted), expected + 20_000)

  def test_a_finished_run_is_left_as_it_is(self):
    config = tiny.config(num_iterations=1)
    workdir = self.workdir()
    first = train.train(config, workdir)
    before = (workdir / 'metrics.jsonl').read_bytes()
    chex.assert_trees_all_equal(train.train(config, workdir), first)
    self.assertEqual((workdir / 'metrics.jsonl').read_bytes(), before)

  def test_a_damaged_checkpoint_costs_only_the_iterations_since_the_last(self):
    config = tiny.config(num_iterations=4)
    whole, damaged = self.workdir('whole'), self.workdir('damaged')
    expected = train.train(config, whole)
    train.train(config, damaged, stop_after=3)
    # Where the arrays are; Orbax can do without its other large file.
    files = (damaged / 'checkpoints' / '3').glob('run/ocdbt*/d/*')
    largest = max(files, key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[: len(content) // 2])
    with self.assertWarns(checkpoint.DamagedCheckpointWarning):
      actual = train.train(config, damaged)
    chex.assert_trees_all_equal(actual, expected)
    self.assertEqual(
      (damaged / 'metrics.jsonl').read_bytes(),
      (whole / 'metrics.jsonl').read_bytes(),
    )

  def test_sigterm_saves_and_ends_with_the_status_of_a_preemption(self):
    config = tiny.config(num_iterations=10_000, checkpoint__every=10_000)
    workdir = self.workdir()

    def terminate():
      while not (workdir / 'metrics.jsonl').exists() or not read_lines(workdir):
        time.sleep(0.05)
      signal.raise_signal(signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    with self.assertRaises(SystemExit) as raised:
      train.train(config, workdir)
    thread.join()
    self.assertEqual(raised.exception.code, 143)
    done = len(read_lines(workdir))
    (step,) = (workdir / 'checkpoints').iterdir()
    self.assertEqual(int(step.name), done)

  def test_a_run_killed_at_random_moments_ends_as_if_untouched(self):
    spec = importlib.util.spec_from_file_location(
      'kill_resume', ROOT / 'experiments/kill_resume/kill_resume.py'
    )
    kill_resume = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kill_resume)
    config = self.create_tempfile(
      'config.py', 'from tests.tiny import config as get_config'
    )
    result = kill_resume.compare(
      self.workdir('kills'),
      config.full_path,
      kills=1,
      seed=0,
      flags=[
        '--config.warm_start.num_steps=0',
        '--config.num_iterations=30',
        '--config.checkpoint.every=10',
        '--config.logging.samples_every=10',
        # Each iteration replaces prompts, and every other update waits.
        '--config.replay.num_prompts=4',
        '--config.sampler.num_distinct_prompts=6',
        '--config.replay.compose=collected(max_batches=2)',
        '--config.replay.weights=oldest_unused() * unsolved()',
        '--config.replay.draw=largest()',
        '--config.replay.batch_size=24',
      ],
    )
    self.assertTrue(result['is_equal'], result)


# The gate ends the reuse of each seed at an update of its own.
_GATED = {
  'replay__updates_per_iteration': 5,
  'optimizer__gate': 'gradient_gate(threshold=0.1, window=2, squared=False)',
}


@functools.cache
def _lines_of_seed_2():
  with tempfile.TemporaryDirectory() as folder:
    train.train(tiny.config(seed=2, **_GATED), folder)
    return read_lines(folder)


class SeedsTest(TrainTestCase):
  def _seed_2(self, **changes):
    together = self.workdir('together')
    run = train.train(tiny.config(num_seeds=3, **_GATED, **changes), together)
    self.assertLen(set(run.learner.step.tolist()), 3)
    of_seed_2 = [line for line in read_lines(together) if line['seed'] == 2]
    self.assertLen(of_seed_2, 4)
    return zip(of_seed_2, _lines_of_seed_2(), strict=True)

  def test_seeds_in_turn_are_the_runs_of_each_seed_bit_for_bit(self):
    for one, other in self._seed_2():
      self.assertEqual(one, other)

  def test_seeds_at_once_are_the_runs_of_each_seed_to_rounding(self):
    for one, other in self._seed_2(vmap_seeds=True):
      for name, value in one.items():
        pair = (np.asarray(x, float) for x in (value, other[name]))
        np.testing.assert_allclose(*pair, rtol=1e-3, atol=1e-5, err_msg=name)
