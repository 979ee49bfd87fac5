"""Tests of whole runs: the real main, resuming, seeds, meshes, bad input."""

import contextlib
import functools
import importlib.util
import io
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized

from replay_rl import command_line
from replay_rl import train
from replay_rl.run import checkpoint
from tests import tiny

ROOT = pathlib.Path(__file__).parents[1]
_ARMS = ('on_policy', 'reuse_2', 'reuse_4', 'prioritized')
_SMALL = (
  '--config.num_seeds=1',
  '--config.num_iterations=2',
  '--config.warm_start.num_steps=0',
  '--config.sampler.num_prompts=4',
  '--config.model.num_layers=1',
  '--config.evaluation.every=2',
)


def _lines(workdir) -> list[dict]:
  text = (pathlib.Path(workdir) / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def _main(*arguments) -> None:
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
    *(f'quickstart.py:{arm}' for arm in _ARMS), 'countdown.py'
  )
  def test_every_config_runs_through_main(self, config):
    workdir = self.workdir()
    _main(
      f'--config={ROOT}/configs/{config}',
      f'--workdir={workdir}',
      f'--config.cache_dir={tiny.CACHE}',
      *_SMALL,
    )
    lines = _lines(workdir)
    self.assertEqual([line['iteration'] for line in lines], [0, 1])
    self.assertIn('eval/pass_at_8', lines[1])
    self.assertTrue((workdir / 'config.json').exists())
    self.assertTrue((workdir / 'tensorboard').exists())
    self.assertEqual(len((workdir / 'timing.jsonl').read_text().split('\n')), 3)

  def test_every_config_is_in_that_list(self):
    found = {
      path.name
      for path in (ROOT / 'configs').glob('*.py')
      if 'def get_config' in path.read_text()
    }
    in_text = {path for path in found if path.startswith(('gsm8k', 'math'))}
    self.assertEqual(found - in_text, {'quickstart.py', 'countdown.py'})


class BadInputTest(TrainTestCase):
  @parameterized.parameters(
    ('--config.replay.capcity=3', 'capcity'),
    ('--config.replay.capacity=abc', 'abc'),
    ('--config.replay.capacity=3', 'replay.capacity = 3: must be at least'),
    ('--config.replay.weights=max_age(limit=-1)', 'limit=-1 must be'),
    ('--config.replay.keep=positive_bias(fraction=2)', 'fraction=2 must be'),
    ('--config.mesh.shape={"data": 1}', 'must name the axes'),
    (
      '--config.mesh.shape={"data": -1, "fsdp": 2, "tensor": 4}',
      'tensor = 4 must divide model.num_kv_heads = 2',
    ),
    (
      '--config.mesh.sampler_shape={"data": 1, "fsdp": 2, "tensor": 1}',
      'mesh.sampler_shape = ',
    ),
  )
  def test_main_ends_with_one_line_that_names_field_and_value(
    self, flag, message
  ):
    workdir = self.workdir()
    printed = io.StringIO()
    with (
      contextlib.redirect_stderr(printed),
      self.assertRaises(SystemExit) as raised,
    ):
      _main(
        f'--config={ROOT}/configs/quickstart.py',
        f'--workdir={workdir}',
        f'--config.cache_dir={tiny.CACHE}',
        flag,
      )
    # Of an exit with a text, Python prints it.
    self.assertRegex(
      printed.getvalue() or raised.exception.code,
      f'^error: .*{re.escape(message)}',
    )
    self.assertFalse(workdir.exists())

  def test_a_prompt_longer_than_the_context_is_refused(self):
    from replay_rl.run import build

    parts = build.parts(tiny.config('unused'))
    params = parts.init_params_fn(jax.random.key(0))
    prompts = parts.task.prompts_fn(jax.random.key(0), 2)
    longer = prompts._replace(tokens=jnp.tile(prompts.tokens, (1, 3)))
    with self.assertRaisesRegex(ValueError, '12 prompt columns .* exceed'):
      parts.generate_fn(params, jax.random.key(0), longer)

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

    config = tiny.config(num_iterations=6, optimizer__learning_rate=1e38)
    with self.assertRaisesRegex(
      train.DivergedError,
      r'(loss|grad_norm) = (nan|inf) in iteration \d of seed 0: must be finite',
    ):
      train.train(config, workdir)


class ResumeTest(TrainTestCase):
  def test_stopped_runs_continue_bit_for_bit(self):
    changes = {
      'num_iterations': 6,
      'num_seeds': 2,
      'checkpoint__every': 2,
      'sampler__weight_lag': 2,
    }
    config = tiny.config(**changes)
    whole, parted = self.workdir('whole'), self.workdir('parted')
    expected = train.train(config, whole)
    for stop in (1, 4):  # Between two checkpoints, and at one.
      train.train(config, parted, stop_after=stop)
    found = train.train(config, parted)
    chex.assert_trees_all_equal(found, expected)
    self.assertEqual(
      (parted / 'metrics.jsonl').read_bytes(),
      (whole / 'metrics.jsonl').read_bytes(),
    )

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
      found = train.train(config, damaged)
    chex.assert_trees_all_equal(found, expected)
    self.assertEqual(
      (damaged / 'metrics.jsonl').read_bytes(),
      (whole / 'metrics.jsonl').read_bytes(),
    )

  def test_sigterm_saves_and_ends_with_the_status_of_a_preemption(self):
    config = tiny.config(num_iterations=10_000, checkpoint__every=10_000)
    workdir = self.workdir()

    def terminate():
      while not (workdir / 'metrics.jsonl').exists() or not _lines(workdir):
        time.sleep(0.05)
      signal.raise_signal(signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    with self.assertRaises(SystemExit) as raised:
      train.train(config, workdir)
    thread.join()
    self.assertEqual(raised.exception.code, 143)
    done = len(_lines(workdir))
    (step,) = (workdir / 'checkpoints').iterdir()
    self.assertEqual(int(step.name), done)

  def test_a_run_killed_at_random_moments_ends_as_if_untouched(self):
    spec = importlib.util.spec_from_file_location(
      'kill_resume', ROOT / 'experiments/kill_resume/kill_resume.py'
    )
    kill_resume = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kill_resume)
    result = kill_resume.compare(
      self.workdir('kills'),
      f'{ROOT}/configs/quickstart.py',
      kills=1,
      seed=0,
      flags=[
        *_SMALL,
        '--config.num_iterations=8',
        '--config.checkpoint.every=2',
        '--config.evaluation.every=0',
        '--config.logging.tensorboard=False',
      ],
    )
    self.assertTrue(result['is_equal'], result)


@functools.cache
def _lines_of_seed_2():
  with tempfile.TemporaryDirectory() as folder:
    train.train(tiny.config(seed=2), folder)
    return _lines(folder)


class SeedsTest(TrainTestCase):
  def _seed_2(self, **changes):
    together = self.workdir('together')
    train.train(tiny.config(num_seeds=3, **changes), together)
    of_seed_2 = [line for line in _lines(together) if line['seed'] == 2]
    self.assertLen(of_seed_2, 4)
    return zip(of_seed_2, _lines_of_seed_2(), strict=True)

  def test_seeds_in_turn_are_the_runs_of_each_seed_bit_for_bit(self):
    for one, other in self._seed_2():
      self.assertEqual(one, other)

  def test_seeds_at_once_are_the_runs_of_each_seed_to_rounding(self):
    for one, other in self._seed_2(vmap_seeds=True):
      for name, value in one.items():
        np.testing.assert_allclose(
          np.asarray(value, float),
          np.asarray(other[name], float),
          rtol=1e-3,
          atol=1e-5,
          err_msg=name,
        )


class ReadmeTest(TrainTestCase):
  def test_the_example_of_a_new_rule_runs_as_it_is_printed(self):
    text = (ROOT / 'README.md').read_text()
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
      'config.logging.tensorboard = False\n'
      'config.warm_start.num_steps = 0\n',
    )
    self.assertNotEqual(script, example)
    subprocess.run([sys.executable, '-c', script], check=True, cwd=ROOT)
    self.assertLen(_lines(workdir), 1)


if __name__ == '__main__':
  flags.FLAGS.mark_as_parsed()
  absltest.main()
