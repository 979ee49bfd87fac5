"""Tests of replay_rl.tasks.text.text_task."""

import dataclasses
import pathlib
import tempfile

import numpy as np
from absl.testing import parameterized

from replay_rl.lm import tokenizer
from replay_rl.tasks.text import rewards
from replay_rl.tasks.text import text_task
from tests import tiny_text


def _reward(*arguments):
  bonus = rewards.format_bonus(*arguments, weight=0.5)
  return rewards.correctness(*arguments) + bonus


def _make(folder, **changes):
  settings = dataclasses.asdict(tiny_text.settings(folder))
  del settings['reward']
  return text_task.make(**{'reward_fn': _reward, **settings, **changes})


class TextTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    cls.task = _make(cls.folder)
    cls.addClassCleanup(cls.task.close_fn)
    cls.words = tokenizer.load(cls.folder / 'tokenizer')

  def _decoded(self, prompts):
    return [
      self.words.decode(row[:length], skip_special=False)
      for row, length in zip(prompts.tokens, prompts.lengths, strict=True)
    ]

  def _responses(self, texts):
    """Returns responses that end, but for the last, and their lengths."""
    rows = [self.words.encode(text) for text in texts]
    rows = [[*row, self.words.eos_ids[0]] for row in rows[:-1]] + rows[-1:]
    responses = np.full((len(rows), max(map(len, rows))), self.words.pad_id)
    for row, tokens in zip(responses, rows, strict=True):
      row[: len(tokens)] = tokens
    return responses, np.array([len(tokens) for tokens in rows])

  def test_prompts_are_the_problems_in_the_template(self):
    prompts = self.task.prompts_fn(0, 0, 8)
    self.assertEqual(
      self._decoded(prompts),
      [
        f'Question: {tiny_text.PROBLEMS[row].problem}\nAnswer:'
        for row in prompts.references
      ],
    )
    self.assertCountEqual(prompts.references.tolist(), range(8))
    np.testing.assert_array_equal(prompts.prompt_id, prompts.references)
    later = self.task.prompts_fn(0, 1, 8)
    self.assertCountEqual(later.references.tolist(), range(8))
    self.assertNotEqual(later.references.tolist(), prompts.references.tolist())

  def test_evaluation_has_its_own_problems(self):
    prompts = self.task.eval_prompts_fn(6)
    texts = self._decoded(prompts)
    for text, row in zip(texts, prompts.references, strict=True):
      problem = tiny_text.HELD_OUT[row - len(tiny_text.PROBLEMS)]
      self.assertIn(problem.problem, text)
      self.assertEqual(self.task.reference_fn(row), problem.answer)
    self.assertLen(set(texts), 6)
    np.testing.assert_array_equal(prompts.prompt_id, prompts.references)
    with self.assertRaisesRegex(ValueError, 'num_prompts = 7: .* the 6 prob'):
      self.task.eval_prompts_fn(7)

  def test_rewards_by_hand(self):
    # Problems 2, 3 and 4 have the answers 3, 4 and 5.
    responses, lengths = self._responses(
      [
        'it is \\boxed{3}',
        'it is 3',
        'it is \\boxed{9}',
        'no idea',
        'so 4',
        'it is 5',
      ]
    )
    judgement = self.task.judge_fn(
      responses, lengths, lengths < 100, np.array([2, 2, 2, 3, 3, 3])
    )
    self.assertEqual(judgement.rewards.tolist(), [1.5, 1.0, 0.5, 0, 1.0, 0])
    self.assertEqual(
      judgement.is_correct.tolist(), [True, True, False, False, True, False]
    )
    self.assertEqual(
      judgement.statuses.tolist(),
      ['correct', 'correct', 'wrong', 'no_answer', 'correct', 'wrong'],
    )
    self.assertLessEqual(set(judgement.statuses), set(self.task.statuses))

  def test_what_comes_after_the_end_is_not_read(self):
    responses, lengths = self._responses(['3', '3'])
    responses = np.concatenate([responses, [self.words.encode('4')] * 2], 1)
    judgement = self.task.judge_fn(
      responses, lengths, lengths < 100, np.array([2, 3])
    )
    self.assertEqual(judgement.is_correct.tolist(), [True, False])

  def test_the_shape_is_that_of_the_settings(self):
    words = self.words
    self.assertEqual(
      self.task.shape, (words.vocab_size, 32, 8, words.eos_ids, words.pad_id)
    )
    self.assertRegex(self.task.notes[0], '^problems: 8 problems, of which 0')
    self.assertLen(self.task.notes, 2)

  def test_the_chat_template_is_used_if_asked_for(self):
    task = _make(
      self.folder,
      use_chat_template=True,
      system_message='Add.',
      max_prompt_tokens=80,
    )
    text = self._decoded(task.prompts_fn(0, 0, 1))[0]
    self.assertIn('<|start|>system\nAdd.', text)
    self.assertIn('<|start|>assistant', text)

  @parameterized.parameters(
    ({'max_prompt_tokens': 3}, 'max_prompt_tokens = 3: .* 8 of 8'),
    ({'template': 'no field'}, r'template = .* not \[\]'),
    ({'split': 'dev'}, "split = 'dev'"),
    ({'system_message': 'x'}, "system_message = 'x': must be None"),
    ({'evaluation_split': None}, 'must both be given, or both be None'),
    ({'tokenizer': 'nowhere'}, 'nowhere'),
  )
  def test_bad_settings_are_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _make(self.folder, **changes)
