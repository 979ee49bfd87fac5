"""A run with a table of prompts, a training set, and updates that wait.

In another run, prompts of the table come back.
"""

import functools
import operator
import re

import chex
import jax
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import prompt_table
from replay_rl.run import events
from replay_rl.run import generation
from replay_rl.run import schedule
from replay_rl.run import state
from tests import tiny
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


@functools.cache
def _replayed(num_distinct):
  """Returns the prompts, the run after and the metrics of each generation.

  The weights stay. Half of the four prompts come from the table, at most twice.
  """
  experiment = tiny_run.experiment(
    replay__capacity=160,
    replay__num_prompts=24,
    sampler__num_distinct_prompts=num_distinct,
    sampler__prompts='replayed_prompts(fraction=0.5, center=0.5, width=0.2, '
    'max_visits=3, cooldown=1)',
  )
  parts, task = experiment.parts, tiny_run.task()
  cycle = jax.jit(
    functools.partial(
      events.cycle,
      events=(schedule.Generate(), schedule.Remember()),
      actions=events.in_jax(parts, task),
    )
  )
  draw = jax.jit(
    functools.partial(generation.draw_prompts, parts=parts, task=task)
  )
  run, history = tiny_run.started(parts, seed=7), []
  for _ in range(2 * _NUM_GENERATIONS):
    prompts = draw(run)
    run, actual = cycle(run)
    history.append(jax.device_get((prompts, run, actual.values)))
  return history


class ReplayedPromptsTest(parameterized.TestCase):
  @parameterized.parameters(None, 15)
  def test_new_prompts_come_in_order_and_leave_none_out(self, num_distinct):
    history = _replayed(num_distinct)
    num_new, seen, counts = 0, set(), []
    for prompts, _, values in history:
      indices = prompts.stream_index.tolist()
      num_again = round(4 * float(values['prompts/replayed_fraction']))
      first = 4 - num_again
      new = [x % (num_distinct or 99) for x in range(num_new, num_new + 4)]
      self.assertEqual(indices[:first], new[:first])
      self.assertContainsSubset(indices[first:], seen)
      self.assertNoCommonElements(indices[first:], new)
      num_new += first
      seen.update(indices)
      counts.append(num_again)
    self.assertEqual(counts[:2], [0, 0])  # The cooldown.
    self.assertEqual(max(counts), 2)
    last = history[-1][1].buffer.prompts
    self.assertEqual(int(last.num_replayed), sum(counts))
    # Each was new, also those at the places of the replayed ones.
    self.assertEqual(seen, {*range(min(num_new, num_distinct or num_new))})

  def test_a_prompt_that_returns_is_the_same_with_ids_that_count_on(self):
    history = _replayed(None)
    by_index, num_returned = {}, 0
    for generation_number, (prompts, run, _) in enumerate(history):
      first = 16 * generation_number
      rows = jax.tree.map(
        lambda leaf, first=first: leaf[first : first + 16], run.buffer.rollouts
      )
      np.testing.assert_array_equal(rows.prompt_id[::4], prompts.prompt_id)
      np.testing.assert_array_equal(rows.rollout_id, range(first, first + 16))
      np.testing.assert_array_equal(
        rows.group_id, np.arange(first, first + 16) // 4
      )
      for place, index in enumerate(prompts.stream_index.tolist()):
        prompt = jax.tree.map(operator.itemgetter(place), prompts)
        num_returned += index in by_index
        chex.assert_trees_all_equal(by_index.setdefault(index, prompt), prompt)
    self.assertGreater(num_returned, 4)

  def test_the_rule_of_the_draw_holds_in_each_generation(self):
    visited = {}
    for number, (prompts, run, _) in enumerate(_replayed(None)):
      rewards = run.buffer.rollouts.rewards[16 * number : 16 * (number + 1)]
      rates = (rewards.reshape(4, 4) > 0).mean(1)
      for index, rate in zip(prompts.stream_index.tolist(), rates, strict=True):
        for generations, latest in visited.get(index, [])[-1:]:
          self.assertLess(generations, number - 1)
          self.assertBetween(latest, 0.25, 0.75)
        visited.setdefault(index, []).append((number, rate))
    self.assertEqual(max(map(len, visited.values())), 3)

  def test_another_seed_or_generation_draws_others(self):
    experiment = tiny_run.experiment(
      replay__num_prompts=24,
      sampler__prompts='replayed_prompts(fraction=1.0, center=0.5, width=inf, '
      'max_visits=9, cooldown=0)',
    )
    parts, task = experiment.parts, tiny_run.task()
    _, run, _ = _replayed(None)[-1]
    run = run._replace(hyper=state.as_arrays(parts.hyper))
    draw = jax.jit(
      lambda run: generation.draw_prompts(run, parts, task).stream_index
    )
    drawn = {
      tuple(draw(run._replace(seed=np.uint32(seed))).tolist())
      for seed in range(4)
    } | {
      tuple(
        draw(
          run._replace(
            buffer=run.buffer._replace(num_batches=np.uint32(number))
          )
        ).tolist()
      )
      for number in range(20, 24)
    }
    self.assertLen(drawn, 8)


class RefusedTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'sampler__prompts': tiny.REPLAYED_PROMPTS},
      'replay.num_prompts = None: must be given for replayed_prompts',
    ),
    (
      {
        'sampler__prompts': tiny.REPLAYED_PROMPTS.replace('0.5', '0.1', 1),
        'replay__num_prompts': 4,
      },
      'fraction = 0.1: must give at least one of the 4 prompts of a generation',
    ),
  )
  def test_a_choice_that_does_not_fit_the_run(self, changes, message):
    with self.assertRaisesRegex(
      ValueError, rf'^sampler.prompts = .*: must fit the run \({message}\)$'
    ):
      tiny_run.experiment(**changes)

  @parameterized.parameters(
    (lambda state, new, rng_key: new[:3], 'uint32[3]'),
    (lambda state, new, rng_key: new.astype(np.int32), 'int32[4]'),
  )
  def test_prompts_that_are_not_those_of_a_generation(self, choose, returned):
    with self.assertRaisesRegex(
      ValueError,
      '^sampler.prompts = .*: '
      + re.escape(f'must return uint32[4], not {returned}'),
    ):
      tiny_run.experiment({'prompts': choose})


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
    for number in range(_NUM_GENERATIONS):
      twin.visit(
        *(prompt_id[number][:, 0], rewards[number], number),
        stream_index=np.arange(4 * number, 4 * number + 4) % 6,
      )
      values = measured[number]
      self.assertEqual(values['buffer/num_replaced_prompts'], twin.num_replaced)
      self.assertEqual(values['prompts/num_seen'], 4)
      is_solved = twin.table().latest_rate == 1
      self.assertEqual(values['prompts/solved_fraction'], is_solved.mean())
      seen = prompt_id[: number + 1].flatten()
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
