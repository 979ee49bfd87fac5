"""Forks: a run that begins with the state of another, with another config.

The log of a fork begins with the lines of its ancestor. So its totals, its
costs and its reports are those of one run whose config changed on the way.
"""

import functools
import json
import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax

from replay_rl.disk import paths
from replay_rl.parallel import processes
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import logs
from replay_rl.run import state
from replay_rl.run import workdir as workdir_lib
from replay_rl.tasks import task as task_lib

# Settings that the state or the lines of a run depend on, beside their shapes:
# weights and tokens, random streams, the groups of the buffer, prices.
_OF_STATE = (
  *('task', 'model.', 'warm_start.'),
  *('seed', 'num_seeds', 'sampler.group_size', 'mu'),
)
_MAY_CHANGE = ('model.compute_dtype',)
# What an asynchronous schedule counts its publications by.
_OF_SPANS = ('schedule', 'sampler.num_prompts', 'replay.batch_size')
_NOT_OF_STATE = ('evaluation_problems',)  # Data.
_ADVICE = 'name a folder that replay_rl.train wrote'


class Ancestor(NamedTuple):
  """Where a fork begins: a folder, and the iterations done at a checkpoint."""

  folder: pathlib.Path
  iteration: int

  def __str__(self) -> str:
    """Returns the text that `parse` reads."""
    return f'{self.folder}@{self.iteration}'


def parse(text: str) -> Ancestor:
  """Returns what `RUN@ITERATION` names.

  Raises:
    ValueError: it names nothing.
  """
  folder, _, number = text.rpartition('@')
  if not (folder and number.isdecimal()):
    raise ValueError(
      f'--from = {text!r}: must be RUN@ITERATION, the folder of a run and the '
      'iterations done at one of its checkpoints'
    )
  paths.check('--from', text)
  return Ancestor(pathlib.Path(folder).expanduser().resolve(), int(number))


def ancestry(
  ancestor: Ancestor | None,
  workdir: pathlib.Path,
  made_of: dict[str, Any],
  *,
  config: config_lib.Config,
  experiment: build.Experiment,
  shape: task_lib.Shape,
  functions: Mapping[str, Callable],
  allow_code_change: bool,
) -> list[dict[str, Any]]:
  """Returns the forks that lead to a run, the oldest first.

  A folder that holds the fork already keeps its record of it, so that its
  ancestor may be gone.

  Args:
    ancestor: where the run begins; None for a run that is no fork, or that
      continues.
    workdir: the folder of the run.
    made_of: see `workdir.record`.
    config, experiment, functions: see `build.experiment`.
    shape: of the task.
    allow_code_change: whether code and packages may differ from those of the
      ancestor.

  Returns:
    For each fork the ancestor's folder, the iteration, the commit of its code,
    and by part of the record what was and what is.

  Raises:
    ValueError: the folder holds another run, or the ancestor cannot be read, or
      its state does not fit the config.
  """
  steps, record = workdir_lib.steps(workdir), _recorded(workdir, made_of)
  kept = [] if record is None else record['ancestry']
  is_begun_run = is_begun(workdir)
  is_same = record is not None and _is_same(
    workdir, record, made_of, allow_code_change
  )
  if steps and (is_begun_run or is_same):
    if ancestor is None or _is_of(ancestor, kept):
      return kept
    if is_begun_run:
      raise ValueError(
        f'--from = {str(ancestor)!r}: must be absent, or as at the start of '
        f'the run that {workdir} holds; or train in another folder'
      )
  if ancestor is None:
    if kept and is_same:
      raise ValueError(
        f'--from = None: must be {kept[-1]["run"]}@{kept[-1]["iteration"]}, '
        f'which {workdir} has not read yet'
      )
    return []
  if ancestor.folder == workdir:
    raise ValueError(f'--from = {str(ancestor)!r}: must be another folder')
  before = workdir_lib.read(ancestor.folder, made_of, advice=_ADVICE)
  steps = workdir_lib.steps(ancestor.folder)
  if ancestor.iteration not in steps:
    raise ValueError(
      f'--from = {str(ancestor)!r}: must end with one of {steps}, the '
      'iterations of the checkpoints there'
    )
  if config.num_iterations <= ancestor.iteration:
    raise ValueError(
      f'num_iterations = {config.num_iterations}: must be above the '
      f'{ancestor.iteration} of --from'
    )
  differing = workdir_lib.differing(before, _with_data(before, made_of))
  _check(ancestor, differing, experiment.parts, allow_code_change)
  _check_layout(
    ancestor, differing['config'], config, experiment, shape, functions
  )
  link = {
    'run': str(ancestor.folder),
    'iteration': ancestor.iteration,
    'commit': before['commit'],
  } | {part: pairs for part, pairs in differing.items() if pairs}
  return [*before['ancestry'], json.loads(json.dumps(link))]


def is_begun(folder: pathlib.Path) -> bool:
  """Returns whether a folder has a checkpoint that its own run saved."""
  if (folder / checkpoint.DAMAGED).exists():
    return True
  steps = workdir_lib.steps(folder)
  if not steps or not (folder / workdir_lib.CONFIG).exists():
    return bool(steps)
  before = workdir_lib.read(folder, {}, advice=workdir_lib.ADVICE)
  return max(steps) > first_iteration(before)


def first_iteration(made_of: Mapping[str, Any]) -> int:
  """Returns the first iteration that a run does itself, by its record."""
  return made_of['ancestry'][-1]['iteration'] if made_of['ancestry'] else 0


def begin(
  ancestor: Ancestor,
  run: state.RunState,
  checkpoints: checkpoint.Checkpoints,
  workdir: pathlib.Path,
) -> checkpoint.Restored:
  """Writes the state and the log of the ancestor into the folder of a fork.

  The fork needs its ancestor no more once its first checkpoint is there.

  Args:
    ancestor: where it begins, see `ancestry`.
    run: the fork before its first iteration; its numbers of the config stay.
    checkpoints: of the folder of the fork.
    workdir: the folder of the fork.

  Raises:
    ValueError: the checkpoint cannot be read, or the files beside it differ
      from those that it was saved with.
    durable.WriteError: a file cannot be written.
  """
  folder = ancestor.folder / 'checkpoints'
  hyper = {}
  for path, leaf in checkpoint.layout(folder, ancestor.iteration).items():
    if path[0] == 'hyper':
      field, name = path[1:]
      hyper.setdefault(field, {})[name] = jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=run.seed.sharding
      )
  restored = checkpoint.read(
    folder,
    ancestor.iteration,
    run._replace(hyper=hyper),
    functools.partial(logs.check, ancestor.folder),
  )
  forked = restored.run._replace(hyper=run.hyper)
  with processes.together('copying the log'):
    if processes.is_main():
      logs.copy(ancestor.folder, workdir, restored.marks)
  checkpoints.save(forked, restored.marks)
  checkpoints.wait()
  logs.say(f'{workdir}: begins with the state of {ancestor}')
  return checkpoint.Restored(forked, restored.marks)


def _recorded(
  workdir: pathlib.Path, made_of: dict[str, Any]
) -> dict[str, Any] | None:
  """Returns the record of a folder; None if it has none."""
  if not (workdir / workdir_lib.CONFIG).exists():
    return None
  return workdir_lib.read(workdir, made_of, advice=workdir_lib.ADVICE)


def _is_same(
  workdir: pathlib.Path,
  record: dict[str, Any],
  made_of: dict[str, Any],
  allow_code_change: bool,
) -> bool:
  """Returns whether a folder may continue with what a run is made of."""
  try:
    workdir_lib.compare(
      workdir,
      _with_data(record, made_of),
      allow_code_change=allow_code_change,
    )
  except ValueError:
    return False
  return True


def _with_data(
  before: dict[str, Any], made_of: dict[str, Any]
) -> dict[str, Any]:
  """Returns a record with the data of another that it does not have.

  One process hashes the checkpoint of `model.checkpoint` later, for all.
  """
  return made_of | {'data': before['data'] | made_of['data']}


def _is_of(ancestor: Ancestor, forks: Sequence[Mapping[str, Any]]) -> bool:
  if not forks:
    return False
  return (forks[-1]['run'], forks[-1]['iteration']) == (
    str(ancestor.folder),
    ancestor.iteration,
  )


def _check(
  ancestor: Ancestor,
  differing: Mapping[str, Mapping[str, tuple[Any, Any]]],
  parts: state.Parts,
  allow_code_change: bool,
) -> None:
  """Raises ValueError if what the state depends on is otherwise."""
  fixed = _OF_STATE + _OF_SPANS * (parts.num_spans > 0)
  refused = {
    name: pair
    for name, pair in differing['config'].items()
    if name not in _MAY_CHANGE
    and any(name == x or x[-1] == '.' and name.startswith(x) for x in fixed)
  }
  _refuse(ancestor, refused)
  _refuse(
    ancestor,
    {
      name: pair
      for name, pair in differing['data'].items()
      if name not in _NOT_OF_STATE
    },
  )
  if not allow_code_change:
    # A module of one side alone is what the config names, or not in use.
    modules = {
      name: pair
      for name, pair in differing['sources'].items()
      if None not in pair
    }
    _refuse(ancestor, modules, f'; {workdir_lib.ALLOW_CODE}')
    _refuse(ancestor, differing['versions'], f'; {workdir_lib.ALLOW_CODE}')


def _check_layout(
  ancestor: Ancestor,
  differing: Mapping[str, tuple[Any, Any]],
  config: config_lib.Config,
  experiment: build.Experiment,
  shape: task_lib.Shape,
  functions: Mapping[str, Callable],
) -> None:
  """Raises ValueError if the arrays of the state have other shapes."""
  there = _without_hyper(
    checkpoint.layout(ancestor.folder / 'checkpoints', ancestor.iteration)
  )
  here = _layout(experiment.parts, config)
  if there == here:
    return
  others = [
    path for path in {**there, **here} if there.get(path) != here.get(path)
  ]

  def has_a_say(field: str) -> bool:
    """Returns whether the layout is another with the ancestor's value."""
    try:
      with_it = config_lib.changed(config, {field: differing[field][0]})
      parts = build.experiment(
        with_it, _shape(shape, with_it.text), functions
      ).parts
      return _layout(parts, with_it) != here
    except ValueError:  # That value may need others.
      return False

  fields = [field for field in differing if has_a_say(field)]
  _refuse(
    ancestor,
    {field: differing[field] for field in fields or differing},
    f'; with other shapes in {".".join(others[0])} and {len(others) - 1} more',
  )


def _layout(parts: state.Parts, config: config_lib.Config) -> checkpoint.Layout:
  shapes = state.shapes_of_run(parts, config.num_seeds)
  return _without_hyper(checkpoint.layout_of(shapes))


def _without_hyper(layout: checkpoint.Layout) -> checkpoint.Layout:
  """Returns a layout without the numbers of the config, which a fork has."""
  return {path: leaf for path, leaf in layout.items() if path[0] != 'hyper'}


def _shape(
  shape: task_lib.Shape, text: config_lib.Text | None
) -> task_lib.Shape:
  """Returns the shape of a task with other settings of its problems."""
  if text is None:
    return shape
  return shape._replace(
    prompt_length=text.max_prompt_tokens, max_new_tokens=text.max_new_tokens
  )


def _refuse(
  ancestor: Ancestor, pairs: Mapping[str, tuple[Any, Any]], advice: str = ''
) -> None:
  if pairs:
    raise ValueError(
      f'{workdir_lib.shown(pairs)}: must be as there, in the run whose state '
      f'--from = {str(ancestor)!r} begins with{advice}'
    )
