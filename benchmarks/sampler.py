"""Seconds of generation and of scoring at two small sizes.

Prints the least of several runs next to the time that the matmuls alone would
take at 100 GFLOP/s. Usage: python benchmarks/sampler.py [--quick]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import machine

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import sampler
from replay_rl.lm import scoring

_GFLOPS = 100.0


def transformer(vocab_size, d_model, num_layers, num_heads, num_kv_heads, d_ff):
  return architecture.TransformerConfig(
    vocab_size=vocab_size,
    d_model=d_model,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    head_dim=d_model // num_heads,
    d_ff=d_ff,
    rope_theta=10_000.0,
    rope_scaling=None,
    norm_eps=1e-6,
    qk_norm=False,
    qkv_bias=False,
    tied_embeddings=True,
    max_context=256,
    compute_dtype='float32',
  )


# name: (architecture, rows, prompt tokens, new tokens)
SIZES = {
  'S': (transformer(32, 96, 2, 4, 2, 256), 256, 8, 6),
  'M': (transformer(512, 256, 4, 8, 4, 768), 64, 32, 64),
}


def seconds(function, *args, repeats=7):
  """Returns the least seconds of a call, and the seconds to compile."""
  start = time.perf_counter()
  compiled = jax.jit(function).lower(*args).compile()
  compile_seconds = time.perf_counter() - start
  runs = []
  for _ in range(repeats):
    start = time.perf_counter()
    jax.block_until_ready(compiled(*args))
    runs.append(time.perf_counter() - start)
  return min(runs), compile_seconds


def report(size, name, function, *args, flops):
  run, compile_time = seconds(function, *args)
  print(
    f'{size} {name:22s} {run:8.4f} s  {flops / run / 1e9:6.1f} GFLOP/s  '
    f'at 100: {flops / _GFLOPS / 1e9:.4f} s  compile {compile_time:.1f} s',
    flush=True,
  )
  return run


def report_size(size, config, rows, prompt_length, new_tokens):
  graphdef, params = model.init(config, jax.random.key(0))
  key = jax.random.key(1)
  length = prompt_length + new_tokens
  tokens = jax.random.randint(key, (rows, length), 2, config.vocab_size)
  prompts = base.Prompts(
    tokens=tokens[:, :prompt_length],
    lengths=jnp.full((rows,), prompt_length, jnp.int32),
    prompt_id=jnp.zeros((rows,), jnp.uint32),
    references=(),
  )

  def generate(max_new_tokens):
    # A row that has ended is still computed, so where rows end does not count.
    return lambda params: sampler.generate(
      graphdef,
      params,
      key,
      prompts,
      jnp.arange(rows, dtype=jnp.uint32),
      max_new_tokens=max_new_tokens,
      eos_ids=(0,),
      pad_id=0,
      temperature=1.0,
      top_k=None,
      top_p=None,
    )

  def score(params):
    return scoring.token_logprobs(
      graphdef, params, tokens, temperature=1.0, chunk_size=None, remat=False
    )

  def loss(params):
    logprobs, entropy = score(params)
    return jnp.mean(logprobs), jnp.mean(entropy)

  def flops(num_tokens, context):
    per_token = architecture.flops_per_token(config)
    attention = architecture.attention_flops(config, context)
    return rows * num_tokens * (per_token + attention)

  prefill = flops(prompt_length, prompt_length)
  decode = flops(new_tokens - 1, length)
  scored = flops(length - 1, length - 1)
  first = report(size, 'prefill', generate(1), params, flops=prefill)
  total = report(
    size,
    f'generate {prompt_length} + {new_tokens}',
    generate(new_tokens),
    params,
    flops=prefill + decode,
  )
  per_token = (total - first) / (new_tokens - 1)
  print(f'{size} decode, per token      {per_token:8.5f} s')
  report(size, 'score', score, params, flops=scored)
  gradient = jax.grad(loss, has_aux=True)
  report(size, 'score and gradient', gradient, params, flops=3 * scored)


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--quick', action='store_true', help='size S alone')
  is_quick = parser.parse_args().quick
  print(machine.hardware())
  for size, arguments in SIZES.items():
    if size == 'S' or not is_quick:
      report_size(size, *arguments)


if __name__ == '__main__':
  main()
