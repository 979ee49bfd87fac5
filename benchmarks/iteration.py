"""Seconds of one whole on-policy iteration, beside trl on the same work.

Sizes, as in `benchmarks/sampler.py`: S is 256 rollouts (32 prompts x 8) of 8
prompt and 6 new tokens and 206k parameters; M is 64 rollouts (8 x 8) of 32 and
64 tokens and 3.3M parameters. Both sides sample, judge, compute advantages and
make one update with Adam, which at size M takes eight microbatches here and one
in trl, as suits each on two cores. Each measurement is a process of its own;
ours and trl's take turns, so that both see the same machine.

Command: python benchmarks/iteration.py --out=benchmarks/results/iteration.json
The interpreter of trl may be another one: --trl-python=PATH.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine

HERE = pathlib.Path(__file__).parent
SIZES = {
  'S': {
    'prompts': 32, 'group': 8, 'prompt': 8, 'new': 6, 'vocab': 32,
    'd_model': 96, 'layers': 2, 'heads': 4, 'kv_heads': 2, 'd_ff': 256,
    'microbatches': 1, 'trl_microbatches': 1,
  },
  'M': {
    'prompts': 8, 'group': 8, 'prompt': 32, 'new': 64, 'vocab': 512,
    'd_model': 256, 'layers': 4, 'heads': 8, 'kv_heads': 4, 'd_ff': 768,
    'microbatches': 8, 'trl_microbatches': 1,
  },
}  # fmt: skip


def make(size: dict):
  """Returns the parts of a run of this size, and a task of random prompts."""
  import jax
  import jax.numpy as jnp

  from replay_rl import base
  from replay_rl.configs import base_small
  from replay_rl.run import build
  from replay_rl.tasks import task

  config = base_small.on_policy(
    'addition(num_digits=1, forget_probability=0.0)',  # Not used.
    num_iterations=1,
    learning_rate=1e-4,
  )
  fields = {
    'model.d_model': size['d_model'],
    'model.num_layers': size['layers'],
    'model.num_heads': size['heads'],
    'model.num_kv_heads': size['kv_heads'],
    'model.head_dim': size['d_model'] // size['heads'],
    'model.d_ff': size['d_ff'],
    'model.qk_norm': True,
    'sampler.num_prompts': size['prompts'],
    'sampler.group_size': size['group'],
    'replay.capacity': 4 * size['prompts'] * size['group'],
    'loss.advantage': 'group_standardized(eps=1e-4)',
    'optimizer.microbatch_rows': (
      size['prompts'] * size['group'] // size['microbatches']
    ),
  }
  for path, value in fields.items():
    section, field = path.split('.')
    setattr(getattr(config, section), field, value)
  shape = task.Shape(
    vocab_size=size['vocab'],
    prompt_length=size['prompt'],
    max_new_tokens=size['new'],
    eos_ids=(1,),
    pad_id=0,
  )

  def prompts_fn(rng_key, num_prompts):
    tokens = jax.random.randint(
      rng_key, (num_prompts, size['prompt']), 3, size['vocab']
    )
    lengths = jnp.full((num_prompts,), size['prompt'], jnp.int32)
    prompt_id = jnp.zeros((num_prompts,), jnp.uint32)
    return base.Prompts(tokens, lengths, prompt_id, references=())

  def reward_fn(responses, lengths, references):
    del lengths, references
    return (responses[:, 0] % 2).astype(jnp.float32)

  return build.experiment(config, shape).parts, task.Task(
    shape=shape,
    prompts_fn=prompts_fn,
    reward_fn=reward_fn,
    teacher_fn=lambda *_: None,
    decode_fn=str,
  )


def measure_ours(size: dict, cache: str, repeats: int) -> dict:
  """Returns seconds of each stage and of the whole, after compilation."""
  import jax
  import jax.numpy as jnp

  from replay_rl.lm import architecture
  from replay_rl.run import events
  from replay_rl.run import generation as generation_lib
  from replay_rl.run import schedule
  from replay_rl.run import state

  jax.config.update('jax_compilation_cache_dir', cache)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  parts, task = make(size)
  params = parts.init_params_fn(jax.random.key(0))
  run = jax.jit(functools.partial(state.init, parts))(
    params, jnp.uint32(0), state.as_arrays(parts.hyper)
  )
  in_order = schedule.synchronous(0, updates_per_iteration=1)
  actions = events.in_jax(parts, task)
  step = jax.jit(
    lambda run: events.cycle(run, in_order, actions), donate_argnums=0
  )
  started = time.perf_counter()
  run, measured = step(run)
  jax.device_get(measured)
  first = time.perf_counter() - started

  def timed(function, *arguments):
    started = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - started

  whole = []
  for _ in range(repeats):
    (run, _), seconds = timed(step, run)
    whole.append(seconds)

  def sample(run):
    prompts = generation_lib.draw_prompts(run, parts, task)
    return generation_lib.generate(generation_lib.policy(run), prompts, parts)

  stages = {
    'sample': jax.jit(sample),
    'judge': jax.jit(functools.partial(generation_lib.judge, task=task)),
    'insert': jax.jit(
      functools.partial(events.remember, parts=parts), donate_argnums=0
    ),
    'learn': jax.jit(
      functools.partial(events.learn, parts=parts, num_updates=1),
      donate_argnums=0,
    ),
  }
  spent = {name: [] for name in stages}
  for _ in range(repeats + 1):
    generation, seconds = timed(stages['sample'], run)
    spent['sample'].append(seconds)
    rewards, seconds = timed(stages['judge'], generation)
    spent['judge'].append(seconds)
    (run, fresh, _), seconds = timed(stages['insert'], run, generation, rewards)
    spent['insert'].append(seconds)
    (run, _), seconds = timed(stages['learn'], run, fresh)
    spent['learn'].append(seconds)
  rows = size['prompts'] * size['group']
  per_token = architecture.flops_per_token(
    parts.transformer
  ) + architecture.attention_flops(
    parts.transformer, parts.transformer.max_context
  )
  tokens = rows * (size['prompt'] + size['new'])
  return {
    'total': statistics.median(whole),
    'first': first,
    'gflop': 4 * per_token * tokens / 1e9,
  } | {name: statistics.median(times[1:]) for name, times in spent.items()}


def run_worker(command: list[str]) -> dict:
  """Returns the JSON that a process prints last."""
  done = subprocess.run(
    command, check=True, capture_output=True, text=True, env=dict(os.environ)
  )
  return json.loads(done.stdout.strip().splitlines()[-1])


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--out', type=pathlib.Path)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--repeats', type=int, default=7)
  parser.add_argument('--trl-python', default=sys.executable)
  parser.add_argument('--worker', choices=SIZES, help=argparse.SUPPRESS)
  parser.add_argument('--cache', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.worker:
    size = SIZES[arguments.worker]
    print(json.dumps(measure_ours(size, arguments.cache, arguments.repeats)))
    return

  results = {
    'rounds': arguments.rounds,
    'repeats': arguments.repeats,
  }
  for name, size in SIZES.items():
    ours, peers = [], []
    with tempfile.TemporaryDirectory() as cache:
      mine = [sys.executable, __file__, f'--worker={name}', f'--cache={cache}']
      mine.append(f'--repeats={arguments.repeats}')
      peer = [arguments.trl_python, str(HERE / 'iteration_trl.py')]
      peer += [json.dumps(size), str(arguments.repeats)]
      for _ in range(arguments.rounds):
        ours.append(run_worker(mine))
        peers.append(run_worker(peer))
    results[name] = summary = {
      'ours_rounds': ours,
      'trl_rounds': peers,
      'ours_total': statistics.median(one['total'] for one in ours),
      'trl_total': statistics.median(one['total'] for one in peers),
      'first_iteration_cold_cache': ours[0]['first'],
      'first_iteration_warm_cache': statistics.median(
        one['first'] for one in ours[1:] or ours
      ),
    }
    ratio = summary['ours_total'] / summary['trl_total']
    summary['ratio'] = ratio
    stages = '  '.join(
      f'{stage} {statistics.median(one[stage] for one in ours):.4f}'
      for stage in ('sample', 'judge', 'insert', 'learn')
    )
    print(
      f'{name}: ours {summary["ours_total"]:.4f} s, trl '
      f'{summary["trl_total"]:.4f} s, ratio {ratio:.2f} '
      f'({ours[0]["gflop"] / summary["ours_total"]:.0f} GFLOP/s)\n'
      f'   stages as programs of their own, s: {stages}\n'
      f'   first iteration, s: {ours[0]["first"]:.1f} with an empty cache of '
      f'programs, {summary["first_iteration_warm_cache"]:.1f} with a full one',
      flush=True,
    )
  if arguments.out:
    machine.write_results(arguments.out, results)


if __name__ == '__main__':
  main()
