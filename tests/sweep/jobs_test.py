"""Tests of the jobs of a sweep: that they are accepted, and run the cells."""

import importlib.util
import os
import pathlib
import shlex
import subprocess
import sys

import yaml
from absl.testing import absltest

from replay_rl.sweep import __main__ as main
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import jobs
from replay_rl.sweep import planning
from tests import mains
from tests import tiny
from tests import train_test
from tests.launchers import fakes
from tests.launchers import jobset_test
from tests.launchers import shell_test

# In the repository, because an image holds no other file.
_SWEEP = f'--sweep={pathlib.Path(__file__).resolve()}'
_JOBSET = (
  *('--name=tune', '--image=registry.example/replay_rl:1', '--claim=runs'),
  *('--out=/runs/my tune', '--max-crashes=3', '--spot'),
)
_CACHE = 'CACHE_OF_SWEEP'
# Slurm's `srun` starts the command that follows its own flags.
_SRUN = """\
#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def get_cells():
  base = tiny.config(
    # The process of a job has the cache of this one, or else another config.
    os.environ.get(_CACHE, tiny.CACHE),
    num_iterations=1,
    warm_start__num_steps=0,
  )
  axes = {'replay.batch_size': [8, 4], 'mu': [1.0, 2.0]}
  return cells_lib.make(base, cells_lib.product(axes))


class JobsTest(train_test.TrainTestCase):
  def _main(self, out, *arguments, sweep=_SWEEP):
    return mains.ran(main.main, main.FLAGS, sweep, f'--out={out}', *arguments)

  def _files(self, out):
    return sorted(path.name for path in (out / jobs.FOLDER).iterdir())

  def test_a_job_of_slurm_runs_its_cells(self):
    folder = self.workdir('a folder')
    stand_ins = fakes.Fakes(self.create_tempdir().full_path)
    fakes.executable(stand_ins.folder / 'bin' / 'srun', _SRUN)
    fakes.executable(
      stand_ins.repository / '.venv/bin/python',
      f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n',
    )
    status, said, error = self._main(
      folder, '--executor=slurm', '--', '--time=1:00:00', '--partition=a b'
    )
    self.assertEqual((status, error), (0, ''))
    submit = folder / 'jobs/submit.sh'
    self.assertIn(f'2 jobs; submit them with: bash {submit}', said)
    self.assertEqual(
      self._files(folder), ['group_0.sbatch', 'group_1.sbatch', 'submit.sh']
    )
    *_, enter, first, _ = submit.read_text().splitlines()
    self.assertEqual(shlex.split(enter), ['cd', str(jobs.ROOT)])
    job = folder / 'jobs/group_0.sbatch'
    self.assertEqual(
      shlex.split(first),
      ['sbatch', '--time=1:00:00', '--partition=a b', str(job)],
    )
    for path in (submit, job):
      self._check_shell(path)
    for line in (
      '--nodes=1',
      '--ntasks-per-node=1',
      '--gpus-per-node=1',
      '--cpus-per-task=12',
      f"--output='{folder}/jobs/group_0-%j.log'",
      '--signal=TERM@120',
      '--requeue',
    ):
      self.assertIn(f'\n#SBATCH {line}\n', job.read_text())
    done = stand_ins.bash(
      str(job),
      timeout=600,
      SLURM_SUBMIT_DIR=str(stand_ins.repository),
      JAX_PLATFORMS='cpu',
      PYTHONPATH=str(fakes.ROOT),
      **{_CACHE: tiny.CACHE},
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn('2 of 4 cells have not finished', done.stdout)
    self.assertEqual(
      [one.is_finished for one in planning.plan(get_cells(), folder)],
      [True, True, False, False],
    )
    # What has finished needs no job.
    self._main(folder, '--executor=jobset', '--', *_JOBSET)
    self.assertNotIn('group_0.yaml', self._files(folder))
    self._check_jobset(folder, folder / 'jobs/group_1.yaml')

  def _check_jobset(self, out, path):
    (manifest,) = yaml.safe_load_all(path.read_text())
    if importlib.util.find_spec('kubeflow_trainer_api'):
      jobset_test.check(manifest)
    self.assertEqual(manifest['metadata']['name'], 'tune-1')
    (replicated,) = manifest['spec']['replicatedJobs']
    job = replicated['template']['spec']
    self.assertEqual((job['parallelism'], job['completions']), (1, 1))
    pod = job['template']['spec']
    self.assertEqual(
      pod['nodeSelector']['cloud.google.com/gke-tpu-topology'], '1x1'
    )
    (container,) = pod['containers']
    self.assertEqual(container['resources']['limits'], {'google.com/tpu': 1})
    self.assertEqual(container['command'], ['python', '-m', 'replay_rl.sweep'])
    sweep, folder, *rest = container['args']
    self.assertEqual(sweep, '--sweep=tests/sweep/jobs_test.py')
    self.assertEqual(folder, '--out=/runs/my tune')
    self.assertEqual(rest, ['--cells=1'])
    self._check_shell(out / 'jobs/submit.sh')
    self.assertEqual(
      shlex.split((out / 'jobs/submit.sh').read_text().splitlines()[-1]),
      ['kubectl', 'apply', '-f', str(path)],
    )
    # The pod runs it in the repository, with the claim at /runs.
    status, said, error = self._main(out, *rest, '--dry_run')
    self.assertEqual((status, error), (0, ''))
    self.assertRegex(said, 'batch_size=4,mu=1.0 +1 .*\n +batch_size=4,mu=2.0')
    self.assertNotIn('batch_size=8', said)

  def _check_shell(self, path):
    if shell_test.SHELLCHECK is None:
      self.skipTest("needs shellcheck: pip install -e '.[test]'")
    done = subprocess.run(
      [shell_test.SHELLCHECK, path], capture_output=True, text=True
    )
    self.assertEqual(done.returncode, 0, done.stdout)

  def test_the_commands_of_the_page_are_understood(self):
    commands = shell_test.documented(['python', '-m', 'replay_rl.sweep'])
    self.assertLen(commands, 2)
    for _, _, _, sweep, _, *arguments in commands:
      self.assertStartsWith(sweep, '--sweep=')
      out = self.workdir()
      status, said, error = self._main(out, *arguments)
      self.assertEqual((status, error), (0, ''))
      self.assertIn('2 jobs; submit them with', said)
      self.assertLen(self._files(out), 3)

  def test_a_part_of_a_group_has_the_names_of_its_cells(self):
    out = self.workdir()
    name = 'batch_size=4,mu=2.0'
    self._main(
      out, f'--cells={name}', '--executor=slurm', '--allow_code_change'
    )
    self.assertEqual(self._files(out), ['group_1.sbatch', 'submit.sh'])
    command = (out / 'jobs/group_1.sbatch').read_text().splitlines()[-1]
    self.assertEqual(
      shlex.split(command),
      [
        *('exec', 'bash', 'scripts/slurm.sbatch', _SWEEP),
        *(f'--out={out}', f'--cells={name}', '--allow_code_change'),
      ],
    )

  def test_a_job_has_the_devices_of_the_mesh(self):
    for shape, gpus, chips in (
      ({'data': 2, 'fsdp': 1, 'tensor': 3}, 6, 8),
      ({'data': 1, 'fsdp': 4, 'tensor': 1}, 4, 4),
    ):
      work = self._work(shape)
      jobs.slurm(work)
      self.assertIn(
        f'\n#SBATCH --gpus-per-node={gpus}\n#SBATCH --cpus-per-task={12 * gpus}'
        '\n',
        (work.out / 'jobs/group_0.sbatch').read_text(),
      )
      jobs.jobset(work)
      manifest = (work.out / 'jobs/group_0.yaml').read_text()
      self.assertIn(f'google.com/tpu: {chips}\n', manifest)
      self.assertIn('"--cells=0"]', manifest)

  def _work(self, shape, **changes):
    """Returns a cell with this mesh, which this machine need not have."""
    cell = get_cells()[0]
    cell.config.mesh.shape = shape
    work = planning.Work(
      file=pathlib.Path(__file__).resolve(),
      out=self.workdir(),
      planned=[planning.PlannedCell(cell, 0, False, 1.0)],
      chosen=(),
      settings=_JOBSET,
      say=lambda _: None,
      allow_code_change=False,
    )
    return work._replace(**changes)

  def test_what_no_job_can_run_is_refused(self):
    whole = {'data': -1, 'fsdp': 1, 'tensor': 1}
    large = {'data': 3, 'fsdp': 3, 'tensor': 1}
    one = {'data': 1, 'fsdp': 1, 'tensor': 1}
    elsewhere = pathlib.Path('/nowhere/sweep.py')
    without = [x for x in _JOBSET if not x.startswith('--image')]
    for executor, work, complaint in (
      (jobs.slurm, self._work(whole), 'mesh.shape = .*: must have no -1 in a'),
      (jobs.slurm, self._work(large), '= 9: must be at most 8 GPUs'),
      (jobs.jobset, self._work(large), '= 9: must be at most 8 chips'),
      (jobs.jobset, self._work(one, file=elsewhere), 'must be in the reposit'),
      (jobs.jobset, self._work(one, settings=()), '--name = None: must be giv'),
      (jobs.jobset, self._work(one, settings=without), '^--image: must be giv'),
    ):
      with self.assertRaisesRegex(ValueError, complaint):
        executor(work)
      self.assertFalse((work.out / jobs.FOLDER).exists())


class LauncherTest(train_test.TrainTestCase):
  def test_a_sweep_is_one_process(self):
    stand_ins = fakes.Fakes(self.create_tempdir().full_path)
    for arguments, environ, complaint in (
      (
        ('--sweep=x',),
        {},
        '--out: must be given, among the flags of the sweep',
      ),
      (('--sweep=x', '--out=y'), {}, '--out = y: must be an absolute path'),
      (
        ('--sweep=x', '--out=/y'),
        {'SLURM_NTASKS': '8'},
        'SLURM_NTASKS = 8: must be 1 for a sweep',
      ),
    ):
      done = stand_ins.bash('scripts/slurm.sbatch', *arguments, **environ)
      self.assertEqual(done.returncode, 2)
      self.assertStartsWith(done.stderr, f'error: {complaint}')

  def test_flags_of_a_sweep_and_a_training_are_not_mixed(self):
    stand_ins = fakes.Fakes(self.create_tempdir().full_path)
    sweep = [*_JOBSET, '--sweep=x', '--chips=4']
    training = [x for x in _JOBSET if not x.startswith('--out')]
    training += ['--config=x', '--workdir=/runs/x']
    for arguments, complaint in (
      ([*sweep, '--out='], '--out: must be given'),
      ([*sweep, '--out=/x'], '--out = /x: must be in /runs'),
      ([*sweep, '--chips=16'], '--chips = 16: must be 1, 4 or 8'),
      ([*sweep, '--config=x'], '--config, --workdir: must not be given with'),
      ([*training, '--chips=4'], '--out, --chips: must be given with --sweep'),
      ([*training, '--out=/runs/x'], '--out, --chips: must be given with'),
    ):
      done = stand_ins.bash('scripts/gke_jobset.sh', '--dry-run', *arguments)
      self.assertEqual(done.returncode, 2)
      self.assertStartsWith(done.stderr, f'error: {complaint}')


if __name__ == '__main__':
  absltest.main()
