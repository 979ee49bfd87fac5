"""Settings that mean nothing together, or not what their names say.

Each is refused with both fields. A function of the user may be combined with
anything.
"""

from collections.abc import Mapping
from collections.abc import Sequence

from replay_rl import choices
from replay_rl.run import config as config_lib

# Terms to add to a policy loss: alone, they do not read the rewards.
_PENALTIES = {'reference_kl', 'behavior_kl'}
# Functions of replay.compose that use all draws, and not only the first ones.
_WHOLE_DRAWS = ('same_prompt', 'fresh_first', 'pure_buffer')
_UNUSED = ('newest_unused', 'oldest_unused')


def check(
  config: config_lib.Config, chosen: Mapping[str, choices.Choice]
) -> None:
  """Raises ValueError for the first pair of choices that is not allowed."""
  _check_stop(config, chosen)
  _check_prompts(config, chosen)
  _check_truncation(config, chosen)
  _check_penalties(chosen)
  _check_needed(
    chosen,
    *('replay.weights', 'never_used_first', 'replay.draw', ('gumbel_top_k',)),
    reason='a draw with replacement would repeat one unused rollout',
  )
  _check_needed(
    chosen,
    *('loss.policy', 'asymre', 'loss.advantage', ('group_mean_baseline',)),
    reason='its delta_v is in units of reward, and its baseline is the mean '
    'reward of the group',
  )
  _check_needed(
    chosen,
    *('loss.policy', 'tba', 'loss.advantage', ('group_mean_baseline',)),
    reason='its beta is in units of reward, and its baseline is the mean '
    'reward of the group',
  )
  for name in 'asymre', 'tba':
    _check_needed(
      chosen,
      *('loss.policy', name, 'loss.batch_advantage', ('None',)),
      reason='it needs the mean reward of the group at generation',
    )
  _check_needed(
    chosen,
    *('replay.draw', 'most_varied', 'replay.compose', _WHOLE_DRAWS),
    reason='its first draws are not the most varied ones of their number',
  )
  _check_needed(
    chosen,
    *('schedule', 'queue', 'replay.weights', _UNUSED),
    reason='a queue gives each rollout once',
  )
  for name in _UNUSED:
    _check_needed(
      chosen,
      *('replay.weights', name, 'replay.draw', ('largest',)),
      reason='its numbers are an order',
    )


def check_decay(
  section: str, learning_rate: float, transform: choices.Choice
) -> None:
  """Raises ValueError if decay would turn weights around, and make them grow.

  A function of the user may mean something else by `weight_decay`.
  """
  decay = transform.scalars.get('weight_decay', 0.0)
  if not transform.record['functions'] and learning_rate * decay > 1:
    raise ValueError(
      f'{section}.transform.weight_decay = {decay}: must be at most 1 / '
      f'{section}.learning_rate = {1 / learning_rate:g}, the decay of all of a '
      'weight in an update'
    )


def truncation(sampler: config_lib.Sampler) -> str | None:
  """Returns the setting with which a sampler leaves out tokens, if it does.

  Their probabilities are then those of the tokens that are left. A ratio of the
  learner's would not be 1 on rollouts of the same weights.
  """
  if sampler.top_k is not None:
    return f'sampler.top_k = {sampler.top_k}: must be None'
  if sampler.top_p not in (None, 1.0):
    return f'sampler.top_p = {sampler.top_p}: must be None or 1'
  return None


def _check_stop(
  config: config_lib.Config, chosen: Mapping[str, choices.Choice]
) -> None:
  if 'level' in _names(chosen, 'stop') and not config.evaluation.is_on:
    raise ValueError(
      f'stop = {config.stop!r}: must have no level where nothing is evaluated '
      '(evaluation.every = 0, evaluation.every_cost = None)'
    )


def _check_prompts(
  config: config_lib.Config, chosen: Mapping[str, choices.Choice]
) -> None:
  if 'sampler.prompts' not in chosen or config.text is None:
    return
  if _names(chosen, 'sampler.prompts') != {'in_order'}:
    raise ValueError(
      f'sampler.prompts = {chosen["sampler.prompts"].text!r}: must be '
      f"'in_order()' for task = {config.task!r}, whose prompts come from the "
      'host'
    )


def _check_truncation(
  config: config_lib.Config, chosen: Mapping[str, choices.Choice]
) -> None:
  """Raises ValueError if a gate or a feedback reads the ratio."""
  told = truncation(config.sampler)
  for field, name in (
    ('optimizer.gate', 'ess_scaled_rate'),
    ('replay.feedback', 'reweighted_advantage_magnitude'),
  ):
    if told and name in _names(chosen, field):
      raise ValueError(
        f'{told} with {field} = {chosen[field].text!r}, whose ratio would not '
        'be 1 on rollouts of the same weights'
      )


def _check_penalties(chosen: Mapping[str, choices.Choice]) -> None:
  names = _names(chosen, 'loss.policy')
  if names and names <= _PENALTIES and not chosen['loss.policy'].users:
    raise ValueError(
      f'loss.policy = {chosen["loss.policy"].text!r}: must have a loss that '
      'reads the advantages beside its penalties'
    )


def _check_needed(
  chosen: Mapping[str, choices.Choice],
  field: str,
  name: str,
  other: str,
  needed: Sequence[str],
  *,
  reason: str,
) -> None:
  """Raises ValueError if `name` is chosen without one of those it needs."""
  if name not in _names(chosen, field) or other not in chosen:
    return
  if chosen[other].users or _names(chosen, other) & set(needed):
    return
  raise ValueError(
    f'{other} = {chosen[other].text!r}: must be {" or ".join(needed)}, because '
    f'{field} = {chosen[field].text!r}; {reason}'
  )


def _names(chosen: Mapping[str, choices.Choice], field: str) -> set[str]:
  """Returns the functions of the package that a field names."""
  if field not in chosen:
    return set()
  return {
    reference
    for reference, of_user, *_ in chosen[field].program
    if of_user is None
  }
