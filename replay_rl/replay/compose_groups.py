"""How groups of rollouts make the batch of one update; see `compose`.

A group is the rollouts of one visit to a prompt. The fresh rows are P groups of
G consecutive rows, as the sampler generates them. In the buffer, the rows of a
group may lie in any slots, and some may be overwritten before others.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.replay import buffer
from replay_rl.replay import compose
from replay_rl.replay import sampling
from replay_rl.replay import storage

_Count = Annotated[int, constants.interval('[1, inf)')]


@constants.checked
def same_prompt(
  state: base.BufferState,
  fresh: base.Batch,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.WeightRule,
  draw: base.DrawFn,
  group_size: _Count,
  num_replayed: _Count,
  only_failed: bool,
) -> base.Batch:
  """Returns all fresh rows, followed by older rows of the same prompts.

  Of RePO (arXiv 2506.09340), whose rule and draw choose among the older rows of
  a prompt; RLEP (arXiv 2507.07451), which adds correct ones; ARPO (arXiv
  2505.16282), which adds a correct one to a group of failures; and the response
  reuse of AR3PO (arXiv 2509.25808).

  The shape is static: F rows, and N rows for each of the P groups in order. A
  row is invalid where fewer than N are eligible. Two groups of one prompt draw
  independently, and may draw the same rows.

  The fresh rows of a group that `replay.drop_zero_variance` dropped are valid
  again if a replayed row with another reward joins them: the rewards then
  differ, and `loss.batch_advantage` can compare them. Without it, they keep the
  advantages of the generation, which are zero with any baseline. These rows are
  in no slot, so no use of them is counted.

  Args:
    state: the buffer, with the fresh rows inserted.
    fresh: the F rows of this iteration, P groups.
    rng_key: random key, consumed; each group draws with a key of its own.
    step: `[]` int32, learner step.
    weight_rule: what to sample. Only the ratios within a prompt matter.
    draw: how to sample.
    group_size: G.
    num_replayed: N, older rows for each group.
    only_failed: whether only groups without a reward above 0 get older rows.

  Raises:
    ValueError: if G does not divide F, or N exceeds C.
  """
  num_groups = _num_groups(fresh, group_size)
  capacity = state.is_valid.shape[0]
  if num_replayed > capacity:
    raise ValueError(
      f'num_replayed = {num_replayed}: must be at most capacity = {capacity}'
    )
  rollouts = storage.whole((fresh.rollouts.rewards, fresh.rollouts.prompt_id))
  rewards_PG, prompt_id_PG = (x.reshape(num_groups, -1) for x in rollouts)
  stored_C = buffer.field(state, 'prompt_id', 'same_prompt')
  is_same_PC = prompt_id_PG[:, :1] == stored_C[None, :]
  if only_failed:
    is_same_PC &= jnp.all(rewards_PG <= 0, axis=1, keepdims=True)
  weights_C = compose.older_weights(state, fresh, weight_rule(state, step))

  def draw_one(group, is_same_C):
    return buffer.draw_slots(
      state,
      jax.random.fold_in(rng_key, group),
      jnp.where(is_same_C, weights_C, 0.0),
      num_replayed,
      draw=draw,
    )

  drawn = jax.vmap(draw_one)(jnp.arange(num_groups), is_same_PC)
  is_eligible_C = state.is_valid & sampling.is_eligible(weights_C)
  replayed = buffer.read(
    state,
    base.Draw(
      *(leaf.reshape(-1) for leaf in drawn[:-1]),
      num_eligible=jnp.sum(
        is_eligible_C & jnp.any(is_same_PC, axis=0), dtype=jnp.int32
      ),
    ),
  )
  differs_PN = (
    replayed.rollouts.rewards.reshape(num_groups, -1) != (rewards_PG[:, :1])
  )
  is_revived_P = jnp.any(drawn.is_valid & differs_PN, axis=1)
  fresh = fresh._replace(
    is_valid=fresh.is_valid | jnp.repeat(is_revived_P, group_size)
  )
  anchor = compose.fresh_only(state, fresh, rng_key, step)
  return compose.joined(anchor, replayed)


@constants.checked
def fresh_anchored_groups(
  state: base.BufferState,
  fresh: base.Batch,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.WeightRule,
  draw: base.DrawFn,
  replay_fraction: Annotated[float, constants.NON_NEGATIVE],
  warmup_steps: Annotated[int | jax.Array, constants.NON_NEGATIVE],
  group_size: _Count,
) -> base.Batch:
  """Returns all fresh rows, followed by older groups from the buffer.

  The group as the unit of replay, which "Rollout-Level Advantage-Prioritized
  Experience Replay for GRPO" (arXiv 2606.04560) compares with the rollout, see
  `compose.fresh_anchored`. With n valid fresh groups, r n older ones are
  valid, rounded half up. A group is drawn by the mean of its rows' weights, in
  which a weight that is not eligible counts as 0; a group of which a row was
  overwritten is not drawn. `probs` are those of the group.

  Args:
    state: the buffer, with the fresh rows inserted.
    fresh: the F rows of this iteration, P groups, each valid as a whole or not
      at all.
    rng_key: random key, consumed.
    step: `[]` int32, learner step.
    weight_rule: what to sample.
    draw: how to sample. Its first k draws must be a fair draw of k.
    replay_fraction: r, older groups per fresh group.
    warmup_steps: older groups are valid from this learner step on.
    group_size: G.

  Raises:
    ValueError: if G does not divide F, or `replay_fraction` asks for more older
      rows than slots.
  """
  _num_groups(fresh, group_size)

  def draw_groups(num_groups):
    weights_C = compose.older_weights(state, fresh, weight_rule(state, step))
    slots_CG = _slots_of_groups(state, group_size)
    weights_CG = (
      sampling.scaled(weights_C).at[slots_CG].get(mode='fill', fill_value=0.0)
    )
    drawn = buffer.draw_slots(
      state, rng_key, jnp.mean(weights_CG, axis=1), num_groups, draw=draw
    )
    slots_KG = slots_CG.at[drawn.slots].get(
      mode='fill', fill_value=state.is_valid.shape[0]
    )
    return base.Draw(
      slots_KG.reshape(-1),
      jnp.repeat(drawn.probs, group_size),
      jnp.repeat(drawn.is_valid, group_size),
      drawn.num_eligible * group_size,
    )

  return compose.anchored(
    state,
    compose.fresh_only(state, fresh, rng_key, step),
    draw_groups,
    step,
    unit_size=group_size,
    replay_fraction=replay_fraction,
    warmup_steps=warmup_steps,
  )


def _num_groups(fresh: base.Batch, group_size: int) -> int:
  num_rows = fresh.is_valid.shape[0]
  if num_rows % group_size:
    raise ValueError(
      f'group_size = {group_size}: must divide the {num_rows} fresh rows'
    )
  return num_rows // group_size


def _slots_of_groups(state: base.BufferState, group_size: int) -> base.Array:
  """Returns `[C, G]` int32, the slots of each group that is stored whole.

  A group has its slots in the row of the first of them. All other rows have C.
  """
  capacity = state.is_valid.shape[0]
  group_id_C = buffer.field(state, 'group_id', 'fresh_anchored_groups')
  order_C = jnp.lexsort((group_id_C, ~state.is_valid)).astype(jnp.int32)
  places_CG = jnp.arange(capacity)[:, None] + jnp.arange(group_size)[None]
  slots_CG = order_C.at[places_CG].get(mode='fill', fill_value=capacity)
  # The slots of a group are neighbours in this order. The last place is that
  # of the G-th row, so the group is whole if its id is there, too.
  sorted_id_C, is_valid_C = group_id_C[order_C], state.is_valid[order_C]
  last_C = places_CG[:, -1]
  is_whole_C = is_valid_C.at[last_C].get(mode='fill', fill_value=False) & (
    sorted_id_C == sorted_id_C.at[last_C].get(mode='clip')
  )
  slots_CG = jnp.where(is_whole_C[:, None], slots_CG, capacity)
  return jnp.full_like(slots_CG, capacity).at[order_C].set(slots_CG)
