"""Writes the model of a checkpoint as a folder that transformers loads.

    python -m replay_rl.export --workdir=runs/gsm8k --iteration=1000 --out=model

The folder has the weights (safetensors), config.json, generation_config.json,
the files of the tokenizer, and a model card, README.md, with the settings and
the results of the run. `python -m replay_rl.evaluate --model=model` and
`--config.model.checkpoint=model` read it.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging as absl_logging

import replay_rl
from replay_rl import json_files
from replay_rl.bucket import reading
from replay_rl.disk import paths
from replay_rl.evaluate import run_weights
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.lm.hf import files as hf_files
from replay_rl.lm.hf import layout as hf_layout
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import logs
from replay_rl.run import recorded
from replay_rl.tasks import task as task_lib

_MAX_FILE_BYTES = 5 * 10**9
# Sections of the config that the card lists.
_LISTED = ('sampler', 'replay', 'loss', 'optimizer')
_HEAD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- reinforcement-learning
- replay_rl
---
"""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """What the tokens of a run are.

  Attributes:
    shape: sizes and special tokens of its task.
    bos_id: token that begins a text; None for none.
    folder: of the tokenizer; None for a task without text.
    symbols: the text of each token of a task without text.
  """

  shape: task_lib.Shape
  bos_id: int | None
  folder: pathlib.Path | None
  symbols: tuple[str, ...]


def export(
  folder: pathlib.Path,
  out: pathlib.Path,
  *,
  iteration: int | None,
  seed: int | None,
  dtype: str,
) -> None:
  """Writes the model of a checkpoint.

  Args:
    folder: of the run.
    out: must not exist; its parent must.
    iteration: iterations done at the checkpoint; None for the newest.
    seed: of the run; None if it trained one.
    dtype: 'float32', which keeps every bit, or 'bfloat16'.

  Raises:
    ValueError: there is no such checkpoint, seed or tokenizer, no family of
      models has this architecture, or `out` exists.
  """
  config, commit = recorded.read_config(folder)
  seeds = recorded.seeds(config)
  seed = run_weights.pick_seed(folder, seeds, seed)
  iteration = run_weights.pick_step(folder, iteration)
  words = vocabulary(config)
  transformer = build.transformer_of(config.model, words.shape)
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  params = run_weights.restore(
    *(folder, seeds, transformer),
    step=iteration,
    seed=seed,
    shardings=jax.tree.map(
      lambda _: device, hf_layout.abstract_params(transformer)
    ),
  )
  hf.save(
    out,
    transformer,
    params,
    dtype=dtype,
    max_file_bytes=_MAX_FILE_BYTES,
    max_position_embeddings=_longest(config, words.shape),
    bos_id=words.bos_id,
    eos_ids=words.shape.eos_ids,
    tokenizer_folder=words.folder,
    card=card(
      config,
      words,
      commit=commit,
      measured=_measured(folder, iteration, seed),
      dtype=dtype,
      place=f'iteration {iteration} of seed {seed}',
    ),
  )


def vocabulary(config: config_lib.Config) -> Vocabulary:
  """Returns what the tokens of a run are.

  Raises:
    ValueError: the tokenizer cannot be read.
    ImportError: a package of the extra [math] is missing.
  """
  text = config.text
  if text is None:
    task = build.task(config)
    shape = task.shape
    symbols = tuple(
      task.decode_fn(np.array([token])) for token in range(shape.vocab_size)
    )
    return Vocabulary(shape, None, None, symbols)
  from replay_rl.lm import tokenizer  # Needs the extra [math].

  folder = pathlib.Path(text.tokenizer).expanduser()
  loaded = tokenizer.load(folder)
  shape = task_lib.Shape(
    loaded.vocab_size,
    text.max_prompt_tokens,
    text.max_new_tokens,
    loaded.eos_ids,
    loaded.pad_id,
  )
  bos_id = loaded.bos_ids[0] if loaded.bos_ids else None
  return Vocabulary(shape, bos_id, folder, ())


def _longest(config: config_lib.Config, shape: task_lib.Shape) -> int:
  """Returns the longest context that the weights were trained for, in tokens.

  That is what the pre-trained model says, or else the context of the run.
  """
  if config.model.checkpoint is None:
    return shape.num_tokens
  folder = pathlib.Path(config.model.checkpoint).expanduser()
  numbers = json_files.read_object(
    folder / hf_files.CONFIG, advice=hf_files.download(folder)
  )
  return max(shape.num_tokens, int(numbers['max_position_embeddings']))


def _measured(
  folder: pathlib.Path, iteration: int, seed: int
) -> dict[str, float]:
  """Returns what the run measured up to a checkpoint, by the metrics' names."""
  measured = {}
  for line in logs.read(folder):
    if line['seed'] == seed and line['iteration'] < iteration:
      # An evaluation counts until the next one.
      kept = {x: y for x, y in measured.items() if x.startswith('eval/')}
      measured = kept | {
        name: value for name, value in line.items() if _is_told(name)
      }
  return measured


def _is_told(name: str) -> bool:
  told = ('reward', 'accuracy', 'learner_step', 'replay_ratio')
  return name in told or name.startswith(('eval/', 'ledger/'))


def card(
  config: config_lib.Config,
  words: Vocabulary,
  *,
  commit: str,
  measured: Mapping[str, float],
  dtype: str,
  place: str,
) -> str:
  """Returns the model card, in Markdown.

  Args:
    config: of the run.
    words: its tokens.
    commit: of the code that trained it.
    measured: metrics of the run.
    dtype: of the stored weights.
    place: of the checkpoint in the run, in words.
  """
  fields = config_lib.flatten(config)
  start = config.model.checkpoint or 'random weights'
  settings = {
    name: value
    for name, value in fields.items()
    if name in ('task', 'reward', 'schedule')
    or name.partition('.')[0] in _LISTED
  }
  lines = [
    f'{_HEAD}# {config.name}, {place}',
    '',
    f'Trained from {start} by replay_rl {replay_rl.__version__}, commit '
    f'{commit}: experience replay in RL post-training. The weights are the '
    f"learner's, stored in {dtype}.",
    '',
    *_table('measured', measured),
    '',
    *_table('setting', settings),
    '',
  ]
  if words.folder is None:
    lines += [
      'The task has no text. The tokens, by their numbers from 0: '
      + ' '.join(f'`{symbol}`' for symbol in words.symbols),
    ]
  else:
    assert config.text is not None
    lines += [
      'A prompt of the training, in which the problem stands for `{problem}`:',
      '',
      '```',
      config.text.template,
      '```',
      '',
      'Sent as a message of the user, in the chat template.'
      if config.text.use_chat_template
      else 'Sent as plain text, without a chat template.',
    ]
  return '\n'.join(lines) + '\n'


def _table(name: str, values: Mapping[str, Any]) -> list[str]:
  # A bar would end the cell.
  texts = {x: json.dumps(y).replace('|', '\\|') for x, y in values.items()}
  rows = [f'| `{key}` | {text} |' for key, text in texts.items()]
  return [f'| {name} | value |', '|---|---|', *rows]


def main(arguments: list[str] | None = None) -> int:
  """Writes the model that the flags name; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog='python -m replay_rl.export',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    '--workdir',
    type=reading.text,
    required=True,
    help='folder of the run, or its address',
  )
  add('--out', type=paths.path, required=True, help='folder to write')
  run_weights.add_place_flags(parser)
  add(
    '--dtype',
    choices=('float32', 'bfloat16'),
    default='float32',
    help='type of the stored weights (default: %(default)s, as trained)',
  )
  options = parser.parse_args(arguments)
  absl_logging.set_verbosity(absl_logging.ERROR)
  jax.config.update('jax_platforms', 'cpu')  # Leaves an accelerator alone.
  out = options.out.expanduser()
  try:
    with reading.readable(
      '--workdir', options.workdir, iteration=options.iteration
    ) as folder:
      export(
        folder,
        out,
        iteration=options.iteration,
        seed=options.seed,
        dtype=options.dtype,
      )
  except (ValueError, OSError, ImportError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(out)
  return 0


if __name__ == '__main__':
  sys.exit(main())
