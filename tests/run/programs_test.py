"""Tests of the programs of a run, and of the lines they log."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import iteration
from replay_rl.run import ledger
from replay_rl.run import programs
from replay_rl.run import seeds
from tests import tiny


def _answer(value):
  """Returns a sampler that answers `value`, then the prompt's first token."""

  def generate_fn(params, rng_key, prompts):
    del params, rng_key
    shape = prompts.tokens.shape
    responses = jnp.full(shape, value, jnp.int32)
    responses = responses.at[:, 1].set(prompts.tokens[:, 0])
    zeros = jnp.zeros(shape)
    return base.Completions(
      tokens=prompts.tokens,
      loss_mask=zeros > 0,
      behavior_logprobs=zeros,
      full_logprobs=zeros,
      entropy=zeros,
      responses=responses,
      lengths=prompts.lengths,
      is_finished=zeros[:, 0] > 0,
    )

  return generate_fn


def _reward(responses, lengths, references):
  """Tells who answered (100, 200, ...) and what was asked."""
  del lengths, references
  return 100.0 * responses[:, 0] + responses[:, 1]


def _programs(parts, vmap_seeds):
  return programs.build(
    parts,
    num_seeds=2,
    vmap_seeds=vmap_seeds,
    num_eval_prompts=5,
    num_eval_samples=3,
    num_shown=2,
    buffer_memory='device',
    mesh=mesh_lib.make({'data': 1, 'fsdp': 1, 'tensor': 1}),
  )


class EvaluateTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_each_seed_asks_its_prompts_once_greedily_and_n_times_sampled(
    self, vmap_seeds
  ):
    parts = build.parts(tiny.config())
    parts = parts._replace(
      generate_fn=_answer(1),
      greedy_fn=_answer(2),
      unbiased_fn=_answer(3),
      task=dataclasses.replace(parts.task, reward_fn=_reward),
    )
    built = _programs(parts, vmap_seeds)
    params = parts.init_params_fn(jax.random.key(0))
    run = built.init(params, jnp.array([4, 9], jnp.uint32))
    greedy, sampled = built.evaluate(run)
    self.assertEqual(greedy.shape, (2, 5, 1))
    self.assertEqual(sampled.shape, (2, 5, 3))
    np.testing.assert_array_equal(greedy // 100, np.full((2, 5, 1), 2.0))
    np.testing.assert_array_equal(sampled // 100, np.full((2, 5, 3), 3.0))
    # All samples of a prompt were asked what the greedy one was asked.
    np.testing.assert_array_equal(sampled % 100, (greedy % 100).repeat(3, 2))
    # Other seeds ask other prompts, and a seed asks what it asks alone.
    self.assertFalse(np.array_equal(greedy[0], greedy[1]))
    swapped = run._replace(seed=run.seed[::-1])
    np.testing.assert_array_equal(built.evaluate(swapped)[0], greedy[::-1])


class IterateTest(absltest.TestCase):
  def test_the_run_is_donated(self):
    parts = build.parts(tiny.config())
    built = _programs(parts, vmap_seeds=False)
    run = jax.eval_shape(
      lambda rng_key: built.init(
        parts.init_params_fn(rng_key), jnp.array([4, 9], jnp.uint32)
      ),
      jax.random.key(0),
    )
    lowered = built.iterate.lower(run)
    donated = [info.donated for info in jax.tree.leaves(lowered.args_info)]
    self.assertTrue(all(donated))


class OverSeedsTest(absltest.TestCase):
  def test_seeds_go_together_or_one_after_the_other(self):
    def primitives(vmap, num_seeds):
      jaxpr = jax.make_jaxpr(
        lambda x: seeds.over_seeds(vmap, lambda one: one + 1.0, x)
      )(jnp.zeros(num_seeds))
      return {equation.primitive.name for equation in jaxpr.eqns}

    self.assertIn('scan', primitives(False, 2))
    self.assertNotIn('scan', primitives(True, 2))
    self.assertNotIn('scan', primitives(False, 1))

  def test_either_way_each_seed_gets_its_own_arguments(self):
    x, y = jnp.array([1.0, 2.0, 3.0]), {'y': jnp.array([10.0, 20.0, 30.0])}
    for vmap in (True, False):
      for num_seeds in (1, 3):
        found = seeds.over_seeds(
          vmap,
          lambda x, y: x + y['y'],
          x[:num_seeds],
          {'y': y['y'][:num_seeds]},
        )
        self.assertEqual(found.tolist(), [11.0, 22.0, 33.0][:num_seeds])


class LinesTest(absltest.TestCase):
  def test_each_seed_gets_a_line_with_its_own_numbers(self):
    parts = build.parts(tiny.config())
    params = parts.init_params_fn(jax.random.key(0))
    run = jax.jit(jax.vmap(lambda seed: iteration.init(parts, params, seed)))(
      jnp.array([4, 9], jnp.uint32)
    )
    counted = [
      ledger.add(ledger.init(), rollouts=8, trained_rollouts=trained)
      for trained in (4, 24)
    ]
    run = run._replace(
      iteration=jnp.array([3, 5], jnp.int32),
      learner=run.learner._replace(step=jnp.array([6, 7], jnp.int32)),
      ledger=jax.tree.map(lambda *x: jnp.stack(x), *counted),
    )
    measured = {
      'loss': jnp.array([0.1, -2.5]),
      'buffer/num_valid': jnp.array([16, 32], jnp.int32),
      'histogram/uses': jnp.array([[1, 2], [3, 4]], jnp.int32),
    }
    first, second = programs.lines(run, measured, parts.transformer, mu=1.5)
    # A line is of the iteration just done; a float32 reads as it was written.
    expected = {
      'iteration': 2,
      'seed': 4,
      'learner_step': 6,
      'loss': 0.1,
      'buffer/num_valid': 16,
      'histogram/uses': [1, 2],
      'ledger/rollouts': 8,
      'ledger/trained_rollouts': 4,
      'ledger/cost_units': 4 + 1.5 * 8,
      'replay_ratio': 0.5,
    }
    self.assertEqual(first, first | expected)
    expected = {
      'iteration': 4,
      'seed': 9,
      'learner_step': 7,
      'loss': -2.5,
      'buffer/num_valid': 32,
      'histogram/uses': [3, 4],
      'ledger/trained_rollouts': 24,
      'ledger/cost_units': 24 + 1.5 * 8,
      'replay_ratio': 3.0,
    }
    self.assertEqual(second, second | expected)


if __name__ == '__main__':
  absltest.main()
