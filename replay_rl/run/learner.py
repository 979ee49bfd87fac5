"""The learner: one optimizer update on a batch of rollouts."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from replay_rl import base
from replay_rl.lm import model
from replay_rl.run import gradients as gradients_lib
from replay_rl.run import microbatches


class UpdateFunctions(NamedTuple):
  """What an update is made of.

  logprobs_fn: scores tokens.
  loss_fn: the loss of each token.
  statistics_fn: computes statistics of the whole batch for the loss, or None.
  normalizer_fn: the weight of each token.
  row_weight_fn: the factor of each row's loss; None for 1.
  optimizer: turns the gradient into a change of the weights.
  gate: may refuse the update, end the reuse of the rollouts, scale the rate or
    change the gradient; None accepts every update.
  """

  logprobs_fn: microbatches.LogprobsFn
  loss_fn: base.LossFn
  statistics_fn: base.StatisticsFn | None
  normalizer_fn: base.NormalizerFn
  row_weight_fn: base.RowWeightFn | None
  optimizer: optax.GradientTransformation
  gate: base.Gate | None


class Status(NamedTuple):
  """The result of an update: `[]` bool each, and one number.

  One of the first three is True; none if a gate left the update out before it.

  is_applied: it changed the weights.
  is_empty: it had no valid row.
  is_refused: the gate refused it.
  ends_reuse: the gate wants no more updates on these rollouts.
  num_columns: `[]` float32, tokens that the model read for the loss, padding
    included.
  """

  is_applied: base.Array
  is_empty: base.Array
  is_refused: base.Array
  ends_reuse: base.Array
  num_columns: base.Array


class _Rows(NamedTuple):
  """Fields of `base.LossInputs`, and `[B, T]` weights of the tokens' losses."""

  tokens: base.Array
  behavior_logprobs: base.Array
  rewards: base.Array
  advantages: base.Array
  loss_mask: base.Array
  age: base.Array
  prompt_id: base.Array
  is_fresh: base.Array
  token_versions: base.Array | None
  reference_logprobs: base.Array | None
  proximal_logprobs: base.Array | None
  row_grad_norms: base.Array | None
  token_weights: base.Array


def fresh_batch(
  rollouts: base.Rollout, slots: base.Array, is_valid: base.Array
) -> base.Batch:
  """Returns a batch of `[B]` rows that no draw from the buffer chose."""
  return base.Batch(
    rollouts=rollouts,
    slots=slots,
    is_valid=is_valid,
    is_fresh=is_valid,
    probs=jnp.zeros(is_valid.shape),
    num_eligible=jnp.sum(is_valid, dtype=jnp.int32),
  )


def init(params: base.PyTree, functions: UpdateFunctions) -> base.LearnerState:
  """Returns the state of a learner before its first update."""
  zero = jnp.zeros((), jnp.int32)
  return base.LearnerState(
    params=params,
    opt_state=functions.optimizer.init(params),
    gate_state=functions.gate.init(params) if functions.gate else (),
    step=zero,
    num_tried=zero,
    num_empty_in_a_row=zero,
  )


def update(
  state: base.LearnerState,
  batch: base.Batch,
  *,
  functions: UpdateFunctions,
  num_updates_since_fresh: base.Array | int,
  num_microbatches: int,
  packed: microbatches.Packing | None = None,
  row_sets: base.Array | None = None,
  proximal_params: base.PyTree | None = None,
  has_row_grad_norms: bool = False,
) -> tuple[base.LearnerState, base.Outcome, Status]:
  """Takes one optimizer step on the weighted sum of the tokens' losses.

  The normalizer sees the whole batch, before it is split into microbatches.
  Each split therefore gives the gradient of the whole batch. An update without
  a valid row, or one that the gate refuses, does not change weights, optimizer
  and step.

  Args:
    state: the learner.
    batch: `[B, ...]`, rows to learn from; invalid rows have weight 0.
    functions: see `UpdateFunctions`.
    num_updates_since_fresh: `[]` integer, see `base.Proposal`.
    num_microbatches: must divide B. Only the activations of B /
      `num_microbatches` rows are in memory at a time.
    packed: packs the rows into sequences in place of that; None does not.
    row_sets: `[K, B]` bool, sets of rows for `Outcome.grad_norms_of_sets`; the
      norm of each takes one more backward pass over all rows.
    proximal_params: weights for `LossInputs.proximal_logprobs`, which take one
      more forward pass; None if the loss does not read them.
    has_row_grad_norms: whether to compute `LossInputs.row_grad_norms`, which
      takes one more backward pass, row by row.

  Returns:
    The new learner, the outcome before the weights changed, and the status.

  Raises:
    ValueError: B is not a multiple of `num_microbatches`, or a row does not fit
      a packed sequence.
  """
  chex.assert_rank([batch.rollouts.tokens, batch.is_valid], [2, 1])
  num_rows = batch.is_valid.shape[0]
  if num_rows % num_microbatches:
    raise ValueError(
      f'num_microbatches = {num_microbatches}: must divide the {num_rows} rows '
      'of an update'
    )
  outcome, gradients, num_columns = _gradients(
    state,
    batch,
    functions=functions,
    num_microbatches=num_microbatches,
    packed=packed,
    row_sets=row_sets,
    proximal_params=proximal_params,
    has_row_grad_norms=has_row_grad_norms,
  )
  is_empty = ~jnp.any(batch.is_valid)
  # More updates on the same rollouts often have the same rows, and say no more.
  is_first = jnp.asarray(num_updates_since_fresh) == 0
  is_accepted, ends_reuse = jnp.ones((), bool), jnp.zeros((), bool)
  rate_scale, gate_state = None, state.gate_state
  if functions.gate is not None:
    verdict, judged = functions.gate.judge(
      gate_state,
      base.Proposal(
        *(batch, outcome, gradients, state.step),
        jnp.asarray(num_updates_since_fresh, jnp.int32),
      ),
    )
    # An update without rows does not change the state of the gate.
    gate_state = _choose(is_empty, gate_state, judged)
    is_accepted, rate_scale = verdict.is_accepted, verdict.rate_scale
    ends_reuse = verdict.ends_reuse & ~is_empty
    if verdict.gradients is not None:
      gradients = verdict.gradients
  is_applied = is_accepted & ~is_empty
  changes, opt_state = functions.optimizer.update(
    gradients, state.opt_state, state.params
  )
  if rate_scale is not None:
    changes = jax.tree.map(lambda leaf: leaf * rate_scale, changes)
  new_state = base.LearnerState(
    params=_choose(
      is_applied, optax.apply_updates(state.params, changes), state.params
    ),
    opt_state=_choose(is_applied, opt_state, state.opt_state),
    gate_state=gate_state,
    step=state.step + is_applied,
    num_tried=state.num_tried + 1,
    num_empty_in_a_row=jnp.where(
      is_empty, state.num_empty_in_a_row + is_first, 0
    ),
  )
  status = Status(
    *(is_applied, is_empty, ~is_accepted & ~is_empty, ends_reuse),
    num_columns=num_columns,
  )
  return new_state, outcome, status


def _gradients(
  state: base.LearnerState,
  batch: base.Batch,
  *,
  functions: UpdateFunctions,
  num_microbatches: int,
  packed: microbatches.Packing | None,
  row_sets: base.Array | None,
  proximal_params: base.PyTree | None,
  has_row_grad_norms: bool,
) -> tuple[base.Outcome, base.PyTree, base.Array]:
  """Returns the outcome of the loss, its gradient, and `Status.num_columns`."""
  rows, row_weights_B = _rows(batch, state.step, functions)
  params = model.untie(state.params)
  scored = functools.partial(
    microbatches.score,
    functions.logprobs_fn,
    tokens=rows.tokens,
    loss_mask=rows.loss_mask,
    num_microbatches=num_microbatches,
    packed=packed,
  )
  if proximal_params is not None:
    rows = rows._replace(proximal_logprobs=scored(proximal_params))
  if has_row_grad_norms:
    norms_B = _row_grad_norms(functions.logprobs_fn, params, rows)
    rows = rows._replace(row_grad_norms=norms_B)
  statistics = None
  if functions.statistics_fn is not None:
    inputs = _loss_inputs(rows, scored(state.params), None)
    statistics = jax.lax.stop_gradient(functions.statistics_fn(inputs))

  def loss_of_logprobs(logprobs_BT, rows):
    token_loss = functions.loss_fn(_loss_inputs(rows, logprobs_BT, statistics))
    loss = jnp.sum(token_loss.loss * rows.token_weights)
    return loss, (logprobs_BT, token_loss.is_clipped)

  summed = functools.partial(
    *(gradients_lib.of_loss, functions.logprobs_fn, loss_of_logprobs, params),
    num_microbatches=num_microbatches,
    packed=packed,
  )

  def norm_of_set(is_inside_B):
    # The weights of the other tokens stay, so the parts add up to the gradient.
    weights_BT = rows.token_weights * is_inside_B[:, None]
    (_, untied), _, _ = summed(rows._replace(token_weights=weights_BT))
    return optax.tree.norm(model.retie(untied))

  (loss, untied), (logprobs_BT, is_clipped_BT), num_columns = summed(rows)
  gradients = model.retie(untied)
  outcome = base.Outcome(
    loss=loss,
    logprobs=jax.lax.stop_gradient(logprobs_BT),
    is_clipped=is_clipped_BT,
    row_weights=row_weights_B,
    grad_norm=optax.tree.norm(gradients),
    output_projection_grad_norm=jnp.linalg.norm(untied['output_projection']),
    grad_norms_of_sets=(
      None if row_sets is None else jax.lax.map(norm_of_set, row_sets)
    ),
  )
  return outcome, gradients, num_columns


def _row_grad_norms(
  logprobs_fn: microbatches.LogprobsFn, untied: base.PyTree, rows: _Rows
) -> base.Array:
  """Returns `[B]`, see `base.LossInputs`; 0 for a row without a token."""

  def norm_of_row(row):
    tokens_T, mask_T = row

    def logprob(params):
      logprobs_1T, _ = logprobs_fn(params, tokens_T[None])
      return jnp.sum(jnp.where(mask_T, logprobs_1T[0], 0.0))

    return optax.tree.norm(model.retie(jax.grad(logprob)(untied)))

  return jax.lax.map(norm_of_row, (rows.tokens, rows.loss_mask))


def _rows(
  batch: base.Batch, step: base.Array, functions: UpdateFunctions
) -> tuple[_Rows, base.Array]:
  """Returns the inputs of the loss, and `[B]` weights of the rows."""
  rollouts = batch.rollouts
  mask_BT = rollouts.loss_mask & batch.is_valid[:, None]
  weights_BT = functions.normalizer_fn(mask_BT)
  row_weights_B = jnp.ones(batch.is_valid.shape)
  if functions.row_weight_fn is not None:
    row_weights_B = functions.row_weight_fn(batch, step)
    weights_BT *= row_weights_B[:, None]
  rows = _Rows(
    tokens=rollouts.tokens,
    behavior_logprobs=rollouts.behavior_logprobs,
    rewards=rollouts.rewards,
    advantages=rollouts.advantages,
    loss_mask=mask_BT,
    age=step - rollouts.policy_version,
    prompt_id=rollouts.prompt_id,
    is_fresh=batch.is_fresh,
    token_versions=rollouts.token_versions,
    reference_logprobs=rollouts.reference_logprobs,
    proximal_logprobs=None,
    row_grad_norms=None,
    token_weights=weights_BT,
  )
  return rows, row_weights_B


def _loss_inputs(
  rows: _Rows, logprobs_BT: base.Array, statistics: base.PyTree
) -> base.LossInputs:
  fields = rows._asdict()
  del fields['tokens'], fields['token_weights']
  return base.LossInputs(logprobs=logprobs_BT, statistics=statistics, **fields)


def _choose(
  condition: base.Array, if_true: base.PyTree, if_false: base.PyTree
) -> base.PyTree:
  return jax.tree.map(
    lambda one, other: jax.lax.select(condition, one, other),
    if_true,
    if_false,
  )
