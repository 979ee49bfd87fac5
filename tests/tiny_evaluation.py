"""A model whose distribution is known, and a run of the train program."""

import atexit
import functools
import json
import pathlib
import shutil
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import train
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import state as state_lib
from tests import tiny
from tests import tiny_text
from tests import tiny_tokenizer

VOCAB_SIZE = tiny_tokenizer.VOCAB_SIZE + 4  # Published models pad theirs.
TEMPLATE = 'Question: {problem}\nAnswer:'
MAX_PROMPT, MAX_NEW = 24, 6
# After any tokens, the next is one of these or the end, with 1/3 each.
DIGITS = ('1', '2')
BENCHMARKS = {
  'short': [('s0', 'apples', '1'), ('s1', 'pears', '2'), ('s2', 'x', '99')],
  'long': [('l0', 'bags', '12'), ('l1', 'Tom', '2')],
}


class Trained(NamedTuple):
  """A run of the train program: two seeds, checkpoints of steps 1 and 2."""

  folder: pathlib.Path
  config: config_lib.Config
  transformer: architecture.TransformerConfig
  state: state_lib.RunState


@functools.cache
def trained() -> Trained:
  """Trains the run, once for all tests of a process."""
  folder = pathlib.Path(tempfile.mkdtemp())
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  config = tiny_text.config(
    folder / 'sums',
    seed=13,  # Of 13 and 14, each iteration has a right answer.
    num_seeds=2,
    num_iterations=2,
    text__system_message='Think.',
    text__use_chat_template=True,
    text__chat_variables={'think': True},
    text__max_prompt_tokens=64,
    text__answer_timeout=4.0,
    # Moves the weights also where no answer is right.
    optimizer__transform='adamw(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.1)',
  )
  state = train.train(config, folder / 'run')
  # No pool of verifiers starts before the first response.
  parts = build.experiment(config, build.task(config).shape).parts
  return Trained(folder / 'run', config, parts.transformer, state)


def transformer() -> architecture.TransformerConfig:
  shape = vars(tiny.config().model) | {
    'vocab_size': VOCAB_SIZE,
    'tied_embeddings': False,
    'max_context': MAX_PROMPT + MAX_NEW,
  }
  del shape['checkpoint']
  return architecture.TransformerConfig(**shape)


def params(tokenizer: tokenizer_lib.Tokenizer, digits=DIGITS) -> base.PyTree:
  """Returns weights under which the next token is a digit or the end."""
  _, weights = model.init(transformer(), jax.random.key(0))
  layers = weights['layers']
  zeros = {name: jnp.zeros_like(layers[name]) for name in ('output', 'down')}
  weights['layers'] = {**layers, **zeros}
  # The layers add nothing, so that all hidden states are ones.
  weights['embedding'] = jnp.ones_like(weights['embedding'])
  likely = [tokenizer.encode(digit)[0] for digit in digits]
  likely.append(tiny_tokenizer.STOP)
  weights['unembedding'] = (
    jnp.zeros_like(weights['unembedding']).at[jnp.array(likely)].set(2.0)
  )
  return weights


def write_benchmarks(folder: pathlib.Path) -> None:
  folder.mkdir()
  for name, rows in BENCHMARKS.items():
    lines = [
      json.dumps(dict(zip(('id', 'problem', 'answer'), row, strict=True)))
      for row in rows
    ]
    (folder / f'{name}.jsonl').write_text('\n'.join(lines) + '\n')


def write_model(folder: pathlib.Path, digits=DIGITS) -> None:
  """Writes a Hugging Face folder with its tokenizer."""
  tokens = folder.with_name(f'{folder.name}-tokenizer')
  tokens.mkdir()
  tiny_tokenizer.write(tokens)
  tokenizer = tokenizer_lib.load(tokens)
  hf.save(
    folder,
    transformer(),
    params(tokenizer, digits),
    dtype='float32',
    max_file_bytes=10**6,
    max_position_embeddings=64,
    bos_id=None,
    eos_ids=tokenizer.eos_ids,
    tokenizer_folder=tokens,
  )
