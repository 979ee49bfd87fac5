import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from unittest import mock

from absl.testing import parameterized
from jax._src import clusters

from tests.launchers import fakes

TRAINING = [
  '--config=configs/my config.py:arm',
  '--workdir=/runs/it\'s "mine" $HOME',
  "--config.mesh.shape={'data': -1}",
]
SRUN = [
  *['srun', '--cpus-per-task=12', '--gpu-bind=none', '--kill-on-bad-exit=0'],
  *['--wait=120', '.venv/bin/python', '-m', 'replay_rl.train'],
  *[*fakes.MANY_HOSTS, *TRAINING],
]
REQUEUE = ['scontrol', 'requeue', '17']


class SlurmTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.fakes = fakes.Fakes(self.create_tempdir().full_path)
    fakes.executable(self.fakes.repository / '.venv/bin/python', '')
    # Slurm puts its copy of the script here, and runs it here.
    self.copy = self.fakes.folder / 'spool' / 'slurm_script'
    self.copy.parent.mkdir()
    shutil.copy(fakes.ROOT / 'scripts/slurm.sbatch', self.copy)
    self.job = {
      'SLURM_JOB_ID': '17',
      'SLURM_SUBMIT_DIR': str(self.fakes.repository),
    }

  def run_job(self, status, *arguments, **environ):
    (self.fakes.folder / 'statuses').write_text(f'{status}\n')
    done = self.fakes.bash(str(self.copy), *arguments, **self.job | environ)
    return done.returncode, done.stdout + done.stderr

  @parameterized.parameters(
    (0, [SRUN]), (1, [SRUN]), (134, [SRUN]), (143, [SRUN, REQUEUE])
  )
  def test_a_job_that_saved_goes_back_into_the_queue(self, status, expected):
    ended, output = self.run_job(status, *TRAINING)
    self.assertEqual(ended, status, output)
    self.assertEqual(self.fakes.calls(), expected)

  def test_processes_get_their_cores_and_must_have_gpus(self):
    self.run_job(0, *TRAINING, SLURM_CPUS_PER_TASK='7')
    self.assertIn('--cpus-per-task=7', self.fakes.calls()[0])
    environ = json.loads((self.fakes.folder / 'environ').read_text())
    self.assertEqual(environ['JAX_PLATFORMS'], 'cuda,cpu')

  def test_a_job_that_is_cancelled_does_not_come_back(self):
    # scancel sends SIGTERM to the script as well as to the training.
    (self.fakes.folder / 'statuses').write_text('wait\n')
    process = subprocess.Popen(
      ['bash', self.copy, *TRAINING],
      env=self.fakes.environ | self.job,
      start_new_session=True,
    )
    deadline = time.monotonic() + 20
    while not (self.fakes.folder / 'waits').exists():
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.02)
    process.terminate()
    self.assertEqual(process.wait(20), -signal.SIGTERM)
    os.killpg(process.pid, signal.SIGKILL)
    self.assertEqual(self.fakes.calls(), [SRUN])

  def test_a_dry_run_prints_what_a_job_runs(self):
    done = self.fakes.bash('scripts/slurm.sbatch', '--dry-run', *TRAINING)
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEmpty(self.fakes.calls())
    run, comment, again = done.stdout.splitlines()
    self.assertEqual(shlex.split(run), SRUN)
    self.assertEqual(comment, '# and if that ends with status 143:')
    self.assertEqual(again, 'scontrol requeue "$SLURM_JOB_ID"')

  @parameterized.parameters(
    ([], '--config: must be given'),
    (['--config=x'], '--workdir: must be given'),
    (['--config=x', '--workdir=runs/x'], '--workdir = runs/x: must be an abs'),
  )
  def test_wrong_flags_are_named(self, arguments, message):
    status, output = self.run_job(0, *arguments)
    self.assertEqual(status, 2)
    self.assertStartsWith(output, 'error: ')
    self.assertIn(message, output)
    self.assertEmpty(self.fakes.calls())

  def test_it_must_be_submitted_from_an_installed_repository(self):
    folder = str(self.fakes.folder)
    status, output = self.run_job(0, *TRAINING, SLURM_SUBMIT_DIR=folder)
    self.assertEqual(status, 2)
    self.assertIn(f'error: folder = {folder}: must be the root', output)
    shutil.rmtree(self.fakes.repository / '.venv')
    status, output = self.run_job(0, *TRAINING)
    self.assertEqual(status, 2)
    self.assertIn('error: .venv: must be made first, by ', output)
    self.assertEmpty(self.fakes.calls())

  def test_the_job_asks_for_whole_nodes_of_eight_and_for_a_signal(self):
    asked = re.findall(r'^#SBATCH (\S+)$', self.copy.read_text(), re.MULTILINE)
    self.assertContainsSubset(
      [
        *['--nodes=1', '--ntasks-per-node=8', '--gpus-per-node=8'],
        *['--exclusive', '--mem=0', '--signal=TERM@120', '--requeue'],
        '--open-mode=append',
      ],
      asked,
    )
    for flag in asked:  # These flags decide the cost, or the place.
      self.assertNotRegex(flag, '^--(time|partition|account|qos)')
    # Slurm reads no such lines after the first command.
    script = self.copy.read_text()
    self.assertGreater(script.index('set -euo'), script.rindex('\n#SBATCH'))

  @parameterized.parameters(0, 5, 15)
  def test_jax_gives_each_process_one_gpu_by_its_number_on_the_node(
    self, process
  ):
    environ = {
      'SLURM_JOB_ID': '17',
      'SLURM_STEP_NODELIST': 'gpu[07-08]',
      'SLURM_NTASKS': '16',
      'SLURM_PROCID': str(process),
      'SLURM_LOCALID': str(process % 8),
    }
    with mock.patch.dict(os.environ, environ):
      actual = clusters.ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, 'slurm', 300
      )
    self.assertEqual(actual, ('gpu07:61457', 16, process, [process % 8]))
