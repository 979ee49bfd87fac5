"""Reward functions of a user that workers import; some misbehave on command."""

import os


def share(prompts, completions, references):
  """The share of the reference's characters, and 2 more for the prompt."""
  return [
    sum(x in completion for x in reference) / len(reference)
    + 2 * (prompt in completion)
    for prompt, completion, reference in zip(
      prompts, completions, references, strict=True
    )
  ]


def obey(prompts, completions, references):
  """Does what the first completion says."""
  order = completions[0]
  if order == 'spin':
    while True:
      pass
  elif order == 'exit':
    os._exit(3)
  elif order == 'raise':
    raise KeyError(order)
  elif order == 'is alone':
    return [float(len(prompts) == len(completions) == len(references) == 1)]
  return {
    'none': None,
    'number': 1.0,
    'text': '1',
    'texts': ['1'],
    'two': [1.0, 1.0],
    'nan': [float('nan')],
    'inf': [float('inf')],
    'bool': [True],
    'tuple': (0.25,),
  }[order]


def other_arguments(completions, references):
  return []


not_a_function = 3
