"""Gates: update rules with a state, between the gradients and the optimizer.

Each function takes constants alone and returns a `base.Gate`.
"""

from typing import Annotated
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from replay_rl import base
from replay_rl import constants
from replay_rl.rl import importance

_EPS = 1e-8  # Added to the deviation in `gradient_gate`.


class GradientGateState(NamedTuple):
  """What `gradient_gate` remembers of the updates that it accepted.

  differences: `[window]` float32, a ring of the latest increments of the norm.
  num_differences: `[]` int32, increments that were ever written to it.
  previous_norm: `[]` float32, of the latest update, or the square of it; -1
    before the first.
  """

  differences: base.Array
  num_differences: base.Array
  previous_norm: base.Array


def accept_all() -> base.Gate:
  """Returns the gate that changes nothing."""
  return base.Gate(
    init=_no_state, judge=lambda state, proposal: (_accept(), state)
  )


@constants.checked
def ess_scaled_rate(
  *, on_policy_ess: Annotated[base.Scalar, constants.interval('(0, 1]')]
) -> base.Gate:
  """Returns the gate that lowers the learning rate with the sample size.

  VCPO, https://arxiv.org/abs/2602.17616: the rate is multiplied by
  min(1, ESS / ESS on-policy). ESS is `importance.effective_sample_size` of the
  rows, whose weights are the ratios pi / mu of whole sequences. (The authors'
  repository describes a square root of this factor for Adam.)

  Args:
    on_policy_ess: share of the rows that counts in an on-policy batch.
  """

  def judge(
    state: base.PyTree, proposal: base.Proposal
  ) -> tuple[base.Verdict, base.PyTree]:
    rollouts, is_valid = proposal.batch.rollouts, proposal.batch.is_valid
    mask_BT = rollouts.loss_mask & is_valid[:, None]
    log_ratios_BT = importance.log_ratios(
      proposal.outcome.logprobs, rollouts.behavior_logprobs, mask_BT
    )
    ess = importance.effective_sample_size(
      jnp.sum(log_ratios_BT, axis=1), jnp.any(mask_BT, axis=1)
    )
    scale = jnp.minimum(ess / on_policy_ess, 1.0)
    return _accept()._replace(rate_scale=scale.astype(jnp.float32)), state

  return base.Gate(init=_no_state, judge=judge)


@constants.checked
def staleness_scaled_rate(
  *, free_age: Annotated[base.Scalar, constants.interval('(0, 1e+09]')]
) -> base.Gate:
  """Returns the gate that lowers the learning rate with the age of the rows.

  The rate is multiplied by min(1, free_age / mean age), after the law that the
  largest stable rate falls as 1 / staleness, https://arxiv.org/abs/2607.01083.

  Args:
    free_age: learner steps of age up to which the rate stays.
  """

  def judge(
    state: base.PyTree, proposal: base.Proposal
  ) -> tuple[base.Verdict, base.PyTree]:
    batch = proposal.batch
    ages_B = proposal.step - batch.rollouts.policy_version
    total = jnp.sum(jnp.where(batch.is_valid, ages_B, 0))
    mean = total / jnp.maximum(jnp.sum(batch.is_valid), 1)
    scale = free_age / jnp.maximum(mean, free_age)
    return _accept()._replace(rate_scale=scale.astype(jnp.float32)), state

  return base.Gate(init=_no_state, judge=judge)


@constants.checked
def gradient_gate(
  *,
  threshold: Annotated[base.Scalar, constants.interval('[0, inf]')],
  window: Annotated[int, constants.interval('[2, inf)')],
  squared: bool,
) -> base.Gate:
  """Returns the gate that ends the reuse of a batch as the gradient surges.

  "When to Stop Reusing: Dynamic Gradient Gating",
  https://arxiv.org/abs/2605.19425. With g the norm of the gradient of the
  output projection, d = g - g_previous and
  z = (d - mean(latest d)) / (std(latest d) + 1e-8), an update is refused, and
  the reuse of its rollouts ends, if z > threshold, unless it is the first
  update after generation or fewer than `window` increments were seen.

  The paper does not say which deviation; this is the population one. A refused
  update leaves no trace: the next d is relative to the latest accepted update.

  Args:
    threshold: in deviations, 0.1 to 0.5 in the paper; inf accepts all updates.
    window: number of increments d of accepted updates that z compares with.
    squared: if True, g is the square of the norm; the paper leaves this open.
  """

  def init(params: base.PyTree) -> GradientGateState:
    del params
    return GradientGateState(
      differences=jnp.zeros(window),
      num_differences=jnp.zeros((), jnp.int32),
      previous_norm=-jnp.ones(()),
    )

  def judge(
    state: GradientGateState, proposal: base.Proposal
  ) -> tuple[base.Verdict, GradientGateState]:
    norm = proposal.outcome.output_projection_grad_norm
    norm = norm**2 if squared else norm
    difference = norm - state.previous_norm
    latest_W = state.differences
    z = (difference - jnp.mean(latest_W)) / (jnp.std(latest_W) + _EPS)
    is_reuse = proposal.num_updates_since_fresh > 0
    is_full = state.num_differences >= window
    is_refused = is_reuse & is_full & (z > threshold)
    # The first update ever has no increment.
    is_written = ~is_refused & (state.previous_norm >= 0)
    place = jnp.where(is_written, state.num_differences % window, window)
    new_state = GradientGateState(
      differences=latest_W.at[place].set(difference, mode='drop'),
      num_differences=state.num_differences + is_written,
      previous_norm=jnp.where(is_refused, state.previous_norm, norm),
    )
    verdict = _accept()._replace(is_accepted=~is_refused, ends_reuse=is_refused)
    return verdict, new_state

  return base.Gate(init=init, judge=judge)


@constants.checked
def gradient_alignment(
  *,
  lower: Annotated[base.Scalar, constants.FRACTION],
  upper: Annotated[base.Scalar, constants.FRACTION],
) -> base.Gate:
  """Returns the gate that turns a gradient away from the one before it.

  GAC, "Gradient Alignment Control", https://arxiv.org/abs/2603.01501. With old
  rollouts, the cosine c of a gradient and the previous one is high. A gradient
  with c <= lower stays as it is. With lower < c <= upper, its part along the
  previous gradient is made shorter, so that the cosine becomes `lower`. An
  update with c > upper is refused.

  We know the abstract of the paper, and chose the rest: what the cosine
  becomes; and that the previous gradient is that of the latest update with a
  valid row, as the loss gave it, whether that update was refused or not.

  Args:
    lower: 0 removes the whole of a part along the previous gradient.
    upper: at least `lower`; 1 refuses no update.

  Raises:
    ValueError: `lower` is above `upper`.
  """
  # Arrays in a program have the values of numbers that were checked before.
  is_array = isinstance(lower, jax.Array) or isinstance(upper, jax.Array)
  if not is_array and lower > upper:
    raise ValueError(f'lower = {lower}: must be at most upper = {upper}')

  def judge(
    previous: base.PyTree, proposal: base.Proposal
  ) -> tuple[base.Verdict, base.PyTree]:
    gradients = proposal.gradients
    norm = optax.tree.norm(gradients)
    previous_norm = optax.tree.norm(previous)
    # The cosine is 0 if one of them is zero, such as that before the first.
    divisor = jnp.where(previous_norm > 0, previous_norm, 1.0)
    along = optax.tree.vdot(gradients, previous) / divisor
    cosine = along / jnp.where(norm > 0, norm, 1.0)
    cosine = jnp.clip(cosine, -1.0, 1.0)  # Rounding may take it beyond 1.
    across = norm * jnp.sqrt(1.0 - cosine**2)
    # A gradient with the cosine `lower` has this length along the previous one.
    allowed = across * lower / jnp.sqrt(1.0 - lower**2)
    excess = jnp.where(cosine > lower, along - allowed, 0.0) / divisor
    verdict = _accept()._replace(
      is_accepted=~(cosine > upper),
      gradients=jax.tree.map(
        lambda leaf, before: leaf - excess * before, gradients, previous
      ),
    )
    return verdict, gradients

  return base.Gate(init=optax.tree.zeros_like, judge=judge)


def _no_state(params: base.PyTree) -> base.PyTree:
  del params
  return ()


def _accept() -> base.Verdict:
  return base.Verdict(
    is_accepted=jnp.ones((), bool),
    ends_reuse=jnp.zeros((), bool),
    rate_scale=jnp.ones(()),
  )
