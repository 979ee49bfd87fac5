"""The events of a run: generate, judge, remember, learn, publish.

Each event is a pure function of the state. `cycle` calls them in the order of a
schedule. Where the task judges in JAX, one program runs the whole cycle. With a
task in text, a sampler on its own mesh or a buffer on the host, each event is a
program, see `programs`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import rng
from replay_rl.parallel import mesh
from replay_rl.replay import buffer as buffer_lib
from replay_rl.replay import histograms
from replay_rl.replay import prompt_table
from replay_rl.replay import storage
from replay_rl.rl import advantages as advantages_lib
from replay_rl.run import generation as generation_lib
from replay_rl.run import learner as learner_lib
from replay_rl.run import ledger as ledger_lib
from replay_rl.run import metrics
from replay_rl.run import microbatches
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.tasks import task as task_lib


class Actions(NamedTuple):
  """The functions that `cycle` calls for the events of a schedule.

  generate: (run, Generate) -> (generation, rewards `[F]`, metrics).
  remember: (run, generation, rewards) -> (run, fresh rows, metrics).
  learn: (run, fresh rows, number of updates) -> (run, metrics of the updates).
  publish: run -> run.
  observe: run after the events -> metrics.
  """

  generate: Callable
  remember: Callable
  learn: Callable
  publish: Callable
  observe: Callable


class Measured(NamedTuple):
  """The metrics of a cycle.

  values: metrics of generate, remember and observe, by name.
  updates: metrics of all updates; None if the schedule has no `Learn`.
  """

  values: base.Metrics
  updates: metrics.UpdateMetrics | None


def cycle(
  run: state.RunState, events: tuple[schedule.Event, ...], actions: Actions
) -> tuple[state.RunState, Measured]:
  """Runs one cycle of a schedule.

  Args:
    run: the state before the cycle.
    events: the events, in order.
    actions: the function of each event.

  Returns:
    The state after the cycle, and its metrics.

  Raises:
    ValueError: no Generate before a Remember, or no Remember before a Learn.
  """
  generated, fresh = None, None
  values, updates = {}, None
  for event in events:
    match event:
      case schedule.Generate():
        *generated, measured = actions.generate(run, event)
        run = run._replace(in_flight=None)
        values = metrics.of_events(values, measured)
      case schedule.Publish():
        run = actions.publish(run)
      case schedule.Remember():
        if generated is None:
          raise _missing(events, 'Generate', 'Remember')
        run, fresh, measured = actions.remember(run, *generated)
        values = metrics.of_events(values, measured)
      case schedule.Learn():
        if fresh is None:
          raise _missing(events, 'Remember', 'Learn')
        run, more = actions.learn(run, fresh, event.num_updates)
        updates = metrics.merge(updates, more) if updates else more
  values |= actions.observe(run)
  clock = run.clock._replace(iteration=run.clock.iteration + 1)
  return run._replace(clock=clock), Measured(values, updates)


def _missing(events: tuple, first: str, then: str) -> ValueError:
  return ValueError(f'schedule = {events}: must have a {first} before {then}')


def in_jax(parts: state.Parts, task: task_lib.Task) -> Actions:
  """Returns the actions of a task that judges in JAX, to trace as a whole."""

  def generate_and_judge(run, event):
    generation_lib.spans_of(event, parts)  # Raises if there are any.
    prompts = generation_lib.draw_prompts(run, parts, task)
    policy = generation_lib.policy(run)
    generation = generation_lib.generate(policy, prompts, parts)
    return generation, *generation_lib.judge(generation, task)

  return Actions(
    generate=generate_and_judge,
    remember=functools.partial(remember, parts=parts),
    learn=lambda run, fresh, num_updates: learn(
      run, fresh, parts, num_updates=num_updates
    ),
    publish=publish,
    observe=lambda run: metrics.of_buffer(
      run.buffer, num_bins=parts.histogram_bins
    ),
  )


def publish(run: state.RunState) -> state.RunState:
  """Replaces the oldest publication by the learner's weights."""
  if run.sampler is None:
    return run  # The sampler uses the learner's weights directly.
  oldest = run.sampler.num_published % run.sampler.version.shape[0]
  params, version = jax.tree.map(
    lambda ring, leaf: ring.at[oldest].set(leaf),
    (run.sampler.params, run.sampler.version),
    (run.learner.params, run.learner.step),
  )
  return run._replace(
    sampler=state.SamplerState(params, version, run.sampler.num_published + 1)
  )


@jax.named_scope('remember')
def remember(
  run: state.RunState,
  generation: generation_lib.Generation,
  rewards: base.Array,
  parts: state.Parts,
) -> tuple[state.RunState, base.Batch, base.Metrics]:
  """Computes advantages within groups and inserts the rollouts.

  Args:
    run: the state.
    generation: F responses.
    rewards: `[F]` float32.
    parts: see `state.Parts`.

  Returns:
    The state, the F rows as a batch, and the metrics of the generation.
  """
  functions = parts.bind(run.hyper)
  completions = generation.completions
  rollouts = base.Rollout(
    tokens=completions.tokens,
    loss_mask=completions.loss_mask,
    behavior_logprobs=completions.behavior_logprobs,
    rewards=rewards,
    advantages=functions.advantage_fn(rewards, generation.group_id),
    group_id=generation.group_id,
    prompt_id=generation.prompts.prompt_id,
    rollout_id=generation.rollout_id,
    policy_version=generation.policy_version,
    token_versions=generation.token_versions,
    reference_logprobs=_reference_logprobs(run, completions, parts),
  )
  has_variance = advantages_lib.group_has_variance(rewards, generation.group_id)
  is_kept = has_variance if parts.drop_zero_variance else None
  is_valid = jnp.ones_like(has_variance) if is_kept is None else is_kept
  keep_scores = None
  if functions.keep_rule is not None:
    keep_scores = functions.keep_rule(run.buffer, run.learner.step)
  stored, slots = buffer_lib.insert(
    run.buffer,
    rollouts,
    priorities=jnp.abs(rollouts.advantages),
    is_valid=is_kept,
    keep_scores=keep_scores,
  )
  stored = _visit(run, stored, rollouts, generation.prompts, parts)
  num_tokens = jnp.sum(completions.lengths)
  ledger = ledger_lib.add(
    run.ledger,
    rollouts=rewards.shape[0],
    inserted_rollouts=jnp.sum(is_valid),
    prompt_tokens=jnp.sum(generation.prompts.lengths),
    generated_tokens=num_tokens,
  )
  measured = {
    'reward': jnp.mean(rewards),
    'entropy': jnp.sum(completions.entropy) / num_tokens,
    'response_length': jnp.mean(completions.lengths.astype(jnp.float32)),
    'truncated_fraction': 1.0 - jnp.mean(completions.is_finished),
    'zero_variance_fraction': 1.0 - jnp.mean(has_variance),
    **metrics.of_overwritten(run.buffer, slots, parts.histogram_bins),
    'buffer/num_valid': buffer_lib.num_valid(stored),
    'buffer/num_repaired_priorities': stored.num_repaired_priorities,
    **metrics.of_prompts(stored, run.buffer.prompts, parts.num_prompts),
  }
  if rollouts.token_versions is not None:
    newest_F = jnp.max(rollouts.token_versions, axis=1)
    is_mixed_F = newest_F > rollouts.policy_version
    measured['mixed_versions_fraction'] = jnp.mean(is_mixed_F)
  fresh = learner_lib.fresh_batch(rollouts, slots, is_valid)
  clock = run.clock._replace(
    num_rollouts=run.clock.num_rollouts + jnp.uint32(rewards.shape[0]),
    num_updates_since_fresh=jnp.zeros((), jnp.int32),
    is_reuse_ended=jnp.zeros((), bool),
  )
  run = run._replace(clock=clock, buffer=stored, ledger=ledger)
  return run, fresh, measured


def _reference_logprobs(
  run: state.RunState, completions: base.Completions, parts: state.Parts
) -> base.Array | None:
  """Returns `[F, T]` float32 where the loss reads them, and else None."""
  if run.reference_params is None:
    return None
  num_parts = microbatches.number(parts.num_fresh, parts.microbatch_rows)
  logprobs_FT = microbatches.score(
    parts.bind(run.hyper).update.logprobs_fn,
    run.reference_params,
    completions.tokens,
    completions.loss_mask,
    num_microbatches=num_parts,
    packed=parts.packed,
  )
  return jnp.where(completions.loss_mask, logprobs_FT, 0.0)


def _visit(
  run: state.RunState,
  stored: base.BufferState,
  rollouts: base.Rollout,
  prompts: base.Prompts,
  parts: state.Parts,
) -> base.BufferState:
  """Adds all F rollouts to the table of prompts, if there is one.

  `run` is the state before the insert, and `stored` its buffer after it.
  """
  if stored.prompts is None:
    return stored
  # The rollouts of a group are neighbours.
  groups = (parts.num_prompts, parts.group_size)
  prompt_id_P, rewards_PG, index_P = jax.tree.map(
    lambda leaf: leaf.reshape(groups),
    storage.whole((rollouts.prompt_id, rollouts.rewards, prompts.stream_index)),
  )
  num_replayed = stored.prompts.num_replayed
  if index_P is not None:
    index_P = index_P[:, 0]
    is_replayed_P = index_P != generation_lib.new_prompts(run, parts)
    num_replayed += jnp.sum(is_replayed_P, dtype=jnp.uint32)
  table = prompt_table.visit(
    *(stored.prompts, prompt_id_P[:, 0], rewards_PG, run.buffer.num_batches),
    stream_index=index_P,
  )
  return stored._replace(prompts=table._replace(num_replayed=num_replayed))


@jax.named_scope('learn')
def learn(
  run: state.RunState,
  fresh: base.Batch,
  parts: state.Parts,
  *,
  num_updates: int,
) -> tuple[state.RunState, metrics.UpdateMetrics]:
  """Makes updates: each composes a batch, learns from it and marks its slots.

  Args:
    run: the state.
    fresh: `[F]` rows that `remember` returned.
    parts: see `state.Parts`.
    num_updates: 0 or more.

  Returns:
    The state, and the metrics of all updates together.
  """
  functions = parts.bind(run.hyper)
  proximal_params = parts.proximal_params(run.learner)

  def one_update(carry, _):
    learner, stored, clock, ledger = carry
    step = learner.step
    rng_key = rng.stream_key(run.seed, 'replay', learner.num_tried)
    batch = functions.compose_fn(stored, fresh, rng_key, step)
    batch = microbatches.padded(
      batch, num_microbatches=parts.num_microbatches, capacity=parts.capacity
    )
    rollouts = batch.rollouts
    if functions.batch_advantage_fn is not None:
      advantages_B = functions.batch_advantage_fn(batch)
      rollouts = rollouts._replace(advantages=advantages_B)
    batch = batch._replace(rollouts=mesh.split_rows(rollouts))
    learner, batch, outcome, status = _update(
      learner, batch, clock, parts, functions.update, proximal_params
    )
    measured = metrics.of_update(
      *(batch, outcome, status, stored, step),
      num_bins=parts.histogram_bins,
      age_edges=parts.age_edges,
    )
    ledger = _trained(ledger, batch, status)
    stored = buffer_lib.mark_sampled(stored, batch.slots, step)
    if functions.feedback_fn is not None:
      stored = buffer_lib.update_priorities(
        stored, batch.slots, functions.feedback_fn(batch, outcome)
      )
    clock = clock._replace(
      num_updates_since_fresh=clock.num_updates_since_fresh + 1,
      is_reuse_ended=clock.is_reuse_ended | status.ends_reuse,
    )
    return (learner, stored, clock, ledger), measured

  before = (run.learner, run.buffer, run.clock, run.ledger)
  (learner, stored, clock, ledger), measured = jax.lax.scan(
    one_update, before, length=num_updates
  )
  run = run._replace(learner=learner, buffer=stored, clock=clock, ledger=ledger)
  return run, metrics.total(measured)


def _update(
  learner: base.LearnerState,
  batch: base.Batch,
  clock: state.Clock,
  parts: state.Parts,
  functions: learner_lib.UpdateFunctions,
  proximal_params: base.PyTree | None,
) -> tuple[base.LearnerState, base.Batch, base.Outcome, learner_lib.Status]:
  """Makes one update; leaves it out where the gate has ended the reuse."""
  row_sets = None
  if parts.age_grad_norms:
    ages_B = learner.step - batch.rollouts.policy_version
    buckets = histograms.age_buckets(ages_B, parts.age_edges)
    row_sets = jnp.stack(list(buckets.values()))

  def update(learner):
    return learner_lib.update(
      learner,
      batch,
      functions=functions,
      num_updates_since_fresh=clock.num_updates_since_fresh,
      num_microbatches=parts.num_microbatches,
      packed=parts.packed,
      row_sets=row_sets,
      proximal_params=proximal_params,
      has_row_grad_norms='row_grad_norms' in parts.loss_reads,
    )

  if functions.gate is None:
    learner, outcome, status = update(learner)
    return learner, batch, outcome, status

  def leave_out(learner):
    _, *rest = jax.eval_shape(update, learner)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), rest)
    return learner, *zeros

  is_left_out = clock.is_reuse_ended
  results = jax.lax.cond(is_left_out, leave_out, update, learner)
  learner, outcome, status = results
  batch = batch._replace(
    is_valid=batch.is_valid & ~is_left_out,
    slots=jnp.where(is_left_out, parts.capacity, batch.slots),
  )
  return learner, batch, outcome, status


def _trained(
  ledger: ledger_lib.Ledger, batch: base.Batch, status: learner_lib.Status
) -> ledger_lib.Ledger:
  """Adds the rows and tokens of an update, also of one the gate refused."""
  rollouts = batch.rollouts
  # All tokens before the first sampled one belong to the prompt.
  num_prompt_tokens_B = jnp.argmax(rollouts.loss_mask, axis=1)
  return ledger_lib.add(
    ledger,
    updates=status.is_applied.astype(jnp.int32),
    trained_rollouts=jnp.sum(batch.is_valid),
    trained_tokens=jnp.sum(rollouts.loss_mask & batch.is_valid[:, None]),
    trained_prompt_tokens=jnp.sum(
      jnp.where(batch.is_valid, num_prompt_tokens_B, 0)
    ),
  )
