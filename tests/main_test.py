"""Tests of `replay-rl` and of the package as it is installed elsewhere."""

import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest

import replay_rl
from replay_rl import __main__ as program
from replay_rl import compile_check
from replay_rl import export
from replay_rl import inspect
from replay_rl import train
from replay_rl.configs import quickstart
from replay_rl.evaluate import __main__ as evaluate
from replay_rl.plan import __main__ as plan
from replay_rl.plan import of_fit
from replay_rl.plan import of_memory
from replay_rl.plan import of_replay
from replay_rl.provenance import sources
from replay_rl.report import __main__ as report
from replay_rl.sweep import __main__ as sweep
from tests import mains
from tests import tiny

ROOT = pathlib.Path(__file__).parents[1]
# A run of a second, of a config of the package.
_TINY = (
  *('num_seeds=1', 'num_iterations=1', 'evaluation.every=0'),
  *('warm_start.num_steps=0', 'sampler.num_prompts=2', 'sampler.group_size=2'),
  *('replay.capacity=4', 'optimizer.microbatch_rows=None', 'model.d_model=16'),
  *(
    'model.num_layers=1',
    'logging.samples_every=0',
    'logging.age_buckets=None',
  ),
  f'cache_dir={tiny.CACHE}',
)


@functools.cache
def installed() -> pathlib.Path:
  """Returns a folder with the files that a wheel of the package holds."""
  folder = pathlib.Path(tempfile.mkdtemp(dir=tiny.CACHE))
  # The commands write beside the sources what they cannot write elsewhere.
  command = 'egg_info --egg-base={0} build --build-base={0}/b --build-lib={0}'
  subprocess.run(
    [sys.executable, 'setup.py', '-q', *command.format(folder).split()],
    cwd=ROOT,
    check=True,
    env=os.environ | {'PYTHONWARNINGS': 'ignore'},
  )
  shutil.rmtree(folder / 'b', ignore_errors=True)
  return folder


def _ran(main, *arguments) -> tuple[int, str, str]:
  """Returns the exit status of a main function and what it printed."""
  out, err = io.StringIO(), io.StringIO()
  status = 0
  with (
    mock.patch.object(sys, 'argv', ['program', *arguments]),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    try:
      main()
    except SystemExit as ended:
      status = ended.code
  return status, out.getvalue(), err.getvalue()


class MainTest(absltest.TestCase):
  def test_it_lists_its_programs(self):
    for flags in ([], ['--help'], ['-h']):
      status, out, _ = _ran(program.main, *flags)
      self.assertEqual(status, 0)
      for name in program.PROGRAMS:
        self.assertIn(f'\n  {name} ', out)

  def test_every_program_is_a_module_that_runs(self):
    for name in program.PROGRAMS:
      module = importlib.util.find_spec(f'replay_rl.{name}')
      if module.submodule_search_locations is not None:
        module = importlib.util.find_spec(f'replay_rl.{name}.__main__')
      self.assertIn(
        "if __name__ == '__main__':", pathlib.Path(module.origin).read_text()
      )

  def test_a_program_that_is_not_there_is_answered_with_those_there_are(self):
    status, _, err = _ran(program.main, 'trian')
    self.assertEqual(status, 2)
    self.assertEqual(
      err,
      "error: program = 'trian': must be one of "
      f'{", ".join(program.PROGRAMS)}\n',
    )

  def test_a_program_gets_its_arguments_and_the_current_folder(self):
    folder = self.create_tempdir().full_path
    with (
      contextlib.chdir(folder),
      mock.patch.object(sys, 'path', ['/bin']),
      mock.patch('runpy.run_module') as run,
      mock.patch.object(sys, 'argv', ['replay-rl', 'plan', 'fit', '--a=b']),
    ):
      program.main()
      self.assertEqual(sys.argv, ['replay-rl', 'fit', '--a=b'])
      self.assertEqual(sys.path, [folder, '/bin'])
    run.assert_called_once_with(
      'replay_rl.plan', run_name='__main__', alter_sys=True
    )

  def test_help_of_a_training_has_an_example_and_the_flags(self):
    done = subprocess.run(
      [sys.executable, '-m', 'replay_rl', 'train', '--help'],
      env=os.environ | {'PYTHONWARNINGS': 'ignore', 'PYTHONPATH': str(ROOT)},
      capture_output=True,
      text=True,
    )
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    flags = ['--workdir', 'allow_memory', 'reuse_4']
    self._check_help('python -m replay_rl.train ', flags, done.stdout)

  def test_help_of_other_programs_has_an_example_and_the_flags(self):
    for module, own, flags in (
      (sweep, sweep.FLAGS, ['dry_run', '--executor']),
      (compile_check, compile_check._FLAGS, ['--topology', '--smallest']),
    ):
      status, out, _ = mains.ran(
        module.main, own, '--help', description=module.__doc__
      )
      self.assertEqual(status, 0)
      name = module.__name__.removesuffix('.__main__')
      self._check_help(f'python -m {name} ', flags, out)
    for name, main, flags in (
      ('evaluate', evaluate.main, ['--benchmarks', '--data_dir']),
      ('inspect', inspect.main, ['--iteration', '--seed']),
      ('export', export.main, ['--workdir', '--dtype']),
    ):
      status, out, _ = _ran(lambda main=main: main(['--help']))
      self.assertEqual(status, 0)
      self._check_help(f'python -m replay_rl.{name} ', flags, out)

  def _check_help(self, example, flags, out):
    self.assertIn(example, out)
    for flag in flags:
      self.assertIn(flag, out)

  def test_help_of_reports_and_plans(self):
    for arguments, flags in (
      (['--help'], ['--out', '--thresholds']),
      (['sweep', '--help'], ['--level', '--baselines']),
      (['figure', '--help'], ['--out']),
    ):
      status, out, _ = _ran(report.main, *arguments)
      self.assertEqual(status, 0)
      self._check_help('python -m replay_rl.report ', flags, out)
    status, out, _ = _ran(lambda: plan.main(sys.argv), '--help')
    self.assertEqual(status, 0)
    for name, module in plan._PROGRAMS.items():
      self.assertIn(f'python -m replay_rl.plan {name} ', out)
      self.assertIn(f'python -m replay_rl.plan {name} ', module.__doc__)
    self.assertCountEqual(
      plan._PROGRAMS.values(), [of_fit, of_memory, of_replay]
    )


class EndingTest(absltest.TestCase):
  def test_a_training_ends_with_the_commands_that_look_further(self):
    config = tiny.config(num_seeds=2, seed=3, logging__writers='tensorboard()')
    self.assertEqual(
      train.ending(config, 'a b').splitlines()[1:],
      [
        "  python -m replay_rl.report 'a b' --out='a b'/report",
        "  python -m replay_rl.inspect 'a b' --seed=3",
        "  tensorboard --logdir='a b'/tensorboard",
      ],
    )
    lines = train.ending(tiny.config(), 'x').splitlines()
    self.assertLen(lines, 3)
    self.assertEqual(lines[2], '  python -m replay_rl.inspect x')


class InstalledTest(absltest.TestCase):
  def test_it_holds_one_package_with_configs_types_and_a_command(self):
    folder = installed()
    self.assertEqual(
      {path.name for path in folder.iterdir()},
      {'replay_rl', 'replay_rl.egg-info'},
    )
    for name in ('py.typed', 'configs/quickstart.py', 'configs/methods.md'):
      self.assertTrue((folder / 'replay_rl' / name).is_file(), name)
    (metadata,) = importlib.metadata.distributions(path=[str(folder)])
    self.assertEqual(metadata.version, replay_rl.__version__)
    (script,) = metadata.entry_points.select(group='console_scripts')
    self.assertEqual(script.name, 'replay-rl')
    self.assertIs(script.load(), program.main)

  def test_it_has_every_module(self):
    def names(folder):
      paths = folder.rglob('*.py')
      return {path.relative_to(folder).as_posix() for path in paths}

    package = ROOT / 'replay_rl'
    configs = {f'configs/{x}' for x in names(ROOT / 'configs')}
    self.assertEqual(
      names(installed() / 'replay_rl') | configs, names(package) | configs
    )
    self.assertContainsSubset(configs, names(installed() / 'replay_rl'))

  def test_a_config_of_the_package_trains_outside_of_the_checkout(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    done = subprocess.run(
      [
        *(
          sys.executable,
          '-c',
          'from replay_rl import __main__ as m; m.main()',
        ),
        *('train', '--config=configs/quickstart.py:on_policy', '--workdir=run'),
        *(f'--config.{change}' for change in _TINY),
      ],
      cwd=folder,
      env=os.environ
      | {
        'PYTHONPATH': str(installed()),
        'PYTHONSAFEPATH': '1',  # As for an installed script.
        'XLA_FLAGS': '--xla_backend_optimization_level=0',  # Compiles sooner.
        'PYTHONWARNINGS': 'ignore',
      },
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    record = json.loads((folder / 'run/config.json').read_text())
    self.assertEqual(record['config']['model']['d_model'], 16)
    # An installed copy and a checkout continue each other's runs.
    self.assertEqual(record['sources'], sources.of_package())
    self.assertTrue((folder / 'run/tensorboard').is_dir())
    end = train.ending(quickstart.get_config('on_policy'), 'run')
    end = end.replace(' --seed=0', '')  # This run has one seed.
    self.assertEndsWith(done.stdout, f'{end}\n')
    # What reads a checkpoint reads that of a real run.
    status, out, err = _ran(lambda: inspect.main([str(folder / 'run')]))
    self.assertEqual((status, err), (0, ''))
    self.assertIn('4 of 4 slots hold a rollout, of 2 groups', out)
    flags = [f'--workdir={folder / "run"}', f'--out={folder / "model"}']
    status, out, err = _ran(lambda: export.main(flags))
    self.assertEqual((status, err), (0, ''))
    card = (folder / 'model/README.md').read_text()
    self.assertIn('| `ledger/rollouts` | 4 |', card)


if __name__ == '__main__':
  absltest.main()
