"""Top-k and top-p: which tokens may be sampled."""

import jax
import jax.numpy as jnp

from replay_rl import base


def truncate(
  logprobs: base.Array, *, top_k: int | None, top_p: float | None
) -> tuple[base.Array, base.Array]:
  """Returns the most probable tokens, with their renormalised probabilities.

  First top-k: the k most probable tokens. Then top-p on the renormalised rest:
  the smallest set whose mass is at least p (Holtzman et al., 'The Curious Case
  of Neural Text Degeneration', arXiv:1904.09751, Eq. 2). Among tokens of equal
  probability the lowest ids are kept, so both sets have the exact size.

  Args:
    logprobs: `[B, V]` normalised log-probabilities.
    top_k: tokens to keep, or None for all.
    top_p: mass to keep, in (0, 1], or None for all.

  Returns:
    Log-probabilities `[B, K]`, most probable first and -inf for tokens cut by
    top-p, and token ids `[B, K]`; K is `top_k`, or V.
  """
  sorted_BK, ids_BK = jax.lax.top_k(logprobs, top_k or logprobs.shape[-1])
  sorted_BK = jax.nn.log_softmax(sorted_BK)
  if top_p is not None and top_p < 1.0:
    probs_BK = jnp.exp(sorted_BK)
    mass_before_BK = jnp.cumsum(probs_BK, axis=-1) - probs_BK
    is_kept_BK = mass_before_BK < top_p
    sorted_BK = jax.nn.log_softmax(jnp.where(is_kept_BK, sorted_BK, -jnp.inf))
  return sorted_BK, ids_BK
