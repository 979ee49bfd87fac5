"""Prompts of text problems, as a pure function of the seed and the iteration.

There is no iterator and no state beside the number of the iteration, which a
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
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.tasks import task
from replay_rl.tasks.text import problems as problems_lib

try:
  import grain
except ImportError as error:
  raise ImportError("Prompt streams need: pip install -e '.[math]'") from error

# Of the model card of Qwen3: https://huggingface.co/Qwen/Qwen3-8B
BOXED = (
  '{problem}\nPlease reason step by step, and put your final answer within '
  '\\boxed{{}}.'
)
# The system message of Qwen2.5-Math; the user's is the bare `PROBLEM`:
# https://huggingface.co/Qwen/Qwen2.5-Math-7B-Instruct
BOXED_SYSTEM = (
  'Please reason step by step, and put your final answer within \\boxed{}.'
)
PROBLEM = '{problem}'
# For GSM8K, whose own answers end so:
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

  system: the system message; None if there is none.
  variables: further ones for `Tokenizer.chat`, such as `enable_thinking`.
  """

  system: str | None
  variables: Mapping[str, Any]


class Table(NamedTuple):
  """All problems of a set as prompts, in order.

  tokens: `[N, L]` int32, right-padded.
  lengths: `[N]` int32, tokens of each prompt.
  rows: `[N]` int32, the index of each in the problems that it was made of.
  num_dropped: problems left out because their prompts are too long.
  longest: tokens of the longest prompt, dropped ones included.
  """

  tokens: np.ndarray
  lengths: np.ndarray
  rows: np.ndarray
  num_dropped: int
  longest: int


@constants.checked
def rows(
  source_length: int,
  *,
  seed: Annotated[int, constants.NON_NEGATIVE],
  iteration: Annotated[int, constants.NON_NEGATIVE],
  num_prompts: task.Size,
) -> np.ndarray:
  """Returns which problems are asked in an iteration.

  The problems are asked epoch after epoch, each once in an epoch, in an order
  drawn anew from the seed and the epoch. Iterations take `num_prompts` after
  another and may end one epoch and begin the next.

  Args:
    source_length: N, problems; at least 1.
    seed: of the order.
    iteration: counted from 0.
    num_prompts: of an iteration.

  Returns:
    `[num_prompts]` int32, in `[0, N)`.

  Raises:
    ValueError: an argument is outside its interval.
  """
  if source_length < 1:
    raise ValueError(f'source_length = {source_length}: must be at least 1')
  # `shuffle(seed=...)` would add the epoch to the seed: the second epoch of
  # seed 0 would be the first of seed 1. `seed` hashes first.
  # A set of a hundred problems takes about a millisecond a prompt, of thousands
  # far less: grain walks a domain of fixed size.
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
) -> Table:
  """Returns problems as prompts, tokenized once.

  Nothing is put before or after the template: a beginning-of-sequence token,
  where a model wants one, is written in it, or comes with the chat template.

  Args:
    problems: at least one.
    tokenizer: of the model.
    template: a format string with the one field `{problem}`; other braces are
      doubled. See the constants of this module.
    max_prompt_tokens: L.
    drop_long_prompts: leave out problems with longer prompts. They are counted
      in the table.
    chat: lay the prompt out as a user's message; None for text alone.

  Raises:
    ValueError: if the template is wrong, a prompt has no tokens, nothing is
      left, or prompts are too long and may not be dropped.
  """
  _check_template(template)
  prompts = []
  for problem in problems:
    text = template.format(problem=problem.problem)
    if chat is not None:
      text = _as_messages(tokenizer, text, chat)
    prompts.append(tokenizer.encode(text))
    if not prompts[-1]:
      raise ValueError(f'problem {problem.id!r}: its prompt has no tokens.')
  longest = max((len(prompt) for prompt in prompts), default=0)
  kept = [i for i, p in enumerate(prompts) if len(p) <= max_prompt_tokens]
  num_dropped = len(prompts) - len(kept)
  if num_dropped and not drop_long_prompts:
    raise ValueError(
      f'max_prompt_tokens = {max_prompt_tokens}, but {num_dropped} of '
      f'{len(prompts)} prompts are longer; the longest has {longest} tokens. '
      'Raise the limit, or allow drop_long_prompts.'
    )
  if not kept:
    raise ValueError(
      f'no prompts: of {len(prompts)} problems, {num_dropped} were dropped, '
      f'being longer than max_prompt_tokens = {max_prompt_tokens}.'
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
  )


def take(table: Table, positions: np.ndarray) -> base.Prompts:
  """Returns some prompts of a table.

  Args:
    table: made by `make`.
    positions: `[P]` int, in `[0, N)`, such as those of `rows`.

  Returns:
    Prompts of NumPy arrays. References are `[P]` int32, the index of each
    problem in those that the table was made of; its answer is looked up there.
    `prompt_id` is the same number.
  """
  # NumPy arrays, because they have yet to be placed on the devices.
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
    raise ValueError(f'template = {template!r}: {error}') from error
  fields = [field for _, *field in parsed if field[0] is not None]
  if fields != [['problem', '', None]]:
    found = [field[0] for field in fields]
    raise ValueError(
      f'template = {template!r} has the fields {found}, must have the one '
      'field {problem}, and double other braces.'
    )
