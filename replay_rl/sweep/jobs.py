"""Writes the groups of a sweep as jobs: --executor=slurm, --executor=jobset.

    python -m replay_rl.sweep ... --executor=slurm -- --time=24:00:00 \\
      --partition=h100
    python -m replay_rl.sweep ... --executor=jobset -- --name=tune \\
      --image=IMAGE --claim=runs --out=/runs/tune --max-crashes=3 --spot

Nothing is submitted. The folder `jobs` of the sweep gets a job for each group
that has cells to run, and `submit.sh`, which submits them. What follows `--`
goes to `sbatch`, or to scripts/gke_jobset.sh. A job is one process on one
machine, with the devices of the mesh of its cells. The job that ends last
writes the table.
"""

import math
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Sequence

from replay_rl.disk import durable
from replay_rl.run import config as config_lib
from replay_rl.sweep import planning

FOLDER, SUBMIT = 'jobs', 'submit.sh'
ROOT = pathlib.Path(__file__).resolve().parents[2]
_GPUS = 8  # Of a node.
_CHIPS = (1, 4, 8)  # Of the machines with a TPU v5e that are not parts of one.

# (work, number of a group, its cells) -> name of the job's file, its text, and
# the command that submits that file
_MakeJob = Callable[
  [planning.Work, int, Sequence[planning.PlannedCell]],
  tuple[str, str, list[str]],
]


def slurm(work: planning.Work) -> list[planning.Ended]:
  """Writes jobs of scripts/slurm.sbatch; see `planning.Executor`.

  Raises:
    ValueError: a mesh does not fit a node.
  """
  return _write(work, _slurm_job)


def jobset(work: planning.Work) -> list[planning.Ended]:
  """Writes JobSets of scripts/gke_jobset.sh; see `planning.Executor`.

  Raises:
    ValueError: that script refuses a setting, a mesh does not fit a machine, or
      the image cannot hold the file of the sweep.
  """
  return _write(work, _jobset_job)


def _write(work: planning.Work, make_job: _MakeJob) -> list[planning.Ended]:
  scripts = ROOT / 'scripts'
  if not scripts.is_dir():
    raise ValueError(
      f'folder = {str(scripts)!r}: must be there; jobs are written in a '
      'checkout of the repository'
    )
  groups = planning.unfinished_groups(work.planned)
  jobs = [make_job(work, *group) for group in sorted(groups.items())]
  if not jobs:
    return []
  folder = work.out / FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  submit = [
    '#!/usr/bin/env bash',
    '# Submits the groups of a sweep that had not finished.',
    'set -euo pipefail',
    shlex.join(['cd', str(ROOT)]),
  ]
  for name, text, command in jobs:
    durable.write(folder / name, text.encode())
    submit.append(shlex.join([*command, str(folder / name)]))
  durable.write(folder / SUBMIT, ('\n'.join(submit) + '\n').encode())
  work.say(f'{len(jobs)} jobs; submit them with: bash {folder / SUBMIT}')
  return []


def _slurm_job(
  work: planning.Work, number: int, group: Sequence[planning.PlannedCell]
) -> tuple[str, str, list[str]]:
  devices = _num_devices(group[0].cell.config)
  if devices > _GPUS:
    raise ValueError(_refusal(group[0], devices, f'at most {_GPUS} GPUs'))
  run = [*('bash', 'scripts/slurm.sbatch', f'--sweep={work.file}')]
  run += [f'--out={work.out}', *_cells(work, number, group)]
  log = work.out / FOLDER / f'group_{number}-%j.log'
  # Each of these is explained in scripts/slurm.sbatch.
  text = f"""\
#!/usr/bin/env bash
# {len(group)} cells of a sweep that share their programs.
#SBATCH --job-name=sweep-{number}
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={devices}
#SBATCH --cpus-per-task={12 * devices}
#SBATCH --output={shlex.quote(str(log))}
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
#SBATCH --requeue
exec {shlex.join(run)}
"""
  return f'group_{number}.sbatch', text, ['sbatch', *work.settings]


def _jobset_job(
  work: planning.Work, number: int, group: Sequence[planning.PlannedCell]
) -> tuple[str, str, list[str]]:
  devices = _num_devices(group[0].cell.config)
  chips = next((chips for chips in _CHIPS if chips >= devices), None)
  if chips is None:
    raise ValueError(_refusal(group[0], devices, f'at most {_CHIPS[-1]} chips'))
  if not work.file.is_relative_to(ROOT):
    raise ValueError(
      f"--sweep = '{work.file}': must be in the repository {ROOT}, which the "
      'image holds'
    )
  names = [x for x in work.settings if x.startswith('--name=')]
  if not names:
    raise ValueError('--name = None: must be given, after --')
  command = ['bash', 'scripts/gke_jobset.sh', f'--out={work.out}']
  command += [x for x in work.settings if x not in names]
  command += [f'{names[-1]}-{number}', f'--chips={chips}', '--dry-run']
  command += [f'--sweep={work.file.relative_to(ROOT)}', '--']
  command += _cells(work, number, group)
  done = subprocess.run(
    command,
    cwd=ROOT,
    env=os.environ | {'PYTHON': sys.executable},
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise ValueError(done.stderr.strip().removeprefix('error: '))
  return f'group_{number}.yaml', done.stdout, ['kubectl', 'apply', '-f']


def _cells(
  work: planning.Work, number: int, group: Sequence[planning.PlannedCell]
) -> list[str]:
  """Returns the flags with which the program runs this group alone."""
  chosen = [one.cell.name for one in group] if work.chosen else [str(number)]
  flags = [f'--cells={text}' for text in chosen]
  return flags + ['--allow_code_change'] * work.allow_code_change


def _num_devices(config: config_lib.Config) -> int:
  """Returns the devices of the mesh of a run.

  Raises:
    ValueError: it takes all devices, whose number only the job knows.
  """
  shape = config.mesh.shape
  if -1 in shape.values():
    raise ValueError(
      f'mesh.shape = {dict(shape)}: must have no -1 in a job, which asks for '
      'the devices of the mesh'
    )
  # The mesh of the sampler has the same devices.
  return math.prod(shape.values())


def _refusal(one: planning.PlannedCell, devices: int, allowed: str) -> str:
  return (
    f'devices of the mesh of {one.cell.name!r} = {devices}: must be {allowed}, '
    'those of one machine'
  )
