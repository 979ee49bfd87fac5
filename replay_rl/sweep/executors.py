"""The executors of sweeps, by the names of --executor."""

from collections.abc import Mapping

from replay_rl.sweep import jobs
from replay_rl.sweep import local
from replay_rl.sweep import on_ray
from replay_rl.sweep import planning

EXECUTORS: Mapping[str, planning.Executor] = {
  'local': local.execute,
  'ray': on_ray.execute,
  'slurm': jobs.slurm,
  'jobset': jobs.jobset,
}
