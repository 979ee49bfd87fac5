"""Resolves the functions that a config names, and binds their numbers."""

import functools
import types
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from replay_rl import choices
from replay_rl.lm import in_flight
from replay_rl.replay import collected
from replay_rl.replay import compose
from replay_rl.replay import compose_groups
from replay_rl.replay import feedback
from replay_rl.replay import keep
from replay_rl.replay import prompt_choice
from replay_rl.replay import prompt_weights
from replay_rl.replay import sampling
from replay_rl.replay import weights
from replay_rl.rl import advantages
from replay_rl.rl import batch_advantages
from replay_rl.rl import corrections
from replay_rl.rl import gates
from replay_rl.rl import importance
from replay_rl.rl import losses
from replay_rl.rl import optimizers
from replay_rl.rl import penalties
from replay_rl.rl import statistics
from replay_rl.run import budget
from replay_rl.run import config as config_lib
from replay_rl.run import learner
from replay_rl.run import pairs
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.tasks import addition
from replay_rl.tasks import countdown
from replay_rl.tasks import modular_arithmetic
from replay_rl.tasks import rewards

TASKS = {
  'addition': addition.make,
  'countdown': countdown.make,
  'modular_arithmetic': modular_arithmetic.make,
}
KEEP_NEWEST = 'ring()'

# Field that a choice may ignore -> field of the choice, and its keyword.
OFFERED = {
  'replay.weights': ('replay.compose', 'weight_rule'),
  'replay.draw': ('replay.compose', 'draw'),
  'replay.batch_size': ('replay.compose', 'batch_size'),
  'replay.updates_per_iteration': ('schedule', 'updates_per_iteration'),
}


def _kind(
  module: types.ModuleType,
  *positionals: str,
  others: Collection[types.ModuleType] = (),
  without: Collection[str] = (),
  **joined: Any,
) -> choices.Kind:
  """Returns the functions of modules with these arguments, but `without`."""
  listed = [choices.functions_like(x, *positionals) for x in (module, *others)]
  functions = {x: part[x] for part in listed for x in part if x not in without}
  return choices.Kind(functions, positionals, **joined)


# Argument of `train` -> field of the config, and what may be chosen for it.
KINDS = {
  'weights': (
    'replay.weights',
    _kind(
      weights,
      'state',
      'step',
      others=(prompt_weights,),
      without=('age',),  # A number of learner steps, and no weight.
      operator='*',
      join=weights.product,
    ),
  ),
  'keep': ('replay.keep', _kind(keep, 'state', 'step')),
  'draw': ('replay.draw', _kind(sampling, 'rng_key', 'weights', 'num_draws')),
  'compose': (
    'replay.compose',
    _kind(
      compose,
      *('state', 'fresh', 'rng_key', 'step'),
      others=(compose_groups, collected),
    ),
  ),
  'prompts': (
    'sampler.prompts',
    _kind(prompt_choice, 'state', 'new', 'rng_key'),
  ),
  'feedback': ('replay.feedback', _kind(feedback, 'batch', 'outcome')),
  'advantage': (
    'loss.advantage',
    _kind(advantages, 'rewards', 'group_id', without=('group_has_variance',)),
  ),
  'batch_advantage': (
    'loss.batch_advantage',
    _kind(batch_advantages, 'batch'),
  ),
  'loss': (
    'loss.policy',
    _kind(
      losses,
      'inputs',
      others=(corrections, penalties),
      operator='+',
      join=losses.total,
    ),
  ),
  'statistics': ('loss.statistics', _kind(statistics, 'inputs')),
  'normalizer': ('loss.normalizer', _kind(losses, 'loss_mask')),
  'row_weights': ('loss.row_weights', _kind(importance, 'batch', 'step')),
  'gate': ('optimizer.gate', _kind(gates)),
  'optimizer': ('optimizer.transform', _kind(optimizers, 'learning_rate')),
  'schedule': ('schedule', _kind(schedule, 'iteration')),
  'stop': (
    'stop',
    _kind(
      budget,
      *('latest', 'evaluations'),
      operator='+',
      join=budget.first_of,
    ),
  ),
  'task': ('task', choices.Kind(TASKS, ())),
  'reward': (
    'reward',
    _kind(
      rewards,
      *rewards.Verdicts._fields,
      operator='+',
      join=choices.total,
    ),
  ),
}
# The programs of a cycle do not use the constants of these fields.
OUTSIDE = ('task', 'reward', 'stop')


def choose(
  config: config_lib.Config,
  functions: Mapping[str, Callable],
  kinds: Collection[str] = tuple(KINDS),
) -> dict[str, choices.Choice]:
  """Returns the choices of a config, by field; without fields that are None.

  Args:
    config: names the functions.
    functions: by key of `KINDS`, replacements for what the config names.
    kinds: keys of `KINDS` to choose.

  Raises:
    ValueError: an unknown kind, or a choice that is not allowed.
  """
  for name in functions:
    if name not in KINDS:
      raise ValueError(f'function = {name!r}: must be one of {list(KINDS)}')
    if name in ('task', 'prompts') and config.text:
      raise ValueError(
        f'function = {name!r}: must not be given for task = {config.task!r}'
      )
  values = config_lib.flatten(config)
  offered, chosen = {}, {}
  for field, (chooser, keyword) in OFFERED.items():
    offered.setdefault(chooser, {})[keyword] = values[field]
  num_fresh = config.sampler.num_prompts * config.sampler.group_size
  offered['replay.compose']['group_size'] = config.sampler.group_size
  offered['schedule'] |= {
    'mu': config.mu,
    'batch_size': config.replay.batch_size,
    'num_fresh': num_fresh,
  }
  offered['replay.compose']['num_fresh'] = num_fresh
  offered['replay.weights'] = {
    'num_fresh': num_fresh,
    'group_size': config.sampler.group_size,
  }
  for name in kinds:
    field, kind = KINDS[name]
    # The task in text has no function.
    given = functions.get(name, values.get(field))
    if given not in (None, KEEP_NEWEST, config_lib.TEXT_TASK):
      chosen[field] = choices.choose(field, given, kind, offered.get(field))
  for field, (chooser, keyword) in OFFERED.items():
    if chooser not in chosen:
      continue
    value = chosen[field].text if field in chosen else values[field]
    is_taken = keyword in chosen[chooser].takes
    if is_taken == (value is None):
      must = ('be given', 'needs') if is_taken else ('be None', 'ignores')
      raise ValueError(
        f'{field} = {value!r}: must {must[0]}, because {chooser} {must[1]} it '
        f'({chooser} = {chosen[chooser].text!r})'
      )
  pairs.check(config, chosen)
  if 'optimizer.transform' in chosen:
    pairs.check_decay(
      'optimizer', config.optimizer.learning_rate, chosen['optimizer.transform']
    )
  return chosen


def choose_warm_start(config: config_lib.Config) -> choices.Choice:
  """Returns the choice of `warm_start.transform`.

  Raises:
    ValueError: it is not allowed.
  """
  settings = config.warm_start
  transform = choices.choose(
    'warm_start.transform', settings.transform, KINDS['optimizer'][1]
  )
  pairs.check_decay('warm_start', settings.learning_rate, transform)
  return transform


def numbers(
  config: config_lib.Config, chosen: Mapping[str, choices.Choice]
) -> state.Hyper:
  """Returns the numbers of a config that set no shape, by section or field."""

  def of_sampling(settings: config_lib.Sampler | config_lib.Evaluation):
    top_p = settings.top_p
    kept = {} if top_p is None else {'top_p': float(top_p)}
    return {'temperature': float(settings.temperature)} | kept

  return {
    'sampler': of_sampling(config.sampler),
    'evaluation': of_sampling(config.evaluation),
    'optimizer': {
      'learning_rate': float(config.optimizer.learning_rate),
      'warmup_steps': config.optimizer.warmup_steps,
      'max_grad_norm': float(config.optimizer.max_grad_norm),
    },
  } | {
    field: choice.scalars
    for field, choice in chosen.items()
    if choice.scalars and field not in OUTSIDE
  }


def bind(
  config: config_lib.Config,
  chosen: Mapping[str, choices.Choice],
  generate_fn: Callable,
  logprobs_fn: Callable,
  pieces: in_flight.Pieces | None,
  hyper: state.Hyper,
) -> state.Functions:
  """Returns the functions of a run with the numbers of `hyper` bound.

  Args:
    config: gives `replay.batch_size` and `sampler.top_k`.
    chosen: result of `choose`.
    generate_fn: `sampler.generate`; this adds temperature, top_k and top_p.
    logprobs_fn: `scoring.token_logprobs`, to which this adds temperature.
    pieces: of a generation, to whose `step` this adds the same; or None.
    hyper: numbers as `numbers` returns them, or arrays `[]`.
  """

  def bound(field, **offered) -> Any:
    if field not in chosen:
      return None
    return chosen[field].bind(hyper.get(field, {}), **offered)

  temperature = hyper['sampler']['temperature']
  if pieces is not None:
    sampling_of_run = {'top_k': config.sampler.top_k, 'top_p': None}
    step = functools.partial(
      pieces.step, **{**sampling_of_run, **hyper['sampler']}
    )
    pieces = pieces._replace(step=step)
  rates = dict(hyper['optimizer'])
  max_grad_norm = rates.pop('max_grad_norm')
  make_gate = bound('optimizer.gate')
  return state.Functions(
    generate_fn=functools.partial(
      generate_fn, top_k=config.sampler.top_k, **hyper['sampler']
    ),
    evaluate_fn=functools.partial(generate_fn, **hyper['evaluation']),
    pieces=pieces,
    update=learner.UpdateFunctions(
      logprobs_fn=functools.partial(logprobs_fn, temperature=temperature),
      loss_fn=bound('loss.policy'),
      statistics_fn=bound('loss.statistics'),
      normalizer_fn=bound('loss.normalizer'),
      row_weight_fn=bound('loss.row_weights'),
      optimizer=optimizers.clipped(
        bound('optimizer.transform'),
        functools.partial(optimizers.warmed_up, **rates),
        max_grad_norm,
      ),
      gate=make_gate() if make_gate else None,
    ),
    advantage_fn=bound('loss.advantage'),
    compose_fn=bound(
      'replay.compose',
      weight_rule=bound('replay.weights'),
      draw=bound('replay.draw'),
      batch_size=config.replay.batch_size,
    ),
    batch_advantage_fn=bound('loss.batch_advantage'),
    keep_rule=bound('replay.keep'),
    feedback_fn=bound('replay.feedback'),
    choose_prompts_fn=bound('sampler.prompts'),
  )
