"""Scalars of a run in Weights & Biases: a run of it for each seed, in a group.

The lines of `metrics.jsonl` are the truth. A run that continues hands over all
of them that Weights & Biases lacks, and no step a second time.
"""

import math
import pathlib
import shutil
import uuid
import warnings
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from replay_rl.disk import durable

FOLDER = 'wandb'  # In the folder of the run; the package gives it this name.
_ID = 'id'  # File in FOLDER.


class WandbRuns:
  """Writes each line at once. A failure to write one stops no run."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    name: str,
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    lines: Iterable[Mapping[str, Any]],
    project: str,
    offline: bool,
  ):
    """Opens a run of Weights & Biases for each seed.

    Args:
      folder: of the run; what the package writes goes to `FOLDER` in it.
      name: of the run; its seeds form a group with this name.
      seeds: of the run.
      settings: the hyper-parameters, by name.
      lines: of `metrics.jsonl`, before the next iteration.
      project: of Weights & Biases.
      offline: whether to write files alone, for `wandb sync`. Files of an
        earlier process are removed, because the new ones have all steps.

    Raises:
      ValueError: Weights & Biases refuses the run, or a file has the name of
        the folder.
    """
    import wandb

    self._errors = (OSError, wandb.Error)
    self._runs: dict[int, Any] = {}  # By seed.
    self._folder = folder / FOLDER
    self.num_lost = 0  # Calls of `write` whose scalars could not be written.
    identity = _identity(self._folder)
    try:
      for seed in seeds:
        run_id = f'{identity}-seed{seed}'
        if offline:
          for path in self._folder.glob(f'offline-run-*-{run_id}'):
            shutil.rmtree(path)
        self._runs[seed] = wandb.init(
          project=project,
          dir=folder,
          id=run_id,
          group=f'{name} {identity}',
          name=f'{name} seed {seed}',
          config=dict(settings, seed=seed),
          mode='offline' if offline else 'online',
          resume=None if offline else 'allow',
          reinit='create_new',
          # It neither prints, nor looks at the machine and the sources.
          settings=wandb.Settings(
            console='off',
            silent=True,
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
          ),
        )
    except wandb.Error as error:
      self.close()
      raise ValueError(
        f'logging.writers.wandb.project = {project!r}: must be a project that '
        f'Weights & Biases accepts ({error})'
      ) from error
    for line in lines:
      self.write(**line, seconds=None)

  def write(
    self, iteration: int, seed: int, *, seconds: float | None, **values: Any
  ) -> None:
    """Writes the finite numbers of one seed; leaves out lists and NaN.

    A step that Weights & Biases has is left out, too: it would be the same.

    Args:
      iteration: number of the iteration, the step.
      seed: names the run of Weights & Biases.
      seconds: time of the line, since 1970; None for now.
      **values: scalars by name.
    """
    run = self._runs[seed]
    if iteration < run.starting_step:
      return
    scalars = {
      name: value
      for name, value in values.items()
      if isinstance(value, (int, float)) and math.isfinite(value)
    }
    if seconds is not None:
      scalars['_timestamp'] = seconds
    try:
      run.log(scalars, step=iteration, commit=True)
    except self._errors as error:
      if not self.num_lost:
        warnings.warn(
          f'{self._folder}: Weights & Biases takes no lines ({error}); the run '
          'goes on without',
          stacklevel=2,
        )
      self.num_lost += 1

  def close(self) -> None:
    """Waits until all lines are written; may be called again."""
    while self._runs:
      _, run = self._runs.popitem()
      try:
        run.finish()
      except self._errors as error:
        warnings.warn(
          f'{self._folder}: Weights & Biases may lack lines of metrics.jsonl '
          f'({error})',
          stacklevel=2,
        )
    if self.num_lost:
      warnings.warn(
        f'{self._folder}: Weights & Biases lacks {self.num_lost} lines of '
        'metrics.jsonl',
        stacklevel=2,
      )
      self.num_lost = 0


def _identity(folder: pathlib.Path) -> str:
  """Returns the name of the run, which a new folder draws.

  It is no part of what the run computes: two folders with one config are two
  runs of Weights & Biases.

  Raises:
    ValueError: a file has the name of the folder.
  """
  path = folder / _ID
  if folder.exists() and not folder.is_dir():
    raise ValueError(
      f'path = {str(folder)!r}: must be a folder; move that file away'
    )
  if not path.exists():
    folder.mkdir(parents=True, exist_ok=True)
    durable.write(path, uuid.uuid4().hex[:12].encode())
  return path.read_text()
