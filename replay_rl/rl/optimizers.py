"""Optimizers, as optax transformations whose numbers may be arrays."""

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
import optax

from replay_rl import base
from replay_rl import constants

_Decay = Annotated[base.Scalar, constants.interval('[0, 1)')]


@constants.checked
def adamw(
  learning_rate: optax.Schedule,
  *,
  b1: _Decay,
  b2: _Decay,
  eps: Annotated[base.Scalar, constants.interval('[1e-20, 1000]')],
  weight_decay: Annotated[base.Scalar, constants.NON_NEGATIVE],
) -> optax.GradientTransformation:
  """Returns Adam with decoupled weight decay.

  Loshchilov and Hutter, https://arxiv.org/abs/1711.05101. Weights decay by the
  rate times `weight_decay` in each update.

  Args:
    learning_rate: the rate by number of earlier updates, `[]` int32.
    b1: decay of the mean of gradients.
    b2: decay of the mean of squared gradients.
    eps: added to the root of that mean.
    weight_decay: per unit of the learning rate.
  """
  return optax.adamw(
    learning_rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay
  )


def clipped(
  transform: Callable, rates: optax.Schedule, max_grad_norm: base.Scalar
) -> optax.GradientTransformation:
  """Returns an optimizer that first clips the gradient's global norm.

  Args:
    transform: learning rates -> optimizer.
    rates: update -> learning rate.
    max_grad_norm: above 0; inf does not clip.
  """
  return optax.chain(optax.clip_by_global_norm(max_grad_norm), transform(rates))


def warmed_up(
  count: base.Array, *, learning_rate: base.Scalar, warmup_steps: base.Scalar
) -> base.Array:
  """Returns the learning rate of an update: a linear warm-up, then constant.

  The first update has 1 / (warmup_steps + 1) of the rate, so it is not lost.
  """
  return learning_rate * (
    (jnp.minimum(count, warmup_steps) + 1) / (warmup_steps + 1)
  )
