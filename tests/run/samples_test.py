"""Tests of the rollouts that a run shows as text, of a task in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from replay_rl import base
from replay_rl.replay import buffer
from replay_rl.run import build
from replay_rl.run import samples
from tests import tiny
from tests.run import tiny_run

# What follows '=', without padding -> whether 2 + 9 is that.
_RESPONSES = {
  (1, 1, 12): True,  # 11.
  (1, 1, 12, 12): False,
  (1, 0, 12): False,
  (1, 1): False,
  (1,): False,
}


class SamplesTest(absltest.TestCase):
  def shown(self):
    task, parts = build.task(tiny.config()), tiny_run.parts()
    run, num_rows = tiny_run.started(parts, 0), len(_RESPONSES)
    rows = [[2, 10, 9, 11, *response] for response in _RESPONSES]
    num_tokens = task.shape.num_tokens
    tokens = np.full((num_rows, num_tokens), 13, np.int32)
    for row, written in enumerate(rows):
      tokens[row, : len(written)] = written
    places = np.arange(num_tokens)
    ends = np.array([len(written) for written in rows])[:, None]
    numbers = {
      name: jnp.arange(num_rows, dtype=dtype)
      for name, dtype in (
        *(('rewards', jnp.float32), ('advantages', jnp.float32)),
        *(('group_id', jnp.int32), ('policy_version', jnp.int32)),
        *(('prompt_id', jnp.uint32), ('rollout_id', jnp.uint32)),
      )
    }
    rollouts = base.Rollout(
      tokens=jnp.asarray(tokens),
      loss_mask=jnp.asarray((places >= 4) & (places < ends)),
      behavior_logprobs=jnp.zeros(tokens.shape),
      **numbers,
    )
    # Where the ring ends, rows that are not valid have zeros.
    state, _ = buffer.insert(
      run.buffer, rollouts, priorities=jnp.ones(num_rows)
    )
    run = jax.tree.map(lambda leaf: leaf[None], run._replace(buffer=state))
    read = jax.jit(jax.vmap(lambda run: samples.read(run, 8, task)))
    return samples.lines(read(run), task)

  def test_the_verdict_is_that_of_the_task_and_not_the_reward(self):
    lines = sorted(self.shown(), key=lambda line: line['rollout_id'])
    self.assertEqual(
      [line['is_correct'] for line in lines], [*_RESPONSES.values()]
    )
    self.assertEqual([line['reward'] for line in lines], [0, 1, 2, 3, 4])
    for line in lines:
      self.assertEqual(line['prompt'], '2+9=')
      self.assertEqual(line['reference'], '11 (11, last digit first)')
    self.assertEqual(lines[1]['response'], '11<eos><eos>')


if __name__ == '__main__':
  absltest.main()
