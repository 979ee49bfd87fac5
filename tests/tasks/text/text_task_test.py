"""Tests of replay_rl.tasks.text.text_task."""

import dataclasses
import math
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import parameterized

from replay_rl.lm import tokenizer
from replay_rl.tasks import rewards
from replay_rl.tasks.text import datasets
from replay_rl.tasks.text import problems as problems_lib
from replay_rl.tasks.text import text_task
from tests import tiny_text
from tests import tiny_tokenizer
from tests.tasks.verify import reward_functions


def _reward(*arguments):
  bonus = rewards.format_bonus(*arguments, weight=0.5)
  return rewards.correctness(*arguments) + bonus


def _make(folder, **changes):
  settings = dataclasses.asdict(tiny_text.settings(folder))
  del settings['judge_every']  # Of the run.
  fixed = {'shaping_fn': _reward, 'num_evaluation_prompts': None}
  return text_task.make(**{**fixed, **settings, **changes})


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

  def test_rewards_of_a_function_of_a_user(self):
    task = _make(self.folder, reward_fn=f'{reward_functions.__file__}:share')
    self.addCleanup(task.close_fn)
    (function,) = task.users
    self.assertEqual(function.__name__, 'share')
    # Problem 7 has the answer 8; the prompt is the text of the problem.
    problem = tiny_text.PROBLEMS[7].problem
    texts = [f'{problem} 8', '\\boxed{8}', 'no']
    responses, lengths = self._responses(texts)
    judgement = task.judge_fn(
      responses, lengths, lengths < 100, np.array([7, 7, 7])
    )
    # A boxed answer has a bonus of 0.5.
    self.assertEqual(judgement.rewards.tolist(), [3.0, 1.5, 0.0])
    self.assertEqual(judgement.is_correct.tolist(), [True, True, False])
    self.assertEqual(
      judgement.statuses.tolist(), ['correct', 'correct', 'wrong']
    )

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
    self.assertIn('<|start|>assistant\n<think>', text)

  def test_the_chat_template_reads_the_variables(self):
    task = _make(
      self.folder,
      use_chat_template=True,
      chat_variables={
        **{'think': True, 'facts': 'x'},
        **{'date_string': '26 Jul 2024', 'a': 1, 'b': 0.5, 'c': None},
      },
      max_prompt_tokens=80,
    )
    text = self._decoded(task.prompts_fn(0, 0, 1))[0]
    self.assertEndsWith(text, '"x"\n<|start|>assistant\n')

  def test_a_text_begins_as_the_tokenizer_begins_one(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    _make(folder)
    tiny_tokenizer.change_json(
      folder / 'tokenizer/tokenizer_config.json', add_bos_token=None
    )
    task = _make(folder)
    for prompts in (task.prompts_fn(0, 0, 8), task.eval_prompts_fn(6)):
      for text in self._decoded(prompts):
        self.assertStartsWith(text, '<|start|>Question:')
    begins = "each prompt begins with '<|start|>', as the tokenizer begins a"
    self.assertStartsWith(task.notes[1], f'problems: {begins}')
    self.assertStartsWith(task.notes[3], f'evaluation_problems: {begins}')
    self.assertLen(_make(folder, template='<|start|>{problem}').notes, 2)

  @parameterized.parameters(
    (
      {'max_prompt_tokens': 3},
      'max_prompt_tokens = 3: .* 8 of 8 .*, or drop_long_prompts must be True$',
    ),
    ({'template': 'no field'}, r'template = .* not \[\]'),
    ({'split': 'dev'}, "split = 'dev'"),
    ({'system_message': 'x'}, "system_message = 'x', chat_variables = None: m"),
    (
      {'chat_variables': {'a': 1}},
      r"= None, chat_variables = \{'a': 1\}: must",
    ),
    (
      {'use_chat_template': True, 'chat_variables': {'messages': 1}},
      r"chat variables = \['messages'\]: must",
    ),
    *(
      (
        {'use_chat_template': True, 'chat_variables': variables},
        r'^chat_variables = .*: must be None, or have at least one name with',
      )
      for variables in (
        {},
        {'a b': 1},
        {'': 1},
        {'a': math.inf},
        {'a': [1]},
        {'a': {'b': 1}},
      )
    ),
    (
      {'num_evaluation_prompts': 7},
      'evaluation.num_prompts = 7: must be at most the 6 problems',
    ),
    ({'evaluation_split': None}, 'must both be given, or both be None'),
    ({'tokenizer': 'nowhere'}, 'nowhere'),
  )
  def test_bad_settings_are_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _make(self.folder, **changes)

  def test_as_many_prompts_as_there_are_may_be_evaluated(self):
    _make(self.folder, num_evaluation_prompts=6)
    _make(
      self.folder,
      num_evaluation_prompts=7,
      evaluation_problems=None,
      evaluation_split=None,
    )


class ReferencesTest(parameterized.TestCase):
  """What the verifier would refuse is refused before a run starts."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    _make(self.folder)

  def make(self, train=(), test=(), **changes):
    """Makes a task with further problems; their texts are their ids."""
    splits = {
      split: [
        *problems,
        *(problems_lib.Problem(*(name, name, answer)) for name, answer in more),
      ]
      for split, problems, more in (
        ('train', tiny_text.PROBLEMS, train),
        ('test', tiny_text.HELD_OUT, test),
      )
    }
    folder = datasets.prepare(splits, name='set', out=self.folder / 'more')
    return _make(
      self.folder,
      problems=str(folder),
      evaluation_problems=str(folder),
      **changes,
    )

  @parameterized.parameters(('train', 'problems'), ('test', 'evaluation_prob'))
  def test_answers_that_are_too_long_are_named(self, split, name):
    long = [('x', '1' * 101), ('y', '1' * 150)]
    with self.assertRaisesRegex(
      ValueError,
      rf'^max_answer_chars = 100: must be at least 150, the longest answer of '
      rf"{name}.*; 2 of \d+ answers are longer than allowed: 'x', 'y'$",
    ):
      self.make(**{split: long})

  def test_the_limit_itself_is_allowed(self):
    task = self.make(train=[('x', '1' * 100)])
    verdict = task.judge_fn(
      np.array([[task.shape.eos_ids[0]]]),
      np.array([1]),
      np.array([True]),
      np.array([len(tiny_text.PROBLEMS)]),
    )
    task.close_fn()
    self.assertEqual(verdict.statuses.tolist(), ['no_answer'])

  def test_a_problem_that_is_left_out_is_never_judged(self):
    long = [('x ' * 50, '1' * 101)]
    task = self.make(train=long, drop_long_prompts=True)
    self.assertIn('9 problems, of which 1 are too long', task.notes[0])

  def test_blank_answers_are_named(self):
    with self.assertRaisesRegex(
      ValueError, r"^blank answers of problems = 1 \('x'\): must be none$"
    ):
      self.make(train=[('x', ' ')])


class SourcesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.task = _make(self.folder)

  def differing(self, **changes):
    """Returns the sources in which another task differs."""
    other = _make(self.folder, **changes).sources
    self.assertEqual(set(other), set(self.task.sources))
    return {name for name in other if other[name] != self.task.sources[name]}

  def write(self, train=tiny_text.PROBLEMS, test=tiny_text.HELD_OUT):
    out = self.folder / 'changed'
    shutil.rmtree(out, ignore_errors=True)
    splits = {'train': train, 'test': test}
    folder = str(datasets.prepare(splits, name='set', out=out))
    return {'problems': folder, 'evaluation_problems': folder}

  def test_each_is_a_hash_in_hexadecimal(self):
    self.assertEqual(
      set(self.task.sources), {'problems', 'evaluation_problems', 'tokenizer'}
    )
    for value in self.task.sources.values():
      self.assertRegex(value, '^[0-9a-f]{64}$')
    alone = _make(self.folder, evaluation_problems=None, evaluation_split=None)
    self.assertEqual(set(alone.sources), {'problems', 'tokenizer'})

  def test_what_is_the_same_elsewhere_has_the_same_hash(self):
    words = self.folder / 'copy'
    shutil.copytree(self.folder / 'tokenizer', words)
    self.assertEqual(
      self.differing(**self.write(), tokenizer=str(words)), set()
    )

  @parameterized.parameters('id', 'problem', 'answer')
  def test_each_field_of_a_problem_counts(self, field):
    first, *rest = tiny_text.PROBLEMS
    changed = [first._replace(**{field: '9'}), *rest]
    self.assertEqual(self.differing(**self.write(train=changed)), {'problems'})
    first, *rest = tiny_text.HELD_OUT
    changed = [first._replace(**{field: '9'}), *rest]
    self.assertEqual(
      self.differing(**self.write(test=changed)), {'evaluation_problems'}
    )

  def test_order_and_number_of_problems_count(self):
    for train in (tiny_text.PROBLEMS[::-1], tiny_text.PROBLEMS[:-1]):
      self.assertEqual(self.differing(**self.write(train=train)), {'problems'})

  def test_the_chat_template_counts(self):
    path = self.folder / 'tokenizer/chat_template.jinja'
    path.write_text('{{ messages[0].content }}')
    self.assertEqual(self.differing(), {'tokenizer'})
