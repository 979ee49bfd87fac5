"""A run with a table of prompts, a training set, and updates that wait."""

import functools

import chex
import jax
import numpy as np
from absl.testing import absltest

from replay_rl.replay import prompt_table
from replay_rl.run import events
from tests.replay import prompt_table_test
from tests.run import tiny_run

_NUM_GENERATIONS = 5


@functools.cache
def _history():
  """Returns the run after some cycles, and the metrics of each."""
  experiment = tiny_run.experiment(
    replay__capacity=96,
    replay__num_prompts=4,
    replay__compose='collected(max_batches=2)',
    replay__weights='oldest_unused() * max_age_batches(limit=2)',
    replay__draw='largest()',
    replay__batch_size=24,
    replay__updates_per_iteration=1,
    sampler__num_distinct_prompts=6,
  )
  actions = events.in_jax(experiment.parts, tiny_run.task())
  cycle = jax.jit(
    functools.partial(events.cycle, actions=actions), static_argnums=1
  )
  run, measured = tiny_run.started(experiment.parts, seed=7), []
  for iteration in range(_NUM_GENERATIONS):
    run, actual = cycle(run, experiment.schedule(iteration))
    measured.append(tiny_run.numbers(actual))
  return jax.device_get(run), measured


class PromptsTest(absltest.TestCase):
  def test_the_training_set_is_visited_in_order_epoch_after_epoch(self):
    run, _ = _history()
    prompt_id = run.buffer.rollouts.prompt_id[:80].reshape(20, 4)
    np.testing.assert_array_equal(prompt_id, prompt_id[:, :1].repeat(4, 1))
    np.testing.assert_array_equal(prompt_id[6:], prompt_id[:-6])
    self.assertLen(np.unique(prompt_id), 6)

  def test_the_table_is_that_of_all_rollouts(self):
    run, measured = _history()
    twin = prompt_table_test.Twin(4)
    rows = jax.tree.map(
      lambda leaf: leaf[:80].reshape(5, 4, 4), run.buffer.rollouts[3:8]
    )
    rewards, _, _, prompt_id, _ = rows
    for generation in range(_NUM_GENERATIONS):
      twin.visit(prompt_id[generation][:, 0], rewards[generation], generation)
      values = measured[generation]
      self.assertEqual(values['buffer/num_replaced_prompts'], twin.num_replaced)
      self.assertEqual(values['prompts/num_seen'], 4)
      is_solved = twin.table().latest_rate == 1
      self.assertEqual(values['prompts/solved_fraction'], is_solved.mean())
      seen = prompt_id[: generation + 1].flatten()
      is_unknown = [twin.find(prompt) == 4 for prompt in seen]
      self.assertEqual(values['prompts/num_unknown_rows'], sum(is_unknown))
    chex.assert_trees_all_equal(run.buffer.prompts, twin.table())
    self.assertGreater(twin.num_replaced, 0)
    self.assertEqual(int(run.buffer.num_batches), _NUM_GENERATIONS)
    correct = prompt_table.is_correct(rewards).mean()
    self.assertBetween(correct, 0.5, 0.95)

  def test_updates_wait_for_24_of_16_rows_a_generation(self):
    run, measured = _history()
    empty = [int(values['updates/empty']) for values in measured]
    self.assertEqual(empty, [1, 0, 0, 1, 0])
    self.assertEqual(int(run.learner.step), 3)
    self.assertEqual(int(run.learner.num_tried), 5)
    uses = run.buffer.times_sampled
    self.assertEqual(uses.tolist(), [1] * 72 + [0] * 24)
    # The sampler goes on with the same weights while an update waits.
    versions = run.buffer.rollouts.policy_version[:80].reshape(5, 16)
    self.assertEqual(versions[:, 0].tolist(), [0, 0, 1, 2, 2])


if __name__ == '__main__':
  absltest.main()
