import pathlib
import runpy
import sys
from unittest import mock

import numpy as np
from absl.testing import parameterized

from replay_rl.lm import tokenizer
from replay_rl.tasks.text import problems as problems_lib
from replay_rl.tasks.text import prompt_stream
from tests import tiny_tokenizer

PROBLEMS = (
  problems_lib.Problem('a', 'x', '1'),
  problems_lib.Problem('b', 'x, y and {z}', '2'),
  problems_lib.Problem('c', '1 + 1?', '3'),
)


def rows(length, **changes):
  settings = {
    'seed': 0,
    'iteration': 0,
    'num_prompts': length,
  }
  return prompt_stream.rows(length, **{**settings, **changes})


def stream(length, num_prompts, iterations, **changes):
  return np.concatenate(
    [
      rows(length, num_prompts=num_prompts, iteration=i, **changes)
      for i in iterations
    ]
  )


class RowsTest(parameterized.TestCase):
  def test_a_missing_package_is_answered_with_the_extra(self):
    with mock.patch.dict(sys.modules, {'grain': None}):
      with self.assertRaisesRegex(ImportError, r"pip install -e '.\[math\]'"):
        runpy.run_path(prompt_stream.__file__)

  @parameterized.product(length=[2, 7, 30], num_prompts=[3, 4])
  def test_each_problem_is_asked_once_in_an_epoch(self, length, num_prompts):
    # Batches straddle epochs, and can be longer than one.
    actual = stream(length, num_prompts, range(2 * length))
    epochs = actual.reshape(-1, length)
    self.assertLen(epochs, 2 * num_prompts)
    np.testing.assert_array_equal(
      np.sort(epochs, axis=1), np.tile(np.arange(length), (len(epochs), 1))
    )
    self.assertEqual(actual.dtype, np.int32)

  def test_the_order_is_the_one_of_earlier_runs(self):
    # With other values, a run continued under another version of grain would
    # repeat and miss problems.
    np.testing.assert_array_equal(
      stream(5, 2, range(5)), [1, 2, 4, 0, 3, 0, 3, 1, 4, 2]
    )

  @parameterized.parameters(1, 5, 6)
  def test_the_batch_size_only_cuts_the_stream(self, num_prompts):
    whole = stream(10, 30, [0])
    cut = stream(10, num_prompts, range(30 // num_prompts))
    np.testing.assert_array_equal(cut, whole)

  def test_the_largest_seed_has_an_order_of_its_own(self):
    orders = [rows(300, seed=s) for s in (2**32 - 1, 2**31, 0)]
    for actual in orders:
      self.assertEqual(sorted(actual.tolist()), list(range(300)))
    self.assertLen({tuple(actual.tolist()) for actual in orders}, 3)

  def test_orders_of_epochs_and_seeds_are_unrelated(self):
    orders = [rows(300, seed=s, iteration=i) for s in (0, 1) for i in (0, 1)]
    correlations = np.corrcoef([*orders, np.arange(300)])
    # The standard deviation is 1 / sqrt(300) = 0.06.
    self.assertLess(np.abs(correlations - np.eye(5)).max(), 0.2)

  def test_a_late_iteration_needs_no_earlier_one(self):
    late = rows(7, iteration=2 * 10**9)
    np.testing.assert_array_equal(np.sort(late), np.arange(7))

  @parameterized.parameters(
    ({'seed': -1}, r'seed = -1: must be in \[0, 4294967295\]'),
    ({'seed': 2**32}, r'seed = 4294967296: must be in \[0, 4294967295\]'),
    ({'iteration': -1}, 'iteration = -1'),
    ({'num_prompts': 0}, r'num_prompts = 0: must be in \[1, inf\)'),
  )
  def test_wrong_arguments_are_refused(self, change, message):
    with self.assertRaisesRegex(ValueError, message):
      rows(4, **change)

  def test_no_problems_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'source_length = 0'):
      rows(0, num_prompts=1)


class MakeTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.create_tempdir().full_path)
    tiny_tokenizer.write(folder)
    self.tokenizer = tokenizer.load(folder)

  def make(self, template='{problem}', problems=PROBLEMS, **changes):
    settings = {'max_prompt_tokens': 60, 'drop_long_prompts': False}
    return prompt_stream.make(
      problems, self.tokenizer, template, **{**settings, **changes}
    )

  def text(self, table, position):
    ids = table.tokens[position, : table.lengths[position]]
    return self.tokenizer.decode(ids, skip_special=False)

  def test_prompts_are_the_template_with_the_problem(self):
    table = self.make('<|start|>{{Q}}: {problem}\n')
    self.assertEqual(
      [self.text(table, i) for i in range(3)],
      ['<|start|>{Q}: x\n', '<|start|>{Q}: x, y and {z}\n']
      + ['<|start|>{Q}: 1 + 1?\n'],
    )
    self.assertEqual(
      (table.num_dropped, table.longest), (0, max(table.lengths))
    )

  def test_a_text_begins_as_the_tokenizer_begins_one(self):
    plain = self.make()
    self.assertEqual((self.tokenizer.bos_ids, plain.bos_ids), ((), ()))
    self.tokenizer.bos_ids = (tiny_tokenizer.START,)
    begun = self.make()
    self.assertEqual(begun.bos_ids, (tiny_tokenizer.START,))
    np.testing.assert_array_equal(begun.lengths, plain.lengths + 1)
    self.assertEqual(begun.longest, plain.longest + 1)
    self.assertEqual(self.text(begun, 0), '<|start|>x')
    # Not twice.
    own = self.make('<|start|>{problem}')
    self.assertEqual((self.text(own, 0), own.bos_ids), ('<|start|>x', ()))
    # A chat template has the token itself, where it wants it.
    self.tokenizer.bos_ids = (tiny_tokenizer.END,)
    chat = self.make(chat=prompt_stream.Chat(system=None, variables={}))
    self.assertStartsWith(self.text(chat, 0), '<|start|>user')
    self.assertEqual(chat.bos_ids, ())
    empty = problems_lib.Problem('e', '', '1')
    with self.assertRaisesRegex(ValueError, r"prompt of 'e' = \[\]: must"):
      self.make(problems=[empty])

  def test_one_of_several_prompts_may_begin_by_itself(self):
    self.tokenizer.bos_ids = (tiny_tokenizer.START,)
    own = problems_lib.Problem('o', '<|start|>y', '1')
    table = self.make(problems=[PROBLEMS[0], own])
    self.assertEqual(self.text(table, 0), '<|start|>x')
    self.assertEqual(self.text(table, 1), '<|start|>y')
    self.assertEqual(table.bos_ids, (tiny_tokenizer.START,))

  def test_rows_are_padded_on_the_right(self):
    table = self.make()
    self.assertEqual(table.tokens.shape, (3, 60))
    for array in (table.tokens, table.lengths, table.rows):
      self.assertEqual(array.dtype, np.int32)
    for position, problem in enumerate(PROBLEMS):
      length = table.lengths[position]
      self.assertEqual(
        list(table.tokens[position, :length]),
        self.tokenizer.encode(problem.problem),
      )
      padding = table.tokens[position, length:]
      self.assertTrue(np.all(padding == self.tokenizer.pad_id))
    self.assertEqual(table.lengths[0], 1)

  def test_chat_puts_the_template_in_the_message_of_the_user(self):
    chat = prompt_stream.Chat(system='Be {brief}.', variables={'think': True})
    self.assertEqual(
      self.text(self.make('Q: {problem}', chat=chat), 0),
      '<|start|>system\nBe {brief}.<|stop|>\n<|start|>user\nQ: x<|stop|>\n'
      '<|start|>assistant\n',
    )
    chat = prompt_stream.Chat(system=None, variables={})
    self.assertEqual(
      self.text(self.make(chat=chat), 0),
      '<|start|>user\nx<|stop|>\n<|start|>assistant\n<think>',
    )

  def test_long_prompts_are_refused_or_dropped_and_counted(self):
    lengths = [len(self.tokenizer.encode(p.problem)) for p in PROBLEMS]
    self.assertGreater(lengths[1], lengths[2])
    with self.assertRaisesRegex(
      ValueError,
      f'max_prompt_tokens = {lengths[2]}: must be at least {lengths[1]}, as '
      '1 of 3 prompts are longer$',
    ):
      self.make(max_prompt_tokens=lengths[2])
    with self.assertRaisesRegex(
      ValueError, '3 prompts are longer, or text.drop must be True$'
    ):
      self.make(max_prompt_tokens=lengths[2], drop_setting='text.drop')
    table = self.make(max_prompt_tokens=lengths[2], drop_long_prompts=True)
    self.assertEqual((table.num_dropped, table.longest), (1, lengths[1]))
    np.testing.assert_array_equal(table.rows, [0, 2])
    np.testing.assert_array_equal(table.lengths, [lengths[0], lengths[2]])
    self.assertEqual(self.text(table, 1), '1 + 1?')
    whole = self.make(max_prompt_tokens=lengths[1])
    self.assertLen(whole.rows, 3)

  def test_taken_prompts_refer_to_their_problems(self):
    limit = len(self.tokenizer.encode(PROBLEMS[2].problem))
    table = self.make(max_prompt_tokens=limit, drop_long_prompts=True)
    positions = rows(2, num_prompts=4)
    prompts = prompt_stream.take(table, positions)
    self.assertEqual(prompts.tokens.shape, (4, limit))
    for i in range(4):
      ids = prompts.tokens[i, : prompts.lengths[i]]
      problem = PROBLEMS[int(prompts.references[i])]
      text = self.tokenizer.decode(np.asarray(ids), skip_special=False)
      self.assertEqual(text, problem.problem)
    for array, dtype in (
      (prompts.references, np.int32),
      (prompts.prompt_id, np.uint32),
    ):
      self.assertEqual(array.dtype, dtype)
      np.testing.assert_array_equal(array, np.array([0, 2])[positions])

  @parameterized.parameters(
    ('no field', r'field {problem}, not \[\]'),
    ('{problem} {answer}', r"\['problem', 'answer'\]"),
    ('{problem}{problem}', r"\['problem', 'problem'\]"),
    ('{question}', r"\['question'\]"),
    ('{}', r"\[''\]"),
    ('{problem!r}', r"\['problem'\]"),
    ('{problem:>9}', r"\['problem'\]"),
    ('{problem.id}', r"\['problem.id'\]"),
    (r'{problem} \boxed{', "template = .*Single '{'"),
    ('{problem}}', "template = .*Single '}'"),
  )
  def test_wrong_templates_are_refused(self, template, message):
    with self.assertRaisesRegex(ValueError, message):
      self.make(template)

  def test_nothing_to_ask_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, 'must leave a prompt; of 0 prompts, 0'
    ):
      self.make(problems=[])
    with self.assertRaisesRegex(
      ValueError, 'must leave a prompt; of 3 prompts, 3'
    ):
      self.make(
        '{problem} and more', max_prompt_tokens=1, drop_long_prompts=True
      )
    empty = problems_lib.Problem('e', '', '1')
    with self.assertRaisesRegex(ValueError, r"prompt of 'e' = \[\]: must"):
      self.make(problems=[empty])

  @parameterized.parameters(
    (prompt_stream.BOXED, r'within \boxed{}.'),
    (prompt_stream.GSM8K, 'after "####".'),
    (prompt_stream.QUESTION, 'Question: x\nAnswer:'),
    (prompt_stream.PROBLEM, 'x'),
  )
  def test_named_templates_say_what_is_expected(self, template, end):
    text = self.text(self.make(template, max_prompt_tokens=200), 0)
    self.assertEndsWith(text, end)
    self.assertIn('x', text)
