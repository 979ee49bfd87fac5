"""Who gets the scalars of a run beside metrics.jsonl: TensorBoard, W&B."""

import pathlib
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import Protocol

from replay_rl import choices
from replay_rl.disk import event_file
from replay_rl.run import config as config_lib
from replay_rl.run import wandb_runs

BOARD = 'tensorboard'  # Folder.


class Opening(NamedTuple):
  """What a writer is opened with.

  folder: of the run.
  config: of the run.
  iteration: the next one that the run does.
  read: returns the lines of metrics.jsonl before it.
  """

  folder: pathlib.Path
  config: config_lib.Config
  iteration: int
  read: Callable[[], Iterable[Mapping[str, Any]]]


class Writer(Protocol):
  """Gets a line of metrics for each iteration and seed."""

  def write(
    self, iteration: int, seed: int, *, seconds: float, **values: Any
  ) -> None:
    """Writes the scalars of one seed; `seconds` is the time since 1970."""

  def close(self) -> None:
    """Writes the rest; may be called again."""


def tensorboard(opening: Opening) -> Writer:
  """Event files in `BOARD`, a run of TensorBoard for each seed."""
  return event_file.EventFile(opening.folder / BOARD, opening.iteration)


def wandb(opening: Opening, *, project: str, offline: bool) -> Writer:
  """A run of Weights & Biases for each seed, see `wandb_runs.WandbRuns`."""
  config = opening.config
  return wandb_runs.WandbRuns(
    opening.folder,
    name=config.name,
    seeds=range(config.seed, config.seed + config.num_seeds),
    settings=config_lib.flatten(config),
    lines=opening.read(),
    project=project,
    offline=offline,
  )


def _all(*functions: Callable[[Opening], Writer]) -> Callable:
  return lambda opening: [function(opening) for function in functions]


KIND = choices.Kind(
  choices.functions_like(sys.modules[__name__], 'opening'),
  ('opening',),
  operator='+',
  join=_all,
)


def choose(config: config_lib.Config) -> choices.Choice | None:
  """Returns the choice of `logging.writers`; None if it is None.

  Raises:
    ValueError: it is not allowed.
  """
  if config.logging.writers is None:
    return None
  chosen = choices.choose('logging.writers', config.logging.writers, KIND)
  if len(set(names_of(chosen))) < len(names_of(chosen)):
    raise ValueError(
      f'logging.writers = {chosen.text!r}: must name each writer once'
    )
  return chosen


def names_of(chosen: choices.Choice | None) -> list[str]:
  """Returns the names of the functions of a choice."""
  return [] if chosen is None else [call[0] for call in chosen.program]


def make(config: config_lib.Config) -> Callable[[Opening], list[Writer]]:
  """Returns the function that opens the writers of a config."""
  chosen = choose(config)
  return _all() if chosen is None else chosen.bind(chosen.scalars)


def is_tensorboard(config: config_lib.Config) -> bool:
  """Returns whether TensorBoard files are written."""
  return 'tensorboard' in names_of(choose(config))


def is_wandb(config: config_lib.Config) -> bool:
  """Returns whether Weights & Biases gets the scalars."""
  return 'wandb' in names_of(choose(config))
