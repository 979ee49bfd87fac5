"""What judging beside generation saves, at a given cost of an answer.

The run of a task in text generates and judges 128 responses (16 prompts, 8 to
each), with the model and the lengths of `lengths.py` and 16 slots. Judging
after generation and judging beside it, at every 16 decoding steps, take turns
in one process and have the same rollouts and rewards. The verifier has
processes of its own, in which an answer sleeps for so many seconds, as if it
had cores of its own; here the cores are the device.

Prints the seconds of `timing.jsonl`: generate, judge (in which the verifier is
busy) and wait (from the last token to the last verdict, in which the device has
nothing to do), of the fastest repeat, and the ratio of the sums of generate and
wait. The bound is the sum of both over the longer one.
Usage: python benchmarks/judging.py [--answer_seconds=.05,.1] [--out=FILE.json]
"""

import argparse
import importlib.metadata
import pathlib

import jax
import lengths
import machine
import numpy as np
import slow_answers

from replay_rl.configs import gsm8k_tiny
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import maker
from replay_rl.run import programs
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.verify import pool

NUM_PROMPTS, GROUP_SIZE, NUM_SLOTS, CHUNK = 16, 8, 16, 16
NUM_WORKERS = 4
SHAPE = task_lib.Shape(
  vocab_size=lengths.VOCAB_SIZE,
  prompt_length=lengths.PROMPT_TOKENS[1],
  max_new_tokens=lengths.MAX_LENGTH,
  eos_ids=(0,),
  pad_id=0,
)


def make_task(answer_seconds):
  """Returns a task with answers of this cost, and the pool that judges them."""
  judges = pool.Pool(
    verify_fn=slow_answers.judge,
    warm_up=(),
    num_workers=NUM_WORKERS,
    answer_timeout=60.0,
    memory_limit=2**31,
  )

  def judge(responses, lengths_of_rows, is_finished, references):
    del responses, is_finished, references
    # As right as the length is even.
    answers = ['right' if n % 2 == 0 else 'wrong' for n in lengths_of_rows]
    statuses = judges.run([(str(answer_seconds), x) for x in answers])
    is_correct = np.array([status == 'correct' for status in statuses])
    return task_lib.Judgement(
      is_correct.astype(np.float32), is_correct, np.array(statuses)
    )

  def prompts(seed, iteration, num_prompts):
    del seed, iteration
    some = jax.tree.map(lambda leaf: leaf[:num_prompts], lengths.make_prompts())
    return some._replace(references=np.arange(num_prompts, dtype=np.int32))

  return task_lib.TextTask(
    shape=SHAPE,
    prompts_fn=prompts,
    eval_prompts_fn=None,
    judge_fn=judge,
    reference_fn=str,
    decode_fn=str,
    statuses=('correct', 'wrong'),
    sources={},
    users=(),
    notes=(),
    close_fn=judges.close,
  )


def make_config(judge_every):
  model = {
    name: getattr(lengths.TRANSFORMER, name)
    for name in config_lib.Model.__dataclass_fields__
    if hasattr(lengths.TRANSFORMER, name)
  }
  config = gsm8k_tiny.get_config()
  config.model = config_lib.Model(**model, checkpoint=None)
  changes = {
    'text.judge_every': judge_every,
    'sampler.num_prompts': NUM_PROMPTS,
    'sampler.group_size': GROUP_SIZE,
    'sampler.num_slots': NUM_SLOTS,
    'sampler.weight_lag': 0,
    'replay.capacity': NUM_PROMPTS * GROUP_SIZE,
  }
  return config_lib.changed(config, changes)


def generator(judge_every, task):
  """Returns () -> (generation, rewards, metrics), and its seconds by event."""
  config = make_config(judge_every)
  experiment = build.experiment(config, SHAPE)
  parts = experiment.parts
  mesh = mesh_lib.make({'data': 1, 'fsdp': 1, 'tensor': 1})
  settings = maker.settings_of(config, mesh=mesh, sampler_mesh=None)
  built = programs.build(parts, task, settings._replace(time_events=True))
  _, params = lengths.weights(jax.random.key(0))
  hyper = state.of_seeds(parts.hyper, 1)
  run = built.init(params, np.zeros(1, np.uint32), hyper)
  actions = built.cycle.keywords['actions']

  def once():
    result = jax.device_get(actions.generate(run, schedule.Generate()))
    return result, built.seconds()

  return once


def total(seconds):
  """Returns how long a generation takes until it is judged."""
  return seconds['generate'] + seconds['wait']


def measure(answer_seconds, repeats):
  """Returns the seconds of both ways, by event."""
  task = make_task(answer_seconds)
  ways = {'after': generator(None, task), 'beside': generator(CHUNK, task)}
  seconds = {name: [] for name in ways}
  for repeat in range(repeats + 1):  # 0 compiles, and does not count.
    results = {}
    for name, once in ways.items():
      results[name], spent = once()
      print(f'{answer_seconds} s {repeat} {name:6s} {spent}', flush=True)
      if repeat:
        seconds[name].append(spent)
    for one, other in zip(*map(jax.tree.leaves, results.values()), strict=True):
      np.testing.assert_array_equal(one, other)
  task.close_fn()
  # Other work on the machine only ever adds to them.
  fastest = {name: min(of_way, key=total) for name, of_way in seconds.items()}
  sums = {name: total(of_way) for name, of_way in fastest.items()}
  after = fastest['after']
  return {
    'answer_seconds': answer_seconds,
    'seconds': seconds,
    'fastest': fastest,
    'ratio': sums['after'] / sums['beside'],
    'bound': sums['after'] / max(after['generate'], after['judge']),
  }


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--answer_seconds', default='.02,.1,.4')
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--out', type=pathlib.Path)
  options = parser.parse_args()
  print(machine.hardware())
  costs = [float(cost) for cost in options.answer_seconds.split(',')]
  results = [measure(cost, options.repeats) for cost in costs]
  for result in results:
    for name, of_way in result['fastest'].items():
      shown = '  '.join(f'{event} {s:6.2f}' for event, s in of_way.items())
      print(f'{result["answer_seconds"]} s an answer, {name:6s}: {shown}')
    print(f'ratio {result["ratio"]:.2f}, bound {result["bound"]:.2f}')
  if options.out is not None:
    versions = {x: importlib.metadata.version(x) for x in ('jax', 'jaxlib')}
    machine.write_results(
      options.out,
      {
        'versions': versions,
        'rows': NUM_PROMPTS * GROUP_SIZE,
        'slots': NUM_SLOTS,
        'workers': NUM_WORKERS,
        'results': results,
      },
    )


if __name__ == '__main__':
  main()
