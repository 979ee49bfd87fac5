"""Tests of the prompts, ids and keys of a generation."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from replay_rl import base
from replay_rl import rng
from replay_rl.run import build
from replay_rl.run import generation as generation_lib
from tests import tiny
from tests.run import tiny_run

SEED = 7
_parts = tiny_run.parts


@functools.cache
def _started():
  """A run at learner step 7 after 18 rollouts."""
  run = tiny_run.started(_parts(), SEED)
  return run._replace(
    clock=run.clock._replace(num_rollouts=jnp.uint32(18)),
    learner=run.learner._replace(step=jnp.int32(7)),
  )


def _prompts(rng_key, num_prompts):
  tokens = jax.random.bits(rng_key, (num_prompts, 4)).astype(jnp.int32)
  lengths = jnp.full((num_prompts,), 4, jnp.int32)
  ids = tokens[:, 1].astype(jnp.uint32)
  return base.Prompts(tokens, lengths, ids, references=tokens[:, 0])


def _generate(params, rng_key, prompts, rollout_id):
  """Responses that hold the key and the id, of no use but to be seen."""
  del params
  bits = jax.random.bits(rng_key, (3,)).astype(jnp.int32)
  responses = jnp.broadcast_to(bits, (rollout_id.shape[0], 3))
  ids = rollout_id.astype(jnp.int32)[:, None]
  num_rows = rollout_id.shape[0]
  numbers = jnp.zeros((num_rows, prompts.tokens.shape[1]))
  return base.Completions(
    tokens=jnp.repeat(
      prompts.tokens, num_rows // prompts.lengths.shape[0], axis=0
    ),
    loss_mask=numbers > 0,
    behavior_logprobs=numbers,
    full_logprobs=numbers,
    entropy=numbers,
    responses=jnp.concatenate([responses, ids], axis=1),
    lengths=jnp.full((num_rows,), 4, jnp.int32),
    is_finished=jnp.ones(num_rows, bool),
  )


class GenerateTest(absltest.TestCase):
  def test_each_prompt_is_repeated_for_its_group_with_keys_of_the_place(self):
    task = dataclasses.replace(build.task(tiny.config()), prompts_fn=_prompts)
    parts = tiny_run.with_functions(_parts(), generate_fn=_generate)
    parts = parts._replace(num_prompts=3, group_size=2)
    run = _started()
    prompts = generation_lib.draw_prompts(run, parts, task)
    # 9 groups of 2 came before.
    expected = jax.tree.map(
      lambda *rows: jnp.concatenate(rows),
      *(
        _prompts(rng.stream_key(SEED, 'prompts', group), 1)
        for group in (9, 10, 11)
      ),
    )._replace(stream_index=jnp.arange(9, 12, dtype=jnp.uint32))
    chex.assert_trees_all_equal(prompts, expected)
    generation = generation_lib.generate(
      generation_lib.policy(run), prompts, parts
    )
    self.assertEqual(generation.group_id.tolist(), [9, 9, 10, 10, 11, 11])
    self.assertEqual(generation.rollout_id.tolist(), list(range(18, 24)))
    self.assertEqual(generation.policy_version.tolist(), [7] * 6)
    chex.assert_trees_all_equal(
      generation.prompts,
      jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), expected),
    )
    completions = generation.completions
    np.testing.assert_array_equal(completions.tokens, generation.prompts.tokens)
    bits = jax.random.bits(rng.stream_key(SEED, 'generate'), (3,))
    np.testing.assert_array_equal(
      completions.responses[0, :3], bits.astype(jnp.int32)
    )
    self.assertEqual(completions.responses[:, 3].tolist(), list(range(18, 24)))

  def test_ids_go_on_after_2_to_the_32(self):
    parts = tiny_run.with_functions(_parts(), generate_fn=_generate)
    run = _started()
    almost = run.clock._replace(num_rollouts=jnp.uint32(2**32 - 8))
    run = run._replace(clock=almost)
    task = build.task(tiny.config())
    prompts = generation_lib.draw_prompts(run, parts, task)
    generation = generation_lib.generate(
      generation_lib.policy(run), prompts, parts
    )
    self.assertEqual(
      generation.rollout_id.tolist(),
      [*range(2**32 - 8, 2**32), *range(8)],
    )
