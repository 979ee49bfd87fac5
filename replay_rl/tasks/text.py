"""Problems in text: prompts from a data set, answers judged by a verifier."""

import functools
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from replay_rl import base
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.tasks import extraction
from replay_rl.tasks import problems as problems_lib
from replay_rl.tasks import prompt_stream
from replay_rl.tasks import task
from replay_rl.tasks import verifiers

# (is_correct [B], is_formatted [B], lengths [B], is_finished [B]) -> [B]
ShapingFn = Callable[
  [np.ndarray, np.ndarray, np.ndarray, np.ndarray], base.Array
]
PoolFn = Callable[[], verifiers.Pool]


def make(
  *,
  problems: str,
  evaluation_problems: str | None,
  tokenizer: str,
  template: str,
  use_chat_template: bool,
  system_message: str | None,
  max_prompt_tokens: int,
  drop_long_prompts: bool,
  max_new_tokens: int,
  reward_fn: ShapingFn,
  num_workers: int,
  answer_timeout: float,
  memory_limit: int,
  max_answer_chars: int,
) -> task.TextTask:
  """Returns the task of answering problems.

  Args:
    problems: folder of prepared problems, to learn from.
    evaluation_problems: another one, to evaluate on; None for none.
    tokenizer: folder of the model's tokenizer.
    template: see `prompt_stream.make`.
    use_chat_template: make the prompt a message of the user.
    system_message: goes before it; None for none.
    max_prompt_tokens: L.
    drop_long_prompts: leave out problems with longer prompts.
    max_new_tokens: R.
    reward_fn: see `rewards`.
    num_workers: processes that verify; they start with the first response.
    answer_timeout: seconds, see `verifiers.Pool`.
    memory_limit: bytes, see `verifiers.Pool`.
    max_answer_chars: see `verifiers.Pool`.

  Raises:
    ValueError: an argument is outside its range, or files are missing.
  """
  if system_message is not None and not use_chat_template:
    raise ValueError(
      f'system_message = {system_message!r}: must be None without '
      'use_chat_template'
    )
  words = tokenizer_lib.load(tokenizer)
  as_prompts = functools.partial(
    prompt_stream.make,
    tokenizer=words,
    template=template,
    max_prompt_tokens=max_prompt_tokens,
    drop_long_prompts=drop_long_prompts,
    chat=prompt_stream.Chat(system_message, {}) if use_chat_template else None,
  )
  learned = problems_lib.load(problems)
  evaluated = problems_lib.load(evaluation_problems) if evaluation_problems else []
  # Rows of the problems to evaluate on come after those to learn from.
  both = [*learned, *evaluated]
  table = as_prompts(learned)
  notes = [_describe('problems', learned, table)]
  eval_prompts_fn = None
  if evaluated:
    eval_table = as_prompts(evaluated)
    notes.append(_describe('evaluation_problems', evaluated, eval_table))
    eval_prompts_fn = functools.partial(
      _first_prompts, eval_table, first_row=len(learned)
    )
  pool_fn = functools.cache(
    lambda: verifiers.Pool(
      num_workers=num_workers,
      answer_timeout=answer_timeout,
      memory_limit=memory_limit,
      max_answer_chars=max_answer_chars,
    )
  )
  return task.TextTask(
    vocab_size=words.vocab_size,
    prompt_length=max_prompt_tokens,
    max_new_tokens=max_new_tokens,
    eos_ids=words.eos_ids,
    pad_id=words.pad_id,
    prompts_fn=functools.partial(_prompts, table),
    eval_prompts_fn=eval_prompts_fn,
    judge_fn=functools.partial(
      judge,
      tokenizer=words,
      problems=both,
      reward_fn=reward_fn,
      pool_fn=pool_fn,
    ),
    reference_fn=lambda row: both[row].answer,
    decode_fn=functools.partial(words.decode, skip_special=False),
    statuses=tuple(_as_name(status) for status in verifiers.STATUSES),
    notes=tuple(notes),
    close_fn=lambda: pool_fn().close() if pool_fn.cache_info().currsize else None,
  )
