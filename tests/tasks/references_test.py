"""Tests of what tasks read from prompts again, and say of right answers."""

import jax
import numpy as np
from absl.testing import parameterized

from replay_rl.tasks import addition
from replay_rl.tasks import countdown
from replay_rl.tasks import modular_arithmetic

_MODULAR = dict.fromkeys(
  ('direct_probability', 'stop_probability', 'slip_probability'), 0.5
)
TASKS = {
  'addition': addition.make(num_digits=3, forget_probability=0.5),
  'one digit': addition.make(num_digits=1, forget_probability=0.5),
  'countdown': countdown.make(
    num_numbers=4, max_number=9, slip_probability=0.5
  ),
  'modular': modular_arithmetic.make(max_operations=5, modulus=7, **_MODULAR),
  'modulo 2': modular_arithmetic.make(max_operations=1, modulus=2, **_MODULAR),
}


class ReferencesTest(parameterized.TestCase):
  @parameterized.parameters(*TASKS)
  def test_prompts_have_all_that_the_verifier_reads(self, name):
    task = TASKS[name]
    prompts = jax.jit(task.prompts_fn, static_argnums=1)(jax.random.key(0), 300)
    for read in (task.references_fn, jax.jit(task.references_fn)):
      again = read(prompts.tokens)
      self.assertEqual(
        jax.tree.structure(again), jax.tree.structure(prompts.references)
      )
      jax.tree.map(np.testing.assert_array_equal, again, prompts.references)

  def test_right_answers_by_hand(self):
    # 123 + 989 = 1112, written from the last digit on.
    tokens = np.array([[3, 2, 1, 10, 9, 8, 9, 11]], np.int32)
    self.assertEqual(
      self.described('addition', tokens), ['2111 (1112, last digit first)']
    )
    prompt = countdown.prompts(
      jax.random.key(0), 1, num_numbers=4, max_number=9
    )
    self.assertEqual(
      self.described('countdown', prompt.tokens),
      [f'anything that gives {prompt.references.target[0]}'],
    )
    # 3 + 5 = 1 modulo 7.
    zero, blank = modular_arithmetic.ZERO, modular_arithmetic.BLANK
    plus_5 = zero + 7 + 4
    tokens = [[zero + 3, plus_5, *[blank] * 4, modular_arithmetic.EQUALS]]
    self.assertEqual(
      self.described('modular', np.array(tokens, np.int32)), ['# 1']
    )

  def described(self, name, tokens):
    task = TASKS[name]
    references = jax.device_get(task.references_fn(tokens))
    return [
      task.describe_fn(
        jax.tree.map(lambda leaf, row=row: leaf[row], references)
      )
      for row in range(len(tokens))
    ]
