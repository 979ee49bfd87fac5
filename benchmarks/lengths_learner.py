"""The part of `lengths.py` that learns: updates on padded and packed rows."""

import functools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import packing
from replay_rl.lm import scoring
from replay_rl.rl import losses
from replay_rl.run import learner
from replay_rl.run import microbatches

QWEN3 = architecture.TransformerConfig(
  vocab_size=512,
  d_model=256,
  num_layers=4,
  num_heads=8,
  num_kv_heads=4,
  head_dim=32,
  d_ff=768,
  rope_theta=1e6,
  rope_scaling=None,
  norm_eps=1e-6,
  qk_norm=True,
  qkv_bias=False,
  tied_embeddings=True,
  max_context=64 + 256,
  compute_dtype='float32',
)
PROMPTS = (16, 64)
MEAN_RESPONSE, SIGMA, MAX_RESPONSE = 64, 0.75, 256  # Sigma of the logarithm.
PADDED_ROWS = 8  # A microbatch of padded rows has so many.
# A microbatch of packed rows has so many sequences, about as many tokens as the
# padded one has without padding.
SEQUENCES = 2


def make_rollouts(num_rows: int) -> base.Rollout:
  """Returns random tokens in rows of random lengths."""
  rng = np.random.default_rng(0)
  num_tokens = QWEN3.max_context
  prompts = rng.integers(*PROMPTS, num_rows, endpoint=True)
  draws = rng.lognormal(np.log(MEAN_RESPONSE) - SIGMA**2 / 2, SIGMA, num_rows)
  responses = np.clip(draws.astype(int), 1, MAX_RESPONSE)
  columns = np.arange(num_tokens)[None]
  ends = (prompts + responses)[:, None]
  mask = (columns >= prompts[:, None]) & (columns < ends)
  tokens = rng.integers(QWEN3.vocab_size, size=mask.shape).astype(np.int32)
  zeros = jnp.zeros(num_rows, jnp.int32)
  return base.Rollout(
    tokens=jnp.asarray(np.where(columns < ends, tokens, 0)),
    loss_mask=jnp.asarray(mask),
    behavior_logprobs=jnp.asarray(np.where(mask, -6.0, 0.0), jnp.float32),
    rewards=jnp.zeros(num_rows),
    advantages=jnp.asarray(rng.normal(size=num_rows), jnp.float32),
    group_id=zeros,
    prompt_id=zeros.astype(jnp.uint32),
    rollout_id=zeros.astype(jnp.uint32),
    policy_version=zeros,
  )


def make_update(rollouts: base.Rollout, packed: microbatches.Packing | None):
  """Returns a function without arguments that makes an update and waits."""
  graphdef, params = model.init(QWEN3, jax.random.key(0))
  functions = learner.UpdateFunctions(
    logprobs_fn=functools.partial(
      *(scoring.token_logprobs, graphdef),
      temperature=1.0,
      chunk_size=None,
      remat=False,
    ),
    loss_fn=functools.partial(
      losses.clipped_surrogate, clip_low=0.2, clip_high=0.2, dual_clip=None
    ),
    statistics_fn=None,
    normalizer_fn=losses.token_mean,
    row_weight_fn=None,
    optimizer=optax.adam(1e-4),
    gate=None,
  )
  num_rows = rollouts.rewards.shape[0]
  batch = learner.fresh_batch(
    rollouts, jnp.arange(num_rows), jnp.ones(num_rows, bool)
  )
  update = jax.jit(
    functools.partial(
      learner.update,
      functions=functions,
      num_updates_since_fresh=0,
      num_microbatches=1 if packed else num_rows // PADDED_ROWS,
      packed=packed,
    )
  )
  state = learner.init(params, functions)
  return lambda: jax.block_until_ready(update(state, batch))


def measure(num_rows: int, num_repetitions: int) -> dict:
  """Returns tokens/s of both updates, and the padding of both."""
  rollouts = make_rollouts(num_rows)
  num_read = int(jnp.sum(packing.num_columns(rollouts.loss_mask)))
  num_tokens = num_read + num_rows
  packed = microbatches.Packing(QWEN3.max_context, SEQUENCES)
  both = {
    name: make_update(rollouts, choice)
    for name, choice in (('padded', None), ('packed', packed))
  }
  padding, gradients = {}, {}
  for name, update in both.items():  # Compiles.
    _, outcome, status = update()
    padding[name] = 1 - num_read / float(status.num_columns)
    gradients[name] = float(outcome.grad_norm)
  np.testing.assert_allclose(
    gradients['packed'], gradients['padded'], rtol=1e-4
  )
  seconds = {name: [] for name in both}
  for _ in range(num_repetitions):
    for name, update in both.items():
      start = time.perf_counter()
      update()
      seconds[name].append(time.perf_counter() - start)
  speed = {
    name: num_tokens / statistics.median(times)
    for name, times in seconds.items()
  }
  return {
    'rows': num_rows,
    'tokens': num_tokens,
    'padding': padding,
    'seconds': seconds,
    'tokens_per_second': speed,
    'ratio': speed['packed'] / speed['padded'],
  }


def report(result: dict) -> str:
  """Prints the result, and returns the ratio and the padding."""
  for name, speed in result['tokens_per_second'].items():
    print(
      f'{name}: {speed:.0f} tokens/s, padding {result["padding"][name]:.1%}'
    )
  return (
    f'learner {result["ratio"]:.2f} x, '
    f'padding {100 * result["padding"]["packed"]:.1f} %'
  )
