"""Tests of the samples: the file, the page, and its script run by Node."""

import contextlib
import io
import json
import pathlib
import re
import tempfile

from absl.testing import parameterized

from replay_rl.report import __main__ as program
from replay_rl.report import sample_log
from replay_rl.report import samples_page
from replay_rl.report import samples_script
from tests.report import node as scripts
from tests.report import synthetic
from tests.report import trained

EVIL = '</script><script>alert(1)</script><!-- <b>&amp; $title'
ODD = 'a\n\x00\ud83d😀\u202e\u2421é\r'


def line(**changes):
  """A correct line in which all numbers differ."""
  correct = {
    'iteration': 12,
    'seed': 0,
    'learner_step': 24,
    'prompt': '1+2=',
    'response': '3',
    'reference': '3',
    'reward': 1.0,
    'advantage': -0.7,
    'policy_version': 19,
    'age': 5,
    'times_sampled': 3,
    'group_id': 45,
    'is_finished': True,
  }
  return correct | changes


def node(code, **values):
  return scripts.run(samples_script.SCRIPT, code, **values)


class ReadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.stderr = self.enterContext(contextlib.redirect_stderr(io.StringIO()))

  def read(self, lines, max_samples=99):
    text = ''.join(json.dumps(line) + '\n' for line in lines)
    (self.root / 'samples.jsonl').write_text(text)
    return sample_log.read(str(self.root), arm='a', max_samples=max_samples)

  def test_each_field_arrives_in_its_place(self):
    result = self.read([line(), line(reference=None, response=ODD)])
    self.assertEqual(result.arm, 'a')
    self.assertEqual(result.num_left_out, 0)
    self.assertEqual(result.kept[0], sample_log.SampleLine(**line()))
    self.assertIsNone(result.kept[1].reference)
    self.assertEqual(result.kept[1].response, ODD)
    self.assertEmpty(self.stderr.getvalue())

  def test_a_run_without_the_file_has_no_samples(self):
    result = sample_log.read(str(self.root), arm='a', max_samples=9)
    self.assertEqual(result, sample_log.ShownSamples('a', [], 0))

  def test_unknown_fields_are_reported(self):
    self.read([line(), line(zz=1, colour=2)])
    self.assertIn("not shown: 'colour', 'zz'", self.stderr.getvalue())

  @parameterized.parameters(*line())
  def test_a_missing_field_is_named(self, key):
    wrong = line()
    del wrong[key]
    with self.assertRaisesRegex(
      ValueError, f'{key} of .*jsonl:2 = missing: must be '
    ):
      self.read([line(), wrong])

  @parameterized.parameters(
    ('iteration', -1, '-1: must be a whole number >= 0'),
    ('seed', 0.5, '0.5: must be a whole number >= 0'),
    ('times_sampled', None, 'None: must be a whole number >= 0'),
    ('group_id', True, 'True: must be a whole number >= 0'),
    ('reward', '1', "'1': must be a finite number"),
    ('advantage', float('nan'), 'nan: must be a finite number'),
    ('is_finished', 1, '1: must be true or false'),
    ('prompt', None, 'None: must be a text'),
    ('response', 3, '3: must be a text'),
    ('reference', 3, '3: must be a text or null'),
    ('age', 4, '4: must be learner_step - policy_version = 5'),
    ('is_correct', None, 'None: must be true or false'),
    ('prompt_id', 0.5, '0.5: must be an integer'),
    ('rollout_id', None, 'None: must be an integer'),
  )
  def test_a_wrong_value_is_named_with_its_place(self, key, value, message):
    with self.assertRaisesRegex(
      ValueError, f'^{key} of .*samples.jsonl:1 = {message}'
    ):
      self.read([line(**{key: value})])

  def test_the_ids_of_new_runs_are_read(self):
    new, old = self.read(
      [line(prompt_id=-3, rollout_id=8, is_correct=False), line()]
    ).kept
    self.assertIs(new.is_correct, False)
    self.assertIsNone(old.is_correct)
    self.assertEqual((new.prompt_id, new.rollout_id), (-3, 8))
    self.assertEqual((old.prompt_id, old.rollout_id), (None, None))
    self.assertEmpty(self.stderr.getvalue())

  def test_the_train_program_writes_the_fields_of_these_tests(self):
    result = sample_log.read(str(trained.folder()), arm='a', max_samples=999)
    written = trained.lines('samples.jsonl')
    self.assertLen(result.kept, len(written))
    self.assertEmpty(self.stderr.getvalue())
    for read, record in zip(result.kept, written, strict=True):
      self.assertContainsSubset(record, read._asdict())
      self.assertEqual(
        {key: type(value) for key, value in record.items()},
        {
          key: type(value)
          for key, value in line(
            prompt_id=0, rollout_id=0, is_correct=True
          ).items()
        },
      )

  def test_above_the_cap_a_choice_of_all_parts_is_kept_in_order(self):
    lines = [line(iteration=i // 2, seed=i % 2) for i in range(200)]
    result = self.read(lines, max_samples=100)
    self.assertEqual(result.num_left_out, 100)
    self.assertLen(result.kept, 100)
    places = [(sample.iteration, sample.seed) for sample in result.kept]
    self.assertEqual(places, sorted(set(places)))
    # Each seed and each half of the run has about half of the choice.
    self.assertBetween(sum(seed for _, seed in places), 35, 65)
    self.assertBetween(sum(i < 50 for i, _ in places), 35, 65)
    self.assertEqual(self.read(lines, max_samples=100), result)
    self.assertLen(self.read(lines, max_samples=200).kept, 200)

  def test_a_negative_cap_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'max_samples = -1: must be at'):
      self.read([], max_samples=-1)


class PageTest(parameterized.TestCase):
  def page(self, *lines, arm='a', num_left_out=0):
    kept = [sample_log.SampleLine(**line) for line in lines]
    return samples_page.make(
      [
        sample_log.ShownSamples(arm, kept, num_left_out),
        sample_log.ShownSamples('b', [], 0),
      ]
    )

  def packed(self, text):
    pattern = r'<script type="application/json" id="samples">(.*?)</script>'
    return json.loads(re.findall(pattern, text, re.DOTALL)[0])

  def test_texts_cannot_leave_the_data(self):
    text = self.page(line(response=EVIL, prompt=ODD), arm=EVIL)
    # The data and the script of the page; nothing else opens or closes one.
    self.assertLen(re.findall('<script', text), 2)
    self.assertLen(re.findall('</script', text), 2)
    self.assertNotIn('<!--', text)
    self.assertNotIn('<b>', text)
    text.encode('utf-8')  # A lone surrogate would raise.
    (sample,) = node('unpack(packed)', packed=self.packed(text))
    ids = {'prompt_id': None, 'rollout_id': None, 'is_correct': None}
    self.assertEqual(sample, line(response=EVIL, prompt=ODD, arm=EVIL) | ids)

  def test_rollouts_of_a_group_stand_together_in_the_order_of_the_file(self):
    lines = [
      line(group_id=group_id, seed=seed, reward=float(number))
      for number, (seed, group_id) in enumerate(
        [(1, 4), (0, 9), (0, 8), (1, 4), (0, 9)]
      )
    ]
    packed = self.packed(self.page(*lines, line(iteration=2, reward=5.0)))
    samples = node('unpack(packed)', packed=packed)
    self.assertEqual(
      [sample['reward'] for sample in samples], [5, 2, 1, 4, 0, 3]
    )
    is_same = node(
      'unpack(packed).map((one, i, all) => i > 0 && '
      'isSameGroup(all[i - 1], one))',
      packed=packed,
    )
    self.assertEqual(is_same, [False, False, False, True, False, True])

  def test_a_verdict_is_a_word(self):
    words = node('[true, false, null].map(verdict)')
    self.assertEqual(words, ['right', 'wrong', '–'])
    text = self.page(line(is_correct=True))
    self.assertIn('<option value="true">right</option>', text)

  def test_the_script_never_writes_html(self):
    self.assertNotRegex(
      samples_script.SCRIPT, r'innerHTML|outerHTML|insertAdjacent|\beval\b'
    )

  def test_the_page_needs_no_other_file(self):
    text = self.page(line())
    self.assertNotRegex(text, r'<link|<img|https?:|url\(|\ssrc=')
    self.assertEqual(re.findall('href="(.*?)"', text), ['index.html'])

  def test_equal_texts_are_stored_once(self):
    text = self.page(line(), line(response='4', reference=None))
    self.assertEqual(self.packed(text)['texts'], ['a', '1+2=', '3', '4', None])

  def test_what_is_left_out_is_said(self):
    text = self.page(line(), arm='<x>', num_left_out=1233)
    self.assertIn('&lt;x&gt;: a random 1 of 1,234 samples; 1,233 are', text)
    self.assertIn('Without samples: b.', text)
    self.assertNotIn('a random', self.page(line()))

  def test_filters_offer_the_values_that_occur(self):
    text = self.page(line(seed=3), line(seed=1), arm='"x"')
    self.assertIn(
      '<option value="1">1</option><option value="3">3</option>', text
    )
    # What the script parses: JSON, escaped for an attribute.
    self.assertIn('value="&quot;\\&quot;x\\&quot;&quot;">&quot;x&quot;<', text)
    self.assertIn('<legend>age, learner steps</legend>', text)


class ScriptTest(parameterized.TestCase):
  # Number of the sample -> what tells it apart from the others.
  ROWS = [
    line(arm='a', seed=0, reward=0.0, reference=None, response='Ab\nc'),
    line(arm='a', seed=1, reward=1.0, reference='z', prompt='ABC'),
    line(arm='b', seed=1, reward=0.5, reference='y', is_finished=False),
    line(arm='b', seed=0, reward=1.0, reference=None, age=7),
  ]
  for row, prompt_id in zip(ROWS, (None, 0, 2, None), strict=True):
    row['prompt_id'] = prompt_id

  def select(self, fields, name=None, is_descending=False):
    named = [
      {'name': name, 'kind': kind, 'value': value}
      for name, kind, value in fields
    ]
    result = node(
      'select(rows, readFilters(fields), order).map(({id}) => id)',
      rows=[row | {'id': i} for i, row in enumerate(self.ROWS)],
      fields=named,
      order={'name': name, 'isDescending': is_descending},
    )
    return result

  @parameterized.parameters(
    ([('seed', 'equal', ''), ('reward', 'low', '')], [0, 1, 2, 3]),
    ([('arm', 'equal', '"b"')], [2, 3]),
    ([('seed', 'equal', '1')], [1, 2]),
    ([('is_finished', 'equal', 'false')], [2]),
    ([('arm', 'equal', '"b"'), ('seed', 'equal', '0')], [3]),
    ([('reward', 'low', '0.5')], [1, 2, 3]),
    ([('reward', 'high', '0.5')], [0, 2]),
    ([('reward', 'low', '0.5'), ('reward', 'high', '0.9')], [2]),
    ([('age', 'low', '6')], [3]),
    ([('iteration', 'low', '13')], []),
    ([('prompt_id', 'high', '1')], [1]),
    ([('prompt_id', 'low', '-1')], [1, 2]),
    ([('', 'words', 'AB')], [0, 1]),
    ([('', 'words', 'b\nC')], [0]),
    ([('', 'words', 'Y')], [2]),
    ([('', 'words', 'ab'), ('seed', 'equal', '1')], [1]),
  )
  def test_filters_keep_what_passes_all(self, fields, expected):
    self.assertEqual(self.select(fields), expected)

  # Equal ones stay in the order of the file, null comes last.
  @parameterized.parameters(
    ('reward', False, [0, 2, 1, 3]),
    ('reward', True, [1, 3, 2, 0]),
    ('reference', False, [2, 1, 0, 3]),
    ('reference', True, [1, 2, 0, 3]),
    ('is_finished', False, [2, 0, 1, 3]),
  )
  def test_sorting_is_stable_in_both_directions(self, name, down, expected):
    self.assertEqual(self.select([], name, down), expected)

  def test_odd_characters_are_named_and_others_kept(self):
    pieces = node('pieces(text)', text=ODD)
    self.assertEqual(
      [(piece['text'], piece['isOdd']) for piece in pieces],
      [
        ('a\n', False),
        ('U+0000', True),
        ('U+D83D', True),
        ('😀', False),
        ('U+202E', True),
        ('\u2421é', False),
        ('U+000D', True),
      ],
    )
    self.assertEqual(node("pieces('')"), [])
    unseen = '\u200b\u2028\u2029\ufeff\x7f\x9f'
    self.assertTrue(node('pieces(text).every(({isOdd}) => isOdd)', text=unseen))

  @parameterized.parameters(
    ('a\nb', 'a↵b'),
    ('abcd', 'abc…'),
    ('😀😀😀', '😀😀😀'),
    ('x😀😀😀', 'x😀😀…'),
  )
  def test_a_preview_cuts_no_character_in_half(self, text, expected):
    self.assertEqual(node('preview(text, 3)', text=text), expected)

  def test_numbers_have_four_figures_and_a_minus_sign(self):
    self.assertEqual(
      node('[1, -2, 123456, -0.12345, 2/3, true, false, null].map(shown)'),
      ['1', '−2', '123456', '−0.1235', '0.6667', 'yes', 'no', '–'],
    )


class ReportTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.enterContext(contextlib.redirect_stdout(io.StringIO()))
    self.stderr = self.enterContext(contextlib.redirect_stderr(io.StringIO()))
    rows = synthetic.rows_of_rewards([[0.1, 0.9]])
    self.folders = [
      synthetic.write_run(self.root / name, rows, seconds=[1.0, 1.0])
      for name in ('one', 'two')
    ]

  def report(self, *more):
    arguments = [
      *self.folders,
      f'--out={self.root}/out',
      '--window_rollouts=16',
      *more,
    ]
    return program.main(arguments)

  def write(self, *lines):
    text = ''.join(json.dumps(line) + '\n' for line in lines)
    (self.root / 'two' / 'samples.jsonl').write_text(text)

  def test_the_report_links_the_samples_of_any_run(self):
    self.write(line(), line(iteration=13))
    self.assertEqual(self.report('--max_samples=1'), 0)
    index = (self.root / 'out' / 'index.html').read_text('utf-8')
    self.assertEqual(re.findall('href="(.*?)"', index), ['samples.html'])
    text = (self.root / 'out' / 'samples.html').read_text('utf-8')
    self.assertIn('<h1>Samples of the buffer: two</h1>', text)
    self.assertIn('Without samples: one.', text)
    self.assertIn('two: a random 1 of 2 samples; 1 are left out', text)

  @parameterized.parameters(([],), ([line()], '--max_samples=0'))
  def test_without_samples_there_is_no_page_and_no_link(self, lines, *more):
    self.write(*lines)
    self.assertEqual(self.report(*more), 0)
    self.assertNotIn(
      'href=', (self.root / 'out' / 'index.html').read_text('utf-8')
    )
    self.assertFalse((self.root / 'out' / 'samples.html').exists())

  def test_a_wrong_line_ends_the_program_with_its_place(self):
    self.write(line(age=6))
    self.assertEqual(self.report(), 2)
    self.assertIn('two/samples.jsonl:1 = 6: must be', self.stderr.getvalue())
