"""Functions of a user, which choices name as `module:name`."""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from replay_rl import base
from replay_rl import constants


def scaled(
  state: base.Array,
  step: base.Array,
  *,
  scale: Annotated[base.Scalar, constants.POSITIVE],
  power: int = 1,
):
  return state * step * scale**power


def unannotated(state, step, *, scale):
  return state * step * scale


def reversed_arguments(step, state):
  return state * step


def with_any_keyword(state, step, **constants):
  return state * step


def made(factor):
  def rule(state, step):
    return state * step * factor

  return rule


def made_with_default(factor):
  def rule(state, step, *, scale=factor):
    return state * step * scale

  return rule


twice = functools.partial(scaled, scale=2.0)
compiled = jax.jit(unannotated, static_argnames='scale')
thrice = made(jnp.float32(3.0))


def exploding(learning_rate, *, factor: base.Scalar):
  """Returns an optimizer whose updates are far too large."""
  return optax.sgd(lambda count: factor * learning_rate(count))
