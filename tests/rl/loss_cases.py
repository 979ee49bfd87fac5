"""Losses with their constants, and batches to compute them on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.rl import corrections
from replay_rl.rl import losses
from replay_rl.rl import penalties

AGE = 2  # Of every row.
PROMPT_ID = 7  # Of every row.
REFERENCE, PROXIMAL = -1.5, -1.25  # Log-probs of all tokens.
STATISTICS = {
  'second_moment_cutoff': 0.1,
  'log_ratio_quantile': 0.5,
  'lowest_ratio': 0.8,
  'highest_ratio': 1.3,
  'optimal_baseline': 0.5,
  # Of a batch of two prompts.
  'mean_reference_log_ratio': np.array([9.0, 0.25], np.float32),
  'prompt_id': np.array([8, PROMPT_ID], np.uint32),
}


def inputs_of(logprobs, behavior_logprobs, advantages, loss_mask, fields=None):
  """The inputs of a loss; `fields` replaces what is the same in all cases."""
  inputs = base.LossInputs(
    logprobs=logprobs,
    behavior_logprobs=behavior_logprobs,
    rewards=advantages,
    advantages=advantages,
    loss_mask=loss_mask,
    age=jnp.full(loss_mask.shape[0], AGE, jnp.int32),
    prompt_id=jnp.full(loss_mask.shape[0], PROMPT_ID, jnp.uint32),
    is_fresh=jnp.zeros(loss_mask.shape[0], bool),
    reference_logprobs=jnp.full_like(logprobs, REFERENCE),
    proximal_logprobs=jnp.full_like(logprobs, PROXIMAL),
    statistics={name: jnp.asarray(STATISTICS[name]) for name in STATISTICS},
  )
  return inputs._replace(**(fields or {}))


def of_arrays(loss_fn, fields=None, **constants):
  """The loss as a function of the four arrays that all losses read."""

  def compute(logprobs, behavior_logprobs, advantages, loss_mask):
    arrays = logprobs, behavior_logprobs, advantages, loss_mask
    return loss_fn(inputs_of(*arrays, fields), **constants)

  return compute


LOSSES = {
  'clipped_surrogate': of_arrays(
    losses.clipped_surrogate, clip_low=0.2, clip_high=0.3, dual_clip=3.0
  ),
  'gspo': of_arrays(losses.gspo, clip_low=0.2, clip_high=0.3),
  'm2po': of_arrays(losses.m2po),
  'reinforce': of_arrays(losses.reinforce),
  'asymre': of_arrays(losses.asymre, delta_v=-0.1),
  'cispo': of_arrays(losses.cispo, clip_low=0.2, clip_high=0.3),
  'topr': of_arrays(losses.topr),
  'bapo': of_arrays(losses.bapo),
  'sat': of_arrays(losses.sat, clip_low=0.2, clip_high=0.3, exponent=2.0),
  'truncated_importance_sampling': of_arrays(
    corrections.truncated_importance_sampling, max_ratio=2.0
  ),
  'sequence_truncated_importance_sampling': of_arrays(
    corrections.sequence_truncated_importance_sampling, max_ratio=2.0
  ),
  'vcpo': of_arrays(corrections.vcpo, max_ratio=2.0),
  'masked_importance_sampling': of_arrays(
    corrections.masked_importance_sampling, max_ratio=2.0
  ),
  'icepop': of_arrays(corrections.icepop, lowest=0.8, highest=2.0),
  'decoupled_ppo': of_arrays(
    corrections.decoupled_ppo, clip_low=0.2, clip_high=0.3, max_ratio=1.6
  ),
  'a3po': of_arrays(
    corrections.a3po, clip_low=0.2, clip_high=0.3, max_ratio=1.5
  ),
  'exgrpo': of_arrays(
    corrections.exgrpo, clip_low=0.2, clip_high=0.3, beta=0.5
  ),
  'reference_kl': of_arrays(penalties.reference_kl, coefficient=0.5),
  'behavior_kl': of_arrays(penalties.behavior_kl, coefficient=0.5),
  'tba': of_arrays(penalties.tba, beta=0.5),
}
# The same, without any bound but that on the log ratio.
UNBOUNDED = LOSSES | {
  'clipped_surrogate': of_arrays(
    losses.clipped_surrogate, clip_low=1.0, clip_high=np.inf, dual_clip=None
  ),
  'gspo': of_arrays(losses.gspo, clip_low=1.0, clip_high=np.inf),
  'cispo': of_arrays(losses.cispo, clip_low=1.0, clip_high=np.inf),
  'truncated_importance_sampling': of_arrays(
    corrections.truncated_importance_sampling, max_ratio=np.inf
  ),
  'sequence_truncated_importance_sampling': of_arrays(
    corrections.sequence_truncated_importance_sampling, max_ratio=np.inf
  ),
  'vcpo': of_arrays(corrections.vcpo, max_ratio=np.inf),
  'masked_importance_sampling': of_arrays(
    corrections.masked_importance_sampling, max_ratio=np.inf
  ),
  'icepop': of_arrays(corrections.icepop, lowest=0.0, highest=np.inf),
  'decoupled_ppo': of_arrays(
    corrections.decoupled_ppo, clip_low=1.0, clip_high=np.inf, max_ratio=np.inf
  ),
  'a3po': of_arrays(
    corrections.a3po, clip_low=1.0, clip_high=np.inf, max_ratio=np.inf
  ),
}
NORMALIZERS = {
  'token_mean': losses.token_mean,
  'sequence_mean': losses.sequence_mean,
  'constant': functools.partial(losses.constant, tokens_per_row=6.0),
}


def random_batch(has_empty_row=True):
  """Eight rows of six tokens: prompt, response, padding, and an empty row."""
  rng = np.random.default_rng(0)
  logprobs = rng.normal(-1.0, 0.5, (8, 6)).astype(np.float32)
  behavior_logprobs = rng.normal(-1.0, 0.5, (8, 6)).astype(np.float32)
  advantages = rng.normal(size=8).astype(np.float32)
  prompt_lengths = rng.integers(1, 3, (8, 1))
  ends = rng.integers(3, 7, (8, 1))
  positions = np.arange(6)[None, :]
  loss_mask = (positions >= prompt_lengths) & (positions < ends)
  loss_mask[3] &= not has_empty_row
  return logprobs, behavior_logprobs, advantages, loss_mask


def one_row(log_ratios, advantage):
  """A row of tokens with log pi = -1, after a masked token."""
  ratios = np.array([[0.0, *log_ratios]], np.float32)
  logprobs = np.full_like(ratios, -1.0)
  mask = np.arange(ratios.shape[1])[None] > 0
  return logprobs, logprobs - ratios, np.array([advantage], np.float32), mask


@functools.partial(jax.jit, static_argnums=0)
def value_and_grad(loss_fn, batch):
  """The per-token loss, and the gradient of its sum to the log-probs."""

  def total(logprobs):
    token_loss = loss_fn(logprobs, *batch[1:])
    return jnp.sum(token_loss.loss), token_loss

  (_, token_loss), grads = jax.value_and_grad(total, has_aux=True)(batch[0])
  return token_loss, grads


def check_row(loss_fn, log_ratios, advantage, *, loss, grad, is_clipped):
  """Compares the tokens after the masked one with values worked out by hand."""
  token_loss, grads = value_and_grad(loss_fn, one_row(log_ratios, advantage))
  np.testing.assert_allclose(token_loss.loss, [[0.0, *loss]], rtol=1e-5)
  np.testing.assert_allclose(grads, [[0.0, *grad]], rtol=1e-5)
  np.testing.assert_array_equal(token_loss.is_clipped, [[False, *is_clipped]])
