import gzip
import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.tasks.text import problems
from tests import shared_data

ALL = frozenset(problems.KINDS)
NONE = frozenset()


def line(problem_id='a', problem='1 + 1?', answer='2'):
  return json.dumps({'id': problem_id, 'problem': problem, 'answer': answer})


def problem(problem_id, text):
  return problems.Problem(problem_id, text, '0')


class ParseTest(parameterized.TestCase):
  def parse(self, text):
    return problems.parse(text, default_id='set-7')

  def test_both_forms_are_read(self):
    self.assertEqual(
      self.parse('{"id": "x", "problem": " é? \\n", "answer": " 3 "}'.encode()),
      problems.Problem('x', 'é?', '3'),
    )
    self.assertEqual(
      self.parse('{"question": "How many? ", "answer": "1 x 1\\n#### -1,234"}'),
      problems.Problem('set-7', 'How many?', '-1234'),
    )

  def test_a_comma_of_an_answer_in_our_form_stays(self):
    self.assertEqual(self.parse(line(answer='(1, 2)')).answer, '(1, 2)')

  @parameterized.parameters(
    ('{', 'Expecting'),
    ('[' * 100_000, 'nested too deeply'),
    ('{"id":' * 100_000, 'nested too deeply'),
    ('[1]', 'line = .*: must be a JSON object'),
    ('', 'Expecting value'),
    (b'{"id": "\xff"}', "can't decode"),
    ('{"id": "a", "problem": "b", "answer": 2}', 'answer = 2: must be a str'),
    ('{"id": "a", "answer": "2"}', 'problem = None: must be a string'),
    ('{"problem": "a", "answer": "2"}', 'id = None'),
    ('{"question": "a", "answer": "no"}', "answer = 'no': must .*'####' once"),
    ('{"question": "a", "answer": "#### 1 #### 2"}', "'####' once"),
    ('{"question": "a"}', 'answer = None'),
    ('{"id": "a", "problem": "\\ud800", "answer": "2"}', 'surrogates'),
  )
  def test_other_lines_are_refused(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      self.parse(text)


class CheckTest(parameterized.TestCase):
  LINES = (
    line('a', 'How  many?'),
    '{',
    line('b', ' '),
    line('c', 'x?', ' '),
    line('a', 'y?'),
    line('d', 'How\nmany? '),
    line('e', 'y?'),
    'null',
    line('', '', ''),
  )

  def test_dropped_lines_are_counted_once_each(self):
    kept, report = problems.check(self.LINES, source='set', allowed=ALL)
    # Line 7 repeats the problem of line 5, but that one was dropped.
    self.assertEqual([p.id for p in kept], ['a', 'e'])
    self.assertEqual((report.num_lines, report.num_kept), (9, 2))
    self.assertEqual(
      report.dropped,
      {
        'broken_line': (2, 8),
        'empty_problem': (3, 9),
        'empty_answer': (4,),
        'duplicate_id': (5,),
        'duplicate_problem': (6,),
      },
    )

  @parameterized.parameters(*problems.KINDS)
  def test_what_is_not_allowed_is_refused(self, kind):
    _, report = problems.check(self.LINES, source='set', allowed=ALL)
    lines = report.dropped[kind]
    message = rf'^lines of set = {len(lines)} {kind} \(lines {lines[0]}'
    with self.assertRaisesRegex(ValueError, message):
      problems.check(self.LINES, source='set', allowed=ALL - {kind})

  def test_the_error_names_the_first_lines_and_the_first_reason(self):
    lines = [line(), 'null', *['{'] * 6, line('a', 'z')]
    with self.assertRaisesRegex(
      ValueError,
      r"7 broken_line \(lines 2, 3, 4, 5, 6, \.\.\.; the first: line = 'null': "
      r'must be a JSON object\), 1 duplicate_id \(lines 9\): must be corrected',
    ):
      problems.check(lines, source='set', allowed=NONE)

  def test_the_error_names_the_flag_that_drops_lines(self):
    lines = [line('a', 'x'), 'null', line('b', ' '), line('c', 'x')]
    for flag, end in (
      (None, 'must be corrected'),
      (
        '--allow',
        'must be corrected, or dropped with '
        '--allow=broken_line,empty_problem,duplicate_problem',
      ),
    ):
      with self.assertRaisesRegex(ValueError, f': {end}$'):
        problems.check(
          lines,
          source='set',
          allowed=frozenset({'empty_problem'}),
          drop_flag=flag,
        )

  def test_a_clean_set_passes_whole(self):
    lines = [line('a', 'x'), line('b', 'y')]
    kept, report = problems.check(lines, source='set', allowed=NONE)
    self.assertEqual([p.id for p in kept], ['a', 'b'])
    self.assertEqual(report, problems.Report(2, 2, {}, '', {}))

  def test_ids_are_given_by_line(self):
    rows = [{'question': text, 'answer': '#### 1'} for text in 'xy']
    lines = [json.dumps(row) for row in rows]
    kept, _ = problems.check(lines, source='set', allowed=NONE)
    self.assertEqual([p.id for p in kept], ['set-00000', 'set-00001'])

  def test_nothing_left_and_unknown_kinds_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'lines of set = 1: must hold'):
      problems.check(['{'], source='set', allowed=ALL)
    with self.assertRaisesRegex(ValueError, 'lines of set = 0: must hold'):
      problems.check([], source='set', allowed=ALL)
    with self.assertRaisesRegex(ValueError, r"\['typo'\]: must be among brok"):
      problems.check([], source='set', allowed=frozenset({'typo'}))


class ReadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def read(self, name, content):
    path = self.folder / name
    path.write_bytes(content)
    return problems.read(path, source='set', allowed=NONE)

  @parameterized.parameters(b'', b'\n', b'\n\n', b'\r\n \n\t')
  def test_plain_and_packed_files_are_the_same(self, end):
    # U+2028 ends a line for some readers, but not in JSON Lines.
    lines = [line('a', 'x'), '{"id":"b","problem":"y\u2028z","answer":"1"}']
    content = '\n'.join(lines).encode() + end
    plain, report = self.read('x.jsonl', content)
    packed, _ = self.read('x.jsonl.gz', gzip.compress(content))
    self.assertEqual(plain, packed)
    self.assertEqual([p.problem for p in plain], ['x', 'y\u2028z'])
    self.assertEqual(report.num_lines, 2)

  def test_a_blank_line_that_others_follow_is_broken(self):
    with self.assertRaisesRegex(ValueError, r'1 broken_line \(lines 2'):
      self.read('x.jsonl', f'{line("a", "x")}\n\n{line("b", "y")}'.encode())

  @parameterized.parameters(b'', b'\n', b'\n\n')
  def test_a_file_of_blank_lines_holds_no_problem(self, content):
    with self.assertRaisesRegex(ValueError, 'lines of set = 0: must hold a'):
      self.read('x.jsonl', content)

  def test_unreadable_files_are_named(self):
    with self.assertRaisesRegex(
      ValueError, r"path = '.*no\.jsonl': must be a file"
    ):
      problems.read(self.folder / 'no.jsonl', source='set', allowed=NONE)
    packed = gzip.compress(line().encode())
    for content in [b'{}', packed[:-9], b'']:
      with self.assertRaisesRegex(ValueError, 'must be a gzip file|must hold'):
        self.read('x.jsonl.gz', content)

  @absltest.skipIf(shared_data.folder() is None, shared_data.ABSENT)
  def test_both_forms_of_gsm8k_hold_the_same_problems(self):
    folder = shared_data.folder()
    for original, ours, name, num in [
      ('gsm8k/train.jsonl.gz', 'train/gsm8k_train.jsonl', 'gsm8k-train', 7473),
      ('gsm8k/test.jsonl', 'benchmarks/gsm8k.jsonl', 'gsm8k-test', 1319),
    ]:
      first, _ = problems.read(folder / original, source=name, allowed=NONE)
      second, _ = problems.read(folder / ours, source='other', allowed=NONE)
      self.assertEqual(first, second)
      self.assertLen(first, num)


class OverlapTest(parameterized.TestCase):
  @parameterized.parameters(
    ('What is $x+1$ ?', 'what is  x + 1'),
    (r'Find \left(\frac{1}{2}\right).', r'find (\frac 1 2)'),
    (r'Let $a\,=\quad b$;', 'LET "a = b"'),
    (r'\int\!\!f', r'\int f'),
    (r'\Bigl[ a_1 ~ \bigg]', '[a 1]'),
  )
  def test_spacing_case_and_punctuation_make_no_difference(self, left, right):
    self.assertEqual(problems.words(left), problems.words(right))

  @parameterized.parameters(
    ('x + 1', 'x - 1'),
    ('x < 1', 'x > 1'),
    ('5!', '5'),
    ('|x|', 'x'),
    (r'\rightarrow', 'arrow'),
    (r'\bigcup A', 'A'),
    ('12', '1 2'),
  )
  def test_other_formulas_stay_different(self, left, right):
    self.assertNotEqual(problems.words(left), problems.words(right))

  @parameterized.parameters(*'+-*/=<>^%!|')
  def test_signs_are_words(self, sign):
    self.assertEqual(problems.words(f'{{a}}{sign}b'), ('a', sign, 'b'))

  def test_exact_and_near_matches_are_found(self):
    train = [
      problem('t0', 'unrelated words only'),
      problem('t1', 'x a b c d y'),
      problem('t2', 'z a b c d e w'),
      problem('t3', 'A, b, c, d, e: f!'),
      problem('t4', 'a b c d e f'),
      problem('t5', 'q a b c d e f'),
    ]
    benchmark = [
      problem('b0', 'a b c d e f'),
      problem('b1', 'Short one.'),
      problem('b2', 'a b c d e g'),
      problem('b3', 'b c d'),
      problem('b4', 'nothing of the sort is there'),
    ]
    self.assertEqual(
      problems.overlap(train, benchmark, num_words=4),
      [
        problems.Overlap('b0', 't4', True, 0),
        # 'a b c d' and 'b c d e'; t3 and t4 have them too, but come later.
        problems.Overlap('b2', 't2', False, 2),
      ],
    )

  @parameterized.parameters(
    ('p a b c q', 'r a b c s'),
    ('a b c q', 'a b c s'),
    ('p a b c', 'r a b c'),
    ('a b c', 'r a b c s'),
  )
  def test_a_run_must_be_long_enough_and_counts_at_either_end(
    self, left, right
  ):
    train, benchmark = [problem('t', left)], [problem('b', right)]
    self.assertLen(problems.overlap(train, benchmark, num_words=3), 1)
    self.assertEmpty(problems.overlap(train, benchmark, num_words=4))

  def test_a_short_problem_occurs_only_exactly(self):
    train = [problem('t', 'Compute 5!'), problem('u', '???')]
    benchmark = [
      problem('b', 'compute  $5!$'),
      problem('c', 'compute 5! now'),
      problem('d', '...'),
    ]
    self.assertEqual(
      problems.overlap(train, benchmark, num_words=13),
      [problems.Overlap('b', 't', True, 0)],
    )

  def test_matches_are_in_the_order_of_the_benchmark(self):
    matches = problems.overlap(
      [problem('t', 'c d'), problem('u', 'a b')],
      [problem('b', 'a b'), problem('c', 'c d'), problem('d', 'A b')],
      num_words=2,
    )
    self.assertEqual(
      [(match.benchmark_id, match.train_id) for match in matches],
      [('b', 'u'), ('c', 't'), ('d', 'u')],
    )

  def test_runs_of_no_words_are_refused(self):
    with self.assertRaisesRegex(
      ValueError, r'num_words = 0: must be in \[1, inf\)'
    ):
      problems.overlap([], [], num_words=0)
