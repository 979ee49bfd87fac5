"""One iteration of a run: act, judge, remember, learn.

A run is one pytree, `RunState`, and each of the four is a pure function of it.
When the task judges in JAX, `iterate` composes them into one program, which
can be vmapped over seeds. A task that is judged on the host calls the same ones
from `host_judged`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from replay_rl import base
from replay_rl import rng
from replay_rl.lm import architecture
from replay_rl.parallel import mesh
from replay_rl.replay import buffer as buffer_lib
from replay_rl.rl import advantages as advantages_lib
from replay_rl.run import learner as learner_lib
from replay_rl.run import ledger as ledger_lib
from replay_rl.run import metrics
from replay_rl.run import schedule
from replay_rl.run import update_metrics
from replay_rl.tasks import task as task_lib

# (params, rng_key, prompts) -> one response per prompt. The key is consumed.
GenerateFn = Callable[[base.PyTree, base.Array, base.Prompts], base.Completions]


class RunState(NamedTuple):
  """All that changes during a run, and all that is checkpointed.

  seed: `[]` uint32, from which every random key follows.
  iteration: `[]` int32, iterations done.
  learner: the learner.
  buffer: the replay buffer.
  delay_line: older weights for the sampler; None without a lag.
  ledger: counters of what was generated and trained on.
  """

  seed: base.Array
  iteration: base.Array
  learner: base.LearnerState
  buffer: base.BufferState
  delay_line: schedule.DelayLine | None
  ledger: ledger_lib.Ledger


class Parts(NamedTuple):
  """The functions and static sizes that an iteration is made of.

  The fields that their types do not explain: `greedy_fn` samples at temperature
  0 and `unbiased_fn` at temperature 1, both without truncation; `keep_rule`
  scores the slots that an insert may overwrite, None lets the oldest go first;
  `drop_zero_variance` keeps groups of equal rewards out of buffer and batch;
  `lag_iterations` is the age of the sampler's weights; `histogram_bins` counts
  the overflow bin.
  """

  task: task_lib.Task | task_lib.TextTask
  transformer: architecture.TransformerConfig
  init_params_fn: Callable[[base.Array], base.PyTree]
  generate_fn: GenerateFn
  greedy_fn: GenerateFn
  unbiased_fn: GenerateFn
  logprobs_fn: learner_lib.LogprobsFn
  optimizer: optax.GradientTransformation
  advantage_fn: base.AdvantageFn
  loss_fn: base.LossFn
  normalizer_fn: base.NormalizerFn
  compose_fn: base.ComposeFn
  keep_rule: base.SlotRule | None
  drop_zero_variance: bool
  capacity: int
  num_prompts: int
  group_size: int
  lag_iterations: int
  updates_per_iteration: int
  num_microbatches: int
  histogram_bins: int


class Generation(NamedTuple):
  """What the sampler did in one iteration: F = P x G responses.

  prompts: `[F]` prompts, each repeated for its group.
  completions: `[F, ...]`.
  group_id: `[F]` int32.
  policy_version: `[]` int32, learner step of the weights that sampled.
  """

  prompts: base.Prompts
  completions: base.Completions
  group_id: base.Array
  policy_version: base.Array


def init(parts: Parts, params: base.PyTree, seed: base.Array) -> RunState:
  """Returns the state before iteration 0."""
  num_tokens = parts.task.prompt_length + parts.task.max_new_tokens
  tokens = jnp.zeros((1, num_tokens), jnp.int32)
  row = base.Rollout(
    tokens=tokens,
    loss_mask=tokens > 0,
    behavior_logprobs=jnp.zeros(tokens.shape),
    rewards=jnp.zeros((1,)),
    advantages=jnp.zeros((1,)),
    group_id=jnp.zeros((1,), jnp.int32),
    policy_version=jnp.zeros((1,), jnp.int32),
  )
  return RunState(
    seed=seed.astype(jnp.uint32),
    iteration=jnp.zeros((), jnp.int32),
    learner=learner_lib.init(params, parts.optimizer),
    buffer=buffer_lib.init(row, capacity=parts.capacity),
    delay_line=schedule.init(params, parts.lag_iterations),
    ledger=ledger_lib.init(),
  )


def iterate(run: RunState, parts: Parts) -> tuple[RunState, base.Metrics]:
  """Runs one iteration as one pure function."""
  run, generation = act(run, draw_prompts(run, parts), parts)
  rewards = judge(generation, parts)
  return remember_and_learn(run, generation, rewards, parts)


def draw_prompts(run: RunState, parts: Parts) -> base.Prompts:
  """Returns the prompts of this iteration, `[P]`, of a task in JAX."""
  rng_key = rng.stream_key(run.seed, 'prompts', run.iteration)
  return task_lib.in_jax(parts.task).prompts_fn(rng_key, parts.num_prompts)


def act(
  run: RunState, prompts: base.Prompts, parts: Parts
) -> tuple[RunState, Generation]:
  """Samples a group of responses to each prompt."""
  params, version, delay_line = schedule.behavior(
    run.delay_line, run.learner, run.iteration
  )
  group_id = run.iteration * parts.num_prompts + jnp.arange(parts.num_prompts)
  prompts, group_id = mesh.split_rows(
    jax.tree.map(
      lambda leaf: jnp.repeat(leaf, parts.group_size, axis=0),
      (prompts, group_id),
    )
  )
  completions = parts.generate_fn(
    params, rng.stream_key(run.seed, 'generate', run.iteration), prompts
  )
  return run._replace(delay_line=delay_line), Generation(
    prompts, completions, group_id, version
  )


def judge(generation: Generation, parts: Parts) -> base.Array:
  """Returns the reward of each response, `[F]` float32."""
  completions = generation.completions
  return task_lib.in_jax(parts.task).reward_fn(
    completions.responses, completions.lengths, generation.prompts.references
  )


def remember_and_learn(
  run: RunState, generation: Generation, rewards: base.Array, parts: Parts
) -> tuple[RunState, base.Metrics]:
  """Ends the iteration with its rewards, `[F]` float32."""
  run, fresh, remembered = remember(run, generation, rewards, parts)
  run, learned = learn(run, fresh, parts)
  return run, remembered | learned


def remember(
  run: RunState, generation: Generation, rewards: base.Array, parts: Parts
) -> tuple[RunState, base.Fresh, base.Metrics]:
  """Computes advantages within groups and inserts the rollouts."""
  completions = generation.completions
  rollouts = base.Rollout(
    tokens=completions.tokens,
    loss_mask=completions.loss_mask,
    behavior_logprobs=completions.behavior_logprobs,
    rewards=rewards,
    advantages=parts.advantage_fn(rewards, generation.group_id),
    group_id=generation.group_id,
    policy_version=jnp.full_like(
      generation.group_id, generation.policy_version
    ),
  )
  has_variance = advantages_lib.group_has_variance(rewards, generation.group_id)
  is_kept = has_variance if parts.drop_zero_variance else None
  state, slots = buffer_lib.insert(
    run.buffer,
    rollouts,
    priorities=jnp.abs(rollouts.advantages),
    is_valid=is_kept,
    keep_scores=parts.keep_rule(run.buffer, run.learner.step)
    if parts.keep_rule
    else None,
  )
  # A slot C of a row that was not stored reads as never valid.
  was_valid = run.buffer.is_valid.at[slots].get(mode='fill', fill_value=False)
  uses = run.buffer.times_sampled.at[slots].get(mode='fill', fill_value=0)
  num_tokens = jnp.sum(completions.lengths)
  ledger = ledger_lib.add(
    run.ledger,
    rollouts=rewards.shape[0],
    prompt_tokens=jnp.sum(generation.prompts.lengths),
    generated_tokens=num_tokens,
  )
  measured = {
    'reward': jnp.mean(rewards),
    'entropy': jnp.sum(completions.entropy) / num_tokens,
    'response_length': jnp.mean(completions.lengths.astype(jnp.float32)),
    'truncated_fraction': 1.0 - jnp.mean(completions.is_finished),
    'zero_variance_fraction': 1.0 - jnp.mean(has_variance),
    'num_overwritten': jnp.sum(was_valid, dtype=jnp.int32),
    # Of the rollouts that this insert overwrote; NaN if there were none.
    'never_used_fraction': jnp.sum(was_valid & (uses == 0))
    / jnp.sum(was_valid),
    'histogram/uses': metrics.histogram(
      uses, was_valid, num_bins=parts.histogram_bins
    ),
    'buffer/num_valid': buffer_lib.num_valid(state),
    'buffer/num_repaired_priorities': state.num_repaired_priorities,
  }
  fresh = base.Fresh(
    rollouts=rollouts,
    slots=slots,
    is_valid=jnp.ones_like(has_variance) if is_kept is None else is_kept,
  )
  return run._replace(buffer=state, ledger=ledger), fresh, measured


def learn(
  run: RunState, fresh: base.Fresh, parts: Parts
) -> tuple[RunState, base.Metrics]:
  """Makes U updates, which ends the iteration.

  Each composes a batch, learns from it and marks it.
  """

  def one_update(carry, _):
    learner, state, ledger = carry
    step = learner.step
    batch = parts.compose_fn(
      state, fresh, rng.stream_key(run.seed, 'replay', step), step
    )
    rollouts = mesh.split_rows(batch.rollouts)
    learner, outcome = learner_lib.update(
      learner,
      rollouts,
      batch.is_valid,
      logprobs_fn=parts.logprobs_fn,
      loss_fn=parts.loss_fn,
      normalizer_fn=parts.normalizer_fn,
      optimizer=parts.optimizer,
      num_microbatches=parts.num_microbatches,
    )
    measured = update_metrics.of_update(
      batch, outcome, state, step, num_bins=parts.histogram_bins
    )
    # Rollouts are compact: all tokens before the first sampled one are prompt.
    num_prompt_tokens = jnp.argmax(rollouts.loss_mask, axis=1)
    ledger = ledger_lib.add(
      ledger,
      updates=1,
      trained_rollouts=jnp.sum(batch.is_valid),
      trained_tokens=jnp.sum(rollouts.loss_mask & batch.is_valid[:, None]),
      trained_prompt_tokens=jnp.sum(
        jnp.where(batch.is_valid, num_prompt_tokens, 0)
      ),
    )
    state = buffer_lib.mark_sampled(state, batch.slots, step)
    return (learner, state, ledger), measured

  (learner, state, ledger), measured = jax.lax.scan(
    one_update,
    (run.learner, run.buffer, run.ledger),
    length=parts.updates_per_iteration,
  )
  run = run._replace(
    iteration=run.iteration + 1, learner=learner, buffer=state, ledger=ledger
  )
  return run, update_metrics.combine(measured)
