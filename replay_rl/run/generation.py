"""Generation: the weights to sample with, the prompts, the responses."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import rng
from replay_rl.lm import arguments
from replay_rl.lm import continuous
from replay_rl.lm import decoding
from replay_rl.lm import in_flight
from replay_rl.lm import model
from replay_rl.parallel import mesh
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.tasks import task as task_lib


class Policy(NamedTuple):
  """The part of a run that generation reads.

  params: the weights to sample with; with spans `[N, ...]`.
  version: `[]` int32, the learner step of these weights; with spans `[N]`.
  seed: `[]` uint32, the seed of the run.
  first_rollout_id: `[]` uint32, `rollout_id` of the next rollout.
  hyper: see `state.RunState`.
  spans: which of the weights sample each token; None if there is one set.
  """

  params: base.PyTree
  version: base.Array
  seed: base.Array
  first_rollout_id: base.Array
  hyper: state.Hyper
  spans: arguments.Spans | None = None


class InFlight(NamedTuple):
  """A generation in progress.

  state: its responses.
  steps: `[F, R]`, the tokens of those that were harvested.
  """

  state: continuous.State
  steps: decoding.Step


class Harvested(NamedTuple):
  """Responses that the verifier can have, in S rows.

  is_valid, rows: see `continuous.Harvest`.
  responses: the tokens.
  references: `[S]` int32, of their prompts, as a task in text has them.
  is_last: `[]` bool, whether no response is in flight any more.
  """

  is_valid: base.Array
  rows: base.Array
  responses: decoding.Responses
  references: base.Array
  is_last: base.Array


class Generation(NamedTuple):
  """F = P x G responses of the sampler, `[F, ...]`; ids as in `base.Rollout`.

  prompts: each repeated for its group.
  """

  prompts: base.Prompts
  completions: base.Completions
  group_id: base.Array
  rollout_id: base.Array
  policy_version: base.Array
  token_versions: base.Array | None


def policy(run: state.RunState, spans: arguments.Spans | None = None) -> Policy:
  """Returns the learner's policy, the oldest published one, or all of them.

  Args:
    run: the state.
    spans: which publications sample each token; None takes the oldest.
  """
  if spans is not None:
    assert run.sampler is not None
    params, version = run.sampler.params, run.sampler.version
    num_rollouts = run.clock.num_rollouts
    return Policy(params, version, run.seed, num_rollouts, run.hyper, spans)
  params, version = run.learner.params, run.learner.step
  if run.sampler is not None:
    oldest = run.sampler.num_published % run.sampler.version.shape[0]
    params = jax.tree.map(lambda ring: ring[oldest], run.sampler.params)
    version = run.sampler.version[oldest]
  return Policy(params, version, run.seed, run.clock.num_rollouts, run.hyper)


def spans_of(
  event: schedule.Generate, parts: state.Parts
) -> arguments.Spans | None:
  """Returns the spans of an event as int32 on the host, `[K]`; None if none.

  Raises:
    ValueError: the event has spans although the schedule needs none, or has
      none although it does; or the spans are not in order, there are more than
      `parts.num_spans`, or a span has weights that the run does not have.
  """
  if (event.spans is None) != (parts.num_spans == 0):
    raise ValueError(
      f'spans = {event.spans}: must be given in all generations of a schedule '
      'or in none; Generate.needs of the first one says how many there are at '
      f'most ({parts.num_spans})'
    )
  if event.spans is None:
    return None
  _check(event)
  num_kept, longest = parts.num_publications, parts.shape.max_new_tokens
  oldest = min(span.publication for span in event.spans)
  if event.num_published - oldest >= num_kept or (
    len(event.spans) > parts.num_spans
  ):
    raise ValueError(
      f'spans = {event.spans}: must be at most {parts.num_spans}, with the '
      f'latest {num_kept} of {event.num_published} publications'
    )
  slots = [state.slot_of(span.publication, num_kept) for span in event.spans]
  starts = [math.ceil(span.start * longest) for span in event.spans]
  num_empty = parts.num_spans - len(slots)  # They only fill the shape.
  # NumPy arrays, because each process can pass these to a program.
  spans = np.array(
    [
      [*slots, *slots[-1:] * num_empty],
      [*starts, *[longest] * num_empty],
    ],
    np.int32,
  )
  return arguments.Spans(*spans)


def _check(event: schedule.Generate) -> None:
  """Raises ValueError for spans that no sampler can follow."""
  spans = event.spans or ()
  starts = [span.start for span in spans]
  is_in_order = starts == sorted(starts) and starts[:1] == [0]
  if not is_in_order or not all(0 <= start < 1 for start in starts):
    raise ValueError(
      f'spans = {spans}: must start in order, the first one at 0, all below 1'
    )
  if not all(0 <= x.publication <= event.num_published for x in spans):
    raise ValueError(
      f'spans = {spans}: must have weights of the {event.num_published} '
      'publications so far'
    )


def draw_prompts(
  run: state.RunState, parts: state.Parts, task: task_lib.Task
) -> base.Prompts:
  """Returns the prompts of the next generation, `[P]`, of a task in JAX.

  The random key of a prompt depends only on the seed and its `stream_index`.

  Args:
    run: the state; its weights, and the rows of its buffer, are not read.
    parts: see `state.Parts`.
    task: the task.
  """
  index_P = parts.bind(run.hyper).choose_prompts_fn(
    run.buffer._replace(rollouts=None),
    new_prompts(run, parts),
    rng.stream_key(run.seed, 'prompt_choice', run.buffer.num_batches),
  )
  prompts = jax.vmap(
    lambda index: task.prompts_fn(rng.stream_key(run.seed, 'prompts', index), 1)
  )(index_P)
  prompts = jax.tree.map(
    lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), prompts
  )
  return prompts._replace(stream_index=index_P)


def new_prompts(run: state.RunState, parts: state.Parts) -> base.Array:
  """Returns `[P]` uint32, the `stream_index` of the next new prompts, in order.

  It counts the groups before that had a new prompt, so it does not depend on P;
  with a training set of n prompts, it is that number modulo n.
  """
  first = run.clock.num_rollouts // jnp.uint32(parts.group_size)
  if run.buffer.prompts is not None:
    first -= run.buffer.prompts.num_replayed
  index_P = first + jnp.arange(parts.num_prompts, dtype=jnp.uint32)
  if parts.num_distinct_prompts is not None:
    index_P %= jnp.uint32(parts.num_distinct_prompts)
  return index_P


@jax.named_scope('generate')
def generate(
  policy: Policy, prompts: base.Prompts, parts: state.Parts
) -> Generation:
  """Samples a group of responses to each prompt."""
  generate_fn = parts.bind(policy.hyper).generate_fn
  if policy.spans is not None:
    generate_fn = functools.partial(generate_fn, spans=policy.spans)
  completions = generate_fn(
    policy.params, _rng_key(policy), prompts, _rollout_id(policy, parts)
  )
  return _generation(policy, prompts, completions, parts)


def one_set(policy: Policy, parts: state.Parts) -> Policy:
  """Returns the policy with the weights of its only span, rounded.

  Once for all pieces of a generation, which then collect and round nothing.
  """
  params = policy.params
  if policy.spans is not None:
    slot = policy.spans.slots[0]
    params = jax.tree.map(lambda leaf: leaf[slot], params)
  return policy._replace(params=model.rounded(parts.transformer, params))


@jax.named_scope('generate')
def begin(
  policy: Policy, prompts: base.Prompts, parts: state.Parts
) -> InFlight:
  """Starts a generation in pieces; `policy` is what `one_set` returned."""
  pieces = parts.bind(policy.hyper).pieces
  assert pieces is not None
  num_tokens = parts.shape.max_new_tokens
  return InFlight(
    pieces.init(policy.params, prompts, _rollout_id(policy, parts)),
    mesh.split_rows(decoding.empty(parts.num_fresh, num_tokens)),
  )


@jax.named_scope('generate')
def advance(
  policy: Policy, prompts: base.Prompts, growing: InFlight, parts: state.Parts
) -> tuple[InFlight, Harvested]:
  """Draws the next tokens, and takes out the responses that end.

  Where all have ended, it changes nothing.
  """
  pieces = parts.bind(policy.hyper).pieces
  assert pieces is not None
  stepped = pieces.step(policy.params, _rng_key(policy), growing.state)
  continued, harvest = in_flight.harvest(stepped)
  harvested = Harvested(
    is_valid=harvest.is_valid,
    rows=harvest.rows,
    responses=pieces.responses(harvest.steps),
    references=prompts.references[harvest.rows // parts.group_size],
    is_last=in_flight.is_over(continued),
  )
  steps = in_flight.collect(growing.steps, harvest)
  return InFlight(continued, steps), harvested


def harvested_before(
  policy: Policy, prompts: base.Prompts, growing: InFlight, parts: state.Parts
) -> Harvested:
  """Returns all responses that were harvested so far, in F rows."""
  pieces = parts.bind(policy.hyper).pieces
  assert pieces is not None
  rows = jnp.arange(parts.num_fresh)
  return Harvested(
    is_valid=jnp.any(growing.steps.is_sampled, axis=1),
    rows=rows,
    responses=pieces.responses(growing.steps),
    references=prompts.references[rows // parts.group_size],
    is_last=in_flight.is_over(growing.state),
  )


@jax.named_scope('generate')
def complete(
  policy: Policy, prompts: base.Prompts, growing: InFlight, parts: state.Parts
) -> Generation:
  """Returns the generation, all of whose responses were harvested."""
  pieces = parts.bind(policy.hyper).pieces
  assert pieces is not None
  completions = pieces.completions(prompts, growing.steps)
  return _generation(policy, prompts, completions, parts)


def _rng_key(policy: Policy) -> base.Array:
  return rng.stream_key(policy.seed, 'generate')


def _rollout_id(policy: Policy, parts: state.Parts) -> base.Array:
  rows = jnp.arange(parts.num_fresh, dtype=jnp.uint32)
  return mesh.split_rows(policy.first_rollout_id + rows)


def _generation(
  policy: Policy,
  groups: base.Prompts,
  completions: base.Completions,
  parts: state.Parts,
) -> Generation:
  """Returns the responses to the prompts of groups, with what they are of."""
  prompts = mesh.split_rows(
    jax.tree.map(
      lambda leaf: jnp.repeat(leaf, parts.group_size, axis=0), groups
    )
  )
  rollout_id = _rollout_id(policy, parts)
  group_id = (rollout_id // jnp.uint32(parts.group_size)).astype(jnp.int32)
  version, token_versions = policy.version, None
  if policy.spans is not None:
    slots_R = policy.spans.slots_of_tokens(parts.shape.max_new_tokens)
    versions_R = policy.version[slots_R]
    token_versions = _versions_of_tokens(versions_R, prompts, completions)
    version = versions_R[0]
  return Generation(
    prompts,
    completions,
    group_id,
    rollout_id,
    jnp.full_like(group_id, version),
    token_versions,
  )


def _versions_of_tokens(
  versions_R: base.Array, prompts: base.Prompts, completions: base.Completions
) -> base.Array:
  """Returns `[F, T]` int32, the version of each sampled token, and else 0."""
  mask_FT = completions.loss_mask
  columns_FT = jnp.arange(mask_FT.shape[1])[None, :] - prompts.lengths[:, None]
  return jnp.where(
    mask_FT, versions_R.at[columns_FT].get(mode='clip'), 0
  ).astype(jnp.int32)


@jax.named_scope('judge')
def judge(
  generation: Generation, task: task_lib.Task
) -> tuple[base.Array, base.Metrics]:
  """Returns the reward of each response, `[F]` float32, and metrics."""
  completions = generation.completions
  is_correct = task.reward_fn(
    completions.responses, completions.lengths, generation.prompts.references
  )
  rewards = task.shaping_fn(
    is_correct,
    is_correct,  # For `is_formatted`, which `tracing.check_reward` refuses.
    completions.lengths,
    completions.is_finished,
  )
  return rewards, {'accuracy': jnp.mean(is_correct)}
