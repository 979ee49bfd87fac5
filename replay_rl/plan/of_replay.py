"""Says how large a buffer and how much reuse would cost the least.

    python -m replay_rl.plan replay --mu=5.28 --rho=0.1 --alpha=0.2

prints the optimum of the paper's closed form. What a saving is depends on the
noise of a fresh rollout, which that form leaves out. With `--tau`, the variance
of a rollout of age s is 1 + (s / tau)^(2 alpha); with `--curve=FILE`, it is the
one measured there. Both print the saving against training without a buffer, how
it depends on mu, rho and the noise, and settings for a run. See
`replay.planner`.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import rich.box
import rich.console
import rich.table
from absl import flags

from replay_rl import command_line
from replay_rl.plan import saving

# Its own flags, so that other programs can be imported beside this one.
FLAGS = flags.FlagValues()
_MU = flags.DEFINE_float(
  'mu',
  None,
  'Cost of generating a rollout, divided by the cost of training on it.',
  flag_values=FLAGS,
)
_RHO = flags.DEFINE_float(
  'rho',
  None,
  'Correlation of the gradient noise of stored rollouts.',
  flag_values=FLAGS,
)
_RHO_FRESH = flags.DEFINE_float(
  'rho_fresh',
  0.0,
  'The same of a fresh rollout with all others of its update together, such as '
  '(G - 1) times that of two of a group; at least -1.',
  flag_values=FLAGS,
)
_ALPHA = flags.DEFINE_float(
  'alpha', None, 'Growth of the noise, see above.', flag_values=FLAGS
)
_TAU = flags.DEFINE_float(
  'tau',
  None,
  'Age, in updates, at which the gradient of a rollout has twice the variance '
  'that it has for a fresh rollout.',
  flag_values=FLAGS,
)
_CURVE = flags.DEFINE_string(
  'curve',
  None,
  'CSV with the columns age and variance, instead of alpha and tau.',
  flag_values=FLAGS,
)
_MAX_X = flags.DEFINE_float(
  'max_x',
  None,
  'Most updates that a rollout may stay; else 10,000 or what was measured.',
  flag_values=FLAGS,
)
_REPLACEMENT = flags.DEFINE_bool(
  'replacement',
  True,
  'Whether a batch may have a rollout twice; without, x >= y.',
  flag_values=FLAGS,
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', None, 'B of the settings; else none.', flag_values=FLAGS
)
_GROUP_SIZE = flags.DEFINE_integer(
  'group_size', None, 'G of the settings.', flag_values=FLAGS
)
_MAX_CAPACITY = flags.DEFINE_integer(
  'max_capacity', 2**20, 'Largest N of the settings.', flag_values=FLAGS
)
_NUM_DEVICES = flags.DEFINE_integer(
  'num_devices',
  None,
  'W + T of an asynchronous run; else none.',
  flag_values=FLAGS,
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print one JSON object instead.', flag_values=FLAGS
)


def lines(result: Mapping[str, Any]) -> list[str]:
  """Returns the sentences of a plan."""
  said = []
  if closed := result['closed_form']:
    said.append(
      'The closed form, with noise (s / tau)^alpha at age s and none at age 0: '
      f'x* = {closed["x"]:.3f} (N / R, updates in the buffer), '
      f'y* = {closed["y"]:.3f} (B / R, mean uses).'
    )
  best = result['optimum']
  if best is None:
    return [
      *said,
      'What it saves is not defined: a fresh rollout without noise would need '
      'no buffer. Give --tau or --curve.',
    ]
  said.append(
    'With the noise of a fresh rollout, and a buffer of one generation or '
    f'more: x* = {best["x"]:.3f}, y* = {best["y"]:.3f}.'
  )
  if best['saving'] > 0:
    said.append(f'It saves {best["saving"]:.1%} of the cost without a buffer.')
  else:
    said.append(
      f'Train without a buffer: with the best one a run would cost '
      f'{-best["saving"]:.1%} more.'
    )
  said.append(
    f"The paper's own comparison would say {best['paper_saving']:.1%}, because "
    'it charges the run without a buffer for one.'
  )
  if split := result['split']:
    said.append(
      f'An asynchronous run does best with {split["num_samplers"]} samplers '
      f'and {split["num_learners"]} learners: x = {split["x"]:.3f}, y = '
      f'{split["y"]:.3f}, saving {split["saving"]:.1%}.'
    )
  return said


def _table(title: str, rows: list[dict[str, Any]]) -> rich.table.Table:
  grid = rich.table.Table(title=title, box=rich.box.SIMPLE_HEAD)
  for name in rows[0]:
    grid.add_column(name, justify='left' if name == 'name' else 'right')
  for row in rows:
    grid.add_row(*(_text(name, value) for name, value in row.items()))
  return grid


def _text(name: str, value: Any) -> str:
  if name in ('saving', 'chosen', 'best'):
    return f'{value:.1%}'
  return f'{value:.3f}' if isinstance(value, float) else str(value)


def main(argv: list[str]) -> None:
  """Prints the plan that the flags ask for."""
  if len(argv) > 1:
    print(f'error: arguments = {argv[1:]}: must be flags', file=sys.stderr)
    sys.exit(2)
  given = {
    'mu': _MU.value,
    'rho': _RHO.value,
    'rho_fresh': _RHO_FRESH.value,
    'alpha': _ALPHA.value,
    'tau': _TAU.value,
    'curve': _CURVE.value,
    'max_x': _MAX_X.value,
    'without_replacement': not _REPLACEMENT.value,
  }
  try:
    result = saving.plan(
      given,
      batch_size=_BATCH_SIZE.value,
      group_size=_GROUP_SIZE.value,
      max_capacity=_MAX_CAPACITY.value,
      num_devices=_NUM_DEVICES.value,
    )
  except (ValueError, OSError) as error:
    print(command_line.last_line(error), file=sys.stderr)
    sys.exit(2)
  if _JSON.value:
    print(json.dumps(result))
    return
  console = rich.console.Console()
  for line in lines(result):
    console.print(line, highlight=False, markup=False)
  if rows := result['sensitivity']:
    console.print(_table('The saving if one input were another', rows))
  if rows := result['settings']:
    console.print(_table('Settings for this batch', rows))
