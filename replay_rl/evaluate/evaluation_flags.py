"""The flags of `python -m replay_rl.evaluate`, and the settings they make."""

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from replay_rl import constants
from replay_rl import overrides
from replay_rl.bucket import reading
from replay_rl.disk import paths
from replay_rl.evaluate import run_weights
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import config as config_lib
from replay_rl.tasks.text import prompt_stream

# Values of the flags that are not given, with --model.
_DEFAULTS = {
  'template': prompt_stream.BOXED,
  'system': None,
  'max_prompt_tokens': 1024,
  'compute_dtype': 'bfloat16',
  'mesh': {'data': -1, 'fsdp': 1, 'tensor': 1},
  'num_workers': 2,
  'answer_timeout': 5.0,
  'memory_limit': 2**30,
  'max_answer_chars': 1000,
}
# (temperature, top_p) of the protocols of https://arxiv.org/abs/2604.08706 for
# one sample and for several.
_ONE, _SEVERAL = (0.1, 0.95), (1.0, None)
_COUNT = constants.interval(f'[1, {constants.MAX_INT32}]')
_OF_RUN = constants.of_function(config_lib.Text)
_WEIGHT = constants.interval('[0, 1e+06]')
# Ranges of numbers that are given; a temperature may also be 0.
_ALLOWED = {
  'n': _COUNT,
  'temperature': constants.TEMPERATURE,
  'top_p': constants.interval('(0, 1]'),
  'top_k': _COUNT,
  'batch_size': _COUNT,
  'eval_seed': constants.SEED,
  'max_answer_chars': _COUNT,
  'aes_omega': _WEIGHT,
  'aes_beta': _WEIGHT,
  'aes_gamma': _WEIGHT,
} | {
  name: _OF_RUN[name].interval
  for name in (
    *('max_prompt_tokens', 'max_new_tokens', 'num_workers'),
    *('answer_timeout', 'memory_limit'),
  )
}


class EvaluationSettings(NamedTuple):
  """JSON values that, with weights and problems, determine the samples.

  A field has the name of the flag that sets it. `top_p` and `top_k` are None
  for all tokens; `step` and `seed` are None with --model.
  """

  model: str | None
  workdir: str | None
  step: int | None
  seed: int | None
  tokenizer: str
  template: str
  chat: bool
  system: str | None
  chat_variables: dict[str, Any]
  n: int
  temperature: float
  top_p: float | None
  top_k: int | None
  max_prompt_tokens: int
  max_new_tokens: int
  batch_size: int
  eval_seed: int
  compute_dtype: str
  answer_timeout: float
  memory_limit: int
  max_answer_chars: int
  mesh: dict[str, int]


def parse(arguments: list[str] | None) -> argparse.Namespace:
  """Returns the flags; ends the process with a line if one is wrong."""
  parser = argparse.ArgumentParser(
    prog='python -m replay_rl.evaluate',
    description='Samples a language model on benchmarks and judges the '
    'answers. The same command again continues where it stopped. Scores have '
    'Wilson intervals over problems.',
    epilog='example:\n  python -m replay_rl.evaluate --workdir=runs/gsm8k '
    '--benchmarks=math500 \\\n    --data_dir=data --n=16 --temperature=0.6 '
    '--out=runs/gsm8k/scores',
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )

  def add(flag, text, kind: Callable = str, default=None, **kwargs):
    if flag in _DEFAULTS:
      text += f' (default with --model: {json.dumps(_DEFAULTS[flag])})'
    elif default is not None:
      text += f' (default: {json.dumps(default)})'
    text = text.replace('%', '%%')
    parser.add_argument(
      f'--{flag}', help=text, type=kind, default=default, **kwargs
    )

  path = paths.path
  add('model', 'Hugging Face folder; this or --workdir', paths.text)
  add(
    'workdir',
    'folder of a run, or its address; sets all flags not given',
    reading.text,
  )
  add(
    'step',
    'iterations of the checkpoint (default: the newest)',
    overrides.integer,
  )
  add('seed', 'seed of the run, if it trained several', overrides.integer)
  add('benchmarks', 'names with commas between them', _names, required=True)
  add(
    'data_dir',
    'folder with NAME.jsonl of {id, problem, answer}, or datasets of '
    'scripts/prepare_data.py',
    path,
    required=True,
  )
  add('out', 'folder to write', path, required=True)
  add('n', 'samples per problem', overrides.integer, 1)
  protocol = '(default: {}, and 1 for n > 1, as arXiv 2604.08706)'
  add('temperature', f'0 is greedy {protocol.format(_ONE[0])}', overrides.real)
  add('top_p', f'1 is all tokens {protocol.format(_ONE[1])}', overrides.real)
  add(
    'top_k',
    'most probable tokens to sample among (default: all)',
    overrides.integer,
  )
  add(
    'max_new_tokens',
    'of a response; must be given with --model',
    overrides.integer,
  )
  add('max_prompt_tokens', 'longest prompt', overrides.integer)
  add('tokenizer', "folder (default: that of the model, or the run's)")
  add('template', 'of the prompt; {problem} stands for the problem')
  parser.add_argument(
    '--chat',
    action=argparse.BooleanOptionalAction,
    help="make the prompt a user's message by the model's chat template; "
    '--no-chat samples after the text, which begins as the tokenizer begins a '
    'text; one of the two must be given with --model',
  )
  add('system', 'system message of the chat')
  add(
    'chat_variables',
    'of the chat template, as JSON, such as {"enable_thinking": false}',
    _object,
  )
  add('compute_dtype', 'of the activations')
  add('mesh', 'devices by axis as JSON; -1 for all that are left', _object)
  add('batch_size', 'rows sampled together', overrides.integer, 64)
  add('eval_seed', 'seed of the samples', overrides.integer, 0)
  add('num_workers', 'processes that verify', overrides.integer)
  add('answer_timeout', 'seconds to verify an answer', overrides.real)
  add('memory_limit', 'bytes of a verifier', overrides.integer)
  add('max_answer_chars', 'longer answers are unreadable', overrides.integer)
  add('baseline', '--out of another evaluation', path)
  for name, default, what in (
    ('omega', 1.0, 'length'),
    ('beta', 3.0, 'accuracy gained'),
    ('gamma', 5.0, 'accuracy lost'),
  ):
    text = f'weight of {what} against the baseline; papers: 1, 3, 5 or 1, 5, 10'
    add(f'aes_{name}', text, overrides.real, default)
  add('cache_dir', 'of compiled programs', str, '~/.cache/replay_rl')
  return parser.parse_args(arguments)


def resolve(
  options: argparse.Namespace, run: run_weights.TrainedRun | None
) -> tuple[EvaluationSettings, int]:
  """Returns the settings, and the processes that verify.

  A flag that is not given has the value of the run, else its default.

  Args:
    options: from `parse`.
    run: of --workdir; None with --model.

  Raises:
    ValueError: if a flag is missing, not allowed with another, or out of range.
  """
  of_run: dict[str, Any] = {'tokenizer': options.model}
  if run is not None:
    of_run = vars(run.text) | {
      'chat': run.text.use_chat_template,
      'system': run.text.system_message,
      'compute_dtype': run.model.compute_dtype,
      'mesh': run.mesh,
    }
  elif options.step is not None or options.seed is not None:
    raise ValueError(
      f'step = {options.step}, seed = {options.seed}: must be given only with '
      '--workdir'
    )

  def value(name: str) -> Any:
    for values in (vars(options), of_run, _DEFAULTS):
      if values.get(name) is not None:
        return values[name]
    if name in ('chat', 'max_new_tokens'):
      raise ValueError(f'{name} = None: must be given with --model; see --help')
    return None

  values = {name: value(name) for name in EvaluationSettings._fields}
  if not values['chat']:
    if options.system is not None or options.chat_variables:
      raise ValueError(
        f'system = {options.system!r}, chat_variables = '
        f'{options.chat_variables}: must be given only with --chat'
      )
    # A run may have these, which --no-chat ignores.
    values['system'], values['chat_variables'] = None, None
  values['chat_variables'] = values['chat_variables'] or {}
  values['temperature'], values['top_p'] = _protocol(options)
  values['mesh'] = dict(mesh_lib.make(values['mesh'], field='mesh').shape)
  if run is not None:
    values['step'] = run_weights.pick_step(run.folder, options.step)
    values['seed'] = run_weights.pick_seed(run.folder, run.seeds, options.seed)
  num_workers = value('num_workers')
  numbers = vars(options) | values | {'num_workers': num_workers}
  for name, limits in _ALLOWED.items():
    number = numbers[name]
    if name == 'temperature' and number == 0:
      continue
    if number is not None and limits and number not in limits:
      raise ValueError(
        f'{name} = {constants.shown(number)}: must be in {limits}'
      )
  num_shards = values['mesh']['data'] * values['mesh']['fsdp']
  if values['batch_size'] % num_shards:
    raise ValueError(
      f'batch_size = {values["batch_size"]}: must be a multiple of the '
      f'{num_shards} devices of data and fsdp in --mesh'
    )
  return EvaluationSettings(**values), num_workers


def _protocol(options: argparse.Namespace) -> tuple[float, float | None]:
  """Returns temperature and top_p."""
  temperature, top_p = _ONE if options.n == 1 else _SEVERAL
  if options.temperature == 0:
    if options.n != 1:
      raise ValueError(
        f'n = {options.n}: must be 1 with temperature = 0, since greedy '
        'responses to a problem are all the same'
      )
    if options.top_p is not None or options.top_k is not None:
      raise ValueError(
        f'top_p = {options.top_p}, top_k = {options.top_k}: must not be given '
        'with temperature = 0'
      )
    return 0.0, None
  if options.temperature is not None:
    temperature = options.temperature
  if options.top_p is not None:
    top_p = None if options.top_p == 1 else options.top_p
  return temperature, top_p


def _names(listed: str) -> tuple[str, ...]:
  names = tuple(listed.split(','))
  # They become names of files.
  if len(set(names)) < len(names) or not all(
    name and name == pathlib.PurePath(name).name for name in names
  ):
    raise argparse.ArgumentTypeError(
      f'must be distinct names with commas between them, not {listed!r}'
    )
  return names


def _object(text: str) -> dict[str, Any]:
  try:
    value = overrides.DictParser().parse(text)
  except ValueError:
    value = None
  if not isinstance(value, dict):
    raise argparse.ArgumentTypeError(f'must be a JSON object, not {text!r}')
  return value
