"""Sampler and learner of a published model's shape on one accelerator.

Random weights, random prompts, rewards by coin: the programs of a run, timed
apart. Prints tokens per second, the share of the device's peak FLOP/s that the
learner uses (MFU, of the model's own FLOPs: what remat computes again does not
count), the share of the memory bandwidth that decoding uses (weights and whole
KV cache, once a token), and the peak memory.
Usage: python benchmarks/accelerator.py --device=h200 --out=FILE.json
"""

import argparse
import dataclasses
import functools
import pathlib
import runpy
import statistics
import time

import jax
import jax.numpy as jnp
import machine

from replay_rl.fit import chips
from replay_rl.lm import architecture
from replay_rl.lm import cache as cache_lib
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import events
from replay_rl.run import generation as generation_lib
from replay_rl.run import state


def settings(options):
  """Returns the config, with random weights and the sizes of the flags."""
  config = runpy.run_path(options.config)['get_config']()
  config.model.checkpoint = None
  config.num_seeds = 1
  config.sampler.num_prompts = options.num_prompts
  config.sampler.group_size = options.group_size
  config.text.max_prompt_tokens = options.prompt_tokens
  config.text.max_new_tokens = options.new_tokens
  rows = options.num_prompts * options.group_size
  config.replay = dataclasses.replace(
    config.replay,
    capacity=rows,
    batch_size=options.batch_size,
    updates_per_iteration=options.updates,
  )
  config.optimizer.microbatch_rows = options.microbatch_rows
  if options.logits_chunk:
    config.optimizer.logits_chunk = options.logits_chunk
  config.optimizer.remat = options.remat
  config.mesh.shape = {'data': 1, 'fsdp': 1, 'tensor': 1}
  return config


def median_seconds(function, repeats):
  """Returns the median seconds of a call after one that is not counted."""
  runs = []
  for _ in range(repeats + 1):
    start = time.perf_counter()
    jax.block_until_ready(function())
    runs.append(time.perf_counter() - start)
  return statistics.median(runs[1:])


def measure(config, repeats, profile):
  """Returns seconds of both programs, and the work they do."""
  parts = build.experiment(config, build.planned_shape(config)).parts
  transformer, shape = parts.transformer, parts.shape
  rng_key = jax.random.key(0)
  params = jax.jit(parts.init_params_fn)(rng_key)
  # Counted before the run is made, which takes the weights over.
  num_params = architecture.num_params(transformer)
  run = jax.jit(
    lambda params: state.init(
      parts, params, jnp.uint32(0), state.as_arrays(parts.hyper)
    )
  )(params)
  del params
  empty = state.empty_prompts(shape, parts.num_prompts)
  prompts = empty._replace(
    tokens=jax.random.randint(
      rng_key, empty.tokens.shape, 1, transformer.vocab_size
    ),
    lengths=jnp.full_like(empty.lengths, shape.prompt_length),
  )

  @jax.jit
  def generate(run, prompts):
    return generation_lib.generate(generation_lib.policy(run), prompts, parts)

  @functools.partial(jax.jit, donate_argnums=0)
  def learn(run, generation, rewards):
    run, fresh, _ = events.remember(run, generation, rewards, parts)
    num_updates = config.replay.updates_per_iteration
    return events.learn(run, fresh, parts, num_updates=num_updates)

  sampler_seconds = median_seconds(lambda: generate(run, prompts), repeats)
  sampler_peak = peak_memory()
  generation = generate(run, prompts)
  rows = generation.group_id.shape[0]
  rewards = jax.random.bernoulli(rng_key, 0.5, (rows,)).astype(jnp.float32)

  def one_iteration():
    nonlocal run
    run, measured = learn(run, generation, rewards)
    return measured

  learner_seconds = median_seconds(one_iteration, repeats)
  if profile is not None:
    with jax.profiler.trace(str(profile)):
      jax.block_until_ready((generate(run, prompts), one_iteration()))
  columns = shape.num_tokens
  held = jax.eval_shape(
    lambda: cache_lib.init(
      transformer, batch_size=rows, num_columns=columns - 1
    )
  )
  itemsize = jnp.dtype(transformer.compute_dtype).itemsize
  per_token = architecture.flops_per_token(transformer)
  per_token += architecture.attention_flops(transformer, columns)
  trained = config.replay.updates_per_iteration * config.replay.batch_size
  return {
    'parameters': num_params,
    'sampler_seconds': sampler_seconds,
    'generated_tokens': int(jnp.sum(generation.completions.lengths)),
    'decode_bytes': shape.max_new_tokens
    * (
      itemsize * num_params
      + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(held))
    ),
    'sampler_peak_bytes': sampler_peak,
    'learner_seconds': learner_seconds,
    'trained_tokens': trained * columns,
    'learner_flops': 3 * trained * columns * per_token,
    'peak_bytes': peak_memory(),
  }


def peak_memory():
  """Returns the most bytes in use so far; None where devices do not say."""
  stats = jax.devices()[0].memory_stats()
  return None if stats is None else stats['peak_bytes_in_use']


def rates(result, device):
  """Returns tokens a second, and shares of what the device could do."""
  rates = {
    'sampler_tokens_per_second': result['generated_tokens']
    / result['sampler_seconds'],
    'learner_tokens_per_second': result['trained_tokens']
    / result['learner_seconds'],
  }
  if device is None:
    return rates
  return rates | {
    'learner_mfu': result['learner_flops']
    / result['learner_seconds']
    / device.flops,
    'sampler_bandwidth_fraction': result['decode_bytes']
    / result['sampler_seconds']
    / device.bandwidth,
  }


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--config', default='configs/gsm8k_qwen3_0_6b.py')
  add('--device', choices=sorted(chips.DEVICES), help='for its limits')
  add('--num_prompts', type=int, default=64)
  add('--group_size', type=int, default=8)
  add('--prompt_tokens', type=int, default=128)
  add('--new_tokens', type=int, default=512)
  add('--batch_size', type=int, default=64, help='rows of an update')
  add('--updates', type=int, default=2)
  add('--microbatch_rows', type=int, default=16)
  add('--logits_chunk', type=int, help='default: of the config')
  add('--remat', action=argparse.BooleanOptionalAction, default=True)
  add('--repeats', type=int, default=3)
  add('--profile', type=pathlib.Path, help='folder for a trace')
  add('--out', type=pathlib.Path)
  options = parser.parse_args()
  config = settings(options)
  with jax.set_mesh(mesh_lib.make(config.mesh.shape)):
    result = measure(config, options.repeats, options.profile)
  device = chips.named(options.device) if options.device else None
  result |= rates(result, device)
  for name, value in result.items():
    print(f'{name:28s} {value if value is None else format(value, ".4g")}')
  if options.out is not None:
    flags = {name: str(value) for name, value in vars(options).items()}
    machine.write_results(
      options.out,
      {
        'accelerator': jax.devices()[0].device_kind,
        'jax': jax.__version__,
        'flags': flags,
        'results': result,
      },
    )


if __name__ == '__main__':
  main()
