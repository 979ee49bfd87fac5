"""Prompts of text problems, as a pure function of the seed and the iteration.

There is no iterator, and the only state is the number of the iteration, which a
checkpoint holds: a run that continues sees the prompts that it would have seen.
"""

import string
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Annotated
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl import base
from replay_rl import constants
from replay_rl.lm import chat_template
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.tasks import task
from replay_rl.tasks.text import problems as problems_lib

try:
  import grain
except ImportError as error:
  raise ImportError(
    "package = 'grain': must be installed; pip install -e '.[math]'"
  ) from error

# From the model card of Qwen3: https://huggingface.co/Qwen/Qwen3-8B
BOXED = (
  '{problem}\nPlease reason step by step, and put your final answer within '
  '\\boxed{{}}.'
)
# The system message of Qwen2.5-Math, whose user message is `PROBLEM`:
# https://huggingface.co/Qwen/Qwen2.5-Math-7B-Instruct
BOXED_SYSTEM = (
  'Please reason step by step, and put your final answer within \\boxed{}.'
)
PROBLEM = '{problem}'
# For GSM8K, whose answers have this form:
# https://github.com/volcengine/verl, examples/data_preprocess/gsm8k.py
GSM8K = (
  "{problem} Let's think step by step and output the final answer after "
  '"####".'
)
# For base models:
# https://github.com/EleutherAI/lm-evaluation-harness, lm_eval/tasks/gsm8k
QUESTION = 'Question: {problem}\nAnswer:'


class Chat(NamedTuple):
  """How a prompt becomes messages.

  system: the system message; None for none.
  variables: further arguments of `Tokenizer.chat`, such as `enable_thinking`.
  """

  system: str | None
  variables: Mapping[str, Any]


class Table(NamedTuple):
  """The problems of a set as prompts, in order.

  tokens: `[N, L]` int32, right-padded.
  lengths: `[N]` int32, tokens of each prompt.
  rows: `[N]` int32, the index of each prompt's problem in the set.
  num_dropped: problems of the set that have no prompt here, as it is too long.
  longest: tokens of the longest prompt of the set.
  bos_ids: tokens that `make` put before prompts that did not begin with them;
    () for none.
  """

  tokens: np.ndarray
  lengths: np.ndarray
  rows: np.ndarray
  num_dropped: int
  longest: int
  bos_ids: tuple[int, ...]


@constants.checked
def rows(
  source_length: int,
  *,
  seed: Annotated[int, constants.SEED],
  iteration: Annotated[int, constants.NON_NEGATIVE],
  num_prompts: task.Size,
) -> np.ndarray:
  """Returns the problems of an iteration.

  An epoch has each problem once, in an order that depends on the seed and the
  epoch. Each iteration takes the next `num_prompts` problems, from two epochs
  if one ends.

  Args:
    source_length: N, problems; at least 1.
    seed: decides the order.
    iteration: counted from 0.
    num_prompts: P, problems of an iteration.

  Returns:
    `[P]` int32, in `[0, N)`.

  Raises:
    ValueError: an argument is outside its interval.
  """
  if source_length < 1:
    raise ValueError(f'source_length = {source_length}: must be at least 1')
  # `seed` hashes. `shuffle(seed=...)` would add the epoch to the seed, so that
  # the second epoch of seed 0 would be the first epoch of seed 1. grain takes
  # about a millisecond a prompt for a set of a hundred problems, and far less
  # for thousands, since it walks a domain of fixed size.
  order = grain.MapDataset.range(source_length).seed(seed).shuffle().repeat()
  start = iteration * num_prompts
  return np.array([order[start + i] for i in range(num_prompts)], np.int32)


@constants.checked
def make(
  problems: Sequence[problems_lib.Problem],
  tokenizer: tokenizer_lib.Tokenizer,
  template: str,
  *,
  max_prompt_tokens: task.Size,
  drop_long_prompts: bool,
  chat: Chat | None = None,
  drop_setting: str | None = None,
) -> Table:
  """Returns problems as prompts, tokenized once.

  A text that is no chat gets what the tokenizer puts before a text, such as
  the beginning-of-sequence token of Llama 3, unless it begins with it. A chat
  template has that token itself. Nothing else is put before or after a prompt.

  Args:
    problems: at least one.
    tokenizer: of the model.
    template: a format string with the one field `{problem}`; other braces are
      doubled. See the constants of this module.
    max_prompt_tokens: L.
    drop_long_prompts: leave out problems with longer prompts. The table counts
      them.
    chat: makes the prompt a message of the user; None for text alone.
    drop_setting: the setting with which a user of the calling program sets
      `drop_long_prompts`, for errors; None if it has none.

  Raises:
    ValueError: the template is not as above, a prompt has no tokens, no prompt
      is left, or a prompt is too long and may not be dropped.
  """
  _check_template(template)
  bos_ids = tokenizer.bos_ids if chat is None else ()
  prompts, has_own_bos = [], True
  for problem in problems:
    text = template.format(problem=problem.problem)
    if chat is not None:
      text = _as_messages(tokenizer, text, chat)
    ids = tokenizer.encode(text)
    if not ids:
      raise ValueError(f'prompt of {problem.id!r} = []: must have a token')
    if tuple(ids[: len(bos_ids)]) != bos_ids:
      ids, has_own_bos = [*bos_ids, *ids], False
    prompts.append(ids)
  longest = max((len(prompt) for prompt in prompts), default=0)
  kept = [i for i, p in enumerate(prompts) if len(p) <= max_prompt_tokens]
  num_dropped = len(prompts) - len(kept)
  if num_dropped and not drop_long_prompts:
    how = f', or {drop_setting} must be True' if drop_setting else ''
    raise ValueError(
      f'max_prompt_tokens = {max_prompt_tokens}: must be at least {longest}, '
      f'as {num_dropped} of {len(prompts)} prompts are longer{how}'
    )
  if not kept:
    raise ValueError(
      f'max_prompt_tokens = {max_prompt_tokens}: must leave a prompt; of '
      f'{len(prompts)} prompts, {num_dropped} are longer'
    )
  tokens = np.full((len(kept), max_prompt_tokens), tokenizer.pad_id, np.int32)
  for position, row in enumerate(kept):
    tokens[position, : len(prompts[row])] = prompts[row]
  return Table(
    tokens=tokens,
    lengths=np.array([len(prompts[row]) for row in kept], np.int32),
    rows=np.array(kept, np.int32),
    num_dropped=num_dropped,
    longest=longest,
    bos_ids=() if has_own_bos else bos_ids,
  )


def describe_bos(table: Table, tokenizer: tokenizer_lib.Tokenizer) -> str:
  """Returns what `make` put before the prompts, as text for people."""
  text = tokenizer.decode(table.bos_ids, skip_special=False)
  return f'each prompt begins with {text!r}, as the tokenizer begins a text'


def take(table: Table, positions: np.ndarray) -> base.Prompts:
  """Returns some prompts of a table.

  Args:
    table: from `make`.
    positions: `[P]` int, in `[0, N)`, such as from `rows`.

  Returns:
    Prompts of NumPy arrays. References are `[P]` int32, the index of each
    problem in the set; so is `prompt_id`.
  """
  # The caller places the arrays on devices.
  fields: base.PyTree = (
    table.tokens[positions],
    table.lengths[positions],
    table.rows[positions].astype(np.uint32),
    table.rows[positions],
  )
  return base.Prompts(*fields)


def _as_messages(
  tokenizer: tokenizer_lib.Tokenizer, text: str, chat: Chat
) -> str:
  chat_template.check_names(chat.variables)
  messages = [{'role': 'user', 'content': text}]
  if chat.system is not None:
    messages.insert(0, {'role': 'system', 'content': chat.system})
  return tokenizer.chat(
    messages, add_generation_prompt=True, **dict(chat.variables)
  )


def _check_template(template: str) -> None:
  try:
    parsed = list(string.Formatter().parse(template))
  except ValueError as error:
    raise ValueError(
      f'template = {template!r}: must be a format string ({error})'
    ) from error
  fields = [field for _, *field in parsed if field[0] is not None]
  if fields != [['problem', '', None]]:
    names = [field[0] for field in fields]
    raise ValueError(
      f'template = {template!r}: must have the one field {{problem}}, not '
      f'{names}, and double other braces'
    )
