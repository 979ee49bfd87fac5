"""Tests for `replay_rl.replay.prompt_table`, beside a slow and obvious twin."""

import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.replay import prompt_table
from tests.replay import buffers

VISIT = jax.jit(prompt_table.visit)
LOOKUP = jax.jit(prompt_table.lookup)


class Twin:
  """A table of prompts as a list of dicts."""

  def __init__(self, num_prompts: int):
    self.entries: list[dict | None] = [None] * num_prompts
    self.num_replaced = 0
    self.num_replayed = 0  # The run counts it, and no visit.

  def find(self, prompt_id: int) -> int:
    ids = [entry and entry['prompt_id'] for entry in self.entries]
    return ids.index(prompt_id) if prompt_id in ids else len(ids)

  def visit(self, prompt_ids, rewards, generation, stream_index=None):
    """Takes a generation whose number never wraps around."""
    by_prompt, index_of = {}, {}
    if stream_index is None:
      stream_index = [0] * len(prompt_ids)
    for prompt_id, row, index in zip(
      prompt_ids, rewards, stream_index, strict=True
    ):
      by_prompt.setdefault(int(prompt_id), []).append(row)
      index_of.setdefault(int(prompt_id), int(index))
    new = [p for p in by_prompt if self.find(p) == len(self.entries)]
    for prompt_id in [p for p in by_prompt if p not in new] + new:
      index = self.find(prompt_id)
      if index == len(self.entries):
        ages = [
          -1 if entry is None else entry['last_visit'] for entry in self.entries
        ]
        index = ages.index(min(ages))
        self.num_replaced += ages[index] >= 0
        if ages[index] == generation:
          continue  # All entries are of this generation.
        self.entries[index] = {
          'prompt_id': prompt_id,
          'num_visits': 0,
          'num_rollouts': 0,
          'num_correct': 0,
        }
      entry, groups = self.entries[index], by_prompt[prompt_id]
      assert entry is not None
      is_correct = [reward > 0 for row in groups for reward in row]
      entry['num_visits'] += len(groups)
      entry['num_rollouts'] += len(is_correct)
      entry['num_correct'] += sum(is_correct)
      entry['latest_rate'] = np.float32(sum(is_correct) / len(is_correct))
      entry['last_visit'] = generation
      entry['stream_index'] = index_of[prompt_id]

  def table(self) -> base.PromptTable:
    def column(name, dtype):
      values = [entry[name] if entry else 0 for entry in self.entries]
      # A NumPy array of uint32 takes no larger number.
      return np.array([x if dtype == np.float32 else x % 2**32 for x in values])

    return base.PromptTable(
      is_valid=np.array([entry is not None for entry in self.entries]),
      num_replayed=np.array(self.num_replayed),
      num_replaced=np.array(self.num_replaced),
      latest_rate=column('latest_rate', np.float32),
      **{
        name: column(name, int)
        for name in (
          *('prompt_id', 'num_visits', 'num_rollouts', 'num_correct'),
          *('last_visit', 'stream_index'),
        )
      },
    )


class VisitTest(parameterized.TestCase):
  @parameterized.product(
    sizes=(
      (5, 4, 9),  # Prompts come back, and are replaced.
      (5, 4, 3),  # Several groups of a prompt, and entries without a prompt.
      (3, 7, 12),  # More new prompts than entries.
      (1, 2, 2),
    ),
    first=(0, 2**32 - 5),  # The number of the generation wraps around.
  )
  def test_random_visits_give_the_table_of_the_twin(self, sizes, first):
    num_prompts, num_groups, num_ids = sizes
    rng = np.random.default_rng(num_ids)
    # With the smallest and the largest id.
    ids = np.append([0, 2**32 - 1], rng.integers(2**32, size=num_ids))[:num_ids]
    twin, table = Twin(num_prompts), prompt_table.init(num_prompts)
    for generation in range(first, first + 40):
      prompt_id = rng.choice(ids, num_groups)
      rewards = rng.choice([-1.0, 0.0, 1e-3, 1.0], (num_groups, 3))
      if rng.random() < 0.3:
        rewards[:] = 1.0
      # Several groups of a prompt have different ones.
      stream_index = rng.integers(2**32, size=num_groups)
      twin.visit(prompt_id, rewards, generation, stream_index)
      table = VISIT(
        table,
        jnp.asarray(prompt_id, jnp.uint32),
        jnp.asarray(rewards, jnp.float32),
        jnp.uint32(generation % 2**32),
        stream_index=jnp.asarray(stream_index, jnp.uint32),
      )
      actual = jax.device_get(table)
      chex.assert_trees_all_equal(actual, twin.table())
      np.testing.assert_array_equal(
        LOOKUP(table, jnp.asarray(ids, jnp.uint32)), [*map(twin.find, ids)]
      )
    self.assertGreater(int(table.num_replaced), 0 if num_prompts < 5 else -1)

  def test_by_hand(self):
    table = prompt_table.init(3)
    for generation, (prompt_id, rewards) in enumerate(
      [
        # Prompt 7 has two groups: 3 of 4 are correct.
        ([7, 8, 7], [[1, 0], [0, -1], [1, 0.5]]),
        ([8, 9, 9], [[1, 1], [0, 0], [0, 0]]),
        # Prompt 7 was visited last in generation 0, and goes.
        ([5, 9, 9], [[0, 1], [1, 1], [1, 1]]),
      ]
    ):
      table = VISIT(
        table,
        jnp.asarray(prompt_id, jnp.uint32),
        jnp.asarray(rewards, jnp.float32),
        jnp.uint32(generation),
      )
    np.testing.assert_array_equal(table.prompt_id, [5, 8, 9])
    np.testing.assert_array_equal(table.num_visits, [1, 2, 4])
    np.testing.assert_array_equal(table.num_rollouts, [2, 4, 8])
    np.testing.assert_array_equal(table.num_correct, [1, 2, 4])
    np.testing.assert_array_equal(table.latest_rate, [0.5, 1, 1])
    np.testing.assert_array_equal(table.last_visit, [2, 1, 2])
    self.assertEqual(int(table.num_replaced), 1)
    self.assertEqual(table.num_replaced.dtype, jnp.uint32)

  def test_a_rate_of_all_is_exactly_one(self):
    for size in (1, 3, 7, 49):  # 49 times the float 1 / 49 is not 1.
      table = VISIT(
        prompt_table.init(1),
        jnp.zeros(1, jnp.uint32),
        jnp.ones((1, size)),
        jnp.uint32(0),
      )
      self.assertEqual(float(table.latest_rate[0]), 1.0)

  def test_under_vmap_each_table_is_as_alone(self):
    rng = np.random.default_rng(0)
    prompt_id = jnp.asarray(rng.integers(6, size=(2, 5, 4)), jnp.uint32)
    rewards = jnp.asarray(rng.integers(2, size=(2, 5, 4, 2)), jnp.float32)

    def visit_all(prompt_id, rewards):
      table = prompt_table.init(3)
      for step in range(5):
        table = prompt_table.visit(
          table, prompt_id[step], rewards[step], jnp.uint32(step)
        )
      return table, prompt_table.lookup(table, prompt_id[0])

    together = jax.vmap(visit_all)(prompt_id, rewards)
    for seed in range(2):
      alone = visit_all(prompt_id[seed], rewards[seed])
      chex.assert_trees_all_equal(
        alone, jax.tree.map(operator.itemgetter(seed), together)
      )

  def test_types_and_shapes_stay(self):
    table = prompt_table.init(3)
    after = VISIT(table, jnp.zeros(2, jnp.uint32), jnp.ones((2, 2)), 0)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, table)


class RefusedTest(parameterized.TestCase):
  @parameterized.parameters(0, 2**30 + 1)
  def test_a_size_out_of_range(self, num_prompts):
    with self.assertRaisesWithLiteralMatch(
      ValueError, f'num_prompts = {num_prompts}: must be in [1, 1073741824]'
    ):
      prompt_table.init(num_prompts)

  @parameterized.parameters(((3, 2),), ((2,),))
  def test_rewards_that_are_not_of_the_groups(self, shape):
    with self.assertRaisesWithLiteralMatch(
      ValueError,
      f'rewards = float32{list(shape)}: must have the shape [2, G], a row for '
      'each prompt_id',
    ):
      VISIT(prompt_table.init(3), jnp.zeros(2, jnp.uint32), jnp.zeros(shape), 0)

  def test_ids_that_are_not_uint32(self):
    with self.assertRaisesWithLiteralMatch(
      ValueError, 'prompt_id = int32[2]: must be uint32[C]'
    ):
      LOOKUP(prompt_table.init(3), jnp.zeros(2, jnp.int32))

  def test_a_buffer_without_a_table(self):
    with self.assertRaisesWithLiteralMatch(
      ValueError, 'replay.num_prompts = None: must be given for a rule'
    ):
      prompt_table.of_buffer(buffers.make_state(2), 'a rule')


if __name__ == '__main__':
  absltest.main()
