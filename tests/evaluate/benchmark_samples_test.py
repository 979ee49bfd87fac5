"""Tests of sampling benchmarks batch by batch."""

import atexit
import functools
import json
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import parameterized

from replay_rl.evaluate import benchmark_samples
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.tasks.text import datasets
from replay_rl.tasks.verify import verifier
from tests import tiny_tokenizer

_R = 3


@functools.cache
def _tokenizer():
  folder = pathlib.Path(tempfile.mkdtemp())
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  tiny_tokenizer.write(folder)
  return tokenizer_lib.load(folder)


def _write(path):
  with open(path, 'w') as file:
    for i, name in enumerate('xyz'):
      line = {'id': name, 'problem': 'Apples ' * i + name, 'answer': str(i)}
      file.write(json.dumps(line) + '\n')


def _judge(responses, references):
  return [
    verifier.AnswerVerdict(
      text == reference,
      text,
      'number',
      'correct' if text == reference else 'wrong',
    )
    for text, reference in zip(responses, references, strict=True)
  ]


class BenchmarksTestCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    _write(self.folder / 'some.jsonl')
    self.benchmark = self.load('some')
    self.path = self.folder / 'samples.jsonl'
    self.asked = []
    self.reports = []

  def load(self, name, **changes):
    settings = {'template': '{problem}', 'chat': None, 'max_prompt_tokens': 16}
    return benchmark_samples.load(
      self.folder, name, _tokenizer(), **{**settings, **changes}
    )

  def generate(self, prompts, batch):
    """Responds to each row with a digit of its batch and place."""
    self.asked.append((batch, np.asarray(prompts.references).tolist()))
    B = len(prompts.lengths)
    digits = np.random.default_rng(batch).integers(0, 3, B)
    responses = np.full((B, _R), _tokenizer().pad_id, np.int32)
    responses[:, 0] = [_tokenizer().encode(str(digit))[0] for digit in digits]
    responses[:, 1] = tiny_tokenizer.STOP
    # Every third is cut off after one token.
    is_finished = np.arange(B) % 3 > 0
    return responses, 1 + is_finished.astype(np.int32), is_finished

  def sample(self, *, n=3, batch_size=4, path=None, judge=_judge, **changes):
    benchmark_samples.sample(
      self.benchmark,
      path or self.path,
      num_samples=n,
      batch_size=batch_size,
      tokenizer=_tokenizer(),
      **{
        'generate_fn': self.generate,
        'judge_fn': judge,
        'report_fn': lambda *report: self.reports.append(report),
        **changes,
      },
    )

  def lines(self):
    return [json.loads(line) for line in self.path.read_text().splitlines()]


class SampleTest(BenchmarksTestCase):
  def test_rows_are_n_samples_of_each_problem_in_order(self):
    self.sample()
    lines = self.lines()
    self.assertEqual(
      [(line['problem'], line['sample'], line['batch']) for line in lines],
      [
        *(('x', 0, 0), ('x', 1, 0), ('x', 2, 0), ('y', 0, 0)),
        *(('y', 1, 1), ('y', 2, 1), ('z', 0, 1), ('z', 1, 1)),
        ('z', 2, 2),
      ],
    )
    self.assertEqual(
      self.asked,
      # The last batch is filled with rows of its own.
      [(0, [0, 0, 0, 1]), (1, [1, 1, 2, 2]), (2, [2, 2, 2, 2])],
    )
    self.assertEqual(self.reports, [(0, 0), (4, 6), (4, 6), (1, 1)])

  def test_a_line_says_what_was_generated_and_judged(self):
    self.sample()
    digits = np.random.default_rng(1).integers(0, 3, 4)
    line = self.lines()[7]  # The last of batch 1, cut off.
    text = str(digits[3])
    self.assertEqual(
      line,
      {
        'problem': 'z',
        'sample': 1,
        'batch': 1,
        'status': 'correct' if text == '2' else 'wrong',
        'answer': text,
        'reference': '2',
        'prompt_tokens': len(_tokenizer().encode('Apples Apples z')),
        'length': 1,
        'is_finished': False,
        'response': text,
      },
    )
    self.assertEqual([line['length'] for line in self.lines()[:3]], [1, 2, 2])

  @parameterized.parameters((1, '!', None), (2, '<|start|>', 3))
  def test_ending_and_special_tokens_are_not_text(self, place, token, length):
    (unseen,) = _tokenizer().encode(token)

    def generate(prompts, batch):
      responses, lengths, is_finished = self.generate(prompts, batch)
      responses[:, place] = unseen
      if length is None:  # The token ends the response, and is not special.
        return responses, lengths, is_finished
      return responses, 0 * lengths + length, 0 * is_finished

    self.sample(generate_fn=generate)
    responses = {line['response'] for line in self.lines()}
    self.assertEqual(responses, {'0', '1', '2'})

  def test_a_batch_is_judged_after_the_next_is_asked_for(self):
    asked = []

    def judge(responses, references):
      asked.append(len(self.asked))
      return _judge(responses, references)

    self.sample(judge=judge)
    self.assertEqual(asked, [2, 3, 3])


class ResumeTest(BenchmarksTestCase):
  def test_a_file_that_was_cut_anywhere_ends_byte_equal(self):
    self.sample()
    whole = self.path.read_bytes()
    first = whole.index(b'\n' + whole.splitlines()[4]) + 1
    cut = self.folder / 'cut.jsonl'
    end = len(whole)
    for size in (0, 1, 200, first - 1, first, first + 1, end - 1, end):
      cut.write_bytes(whole[:size])
      self.asked.clear()
      self.reports.clear()
      self.sample(path=cut)
      self.assertEqual(cut.read_bytes(), whole, size)
      num_batches = 3 if size == end else whole[:size].count(b'\n') // 4
      self.assertEqual(
        [batch for batch, _ in self.asked], list(range(num_batches, 3)), size
      )
      self.assertEqual(self.reports[0], (min(4 * num_batches, 9), 0))

  def test_a_process_that_dies_while_judging_leaves_whole_batches(self):
    self.sample()
    whole = self.path.read_bytes()
    self.path.unlink()

    def judge(responses, references):
      if len(self.asked) == 3 and self.path.read_bytes():
        raise KeyboardInterrupt
      return _judge(responses, references)

    self.asked.clear()
    with self.assertRaises(KeyboardInterrupt):
      self.sample(judge=judge)
    self.assertLen(self.lines(), 4)
    self.sample()
    self.assertEqual(self.path.read_bytes(), whole)

  def test_what_follows_a_damaged_line_is_done_again(self):
    self.sample()
    whole = self.path.read_bytes()
    bad_lines = (b'{"problem": "y"}', b'{', b'[]', b'[' * 100_000, b'\xff')
    for number, bad in zip((5, 4, 6, 5, 4), bad_lines, strict=True):
      lines = whole.splitlines()
      lines[number] = bad
      self.path.write_bytes(b'\n'.join(lines) + b'\n')
      self.asked.clear()
      self.sample()
      self.assertEqual(self.path.read_bytes(), whole)
      self.assertEqual([batch for batch, _ in self.asked], [1, 2])

  @parameterized.parameters(
    (lambda lines: lines[:1] + lines[2:], r":2 = \('x', 2\): must be those"),
    (lambda lines: lines[3:], r":1 = \('y', 0\): must be those"),
    (lambda lines: lines + lines[-1:], r":10 = \('z', 2\): must be those"),
  )
  def test_lines_out_of_place_are_refused(self, change, message):
    self.sample()
    lines = self.path.read_text().splitlines()
    self.path.write_text('\n'.join(change(lines)) + '\n')
    before = self.path.read_bytes()
    with self.assertRaisesRegex(ValueError, message):
      self.sample()
    self.assertEqual(self.path.read_bytes(), before)


class OutcomesTest(BenchmarksTestCase):
  def test_are_those_of_the_lines(self):
    self.sample(n=2)
    result = benchmark_samples.outcomes(
      self.benchmark, self.path, num_samples=2
    )
    lines = self.lines()
    for row in range(3):
      for which in range(2):
        line = lines[2 * row + which]
        self.assertEqual(
          [field[row, which] for field in result],
          [
            line['response'] == line['reference'],
            line['length'],
            line['is_finished'],
            line['status'],
          ],
        )
    self.assertIn(True, result.is_correct)
    self.assertIn(False, result.is_correct)

  def test_an_incomplete_file_is_refused(self):
    self.sample()
    self.path.write_bytes(self.path.read_bytes()[:-1])
    with self.assertRaisesRegex(ValueError, '= 8: must be all 9'):
      benchmark_samples.outcomes(self.benchmark, self.path, num_samples=3)


class LoadTest(BenchmarksTestCase):
  def test_a_missing_benchmark_is_named_with_how_to_get_it(self):
    with self.assertRaisesRegex(
      ValueError,
      r"= 'nowhere': must be among \['some'\] .*nowhere.jsonl.*prepare",
    ):
      self.load('nowhere')

  @parameterized.parameters('some', 'some/1.0.0', 'problems/some/1.0.0')
  def test_a_dataset_serves_where_there_is_no_file(self, where):
    (self.folder / 'some.jsonl').unlink()
    written = self.folder / 'written'
    problems = self.benchmark.problems[:2]
    datasets.prepare({'test': problems}, name='some', out=written)
    made = written / 'problems/some' / datasets.VERSION
    shutil.copytree(made, self.folder / where)
    self.assertEqual(self.load('some').problems, problems)

  def test_a_prompt_that_is_too_long_is_refused_with_the_benchmark(self):
    with self.assertRaisesRegex(
      ValueError,
      r"^benchmarks = 'some': must have prompts that fit \(max_prompt_tokens = "
      '2: must be at least 9, as 2 of 3',
    ):
      self.load('some', max_prompt_tokens=2)

  def test_fingerprints_tell_problems_answers_and_prompts(self):
    one = benchmark_samples.fingerprints(self.benchmark)
    self.assertEqual(one['num_problems'], 3)
    templated = benchmark_samples.fingerprints(
      self.load('some', template='{problem}?')
    )
    self.assertEqual(templated['problems'], one['problems'])
    self.assertNotEqual(templated['prompts'], one['prompts'])
    padded = benchmark_samples.fingerprints(
      self.load('some', max_prompt_tokens=20)
    )
    self.assertEqual(padded, one)
    path = self.folder / 'some.jsonl'
    path.write_text(path.read_text().replace('"2"', '"3"'))
    changed = benchmark_samples.fingerprints(self.load('some'))
    self.assertNotEqual(changed['problems'], one['problems'])
    self.assertEqual(changed['prompts'], one['prompts'])
