"""Tests of the programs of a run."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import maker as maker_lib
from replay_rl.run import programs
from tests import tiny
from tests.run import tiny_run

EVENTS = {'generate', 'judge', 'remember', 'learn', 'publish'}


def _answer(value):
  """Returns a sampler that answers `value`, then the prompt's first token."""

  def generate_fn(params, rng_key, prompts, rollout_id):
    del params, rng_key
    group_size = rollout_id.shape[0] // prompts.lengths.shape[0]
    tokens = jnp.repeat(prompts.tokens, group_size, axis=0)
    responses = jnp.full(tokens.shape, value, jnp.int32)
    responses = responses.at[:, 1].set(tokens[:, 0])
    zeros = jnp.zeros(tokens.shape)
    return base.Completions(
      tokens=tokens,
      loss_mask=zeros > 0,
      behavior_logprobs=zeros,
      full_logprobs=zeros,
      entropy=zeros,
      responses=responses,
      lengths=jnp.repeat(prompts.lengths, group_size),
      is_finished=zeros[:, 0] > 0,
    )

  return generate_fn


def _reward(responses, lengths, references):
  """Tells who answered (100, 200, ...) and what was asked."""
  del lengths, references
  return 100.0 * responses[:, 0] + responses[:, 1]


class EvaluateTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_each_seed_asks_its_prompts_once_greedily_and_n_times_sampled(
    self, vmap_seeds
  ):
    parts = tiny_run.with_functions(
      tiny_run.parts(), generate_fn=_answer(1), evaluate_fn=_answer(3)
    )
    parts = parts._replace(greedy_fn=_answer(2))
    built = programs.build(
      parts,
      dataclasses.replace(tiny_run.task(), reward_fn=_reward),
      tiny_run.settings(
        num_seeds=2,
        vmap_seeds=vmap_seeds,
        num_eval_prompts=5,
        num_eval_samples=3,
      ),
    )
    run = tiny_run.first_run(built, parts, [4, 9])
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

  def test_it_is_of_the_learner_whatever_the_sampler_generates_with(self):
    experiment = tiny_run.experiment(sampler__weight_lag=4)
    parts = experiment.parts

    def says(params, rng_key, prompts, rollout_id):
      actual = _answer(0)(params, rng_key, prompts, rollout_id)
      first = params['final_norm'][0].astype(jnp.int32)
      return actual._replace(responses=actual.responses.at[:, 0].set(first))

    parts = tiny_run.with_functions(parts, evaluate_fn=says)
    parts = parts._replace(greedy_fn=says)
    task = dataclasses.replace(tiny_run.task(), reward_fn=_reward)
    built = programs.build(parts, task, tiny_run.settings())
    run = tiny_run.first_run(built, parts, [4])
    learned = dict(run.learner.params)
    learned['final_norm'] = jnp.full_like(learned['final_norm'], 5.0)
    run = run._replace(learner=run.learner._replace(params=learned))
    for rewards in built.evaluate(run):
      self.assertTrue((rewards // 100 == 5.0).all())


class CycleTest(parameterized.TestCase):
  def test_the_run_is_donated(self):
    experiment = tiny_run.experiment()
    settings = tiny_run.settings(num_seeds=2)
    built = programs.build(experiment.parts, tiny_run.task(), settings)
    run = jax.eval_shape(
      lambda: tiny_run.first_run(built, experiment.parts, [4, 9])
    )
    lowered = built.jitted['cycle'].lower(run, experiment.schedule(0))
    donated = [info.donated for info in jax.tree.leaves(lowered.args_info)]
    self.assertTrue(all(donated))

  # In the memory of the devices: programs_mesh_test.py.
  @parameterized.parameters((2, False), (0, True))
  def test_events_as_programs_of_their_own_are_the_cycle(
    self, n, has_sampler_mesh
  ):
    experiment = tiny_run.experiment(
      sampler__weight_lag=2 * n,
      sampler__prompts=tiny.REPLAYED_PROMPTS,
      replay__num_prompts=8,
    )
    mesh = mesh_lib.make(tiny_run.ONE_DEVICE)
    apart = {
      'buffer_memory': 'pinned_host',
      'sampler_mesh': mesh if has_sampler_mesh else None,
      'time_events': has_sampler_mesh,
    }
    actual = []
    for changes in ({}, apart):
      with jax.set_mesh(mesh):
        built = programs.build(
          experiment.parts, tiny_run.task(), tiny_run.settings(**changes)
        )
        self.assertEqual('cycle' in built.jitted, not changes)
        run = tiny_run.first_run(built, experiment.parts, [4])
        places = jax.tree.map(lambda leaf: leaf.sharding, run)
        measured = []
        for iteration in range(4):
          run, seen = built.cycle(run, experiment.schedule(iteration))
          measured.append(tiny_run.numbers(seen))
          self.assertEqual(
            set(built.seconds()),
            EVENTS if changes and has_sampler_mesh else set(),
          )
        # So that the next cycle compiles nothing, and a checkpoint restores.
        chex.assert_trees_all_equal(
          jax.tree.map(lambda leaf: leaf.sharding, run), places
        )
        actual.append(jax.device_get((run, measured, built.evaluate(run))))
    whole, apart = actual
    self.assertEqual(whole[0].learner.step, 8)
    stored = whole[0].buffer.rollouts.policy_version
    self.assertEqual(stored.max(), 2 * (3 - n))
    self.assertGreater(whole[0].buffer.prompts.num_replayed, 0)
    chex.assert_trees_all_equal(
      apart[0].buffer.prompts, whole[0].buffer.prompts
    )
    chex.assert_trees_all_equal(apart[0].clock, whole[0].clock)
    chex.assert_trees_all_equal(apart[0].ledger, whole[0].ledger)
    chex.assert_trees_all_close(apart, whole, rtol=1e-4, atol=1e-5)

  def test_events_that_are_timed_are_programs_of_their_own(self):
    for time_events in (False, True):
      built = programs.build(
        tiny_run.parts(),
        tiny_run.task(),
        tiny_run.settings(time_events=time_events),
      )
      self.assertEqual('cycle' in built.jitted, not time_events)
      self.assertEqual('learn' in built.jitted, time_events)


class OverSeedsTest(absltest.TestCase):
  def test_seeds_go_together_or_one_after_the_other(self):
    def primitives(vmap, num_seeds):
      jaxpr = jax.make_jaxpr(
        functools.partial(maker_lib.over_seeds, vmap, lambda one: one + 1.0)
      )(jnp.zeros(num_seeds))
      return {equation.primitive.name for equation in jaxpr.eqns}

    self.assertIn('scan', primitives(False, 2))
    self.assertNotIn('scan', primitives(True, 2))
    self.assertNotIn('scan', primitives(False, 1))

  def test_either_way_each_seed_gets_its_own_arguments(self):
    x, y = jnp.array([1.0, 2.0, 3.0]), {'y': jnp.array([10.0, 20.0, 30.0])}
    for vmap in (True, False):
      for num_seeds in (1, 3):
        actual = maker_lib.over_seeds(
          vmap,
          lambda x, y: x + y['y'],
          x[:num_seeds],
          {'y': y['y'][:num_seeds]},
        )
        self.assertEqual(actual.tolist(), [11.0, 22.0, 33.0][:num_seeds])
