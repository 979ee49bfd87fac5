"""Top-k and top-p: which tokens may be sampled."""

import jax
import jax.numpy as jnp

from replay_rl import base


def truncate(
  logprobs: base.Array, *, top_k: int | None, top_p: base.Scalar | None
) -> tuple[base.Array, base.Array]:
  """Returns the most probable tokens, with their renormalised probabilities.

  Top-k comes first: it keeps the k most probable tokens. Top-p then keeps the
  smallest set whose renormalised mass is at least p (Holtzman et al., 'The
  Curious Case of Neural Text Degeneration', arXiv:1904.09751, Eq. 2). Among
  tokens of equal probability the lowest ids stay, so both sets have the exact
  size.

  Args:
    logprobs: `[B, V]` normalised log-probabilities.
    top_k: tokens to keep; None for all.
    top_p: `[]`, mass to keep, in (0, 1]; None for all.

  Returns:
    Log-probabilities `[B, K]`, most probable first, -inf for tokens that top-p
    cuts; and token ids `[B, K]`. K is `top_k`, or V.
  """
  sorted_BK, ids_BK = jax.lax.top_k(logprobs, top_k or logprobs.shape[-1])
  sorted_BK = jax.nn.log_softmax(sorted_BK)
  if top_p is not None:
    probs_BK = jnp.exp(sorted_BK)
    mass_before_BK = jnp.cumsum(probs_BK, axis=-1) - probs_BK
    # Rounding must not cut a token at 1.
    is_kept_BK = (mass_before_BK < top_p) | (jnp.asarray(top_p) >= 1.0)
    sorted_BK = jax.nn.log_softmax(jnp.where(is_kept_BK, sorted_BK, -jnp.inf))
  return sorted_BK, ids_BK
