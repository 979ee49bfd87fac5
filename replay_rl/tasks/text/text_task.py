"""Problems in text: prompts from a data set, answers judged by a verifier."""

import functools
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl import base
from replay_rl import constants
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.tasks import rewards
from replay_rl.tasks import task
from replay_rl.tasks.text import datasets
from replay_rl.tasks.text import problems as problems_lib
from replay_rl.tasks.text import prompt_stream
from replay_rl.tasks.verify import extraction
from replay_rl.tasks.verify import scoring
from replay_rl.tasks.verify import verifier
from replay_rl.tasks.verify import worker

# (prompts, completions, references) -> verdicts
VerifyFn = Callable[[list[str], list[str], list[str]], list['TextVerdict']]


class TextVerdict(NamedTuple):
  """What is said of one completion, by the verifier or a reward function."""

  reward: float
  is_correct: bool
  is_formatted: bool
  status: str


def make(
  *,
  problems: str,
  split: str,
  evaluation_problems: str | None,
  evaluation_split: str | None,
  num_evaluation_prompts: int | None,
  tokenizer: str,
  template: str,
  use_chat_template: bool,
  system_message: str | None,
  chat_variables: Mapping[str, Any] | None,
  max_prompt_tokens: int,
  drop_long_prompts: bool,
  max_new_tokens: int,
  shaping_fn: rewards.RewardTerm,
  num_workers: int,
  answer_timeout: float,
  memory_limit: int,
  max_answer_chars: int,
  reward_fn: str | None,
) -> task.TextTask:
  """Returns the task of answering problems.

  Args:
    problems: folder of prepared problems.
    split: the split of `problems` to learn from.
    evaluation_problems: folder of problems to evaluate on; None for none.
    evaluation_split: the split of that folder; None for none.
    num_evaluation_prompts: how many prompts a caller will ask
      `eval_prompts_fn` for; None if it will not.
    tokenizer: folder of the model's tokenizer.
    template: see `prompt_stream.make`.
    use_chat_template: make the prompt a message of the user.
    system_message: the message before it; None for none.
    chat_variables: further variables of the chat template, as scalars of JSON;
      None for none.
    max_prompt_tokens: L.
    drop_long_prompts: leave out problems with longer prompts.
    max_new_tokens: R.
    shaping_fn: see `rewards`.
    num_workers: processes that verify; they start with the first response.
    answer_timeout: seconds, see `verifier.Verifier`.
    memory_limit: bytes, see `verifier.Verifier`.
    max_answer_chars: see `verifier.Verifier`.
    reward_fn: see `scoring.load`; None for the verifier.

  Raises:
    ValueError: an argument is not as above, files are missing or damaged, the
      verifier would refuse an answer, or there are fewer problems than prompts
      to evaluate on.
  """
  chat = _chat(use_chat_template, system_message, chat_variables)
  words = tokenizer_lib.load(tokenizer)
  as_prompts = functools.partial(
    prompt_stream.make,
    tokenizer=words,
    template=template,
    max_prompt_tokens=max_prompt_tokens,
    drop_long_prompts=drop_long_prompts,
    chat=chat,
    drop_setting='drop_long_prompts',
  )
  evaluated = _evaluated(evaluation_problems, evaluation_split)
  learned = datasets.read(problems, split=split)
  # The problems to evaluate on come after the problems to learn from.
  both = [*learned, *evaluated]
  table = as_prompts(learned)
  tables = {'problems': (learned, table)}
  eval_prompts_fn = None
  if evaluated:
    eval_table = as_prompts(evaluated)
    tables['evaluation_problems'] = (evaluated, eval_table)
    eval_prompts_fn = functools.partial(
      _first_prompts, eval_table, first_row=len(learned)
    )
    if num_evaluation_prompts is not None:
      _check_size(num_evaluation_prompts, eval_table)
  for name, (of_set, kept) in tables.items():
    # The verifier would refuse an answer when it is asked for, after hours.
    asked = [of_set[row] for row in kept.rows]
    problems_lib.check_answers(
      asked, name=name, max_answer_chars=max_answer_chars
    )
  hashes, notes = {}, []
  for name, (of_set, kept) in tables.items():
    hashes[name] = problems_lib.content_hash(of_set)
    notes += _notes(name, of_set, kept, words)
  limits = {
    'num_workers': num_workers,
    'answer_timeout': answer_timeout,
    'memory_limit': memory_limit,
  }
  if reward_fn is None:
    users = ()
    started = functools.cache(
      lambda: verifier.Verifier(max_answer_chars=max_answer_chars, **limits)
    )
    verify_fn = functools.partial(_verified, started)
  else:
    users = (scoring.load(reward_fn),)
    started = functools.cache(
      lambda: scoring.Scorer(scoring.absolute(reward_fn), **limits)
    )
    verify_fn = functools.partial(_scored, started)
  return task.TextTask(
    shape=task.Shape(
      vocab_size=words.vocab_size,
      prompt_length=max_prompt_tokens,
      max_new_tokens=max_new_tokens,
      eos_ids=words.eos_ids,
      pad_id=words.pad_id,
    ),
    prompts_fn=functools.partial(_prompts, table),
    eval_prompts_fn=eval_prompts_fn,
    judge_fn=functools.partial(
      judge,
      tokenizer=words,
      problems=both,
      shaping_fn=shaping_fn,
      verify_fn=verify_fn,
    ),
    reference_fn=lambda row: both[row].answer,
    decode_fn=functools.partial(words.decode, skip_special=False),
    statuses=tuple(_as_name(status) for status in verifier.STATUSES),
    sources={'tokenizer': words.content_hash} | hashes,
    users=users,
    notes=tuple(notes),
    close_fn=functools.partial(_close, started),
  )


def _close(started: Any) -> None:
  """Ends the processes that judge, if they were ever asked for."""
  if started.cache_info().currsize:
    started().close()


def _verified(
  started: Callable[[], verifier.Verifier],
  prompts: list[str],
  completions: list[str],
  references: list[str],
) -> list[TextVerdict]:
  del prompts
  return [
    TextVerdict(
      float(x.is_correct), x.is_correct, x.kind == extraction.BOXED, x.status
    )
    for x in started().judge(completions, references)
  ]


def _scored(
  started: Callable[[], scoring.Scorer],
  prompts: list[str],
  completions: list[str],
  references: list[str],
) -> list[TextVerdict]:
  return [
    TextVerdict(
      score.reward,
      score.status == worker.CORRECT,
      (extraction.extract(text) or ('', ''))[1] == extraction.BOXED,
      score.status,
    )
    for text, score in zip(
      completions,
      started().judge(prompts, completions, references),
      strict=True,
    )
  ]


def judge(
  responses: np.ndarray,
  lengths: np.ndarray,
  is_finished: np.ndarray,
  references: np.ndarray,
  *,
  tokenizer: tokenizer_lib.Tokenizer,
  problems: Sequence[problems_lib.Problem],
  shaping_fn: rewards.RewardTerm,
  verify_fn: VerifyFn,
) -> task.Judgement:
  """Verifies responses and shapes their rewards.

  Args:
    responses: `[B, R]` int32, right-padded.
    lengths: `[B]` int32, tokens of each response.
    is_finished: `[B]` bool, True where the response ended with end-of-sequence.
    references: `[B]` int32, indices in `problems`.
    tokenizer: of the model.
    problems: the problems, with the right answers.
    shaping_fn: see `rewards`.
    verify_fn: judges texts.
  """
  texts = [
    tokenizer.decode(row[:length], skip_special=True)
    for row, length in zip(responses, lengths, strict=True)
  ]
  verdicts = verify_fn(
    [problems[i].problem for i in references],
    texts,
    [problems[i].answer for i in references],
  )
  shaped = shaping_fn(
    np.array([verdict.reward for verdict in verdicts], np.float32),
    np.array([verdict.is_formatted for verdict in verdicts], np.float32),
    lengths,
    is_finished,
  )
  return task.Judgement(
    rewards=np.asarray(shaped, np.float32),
    is_correct=np.array([verdict.is_correct for verdict in verdicts]),
    statuses=np.array([_as_name(verdict.status) for verdict in verdicts]),
  )


def _prompts(
  table: prompt_stream.Table, seed: int, iteration: int, num_prompts: int
) -> base.Prompts:
  positions = prompt_stream.rows(
    len(table.rows),
    seed=seed,
    iteration=iteration,
    num_prompts=num_prompts,
  )
  return prompt_stream.take(table, positions)


def _first_prompts(
  table: prompt_stream.Table, num_prompts: int, *, first_row: int
) -> base.Prompts:
  _check_size(num_prompts, table)
  # A set is often sorted, so its first problems are not a fair sample.
  prompts = _prompts(table, 0, 0, num_prompts)
  return prompts._replace(
    prompt_id=prompts.prompt_id + np.uint32(first_row),
    references=prompts.references + np.int32(first_row),
  )


def _chat(
  use_chat_template: bool,
  system_message: str | None,
  variables: Mapping[str, Any] | None,
) -> prompt_stream.Chat | None:
  if use_chat_template:
    _check_variables(variables)
    return prompt_stream.Chat(system_message, variables or {})
  if system_message is not None or variables is not None:
    raise ValueError(
      f'system_message = {system_message!r}, chat_variables = {variables}: '
      'must be None without use_chat_template'
    )
  return None


def _evaluated(
  folder: str | None, split: str | None
) -> list[problems_lib.Problem]:
  if (folder is None) != (split is None):
    raise ValueError(
      f'evaluation_problems = {folder!r} and evaluation_split = {split!r}: '
      'must both be given, or both be None'
    )
  if folder is None or split is None:
    return []
  return datasets.read(folder, split=split)


def _check_variables(variables: Mapping[str, Any] | None) -> None:
  # An empty dict would mean the same as None, but be another record.
  if variables is not None and not (
    variables
    and all(isinstance(name, str) and name.isidentifier() for name in variables)
    and all(
      value is None
      or isinstance(value, bool | int | str)
      or (isinstance(value, float) and math.isfinite(value))
      for value in variables.values()
    )
  ):
    raise ValueError(
      f'chat_variables = {constants.shown(variables)}: must be None, or have '
      'at least one name with a text, a finite number, a bool or None'
    )


def _check_size(num_prompts: int, table: prompt_stream.Table) -> None:
  if num_prompts > len(table.rows):
    raise ValueError(
      f'evaluation.num_prompts = {num_prompts}: must be at most the '
      f'{len(table.rows)} problems to evaluate on'
    )


def _notes(
  name: str,
  problems: Sequence[problems_lib.Problem],
  table: prompt_stream.Table,
  tokenizer: tokenizer_lib.Tokenizer,
) -> Iterator[str]:
  yield (
    f'{name}: {len(problems)} problems, of which {table.num_dropped} are too '
    f'long and left out; the longest prompt has {table.longest} tokens'
  )
  if table.bos_ids:
    yield f'{name}: {prompt_stream.describe_bos(table, tokenizer)}'


def _as_name(status: str) -> str:
  return status.replace(' ', '_')
