"""Exact counters of generated and trained tokens, and their cost.

Counters are pairs of uint32 words with carry, because a real run passes 2^31
tokens and JAX has no 64-bit integers by default. The host computes FLOPs and
cost units from the counters.
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.lm import architecture


class Ledger(NamedTuple):
  """Totals since the start of the run, each a counter `[2]` uint32.

  rollouts: responses sampled.
  inserted_rollouts: those of them that the buffer took; the others were in
    groups without variance of their rewards.
  prompt_tokens: tokens of the prompts, once per response.
  generated_tokens: tokens of the responses, end-of-sequence included.
  updates: updates that changed the weights.
  trained_rollouts: valid rows of all updates, those that a gate refused
    included; a rollout counts at each use.
  trained_tokens: response tokens of these rows.
  trained_prompt_tokens: prompt tokens of these rows.
  """

  rollouts: base.Array
  inserted_rollouts: base.Array
  prompt_tokens: base.Array
  generated_tokens: base.Array
  updates: base.Array
  trained_rollouts: base.Array
  trained_tokens: base.Array
  trained_prompt_tokens: base.Array


def init() -> Ledger:
  """Returns a ledger of zeros."""
  return Ledger(*(jnp.zeros((2,), jnp.uint32) for _ in Ledger._fields))


def add(ledger: Ledger, **counts: base.Array | int) -> Ledger:
  """Returns the ledger with these counts added.

  Args:
    ledger: the totals so far.
    **counts: `[]` non-negative integers below 2^31, by name of the counter.
  """
  return ledger._replace(
    **{
      name: _add_with_carry(getattr(ledger, name), jnp.asarray(count))
      for name, count in counts.items()
    }
  )


def total(counter: base.Array | np.ndarray) -> int:
  """Returns the value of a counter `[2]` as a Python integer."""
  high, low = np.asarray(counter).tolist()
  return (high << 32) + low


def prices(
  ledger: Ledger, transformer: architecture.TransformerConfig, mu: float
) -> dict[str, float]:
  """Returns the totals, FLOPs and cost units of a ledger, for the log.

  The FLOPs of a token assume attention over a full context, and a backward pass
  counts as two forward passes. A cost unit is the cost of training on one
  rollout: B rows and R new rollouts per update cost B + mu R (Arnal et al.,
  arXiv 2604.08706, section 4).

  Args:
    ledger: counters of one seed, `[2]` each.
    transformer: shape of the model.
    mu: cost of generating a rollout over the cost of training on it.
  """
  totals = {name: total(counter) for name, counter in ledger._asdict().items()}
  flops = architecture.flops_per_token(
    transformer
  ) + architecture.attention_flops(transformer, transformer.max_context)
  trained = totals['trained_tokens'] + totals['trained_prompt_tokens']
  return totals | {
    'prefill_flops': float(flops * totals['prompt_tokens']),
    'decode_flops': float(flops * totals['generated_tokens']),
    'training_flops': float(3 * flops * trained),
    'cost_units': totals['trained_rollouts'] + mu * totals['rollouts'],
  }


def _add_with_carry(counter: base.Array, count: base.Array) -> base.Array:
  chex.assert_shape(counter, (2,))
  chex.assert_type(count, int)
  high, low = counter
  new_low = low + count.astype(jnp.uint32)
  carry = (new_low < low).astype(jnp.uint32)
  return jnp.stack([high + carry, new_low])
