"""Prints what the replay buffer of a checkpoint holds.

    python -m replay_rl.inspect runs/x --iteration=100 --seed=0 --rows=3

It counts the rollouts, and prints the quartiles of their ages, uses,
priorities, rewards and lengths, how many there are of each age, and the
rollouts with the highest and the lowest rewards as text. It reads the buffer
alone, so it needs neither the model nor the data of the run.
"""

import argparse
import functools
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import rich.box
import rich.console
import rich.table
from absl import logging as absl_logging

from replay_rl import base
from replay_rl import json_files
from replay_rl import overrides
from replay_rl.bucket import reading
from replay_rl.evaluate import run_weights
from replay_rl.parallel import checksums
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import recorded

_MAX_AGES = 12  # Lines of the table of ages.
_QUARTILES = (0, 25, 50, 75, 100)


class StoredBuffer(NamedTuple):
  """The buffer of one seed at a checkpoint, with its valid rows only.

  iteration: iterations done.
  seed: of the run.
  step: learner step.
  capacity: C.
  buffer: arrays of NumPy; each `[C]` of `BufferState` has its n valid rows.
  slots: `[n]` int, slot of each row.
  """

  iteration: int
  seed: int
  step: int
  capacity: int
  buffer: base.BufferState
  slots: np.ndarray


def read(
  folder: pathlib.Path,
  seeds: tuple[int, ...],
  *,
  iteration: int | None,
  seed: int | None,
) -> StoredBuffer:
  """Reads the buffer of a checkpoint, and nothing else of it.

  Args:
    folder: of the run.
    seeds: of the run.
    iteration: iterations done at the checkpoint; None for the newest.
    seed: one of `seeds`; None if there is only one.

  Raises:
    ValueError: there is no such checkpoint or seed, or it is damaged.
  """
  seed = run_weights.pick_seed(folder, seeds, seed)
  iteration = run_weights.pick_step(folder, iteration)
  where = (folder / 'checkpoints' / str(iteration)).resolve()
  try:
    restored = _arrays(where / 'run')
    saved = json_files.read_object(
      where / 'checksums' / 'metadata', advice='use another checkpoint'
    )
  except Exception as error:  # Orbax and TensorStore raise many types.
    raise ValueError(
      f'checkpoint = {str(where)!r}: must be readable ({error})'
    ) from error
  rollouts = base.Rollout(**restored['buffer'].pop('rollouts'))
  prompts = restored['buffer'].pop('prompts')
  if prompts is not None:
    prompts = base.PromptTable(**prompts)
  every = base.BufferState(
    rollouts=rollouts, prompts=prompts, **restored['buffer']
  )
  wrong = [
    name
    for name, value in checksums.of_tree(every).items()
    if saved.get(f'.buffer{name}') != value
  ]
  if wrong:
    raise ValueError(
      f'checkpoint = {str(where)!r}: must have the arrays that were saved; '
      f'{wrong} differ'
    )
  row = seeds.index(seed)
  buffer = jax.tree.map(lambda leaf: leaf[row], every)
  slots = np.flatnonzero(buffer.is_valid)
  capacity = len(buffer.is_valid)

  def valid(leaf):
    return leaf[slots] if leaf.ndim and len(leaf) == capacity else leaf

  return StoredBuffer(
    iteration=iteration,
    seed=seed,
    step=int(restored['learner']['step'][row]),
    capacity=capacity,
    buffer=jax.tree.map(valid, buffer._replace(prompts=None)),
    slots=slots,
  )


def _arrays(folder: pathlib.Path) -> dict:
  """Returns the buffer and the learner step of all seeds, as NumPy arrays."""
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
    tree = reader.metadata(folder).item_metadata.tree
    wanted = {
      'buffer': tree['buffer'],
      'learner': {'step': tree['learner']['step']},
    }
    item = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), wanted
    )
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    return reader.restore(
      folder,
      args=ocp.args.PyTreeRestore(
        item=item,
        restore_args=jax.tree.map(lambda _: as_numpy, item),
        partial_restore=True,
      ),
    )


def values(stored: StoredBuffer) -> dict[str, np.ndarray]:
  """Returns the numbers of each row by what they are, each `[n]`.

  The steps since the last use have the used rows only.
  """
  buffer, rollouts = stored.buffer, stored.buffer.rollouts
  last = np.asarray(buffer.last_sampled)
  return {
    'age': stored.step - np.asarray(rollouts.policy_version),
    'uses': np.asarray(buffer.times_sampled),
    'steps since last use': stored.step - last[last >= 0],
    'priority': np.asarray(buffer.priorities),
    'reward': np.asarray(rollouts.rewards),
    'advantage': np.asarray(rollouts.advantages),
    'response tokens': np.asarray(rollouts.loss_mask).sum(-1),
  }


def table(stored: StoredBuffer) -> rich.table.Table:
  """Returns the quartiles of each quantity, a line each."""
  grid = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  grid.add_column('of the rows')
  for name in ('least', '25 %', 'median', '75 %', 'most', 'mean'):
    grid.add_column(name, justify='right')
  for name, numbers in values(stored).items():
    if len(numbers):
      written = [*np.percentile(numbers, _QUARTILES), numbers.mean()]
      grid.add_row(name, *(f'{number:.4g}' for number in written))
  return grid


def ages(stored: StoredBuffer) -> rich.table.Table:
  """Returns how many rows there are of each age; ranges where ages are many."""
  numbers = values(stored)
  grid = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  for name in ('age', 'rows', 'mean reward', 'mean uses'):
    grid.add_column(name, justify='right')
  if not len(stored.slots):
    return grid
  lowest, highest = numbers['age'].min(), numbers['age'].max()
  width = -(-(highest - lowest + 1) // _MAX_AGES)
  for start in range(lowest, highest + 1, width):
    is_in = (numbers['age'] >= start) & (numbers['age'] < start + width)
    if is_in.any():
      grid.add_row(
        f'{start}' if width == 1 else f'{start} to {start + width - 1}',
        f'{is_in.sum()}',
        f'{numbers["reward"][is_in].mean():.3g}',
        f'{numbers["uses"][is_in].mean():.3g}',
      )
  return grid


def rows(
  stored: StoredBuffer,
  decode_fn: Callable[[np.ndarray], str],
  *,
  count: int,
  best: bool,
) -> list[str]:
  """Returns the rollouts with the highest or lowest rewards, as text.

  Of equal rewards, those with the higher (lower) advantage come first, and of
  these those of the lower slot.

  Args:
    stored: the buffer.
    decode_fn: tokens `[n]` -> text.
    count: how many, at most.
    best: whether the highest come first.
  """
  numbers, rollouts = values(stored), stored.buffer.rollouts
  sign = -1 if best else 1
  order = np.lexsort((sign * numbers['advantage'], sign * numbers['reward']))
  written = []
  for row in order[:count]:
    tokens = np.asarray(rollouts.tokens)[row]
    sampled = np.flatnonzero(np.asarray(rollouts.loss_mask)[row])
    shown = ('reward', 'advantage', 'age', 'uses', 'priority')
    facts = ', '.join(f'{name} {numbers[name][row]:.4g}' for name in shown)
    written += [
      f'slot {stored.slots[row]}: {facts}',
      f'  prompt:   {decode_fn(tokens[: sampled[0]])!r}',
      f'  response: {decode_fn(tokens[sampled])!r}',
    ]
  return written


def decoder(
  config: config_lib.Config,
) -> tuple[Callable[[np.ndarray], str], str | None]:
  """Returns what decodes the tokens of a run, and why it cannot, or None."""
  try:
    if config.text is None:
      return build.task(config).decode_fn, None
    from replay_rl.lm import tokenizer  # Needs the extra [math].

    folder = pathlib.Path(config.text.tokenizer).expanduser()
    loaded = tokenizer.load(folder)
    return functools.partial(loaded.decode, skip_special=False), None
  except (ValueError, ImportError) as error:
    return lambda tokens: ' '.join(map(str, tokens)), str(error)


def main(arguments: list[str] | None = None) -> int:
  """Prints the buffer that the flags name; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog='python -m replay_rl.inspect',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('run', type=reading.text, help='folder of the run, or its address')
  run_weights.add_place_flags(parser)
  add(
    '--rows',
    type=overrides.integer,
    default=3,
    help='best and worst rollouts to print (default: %(default)s)',
  )
  options = parser.parse_args(arguments)
  absl_logging.set_verbosity(absl_logging.ERROR)
  jax.config.update('jax_platforms', 'cpu')  # Leaves an accelerator alone.
  try:
    if options.rows < 0:
      raise ValueError(f'--rows = {options.rows}: must be 0 or more')
    with reading.readable(
      'RUN', options.run, iteration=options.iteration
    ) as folder:
      config, _ = recorded.read_config(folder)
      stored = read(
        folder,
        recorded.seeds(config),
        iteration=options.iteration,
        seed=options.seed,
      )
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  console = rich.console.Console()

  def say(line):
    console.print(line, markup=False, highlight=False, soft_wrap=True)

  buffer = stored.buffer
  num_groups, num_prompts = (
    len(np.unique(ids))
    for ids in (buffer.rollouts.group_id, buffer.rollouts.prompt_id)
  )
  say(
    f'{options.run}: iteration {stored.iteration}, seed {stored.seed}, learner '
    f'step {stored.step}'
  )
  say(
    f'{len(stored.slots)} of {stored.capacity} slots hold a rollout, of '
    f'{num_groups} groups and {num_prompts} prompts; {buffer.num_inserted} '
    f'rollouts were inserted in {buffer.num_batches} inserts, and '
    f'{buffer.num_repaired_priorities} priorities were repaired'
  )
  console.print(table(stored), ages(stored))
  decode_fn, reason = decoder(config)
  if reason is not None:
    say(f'Tokens are shown as numbers: {reason}')
  for best in (True, False):
    if options.rows and len(stored.slots):
      say(f'{"Highest" if best else "Lowest"} rewards:')
    for line in rows(stored, decode_fn, count=options.rows, best=best):
      say(line)
  return 0


if __name__ == '__main__':
  sys.exit(main())
