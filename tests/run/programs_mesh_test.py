"""Tests of generation on a mesh of its own."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import iteration
from replay_rl.run import placement
from replay_rl.run import programs
from replay_rl.run import sampler_mesh
from replay_rl.run import seeds
from replay_rl.tasks import task as task_lib
from tests import tiny

_MESH = {'data': 1, 'fsdp': 4, 'tensor': 1}
_SAMPLER_MESH = {'data': 2, 'fsdp': 1, 'tensor': 2}


def _judged_on_host(like):
  """A task of which the first token decides."""

  def prompts(seed, iteration, num_prompts):
    rng = np.random.default_rng([seed, iteration])
    tokens = rng.integers(10, size=(num_prompts, like.prompt_length))
    return base.Prompts(
      tokens=tokens.astype(np.int32),
      lengths=np.full(num_prompts, like.prompt_length, np.int32),
      references=np.arange(num_prompts, dtype=np.int32),
    )

  def judge(responses, lengths, is_finished, references):
    del lengths, is_finished
    is_correct = responses[:, 0] % 2 == references % 2
    return task_lib.Judgement(
      rewards=is_correct.astype(np.float32),
      is_correct=is_correct,
      statuses=np.where(is_correct, 'correct', 'wrong'),
    )

  fields = dataclasses.asdict(like)
  for name in ('prompts_fn', 'reward_fn', 'teacher_fn'):
    del fields[name]
  return task_lib.TextTask(
    prompts_fn=prompts,
    eval_prompts_fn=functools.partial(prompts, 99, 0),
    judge_fn=judge,
    reference_fn=str,
    statuses=('correct', 'wrong'),
    notes=(),
    close_fn=lambda: None,
    **fields,
  )


def _run(sampler_shape):
  """Returns a run of three iterations, its scores, and where it sampled."""
  parts = build.parts(tiny.config(sampler__weight_lag=4))
  parts = parts._replace(task=_judged_on_host(parts.task))
  seen = []

  def watched(generate_fn):
    def generate(params, rng_key, prompts):
      mesh = jax.sharding.get_abstract_mesh()
      # As part of a program, not operation by operation.
      assert isinstance(jax.tree.leaves(params)[0], jax.core.Tracer)
      seen.append(dict(mesh.shape))
      return generate_fn(params, rng_key, prompts)

    return generate

  parts = parts._replace(
    generate_fn=watched(parts.generate_fn),
    greedy_fn=watched(parts.greedy_fn),
    unbiased_fn=watched(parts.unbiased_fn),
  )
  mesh = mesh_lib.make(_MESH)
  with jax.set_mesh(mesh):
    built = programs.build(
      parts,
      num_seeds=2,
      vmap_seeds=False,
      num_eval_prompts=4,
      num_eval_samples=2,
      num_shown=1,
      buffer_memory='device',
      mesh=mesh,
      sampler_mesh=sampler_shape and mesh_lib.make(sampler_shape),
    )
    run = built.init(
      parts.init_params_fn(jax.random.key(7)),
      jnp.array([5, 6], jnp.uint32),
    )
    places = jax.tree.map(lambda leaf: leaf.sharding, run)
    for _ in range(3):
      run, measured = built.iterate(run)
    scores = built.evaluate(run)
    # So that the next iteration compiles nothing, and a checkpoint restores.
    chex.assert_trees_all_equal(
      jax.tree.map(lambda leaf: leaf.sharding, run), places
    )
  return jax.device_get((run, measured, scores)), seen


class SamplerMeshTest(parameterized.TestCase):
  # Judged in JAX, and without a lag: tests/run/mesh_equivalence_test.py.
  def test_it_is_the_iteration_and_the_evaluation_of_one_mesh(self):
    (one, measured_one, scores_one), seen_one = _run(None)
    (two, measured, scores), seen = _run(_SAMPLER_MESH)
    self.assertEqual(seen_one, 3 * [_MESH])
    self.assertEqual(seen, 3 * [_SAMPLER_MESH])
    chex.assert_trees_all_equal(two.ledger, one.ledger)
    chex.assert_trees_all_close(two.buffer, one.buffer, atol=1e-5)
    chex.assert_trees_all_close(
      (two.learner.params, two.delay_line),
      (one.learner.params, one.delay_line),
      atol=1e-4,
    )
    np.testing.assert_array_equal(two.learner.step, one.learner.step)
    np.testing.assert_array_equal(measured['reward'], measured_one['reward'])
    self.assertGreater(measured['grad_norm'].min(), 0.0)
    chex.assert_trees_all_equal(scores, scores_one)

  @parameterized.parameters((None,), (_SAMPLER_MESH,))
  def test_what_was_generated_has_its_rows_split_over_the_mesh_of_the_run(
    self, sampler_shape
  ):
    parts = build.parts(tiny.config())
    mesh = mesh_lib.make(_MESH)
    run = jax.eval_shape(
      lambda rng_key: jax.tree.map(
        lambda leaf: leaf[None],
        iteration.init(parts, parts.init_params_fn(rng_key), jnp.uint32(5)),
      ),
      jax.random.key(0),
    )
    axes = model.logical_axes(parts.transformer)
    shardings = placement.of_run(
      run, axes, parts.optimizer, mesh, buffer_memory='device'
    )
    run = jax.device_put(
      jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), run), shardings
    )
    act = sampler_mesh.act_fn(
      parts,
      over_seeds=functools.partial(seeds.over_seeds, False),
      shardings=shardings,
      mesh=mesh,
      sampler_mesh=sampler_shape and mesh_lib.make(sampler_shape),
    )
    length = parts.task.prompt_length
    prompts = base.Prompts(
      tokens=jnp.ones((1, 4, length), jnp.int32),
      lengths=jnp.ones((1, 4), jnp.int32),
      references=jnp.ones((1, 4), jnp.int32),
    )
    with jax.set_mesh(mesh):
      run, generation = act(run, prompts)
    for leaf in jax.tree.leaves(generation._replace(policy_version=None)):
      self.assertEqual(leaf.sharding.mesh, mesh)
      self.assertEqual(leaf.addressable_shards[0].data.shape[1], 16 // 4)
    self.assertTrue(generation.policy_version.is_fully_replicated)

  def test_weights_are_split_there_by_the_table_and_nothing_else_goes(self):
    parts = build.parts(tiny.config())
    mesh, other = mesh_lib.make(_MESH), mesh_lib.make(_SAMPLER_MESH)
    run = jax.tree.map(
      lambda leaf: leaf[None],
      iteration.init(
        parts, parts.init_params_fn(jax.random.key(0)), jnp.uint32(5)
      ),
    )
    seen = []

    def program(run, extra):
      seen.extend((run, extra))
      return extra + 1

    whole = jax.NamedSharding(mesh, jax.P())
    call = sampler_mesh.moved(program, parts, mesh=other, out_shardings=whole)
    self.assertEqual(call(run, jnp.ones(3)).sharding, whole)
    there, extra = seen
    params = there.learner.params
    places = placement.of_params(
      model.logical_axes(parts.transformer), other, num_leading_axes=1
    )
    for leaf, place in zip(
      jax.tree.leaves(params), jax.tree.leaves(places), strict=True
    ):
      self.assertEqual(leaf.sharding, place)
    chex.assert_trees_all_equal(params, run.learner.params)
    rest = there._replace(learner=there.learner._replace(params=None))
    rest = jax.tree.leaves((rest, extra))
    self.assertLen(rest, 4)  # Seed, iteration, step and what was given.
    for leaf in rest:
      self.assertEqual(leaf.sharding, jax.NamedSharding(other, jax.P()))


if __name__ == '__main__':
  absltest.main()
