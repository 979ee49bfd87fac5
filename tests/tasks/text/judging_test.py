"""Tests of a run whose responses are judged on the host."""

import dataclasses
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import host_judged
from replay_rl.run import programs as programs_lib
from replay_rl.run import samples
from replay_rl.tasks import task as task_lib
from tests import tiny

_STATUSES = ('correct', 'wrong')


def _text_task(like, calls):
  """A task of which the first token decides, judged in NumPy."""

  def prompts(seed, iteration, num_prompts):
    rng = np.random.default_rng([seed, iteration])
    tokens = rng.integers(10, size=(num_prompts, like.prompt_length))
    return base.Prompts(
      tokens=tokens.astype(np.int32),
      lengths=np.full(num_prompts, like.prompt_length, np.int32),
      references=(100 * iteration + np.arange(num_prompts)).astype(np.int32),
    )

  def judge(responses, lengths, is_finished, references):
    calls.append((responses, lengths, is_finished, references))
    is_correct = responses[:, 0] % 2 == references % 2
    return task_lib.Judgement(
      rewards=np.where(is_correct, 1.0, -0.5).astype(np.float32),
      is_correct=is_correct,
      statuses=np.where(is_correct, *_STATUSES),
    )

  fields = dataclasses.asdict(like)
  for name in ('prompts_fn', 'reward_fn', 'teacher_fn'):
    del fields[name]
  return task_lib.TextTask(
    prompts_fn=prompts,
    eval_prompts_fn=lambda num_prompts: prompts(99, 0, num_prompts),
    judge_fn=judge,
    reference_fn=lambda row: f'answer {row}',
    statuses=_STATUSES,
    notes=(),
    close_fn=lambda: None,
    **fields,
  )


def _judge_in_jax(responses, lengths, references):
  del lengths
  is_correct = responses[:, 0] % 2 == references % 2
  return jnp.where(is_correct, 1.0, -0.5)


def _programs(parts, num_seeds):
  return programs_lib.build(
    parts,
    num_seeds=num_seeds,
    vmap_seeds=False,
    num_eval_prompts=3,
    num_eval_samples=2,
    num_shown=5,
    buffer_memory='device',
    mesh=mesh_lib.make({'data': 1, 'fsdp': 1, 'tensor': 1}),
  )


class HostJudgedTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    in_jax = build.parts(tiny.config())
    cls.calls = []
    cls.task = _text_task(in_jax.task, cls.calls)
    cls.parts = in_jax._replace(task=cls.task)
    cls.programs = _programs(cls.parts, 2)
    cls.params = in_jax.init_params_fn(jax.random.key(3))
    run = cls.programs.init(cls.params, jnp.array([5, 6], jnp.uint32))
    cls.runs, cls.measured = [jax.device_get(run)], []
    for _ in range(3):
      run, measured = cls.programs.iterate(run)
      cls.runs.append(jax.device_get(run))
      cls.measured.append(jax.device_get(measured))

  def test_it_is_the_iteration_of_the_same_task_in_jax(self):
    in_jax = build.parts(tiny.config())
    task = dataclasses.replace(
      in_jax.task,
      prompts_fn=lambda rng_key, num_prompts: jax.tree.map(
        jnp.asarray, self.task.prompts_fn(5, 0, num_prompts)
      ),
      reward_fn=_judge_in_jax,
    )
    programs = _programs(in_jax._replace(task=task), 1)
    run = programs.init(self.params, jnp.array([5], jnp.uint32))
    run, measured = programs.iterate(run)
    first = jax.tree.map(lambda leaf: leaf[:1], self.runs[1])
    chex.assert_trees_all_equal(run.buffer, first.buffer)
    chex.assert_trees_all_equal(run.ledger, first.ledger)
    chex.assert_trees_all_close(run.learner, first.learner, atol=1e-5)
    self.assertEqual(measured['reward'], self.measured[0]['reward'][:1])

  def test_seeds_and_iterations_get_their_own_prompts(self):
    rows = self.runs[2].buffer.rollouts
    length = self.task.prompt_length
    for seed in (0, 1):
      expected = np.concatenate(
        [self.task.prompts_fn(5 + seed, step, 4).tokens for step in (0, 1)]
      )
      np.testing.assert_array_equal(rows.tokens[seed, ::4, :length], expected)

  def test_rewards_go_to_the_rollouts_that_earned_them(self):
    # The references are even for every other prompt of a group of four.
    rollouts = self.runs[2].buffer.rollouts
    first = rollouts.tokens[:, :, self.task.prompt_length]
    is_correct = first % 2 == rollouts.group_id % 4 % 2
    np.testing.assert_array_equal(
      rollouts.rewards, np.where(is_correct, 1.0, -0.5)
    )
    self.assertBetween(is_correct.mean(), 0.1, 0.9)

  def test_what_the_verifier_said_is_counted(self):
    for run, measured in zip(self.runs[1:], self.measured, strict=True):
      newest = np.argsort(-run.buffer.rollouts.policy_version, kind='stable')
      rewards = np.take_along_axis(run.buffer.rollouts.rewards, newest, axis=1)[
        :, :16
      ]
      correct = np.sum(rewards == 1.0, axis=1)
      self.assertEqual(measured['verifier/correct'].tolist(), correct.tolist())
      self.assertEqual(
        measured['verifier/wrong'].tolist(), (16 - correct).tolist()
      )
      np.testing.assert_allclose(measured['accuracy'], correct / 16)

  def test_the_judge_sees_every_response_of_all_seeds_once(self):
    self.calls.clear()
    self.programs.iterate(jax.tree.map(jnp.asarray, self.runs[0]))
    [(responses, lengths, is_finished, references)] = self.calls
    self.assertEqual(responses.shape, (32, self.task.max_new_tokens))
    self.assertEqual(
      references.tolist(), np.tile(np.repeat(np.arange(4), 4), 2).tolist()
    )
    last = responses[np.arange(32), lengths - 1]
    np.testing.assert_array_equal(is_finished, np.isin(last, self.task.eos_ids))

  def test_evaluation_reports_right_answers_not_rewards(self):
    scores = programs_lib.scores(
      self.programs, jax.tree.map(jnp.asarray, self.runs[3])
    )
    self.assertLen(scores, 2)
    for score in scores:
      self.assertIn(round(6 * score['eval/mean_at_n'], 4), range(7))
      self.assertIn(round(3 * score['eval/greedy'], 4), range(4))
    self.calls.clear()
    self.programs.evaluate(jax.tree.map(jnp.asarray, self.runs[3]))
    greedy, sampled = self.calls
    self.assertEqual(greedy[3].tolist(), [0, 1, 2] * 2)
    self.assertEqual(sampled[3].tolist(), [0, 0, 1, 1, 2, 2] * 2)

  def test_samples_show_what_the_buffer_holds(self):
    run = self.runs[3]
    found = samples.lines(
      self.programs.samples(jax.tree.map(jnp.asarray, run)), self.task, 4
    )
    self.assertLen(found, 10)
    stored = run.buffer.rollouts
    for line in found:
      seed = line['seed'] - 5
      self.assertEqual((line['iteration'], line['learner_step']), (2, 6))
      self.assertEqual(line['age'], 6 - line['policy_version'])
      step, index = divmod(line['group_id'], 4)
      self.assertEqual(line['reference'], f'answer {100 * step + index}')
      prompt = self.task.prompts_fn(line['seed'], step, 4).tokens[index]
      self.assertEqual(line['prompt'], self.task.decode_fn(prompt))
      rows = [
        row
        for row in np.flatnonzero(stored.group_id[seed] == line['group_id'])
        if line['response']
        == self.task.decode_fn(
          stored.tokens[seed, row][stored.loss_mask[seed, row]]
        )
      ]
      self.assertNotEmpty(rows)
      self.assertIn(
        (line['reward'], line['times_sampled']),
        [
          (stored.rewards[seed, row], run.buffer.times_sampled[seed, row])
          for row in rows
        ],
      )
      self.assertEqual(
        line['is_finished'],
        line['response'].endswith('<eos>'),
      )

  def test_samples_of_an_almost_empty_buffer_are_those_that_there_are(self):
    run = jax.tree.map(jnp.asarray, self.runs[1])
    state = run.buffer
    keep = jnp.arange(state.is_valid.shape[1])[None] == jnp.array([[2], [3]])
    run = run._replace(buffer=state._replace(is_valid=state.is_valid & keep))
    found = samples.lines(self.programs.samples(run), self.task, 4)
    self.assertEqual([line['seed'] for line in found], [5, 6])


class ShareTest(parameterized.TestCase):
  """Of rows between processes, the devices of which are played."""

  def _share(self, process, num_processes, split):
    rows = np.arange(12).reshape(2, 6)
    arrays = [rows, np.stack([rows, -rows], axis=2)]

    def played(array):
      shards = [
        mock.Mock(
          index=(slice(None), slice(start, stop)),
          data=array[:, start:stop],
          replica_id=replica,
        )
        for start, stop, replica in split
      ]
      return mock.Mock(
        shape=array.shape,
        dtype=array.dtype,
        is_fully_addressable=num_processes == 1,
        is_fully_replicated=not split,
        addressable_shards=shards,
        __array__=lambda *_, **__: array,
      )

    with (
      mock.patch.object(jax, 'process_count', return_value=num_processes),
      mock.patch.object(jax, 'process_index', return_value=process),
    ):
      own, found = host_judged._share([played(array) for array in arrays])
    for one, whole in zip(found, arrays, strict=True):
      np.testing.assert_array_equal(one, whole[:, own])
    return own.tolist()

  @parameterized.parameters(
    # Whole on every device: equal parts.
    (0, 1, [], [0, 1, 2, 3, 4, 5]),
    (0, 4, [], [0, 1]),
    (3, 4, [], [5]),
    # Split: what its devices hold, in order, of each row the first copy.
    (1, 2, [(4, 6, 0), (2, 4, 0)], [2, 3, 4, 5]),
    (1, 2, [(4, 6, 0), (2, 4, 1)], [4, 5]),
    (1, 2, [(0, 6, 1)], []),
    # All shards are those of one process.
    (0, 1, [(0, 3, 0), (3, 6, 0)], [0, 1, 2, 3, 4, 5]),
  )
  def test_a_process_judges(self, process, num_processes, split, rows):
    self.assertEqual(self._share(process, num_processes, split), rows)


if __name__ == '__main__':
  absltest.main()
