"""The flags of `python -m replay_rl.evaluate`, and the settings they make."""

import argparse
import json
import pathlib
from typing import Any
from typing import NamedTuple

from replay_rl.evaluate import evaluated
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.tasks.text import prompt_stream

# Where a flag is not given and there is no run to take it from.
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
# The protocols of https://arxiv.org/abs/2604.08706, for one sample and for
# several, as (temperature, top_p).
_ONE, _SEVERAL = (0.1, 0.95), (1.0, None)


class Settings(NamedTuple):
  """All that samples depend on, but for weights and problems; JSON values.

  Fields are named as the flags that set them. `top_p` and `top_k` are None for
  all tokens; `step` and `seed` are None for a model that is not of a run.
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
    'answers. The same command again continues where it stopped.',
    allow_abbrev=False,
  )

  def add(flag, **kwargs):
    parser.add_argument(f'--{flag}', **kwargs)

  def add_int(flag, text, **kwargs):
    add(flag, type=int, help=text, **kwargs)

  add('model', help='Hugging Face folder; this or --workdir')
  add('workdir', help='folder of a run, which sets all flags not given')
  add_int('step', 'checkpoint of the run, in iterations (default: the newest)')
  add_int('seed', 'seed of the run, if it trained several')
  add(
    'benchmarks',
    required=True,
    type=_names,
    help='names with commas between them',
  )
  add(
    'data_dir',
    required=True,
    type=pathlib.Path,
    help='folder with NAME.jsonl of {id, problem, answer}, or datasets of '
    'scripts/prepare_data.py',
  )
  add('out', required=True, type=pathlib.Path, help='folder to write')
  add_int('n', 'samples per problem (default: %(default)s)', default=1)
  add(
    'temperature',
    type=float,
    help='0 is greedy (default: 0.1, and 1 for n > 1, as arXiv 2604.08706)',
  )
  add(
    'top_p',
    type=float,
    help='1 is all (default: 0.95, and 1 for n > 1, as arXiv 2604.08706)',
  )
  add_int('top_k', 'most probable tokens to sample among (default: all)')
  add_int('max_new_tokens', 'of a response; must be given with --model')
  add_int('max_prompt_tokens', 'longest prompt (default with --model: 1024)')
  add('tokenizer', help="folder (default: that of the model, or the run's)")
  add(
    'template',
    help='of the prompt; {problem} stands for the problem (default with '
    '--model: ' + repr(prompt_stream.BOXED).replace('%', '%%') + ')',
  )
  add(
    'chat',
    action=argparse.BooleanOptionalAction,
    help="make the prompt a user's message by the model's chat template; one "
    'of the two must be given with --model',
  )
  add('system', help='system message of the chat (default with --model: none)')
  add(
    'chat_variables',
    type=_object,
    default={},
    help='for the chat template, as JSON, such as {"enable_thinking": false}',
  )
  add('compute_dtype', help='default with --model: bfloat16')
  add(
    'mesh',
    type=_object,
    help='devices by axis as JSON, -1 for all that are left (default with '
    '--model: {"data": -1, "fsdp": 1, "tensor": 1})',
  )
  add_int(
    'batch_size', 'rows sampled together (default: %(default)s)', default=64
  )
  add_int('eval_seed', 'of the samples (default: %(default)s)', default=0)
  add_int('num_workers', 'processes that verify (default with --model: 2)')
  add(
    'answer_timeout',
    type=float,
    help='seconds to verify an answer (default with --model: 5)',
  )
  add_int('memory_limit', 'bytes of a verifier (default with --model: 2^30)')
  add_int(
    'max_answer_chars',
    'longer answers are unreadable (default with --model: 1000)',
  )
  add('baseline', type=pathlib.Path, help='--out of another evaluation')
  for name, default, what in (
    ('omega', 1.0, 'length'),
    ('beta', 3.0, 'accuracy gained'),
    ('gamma', 5.0, 'accuracy lost'),
  ):
    add(
      f'aes_{name}',
      type=float,
      default=default,
      help=f'weight of {what} in the score against the baseline (default: '
      '%(default)g; papers use 1, 3, 5 or 1, 5, 10)',
    )
  add(
    'cache_dir',
    default='~/.cache/replay_rl',
    help='of compiled programs (default: %(default)s)',
  )
  return parser.parse_args(arguments)


def resolve(
  options: argparse.Namespace, run: evaluated.Run | None
) -> tuple[Settings, int]:
  """Returns the settings, and the processes that verify.

  A flag that is not given has the value of the run, else its default.

  Args:
    options: from `parse`.
    run: of --workdir; None with --model.

  Raises:
    ValueError: if a flag is missing, not allowed with another, or out of range.
  """
  of_run = {}
  if run is not None:
    of_run = vars(run.text) | {
      'chat': run.text.use_chat_template,
      'system': run.text.system_message,
      'compute_dtype': run.model.compute_dtype,
      'mesh': run.mesh,
    }
  elif options.step is not None or options.seed is not None:
    raise ValueError('--step and --seed belong to --workdir.')

  def value(name):
    for found in (getattr(options, name), of_run.get(name)):
      if found is not None:
        return found
    if name not in _DEFAULTS:
      negated = ' or --no-chat' if name == 'chat' else ''
      raise ValueError(f'--{name}{negated} must be given with --model.')
    return _DEFAULTS[name]

  is_chat = value('chat')
  if not is_chat and (options.system is not None or options.chat_variables):
    raise ValueError('--system and --chat_variables need --chat.')
  temperature, top_p = _protocol(options)
  settings = Settings(
    model=options.model,
    workdir=options.workdir,
    step=None if run is None else evaluated.pick_step(run.folder, options.step),
    seed=None if run is None else evaluated.pick_seed(run, options.seed),
    tokenizer=options.tokenizer or options.model or of_run['tokenizer'],
    template=value('template'),
    chat=is_chat,
    # A run's own is of no use where --no-chat says so.
    system=value('system') if is_chat else None,
    chat_variables=options.chat_variables,
    n=options.n,
    temperature=temperature,
    top_p=top_p,
    top_k=options.top_k,
    max_prompt_tokens=value('max_prompt_tokens'),
    max_new_tokens=value('max_new_tokens'),
    batch_size=options.batch_size,
    eval_seed=options.eval_seed,
    compute_dtype=value('compute_dtype'),
    answer_timeout=value('answer_timeout'),
    memory_limit=value('memory_limit'),
    max_answer_chars=value('max_answer_chars'),
    mesh=dict(mesh_lib.make(value('mesh')).shape),
  )
  _check(settings)
  return settings, value('num_workers')


def _protocol(options: argparse.Namespace) -> tuple[float, float | None]:
  """Returns temperature and top_p."""
  temperature, top_p = _ONE if options.n == 1 else _SEVERAL
  if options.temperature == 0:
    if options.n != 1:
      raise ValueError(
        f'--n={options.n}, must be 1 with --temperature=0: greedy responses to '
        'a problem are all the same.'
      )
    if options.top_p is not None or options.top_k is not None:
      raise ValueError('--top_p and --top_k need --temperature above 0.')
    return 0.0, None
  if options.temperature is not None:
    temperature = options.temperature
  if options.top_p is not None:
    top_p = None if options.top_p == 1 else options.top_p
  return temperature, top_p


def _check(settings: Settings) -> None:
  values = settings._asdict()
  for name, lowest in (
    ('n', 1),
    ('max_prompt_tokens', 1),
    ('max_new_tokens', 1),
    ('batch_size', 1),
    ('eval_seed', 0),
    ('temperature', 0),
  ):
    if not values[name] >= lowest:
      raise ValueError(f'--{name}={values[name]}, must be at least {lowest}.')
  num_shards = settings.mesh['data'] * settings.mesh['fsdp']
  if settings.batch_size % num_shards:
    raise ValueError(
      f'--batch_size={settings.batch_size}, must be a multiple of the '
      f'{num_shards} devices of data and fsdp in --mesh.'
    )


def _names(listed: str) -> tuple[str, ...]:
  names = tuple(listed.split(','))
  # Names become names of files.
  if len(set(names)) < len(names) or not all(
    name and name == pathlib.PurePath(name).name for name in names
  ):
    raise argparse.ArgumentTypeError(
      f'{listed!r} must be distinct names with commas between them'
    )
  return names


def _object(text: str) -> dict[str, Any]:
  try:
    found = json.loads(text)
  except ValueError as error:
    raise argparse.ArgumentTypeError(f'{text!r} is not JSON: {error}') from None
  if not isinstance(found, dict):
    raise argparse.ArgumentTypeError(f'{text!r} must be a JSON object')
  return found
