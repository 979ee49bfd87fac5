"""Generation and updates where responses have different lengths.

Generation: 64 prompts of 16 to 64 tokens, 8 responses to each, a model of the
shape of Qwen3 with 3.4M parameters. The lengths of the responses are log-normal
with a mean of 64 before they are cut at 256. Prints useful tokens per second in
lock step and with slots, measured in turns, and the ratio of the best number of
slots. The longest length over the mean bounds the steps of a row that are
saved. A step of fewer rows may also be faster per row, which the batches show:
they write as many responses at a time, but each waits for its longest one.

Learner: an update on 512 rows of such lengths (64 with --quick). Padded and
packed rows take turns. It prints the ratio of their tokens/s, where a token is
one of a prompt or response, and the share of padding in what the model reads of
packed rows.
Usage: python benchmarks/lengths.py [--quick] [--out=FILE.json]

The weights make the lengths, so that both ways run the program of the product.
The layers write zeros to the residual stream, at the usual cost, so a token
determines the logits of the next one. After the last token of a prompt, the
logits are the logarithms of the distribution of lengths. After token n, all but
n - 1 is impossible, and token 0 ends the response. So the first draw decides
the length, by the random key of its rollout.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import lengths_learner
import machine
import numpy as np

from replay_rl import base
from replay_rl.lm import model
from replay_rl.lm import sampler

NUM_PROMPTS, GROUP_SIZE = 64, 8
PROMPT_TOKENS, MAX_LENGTH = (
  lengths_learner.PROMPTS,
  lengths_learner.MAX_RESPONSE,
)
SLOTS = (32, 64)
VOCAB_SIZE = lengths_learner.QWEN3.vocab_size
_END, _ASK = 0, VOCAB_SIZE - 1  # The last token of each prompt is `_ASK`.

TRANSFORMER = dataclasses.replace(lengths_learner.QWEN3, tied_embeddings=False)


def length_logprobs():
  """Returns the log-probability of each length from 2 to the longest."""
  sigma = lengths_learner.SIGMA
  location = np.log(lengths_learner.MEAN_RESPONSE) - sigma**2 / 2
  normal = statistics.NormalDist(location, sigma)
  # A longer one is cut, and one of a single token has two.
  ends = [0.0, *map(normal.cdf, np.log(np.arange(2, MAX_LENGTH) + 0.5)), 1.0]
  return np.log(np.diff(ends))


def weights(rng_key):
  """Returns weights that count down from a first token that they draw."""
  graphdef, params = model.init(TRANSFORMER, rng_key)
  layers = params['layers']
  silent = {name: 0.0 * layers[name] for name in ('output', 'down')}
  # Each embedding is a vector of an orthogonal basis. RMSNorm leaves it as it
  # is, because its norm is sqrt(d_model).
  num_channels = TRANSFORMER.d_model
  basis = np.linalg.qr(
    np.random.default_rng(0).normal(size=(num_channels, num_channels))
  )[0] * np.sqrt(num_channels)
  embedding = np.array(params['embedding'])
  counts = np.arange(1, MAX_LENGTH)  # Response of length n starts with n - 1.
  embedding[counts], embedding[_ASK] = basis[:-1], basis[-1]
  # A token has a high logit after the next larger count, and after a prompt the
  # logit of its length.
  unembedding = np.zeros((VOCAB_SIZE, num_channels), np.float32)
  impossible = -60.0 / num_channels
  unembedding += impossible * np.sum(basis, axis=0)
  unembedding[counts - 1] -= impossible * basis[:-1]
  unembedding[counts] += (length_logprobs() / num_channels - impossible)[
    :, None
  ] * basis[-1]
  params = {
    **params,
    'layers': {**layers, **silent},
    'embedding': embedding,
    'unembedding': unembedding,
  }
  return graphdef, jax.tree.map(jnp.asarray, params)


def make_prompts():
  rng = np.random.default_rng(1)
  low, high = PROMPT_TOKENS
  lengths = rng.integers(low, high + 1, NUM_PROMPTS)
  tokens = rng.integers(MAX_LENGTH, _ASK, (NUM_PROMPTS, high))
  tokens[np.arange(NUM_PROMPTS), lengths - 1] = _ASK
  tokens[np.arange(high)[None, :] >= lengths[:, None]] = _END
  return base.Prompts(
    tokens=tokens.astype(np.int32),
    lengths=lengths.astype(np.int32),
    prompt_id=np.arange(NUM_PROMPTS, dtype=np.uint32),
    references=(),
  )


def generation(slots, repeats, has_batches):
  """Returns rates of generation in lock step and with slots."""
  graphdef, params = weights(jax.random.key(0))
  prompts = jax.device_put(make_prompts())
  num_rows = NUM_PROMPTS * GROUP_SIZE
  rollout_id = jnp.arange(num_rows, dtype=jnp.uint32)

  def generate(prompts, rollout_id, seed, num_slots=None):
    return sampler.generate(
      graphdef,
      params,
      jax.random.key(seed),
      prompts,
      rollout_id,
      max_new_tokens=MAX_LENGTH,
      eos_ids=(_END,),
      pad_id=_END,
      temperature=1.0,
      top_k=None,
      top_p=None,
      num_slots=num_slots,
    )

  def in_batches(seed, num_at_once):
    """Generates for some prompts after the other, each time in lock step."""
    batches = []
    for first in range(0, num_rows, num_at_once):
      rows = slice(first // GROUP_SIZE, (first + num_at_once) // GROUP_SIZE)
      batches.append(
        generate(
          jax.tree.map(lambda leaf, rows=rows: leaf[rows], prompts),
          rollout_id[first : first + num_at_once],
          seed,
        )
      )
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *batches)

  whole = functools.partial(generate, prompts, rollout_id)
  ways = {'lock step': whole}
  for number in slots:
    if has_batches:
      ways[f'batches of {number}'] = functools.partial(
        in_batches, num_at_once=number
      )
    ways[f'{number} slots'] = functools.partial(whole, num_slots=number)
  seconds = {name: [] for name in ways}
  lengths = []
  for repeat in range(repeats + 1):  # 0 compiles, and does not count.
    results = {}
    for name, way in ways.items():
      start = time.perf_counter()
      results[name] = jax.block_until_ready(way(repeat))
      passed = time.perf_counter() - start
      print(f'{repeat} {name:14s} {passed:6.2f} s', flush=True)
      if repeat:
        seconds[name].append(passed)
    first, *others = jax.device_get(list(results.values()))
    for other in others:
      np.testing.assert_array_equal(other.responses, first.responses)
    assert first.is_finished.all()
    if repeat:
      lengths.append(first.lengths)
  medians = {name: statistics.median(times) for name, times in seconds.items()}
  tokens = float(np.mean([np.sum(one) for one in lengths]))
  return {
    'rows': num_rows,
    'mean_length': float(np.mean(lengths)),
    'longest': [int(np.max(one)) for one in lengths],
    'bound': float(np.mean([np.max(one) / np.mean(one) for one in lengths])),
    'seconds': seconds,
    'median_seconds': medians,
    'tokens_per_second': {name: tokens / s for name, s in medians.items()},
    'ratios': {name: medians['lock step'] / s for name, s in medians.items()},
  }


def report_generation(result):
  """Prints the result, and returns the ratio of the best number of slots."""
  print(
    f'{result["rows"]} responses of {result["mean_length"]:.1f} tokens on '
    f'average, the longest {max(result["longest"])}; the same tokens each way'
  )
  for name, rate in result['tokens_per_second'].items():
    print(
      f'{name:14s} {rate:8.0f} useful tokens/s  '
      f'{result["median_seconds"][name]:6.2f} s  {result["ratios"][name]:.2f} x'
    )
  print(f'bound: {result["bound"]:.2f} x, the longest over the mean')
  ratios = result['ratios']
  return max(ratios[name] for name in ratios if name.endswith('slots'))


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--quick', action='store_true', help='fewer slots, rows and repeats'
  )
  parser.add_argument('--out', type=pathlib.Path)
  options = parser.parse_args()
  print(machine.hardware())
  if options.quick:
    result = generation(SLOTS[:1], repeats=1, has_batches=False)
    learner = lengths_learner.measure(64, 2)
  else:
    result = generation(SLOTS, repeats=3, has_batches=True)
    learner = lengths_learner.measure(512, 5)
  ratio = report_generation(result)
  of_learner = lengths_learner.report(learner)
  if options.out is not None:
    machine.write_results(
      options.out,
      {
        'versions': {
          name: importlib.metadata.version(name) for name in ('jax', 'jaxlib')
        },
        'model': dataclasses.asdict(TRANSFORMER),
        'generation': result,
        'learner': learner,
      },
    )
  print(f'generation {ratio:.2f} x, {of_learner}')


if __name__ == '__main__':
  main()
