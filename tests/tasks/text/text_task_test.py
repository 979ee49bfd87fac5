"""Tests of tasks in text."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.lm import tokenizer
from replay_rl.run import build
from tests import tiny_text


class TextTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    cls.config = tiny_text.config(cls.folder)
    cls.task = build.parts(cls.config).task
    cls.addClassCleanup(cls.task.close_fn)
    cls.words = tokenizer.load(cls.config.text.tokenizer)

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
    self.assertEqual(
      (self.task.prompt_length, self.task.max_new_tokens), (32, 8)
    )
    self.assertEqual(self.task.vocab_size, self.words.vocab_size)
    self.assertEqual(self.task.eos_ids, self.words.eos_ids)
    self.assertRegex(self.task.notes[0], '^problems: 8 problems, of which 0')
    self.assertLen(self.task.notes, 2)

  def test_the_chat_template_is_used_if_asked_for(self):
    parts = build.parts(
      tiny_text.config(
        self.folder,
        text__use_chat_template=True,
        text__system_message='Add.',
        text__max_prompt_tokens=80,
      )
    )
    text = self._decoded(parts.task.prompts_fn(0, 0, 1))[0]
    self.assertIn('<|start|>system\nAdd.', text)
    self.assertIn('<|start|>assistant', text)

  @parameterized.parameters(
    ({'text__max_prompt_tokens': 3}, 'max_prompt_tokens = 3, but 8 of 8'),
    ({'text__template': 'no field'}, r'template = .* has the fields \[\]'),
    ({'text__split': 'dev'}, 'dev'),
    ({'text__system_message': 'x'}, 'system_message = .*must be None'),
    ({'text__evaluation_split': None}, 'must both be given, or both be None'),
    ({'text__reward': 'corectness()'}, 'text.reward = .*corectness is not one'),
    ({'text__tokenizer': 'nowhere'}, 'nowhere'),
    ({'text__num_workers': 0}, 'text.num_workers = 0: must be at least 1'),
    ({'text': None}, r"text = None: must be given for task = 'problems\(\)'"),
    ({'task': 'countdown()'}, 'text = .*must be None for task'),
    ({'warm_start__num_steps': 5}, 'warm_start.num_steps = 5: must be 0'),
    ({'model__vocab_size': 10}, 'model.vocab_size = 10: must be at least'),
    (
      {
        'text__evaluation_problems': None,
        'text__evaluation_split': None,
        'evaluation__every': 2,
      },
      'evaluation.every = 2: must be 0 where',
    ),
  )
  def test_bad_settings_are_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      build.parts(tiny_text.config(self.folder, **changes))


if __name__ == '__main__':
  absltest.main()
