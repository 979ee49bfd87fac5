"""A model whose distribution is known, as a folder and as a run."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import iteration
from replay_rl.run import workdir as workdir_lib
from tests import tiny
from tests import tiny_tokenizer

VOCAB_SIZE = tiny_tokenizer.VOCAB_SIZE + 4  # Padded, as models are.
TEMPLATE = 'Question: {problem}\nAnswer:'
MAX_PROMPT, MAX_NEW = 24, 6
# Of a token, whatever comes before: two digits and the end, 1/3 each.
DIGITS = ('1', '2')
BENCHMARKS = {
  'short': [('s0', 'apples', '1'), ('s1', 'pears', '2'), ('s2', 'x', '99')],
  'long': [('l0', 'bags', '12'), ('l1', 'Tom', '2')],
}


def _model() -> config_lib.Model:
  return dataclasses.replace(
    tiny.config().model, vocab_size=VOCAB_SIZE, tied_embeddings=False
  )


def text(tokenizer: str, **changes) -> config_lib.Text:
  return config_lib.Text(
    **{
      'problems': 'nowhere',
      'split': 'train',
      'evaluation_problems': None,
      'evaluation_split': None,
      'tokenizer': tokenizer,
      'template': TEMPLATE,
      'use_chat_template': False,
      'system_message': None,
      'max_prompt_tokens': MAX_PROMPT,
      'drop_long_prompts': False,
      'max_new_tokens': MAX_NEW,
      'reward': 'nothing()',
      'num_workers': 1,
      'answer_timeout': 5.0,
      'memory_limit': 2**30,
      'max_answer_chars': 100,
    }
    | changes
  )


def transformer() -> architecture.TransformerConfig:
  shape = dataclasses.asdict(_model())
  del shape['checkpoint']
  return architecture.TransformerConfig(
    max_context=MAX_PROMPT + MAX_NEW, **shape
  )


def params(tokenizer: tokenizer_lib.Tokenizer, digits=DIGITS) -> base.PyTree:
  """Returns weights under which the next token is a digit or the end."""
  _, found = model.init(transformer(), jax.random.key(0))
  layers = found['layers']
  zeros = {name: jnp.zeros_like(layers[name]) for name in ('output', 'down')}
  found['layers'] = {**layers, **zeros}
  # All hidden states are ones, since the layers add nothing.
  found['embedding'] = jnp.ones_like(found['embedding'])
  likely = [tokenizer.encode(digit)[0] for digit in digits]
  likely.append(tiny_tokenizer.STOP)
  found['unembedding'] = (
    jnp.zeros_like(found['unembedding']).at[jnp.array(likely)].set(2.0)
  )
  return found


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
  shutil.copy(tokens / 'generation_config.json', folder)


def write_run(
  folder: pathlib.Path,
  tokenizer_folder: pathlib.Path,
  *,
  seeds=(5, 6),
  steps=(1, 2),
) -> None:
  """Writes the folder of a run; the last step of the last seed is `params`."""
  config = tiny.config(
    seed=seeds[0],
    num_seeds=len(seeds),
    task=config_lib.TEXT_TASK,
    model=_model(),
    text=text(str(tokenizer_folder)),
  )
  folder.mkdir()
  workdir_lib.claim(folder, dataclasses.asdict(config))
  manager = checkpoint.open_folder(folder / 'checkpoints', keep=9)
  weights = params(tokenizer_lib.load(tokenizer_folder))
  for step in steps:
    # Other seeds and steps have nothing likely.
    versions = [
      jax.tree.map(
        functools.partial(
          jnp.multiply, float((seed, step) == (seeds[-1], steps[-1]))
        ),
        weights,
      )
      for seed in seeds
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *versions)
    zeros = jnp.zeros(len(seeds), jnp.int32)
    checkpoint.save(
      manager,
      iteration.RunState(
        seed=jnp.array(seeds, jnp.uint32),
        iteration=zeros + step,
        learner=base.LearnerState(stacked, {'mu': stacked}, zeros),
        buffer={'rows': np.zeros((len(seeds), 8))},
        delay_line=None,
        ledger={'tokens': zeros},
      ),
    )
  manager.wait_until_finished()
  manager.close()
