"""Tests of a run whose responses are judged on the host."""

import dataclasses
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import rng
from replay_rl.run import evaluation
from replay_rl.run import programs
from replay_rl.run import samples
from replay_rl.tasks.text import judging
from tests import tiny
from tests.run import tiny_run

SETTINGS = {'num_eval_prompts': 3, 'num_eval_samples': 2, 'num_shown': 5}


def _judge_in_jax(responses, lengths, references):
  del lengths
  is_correct = responses[:, 0] % 2 == references % 2
  return is_correct.astype(jnp.float32)


def _shape(is_correct, *others):
  del others
  return jnp.where(is_correct == 1, 1.0, -0.5)


class JudgingTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.calls = []
    cls.task = tiny_run.text_task(cls.calls)
    cls.experiment = tiny_run.experiment()
    cls.programs = programs.build(
      cls.experiment.parts,
      cls.task,
      tiny_run.settings(num_seeds=2, **SETTINGS),
    )
    run = tiny_run.first_run(cls.programs, cls.experiment.parts, [5, 6])
    cls.runs, cls.measured = [jax.device_get(run)], []
    cls.calls.clear()
    for iteration in range(3):
      run, measured = cls.programs.cycle(
        run, cls.experiment.schedule(iteration)
      )
      cls.runs.append(jax.device_get(run))
      cls.measured.append(tiny_run.numbers(measured))
    cls.calls_of_cycles = list(cls.calls)

  def test_it_is_the_cycle_of_the_same_task_in_jax(self):
    task = dataclasses.replace(
      tiny_run.task(),
      # The key of a group says which prompt of the generation it asks for.
      prompts_fn=lambda rng_key, num_prompts: self._prompts_in_jax(rng_key),
      reward_fn=_judge_in_jax,
      shaping_fn=_shape,
    )
    parts = self.experiment.parts
    built = programs.build(parts, task, tiny_run.settings(**SETTINGS))
    run = tiny_run.first_run(built, parts, [5])
    run, measured = built.cycle(run, self.experiment.schedule(0))
    first = jax.tree.map(lambda leaf: leaf[:1], self.runs[1])
    chex.assert_trees_all_equal(run.clock, first.clock)
    chex.assert_trees_all_equal(run.ledger, first.ledger)
    chex.assert_trees_all_close(run.buffer, first.buffer, atol=1e-6)
    chex.assert_trees_all_close(run.learner, first.learner, atol=1e-5)
    actual = tiny_run.numbers(measured)
    for name in ('reward', 'accuracy'):
      np.testing.assert_allclose(actual[name], self.measured[0][name][:1])
    self.assertEqual(
      set(self.measured[0]) - set(actual),
      {'verifier/correct', 'verifier/wrong'},
    )

  def _prompts_in_jax(self, rng_key):
    keys = jnp.stack(
      [
        jax.random.key_data(rng.stream_key(5, 'prompts', group))
        for group in range(4)
      ]
    )
    is_mine = jnp.all(keys == jax.random.key_data(rng_key)[None], axis=1)
    prompts = self.task.prompts_fn(5, 0, 4)
    return jax.tree.map(
      lambda leaf: jnp.asarray(leaf)[jnp.argmax(is_mine)][None], prompts
    )

  def test_seeds_and_generations_get_their_own_prompts(self):
    rows = self.runs[2].buffer.rollouts
    length = self.task.shape.prompt_length
    for seed in (0, 1):
      expected = [self.task.prompts_fn(5 + seed, step, 4) for step in (0, 1)]
      tokens, prompt_ids = (
        np.concatenate([getattr(prompts, name) for prompts in expected])
        for name in ('tokens', 'prompt_id')
      )
      np.testing.assert_array_equal(rows.tokens[seed, ::4, :length], tokens)
      np.testing.assert_array_equal(
        rows.prompt_id[seed], np.repeat(prompt_ids, 4)
      )

  def test_rewards_go_to_the_rollouts_that_earned_them(self):
    # The references are even for every other prompt of a generation.
    rollouts = self.runs[2].buffer.rollouts
    first = rollouts.tokens[:, :, self.task.shape.prompt_length]
    is_correct = first % 2 == rollouts.group_id % 4 % 2
    np.testing.assert_array_equal(
      rollouts.rewards, np.where(is_correct, 1.0, -0.5)
    )
    self.assertBetween(is_correct.mean(), 0.1, 0.9)

  def test_what_the_verifier_said_is_counted(self):
    for number, measured in enumerate(self.measured):
      rollouts = self.runs[number + 1].buffer.rollouts
      is_new = rollouts.rollout_id // 16 == number
      correct = np.sum((rollouts.rewards == 1.0) & is_new, axis=1)
      self.assertEqual(measured['verifier/correct'].tolist(), correct.tolist())
      self.assertEqual(
        measured['verifier/wrong'].tolist(), (16 - correct).tolist()
      )
      np.testing.assert_allclose(measured['accuracy'], correct / 16)

  def test_the_judge_sees_every_response_of_all_seeds_once(self):
    self.assertLen(self.calls_of_cycles, 3)
    responses, lengths, is_finished, references = self.calls_of_cycles[0]
    shape = self.task.shape
    self.assertEqual(responses.shape, (32, shape.max_new_tokens))
    self.assertEqual(
      references.tolist(), np.tile(np.repeat(np.arange(4), 4), 2).tolist()
    )
    last = responses[np.arange(32), lengths - 1]
    np.testing.assert_array_equal(is_finished, np.isin(last, shape.eos_ids))

  def test_evaluation_reports_right_answers_not_rewards(self):
    self.calls.clear()
    actual = self.programs.evaluate(jax.tree.map(jnp.asarray, self.runs[3]))
    greedy, sampled = self.calls
    self.assertEqual(greedy[3].tolist(), [0, 1, 2] * 2)
    self.assertEqual(sampled[3].tolist(), [0, 0, 1, 1, 2, 2] * 2)
    for rewards, call, num_samples in zip(
      actual, (greedy, sampled), (1, 2), strict=True
    ):
      is_correct = call[0][:, 0] % 2 == call[3] % 2
      np.testing.assert_array_equal(
        rewards, is_correct.reshape(2, 3, num_samples)
      )
    for one in zip(*jax.device_get(actual), strict=True):
      scores = evaluation.summarize(*one, tiny.config().evaluation)
      self.assertIn(round(6 * scores['eval/mean_at_n'], 4), range(7))

  def test_samples_show_what_the_buffer_holds(self):
    run = self.runs[3]
    actual = samples.lines(
      self.programs.samples(jax.tree.map(jnp.asarray, run)), self.task
    )
    self.assertLen(actual, 10)
    stored = run.buffer.rollouts
    for line in actual:
      seed = line['seed'] - 5
      (row,) = np.flatnonzero(stored.rollout_id[seed] == line['rollout_id'])
      tokens, mask = stored.tokens[seed, row], stored.loss_mask[seed, row]
      version = stored.policy_version[seed, row]
      step, index = divmod(int(stored.group_id[seed, row]), 4)
      prompt = self.task.prompts_fn(line['seed'], step, 4).tokens[index]
      response = self.task.decode_fn(tokens[mask])
      self.assertEqual(
        line,
        {
          'iteration': 2,
          'seed': 5 + seed,
          'learner_step': 6,
          'prompt': self.task.decode_fn(prompt),
          'response': response,
          'reference': f'answer {100 * step + index}',
          'reward': stored.rewards[seed, row],
          'advantage': line['advantage'],
          'policy_version': version,
          'age': 6 - version,
          'times_sampled': run.buffer.times_sampled[seed, row],
          'group_id': 4 * step + index,
          'prompt_id': 100 * step + index,
          'rollout_id': line['rollout_id'],
          'is_finished': response.endswith('<eos>'),
          'is_correct': tokens[mask][0] % 2 == (100 * step + index) % 2,
        },
      )
      self.assertEqual(
        np.float32(line['advantage']), stored.advantages[seed, row]
      )
    # Each at most once.
    self.assertLen({(line['seed'], line['rollout_id']) for line in actual}, 10)

  def test_samples_of_an_almost_empty_buffer_are_those_that_there_are(self):
    run = jax.tree.map(jnp.asarray, self.runs[1])
    state = run.buffer
    keep = jnp.arange(state.is_valid.shape[1])[None] == jnp.array([[2], [3]])
    run = run._replace(buffer=state._replace(is_valid=state.is_valid & keep))
    shown = self.programs.samples(run)
    actual = samples.lines(shown, self.task)
    self.assertEqual(
      [(line['seed'], line['rollout_id']) for line in actual], [(5, 2), (6, 3)]
    )


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
      own, actual = judging._share([played(array) for array in arrays])
    for one, whole in zip(actual, arrays, strict=True):
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
