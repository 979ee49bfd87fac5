"""A text run that takes a second: one-digit answers, a tokenizer of 300."""

import pathlib

from replay_rl.run import config as config_lib
from replay_rl.tasks.text import datasets
from replay_rl.tasks.text import problems as problems_lib
from tests import tiny
from tests import tiny_tokenizer

PROBLEMS = tuple(
  problems_lib.Problem(f'p{i}', f'What is {i} + 1?', str(i + 1))
  for i in range(8)
)
HELD_OUT = tuple(
  problems_lib.Problem(f'h{i}', f'What is {i} + 2?', str(i + 2))
  for i in range(6)
)


def settings(folder: pathlib.Path, **changes) -> config_lib.Text:
  """Writes data set and tokenizer to a folder; returns their settings."""
  words = folder / 'tokenizer'
  if not words.exists():
    words.mkdir(parents=True)
    tiny_tokenizer.write(words)
    datasets.prepare(
      {'train': PROBLEMS, 'test': HELD_OUT}, name='sums', out=folder / 'data'
    )
  problems = folder / 'data' / 'problems' / 'sums' / datasets.VERSION
  return config_lib.Text(
    **{
      'problems': str(problems),
      'split': 'train',
      'evaluation_problems': str(problems),
      'evaluation_split': 'test',
      'tokenizer': str(words),
      'template': 'Question: {problem}\nAnswer:',
      'use_chat_template': False,
      'system_message': None,
      'chat_variables': None,
      'max_prompt_tokens': 32,
      'drop_long_prompts': False,
      'max_new_tokens': 8,
      'num_workers': 1,
      'answer_timeout': 5.0,
      'memory_limit': 2**31,
      'max_answer_chars': 100,
      'judge_every': None,
      'reward_fn': None,
    }
    | changes
  )


def config(folder: pathlib.Path, **changes) -> config_lib.Config:
  """Returns the config of the run; `changes` are those of `tiny.config`."""
  text = {
    name.removeprefix('text__'): changes.pop(name)
    for name in list(changes)
    if name.startswith('text__')
  }
  return tiny.config(
    **{
      'task': 'problems()',
      # Random weights write a digit now and then, and each digit is an answer.
      'reward': 'correctness() + format_bonus(weight=0.5)',
      'text': settings(folder, **text),
      'warm_start__num_steps': 0,
      'sampler__group_size': 8,
    }
    | changes
  )
