"""Updates of the tiny model, and their gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from replay_rl import base
from replay_rl.rl import losses
from replay_rl.run import learner
from tests.run import tiny_run

CLIPPED = functools.partial(
  losses.clipped_surrogate, clip_low=0.2, clip_high=0.2, dual_clip=None
)


def make_rollouts(parts, num_rows):
  rng = np.random.default_rng(0)
  num_tokens = parts.transformer.max_context
  tokens = rng.integers(0, 12, (num_rows, num_tokens)).astype(np.int32)
  # Responses of 1 to 4 tokens after a prompt of 4.
  lengths = rng.integers(1, 5, num_rows)
  columns = np.arange(num_tokens)[None]
  mask = (columns >= 4) & (columns < 4 + lengths[:, None])
  behavior = np.where(mask, rng.normal(-2.5, 0.5, mask.shape), 0.0)
  return base.Rollout(
    tokens=jnp.asarray(tokens),
    loss_mask=jnp.asarray(mask),
    behavior_logprobs=jnp.asarray(behavior, jnp.float32),
    rewards=jnp.zeros(num_rows),
    advantages=jnp.asarray(rng.normal(size=num_rows), jnp.float32),
    group_id=jnp.zeros(num_rows, jnp.int32),
    prompt_id=jnp.zeros(num_rows, jnp.uint32),
    rollout_id=jnp.arange(num_rows, dtype=jnp.uint32),
    policy_version=-jnp.arange(num_rows, dtype=jnp.int32),
  )


# Keeps the gradient as its state: no rounding by the weights' size.
OPTIMIZER = optax.chain(optax.trace(decay=0.0), optax.sgd(1.0))


@functools.cache
def make_parts(tied=True):
  return tiny_run.experiment(model__tied_embeddings=tied).parts


def make_functions(parts, **changes):
  functions = learner.UpdateFunctions(
    logprobs_fn=parts.bind(parts.hyper).update.logprobs_fn,
    loss_fn=CLIPPED,
    statistics_fn=None,
    normalizer_fn=losses.token_mean,
    row_weight_fn=None,
    optimizer=OPTIMIZER,
    gate=None,
  )
  return functions._replace(**changes)


def make_batch(rollouts, is_valid=None, probs=None):
  num_rows = rollouts.rewards.shape[0]
  if is_valid is None:
    is_valid = jnp.ones(num_rows, bool)
  return base.Batch(
    rollouts=rollouts,
    slots=jnp.arange(num_rows),
    is_valid=is_valid,
    is_fresh=jnp.zeros(num_rows, bool),
    probs=jnp.ones(num_rows) if probs is None else probs,
    num_eligible=jnp.int32(num_rows),
  )


def update(
  parts,
  params,
  rollouts,
  is_valid=None,
  num_microbatches=1,
  packed=None,
  probs=None,
  start=None,
  num_updates_since_fresh=0,
  row_sets=None,
  has_row_grad_norms=False,
  **changes,
):
  functions = make_functions(parts, **changes)
  update = jax.jit(
    functools.partial(
      learner.update,
      functions=functions,
      num_microbatches=num_microbatches,
      packed=packed,
      has_row_grad_norms=has_row_grad_norms,
    )
  )
  state, outcome, status = update(
    start or learner.init(params, functions),
    make_batch(rollouts, is_valid, probs),
    num_updates_since_fresh=num_updates_since_fresh,
    row_sets=row_sets,
  )
  return state, outcome, status


def gradient(state):
  return state.opt_state[0].trace


def distance(tree, reference):
  difference = jax.tree.map(jnp.subtract, tree, reference)
  return float(optax.tree.norm(difference) / optax.tree.norm(reference))
