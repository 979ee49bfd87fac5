"""Memory of scoring tokens in chunks, at the vocabulary of Qwen3.

Usage: python benchmarks/logprobs_memory.py [--quick] [--out=FILE]

Compiles the gradient of the log-probabilities of a batch for the dimensions of
Qwen3-0.6B, with its layers in bfloat16 and remat, on one CPU device and on
eight virtual ones, and asks XLA what memory it sets aside; nothing is run. The
plain version has the logits of all tokens at once, `[B, T, V]`; the same model
with a small vocabulary shows what the layers alone need. The bytes are those of
XLA for the CPU, which computes bfloat16 products in float32. Exits with 1 if a
check fails.
"""

import dataclasses
import functools
import importlib.metadata
import re
import sys
import time

import jax
import jax.numpy as jnp
import machine
from absl import app
from absl import flags

from replay_rl.lm import families
from replay_rl.lm import model
from replay_rl.lm import scoring
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import placement

_QUICK = flags.DEFINE_bool('quick', False, 'Fewer and smaller measurements.')
_OUT = flags.DEFINE_string(
  'out', 'benchmarks/results/logprobs_memory.json', 'Where to write results.'
)

NUM_ROWS = 8  # On each device.
NUM_TOKENS = 1024
MESHES = ((1, 1, 1), (1, 8, 1))
CHUNKS = (None, 512, 256, 128, 64)
SMALL_VOCABULARY = 1024


def gradient(config, chunk_size):
  """Returns a function of weights and tokens, whose result is small."""
  graphdef, _ = jax.eval_shape(
    functools.partial(model.init, config, constrain_fn=mesh_lib.constrain),
    jax.random.key(0),
  )

  def loss(params, tokens):
    logprobs, entropy = scoring.token_logprobs(
      graphdef,
      params,
      mesh_lib.split_rows(tokens),
      temperature=1.0,
      chunk_size=chunk_size,
      remat=True,
    )
    return jnp.mean(logprobs) + jnp.mean(entropy)

  return jax.grad(loss)


def measure(config, sizes, chunk_size, num_tokens):
  """Returns what XLA plans for one mesh and one size of chunks."""
  mesh = mesh_lib.make(dict(zip(mesh_lib.AXES, sizes, strict=True)))
  num_rows = NUM_ROWS * mesh.size
  params = jax.eval_shape(
    lambda rng_key: model.init(config, rng_key)[1], jax.random.key(0)
  )
  places = placement.of_params(model.logical_axes(config), mesh)
  start = time.perf_counter()
  with jax.set_mesh(mesh):
    compiled = (
      jax.jit(gradient(config, chunk_size), out_shardings=places)
      .lower(
        jax.tree.map(
          lambda leaf, place: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
          ),
          params,
          places,
        ),
        jax.ShapeDtypeStruct((num_rows, num_tokens + 1), jnp.int32),
      )
      .compile()
    )
  analysis = compiled.memory_analysis()
  assert analysis is not None
  text = compiled.as_text()
  assert text is not None
  # A device computes its share of the vocabulary for the rows of all.
  share = config.vocab_size // mesh.size
  widths = re.findall(rf'f32\[{num_rows},(\d+),{share}\]', text)
  return {
    'mesh': dict(mesh.shape),
    'vocab_size': config.vocab_size,
    'chunk_size': chunk_size,
    'rows': num_rows,
    'tokens': num_tokens,
    'temp_bytes': analysis.temp_size_in_bytes,
    'argument_bytes': analysis.argument_size_in_bytes,
    'output_bytes': analysis.output_size_in_bytes,
    # The most tokens of a row whose logits are one array.
    'tokens_of_logits': max(map(int, widths), default=0),
    'plain_logits_bytes': 4 * NUM_ROWS * num_tokens * config.vocab_size,
    'compile_seconds': time.perf_counter() - start,
  }


def check(results):
  """Returns what is claimed, each with whether it holds."""
  chunked = [result for result in results if result['chunk_size'] is not None]
  by_mesh = {}
  for result in results:
    sizes = by_mesh.setdefault(str(result['mesh']), [])
    sizes.append(result['temp_bytes'])
  # Of each mesh: plain, chunks from large to small, a small vocabulary.
  return {
    'chunked, the logits of all tokens are never one array': all(
      result['tokens_of_logits'] == result['chunk_size'] for result in chunked
    ),
    'smaller chunks never need more': all(
      sorted(sizes[:-1], reverse=True) == sizes[:-1]
      for sizes in by_mesh.values()
    ),
    'the smallest chunks need what the layers alone need': all(
      sizes[-2] <= 1.02 * sizes[-1] for sizes in by_mesh.values()
    ),
    'all logits at once need twice that': all(
      sizes[0] > 2 * sizes[-1] for sizes in by_mesh.values()
    ),
  }


def main(argv):
  del argv
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', 8)
  num_tokens = 512 if _QUICK.value else NUM_TOKENS
  config = families.shape(
    'Qwen3-0.6B-Base', max_context=num_tokens + 1, compute_dtype='bfloat16'
  )
  if _QUICK.value:
    config = dataclasses.replace(config, num_layers=9)
  results = []
  small = dataclasses.replace(config, vocab_size=SMALL_VOCABULARY)
  print(f'{"mesh":<10}{"vocabulary":>11}{"chunk":>7}{"temp GB":>9}')
  for sizes in MESHES[:1] if _QUICK.value else MESHES:
    chunks = (CHUNKS[0], CHUNKS[-1]) if _QUICK.value else CHUNKS
    runs = [(config, chunk_size) for chunk_size in chunks] + [(small, None)]
    for shape, chunk_size in runs:
      measured = measure(shape, sizes, chunk_size, num_tokens)
      results.append(measured)
      print(
        f'{"x".join(map(str, sizes)):<10}{shape.vocab_size:>11}'
        f'{chunk_size or "all":>7}{measured["temp_bytes"] / 1e9:>9.2f}',
        flush=True,
      )
  checks = check(results)
  for claim, holds in checks.items():
    print(f'{"pass" if holds else "FAIL"}  {claim}')
  machine.write_results(
    _OUT.value,
    {
      'versions': {
        name: importlib.metadata.version(name) for name in ('jax', 'jaxlib')
      },
      'quick': _QUICK.value,
      'model': dataclasses.asdict(config),
      'results': results,
      'checks': checks,
    },
  )
  if not all(checks.values()):
    sys.exit(1)


if __name__ == '__main__':
  app.run(main)
