import contextlib
import gzip
import io
import json
import pathlib
import subprocess
import sys

import pyarrow
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
from pyarrow import parquet

from replay_rl.tasks.text import datasets
from scripts import prepare_data
from tests import shared_data

ROOT = pathlib.Path(prepare_data.__file__).parents[1]
ROWS = (
  {'id': 'a', 'problem': 'How many apples are there?', 'answer': '1'},
  {'id': 'b', 'problem': 'Solve $x + 1 = 2$ for x, please.', 'answer': '1'},
)
GSM8K = ({'question': 'What is 1 + 1?', 'answer': 'Two.\n#### 2'},)


class PrepareDataTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.out = self.folder / 'out'

  def write(self, name, rows):
    path = self.folder / name
    # A blank line at the end is none.
    content = '\n'.join([*map(json.dumps, rows), '', '']).encode()
    path.write_bytes(gzip.compress(content) if name[-2:] == 'gz' else content)
    return path

  def run_main(self, **values):
    output = io.StringIO()
    with (
      flagsaver.flagsaver(**{'out': str(self.out), **values}),
      contextlib.redirect_stdout(output),
      contextlib.redirect_stderr(output),
    ):
      code = prepare_data.main(['prepare_data'])
    return code, output.getvalue()

  def test_json_lines_are_written_and_compared(self):
    path = self.write('set.jsonl', [*ROWS, {'id': 'a'}])
    same = {**ROWS[1], 'problem': 'solve x+1=2 for X please'}
    other = {'id': 'c', 'problem': 'Here: how many apples are?', 'answer': '1'}
    benchmark = self.write('bench.jsonl.gz', [same, other])
    code, output = self.run_main(
      source='jsonl',
      name='tiny',
      input=[f'train={path}'],
      allow=['broken_line'],
      benchmarks=[str(benchmark)],
      overlap_words=4,
    )
    self.assertEqual(code, 0, output)
    folder = self.out / 'problems/tiny/1.0.0'
    self.assertEqual(
      [p.id for p in datasets.read(folder, split='train')], ['a', 'b']
    )
    for line in [
      'tiny-train: 2 problems in 3 lines',
      '  dropped 1 broken_line (lines 3; the first: problem = None: must be',
      f'wrote {folder}',
      f'train holds 2 of the 2 problems of {benchmark}: 1 exact, 1 near',
      '  b is like b (exact)',
      '  c is like a (1 runs of 4 words)',
    ]:
      self.assertIn(line, output)

  def test_parquet_of_several_files_is_written_with_its_own_columns(self):
    rows = [{'uid': 7, 'q': '1 + 1?', 'label': 2.0, 'long': 'x' * 99}]
    for i, uid in enumerate((7, None)):
      table = pyarrow.Table.from_pylist(
        [{**rows[0], 'uid': uid, 'q': f'{i} + 1?'}]
      )
      parquet.write_table(table, self.folder / f'train-{i}.parquet')
    values = {
      'source': 'parquet',
      'name': 'tiny',
      'input': [f'train={self.folder}/train-*.parquet'],
    }
    code, output = self.run_main(**values)
    self.assertEqual(code, 2)
    self.assertIn("none is 'problem'; name it with --columns=problem=", output)
    code, output = self.run_main(
      **values, columns=['problem=q', 'answer=label', 'id=uid']
    )
    self.assertEqual(code, 0, output)
    self.assertEqual(
      datasets.read(self.out / 'problems/tiny/1.0.0', split='train'),
      [('7', '0 + 1?', '2'), ('tiny-train-00001', '1 + 1?', '2')],
    )
    for line in (
      'tiny-train: 2 problems in 2 lines',
      '  1 missing_id, which became text',
      '  2 numeric_answer, which became text',
      '  1 numeric_id, which became text',
    ):
      self.assertIn(f'{line}\n', output)

  def test_each_split_is_compared_with_those_before_it(self):
    same = {**ROWS[0], 'id': 'c'}
    third = {'id': 'd', 'problem': 'Nothing of the sort.', 'answer': '1'}
    files = {
      'train': self.write('train.jsonl', ROWS),
      'test': self.write('test.jsonl', [same, third]),
      'extra': self.write('extra.jsonl', [third]),
    }
    code, output = self.run_main(
      source='jsonl',
      name='tiny',
      input=[f'{split}={path}' for split, path in files.items()],
    )
    self.assertEqual(code, 0, output)
    self.assertIn(
      'train holds 1 of the 2 problems of test: 1 exact, 0 near\n'
      '  c is like a (exact)\n'
      'train holds 0 of the 1 problems of extra: 0 exact, 0 near\n'
      'test holds 1 of the 1 problems of extra: 1 exact, 0 near\n'
      '  d is like d (exact)\n',
      output,
    )

  def test_many_matches_are_cut_short(self):
    rows = [
      {'id': str(i), 'problem': f'number {i}', 'answer': '1'} for i in range(12)
    ]
    path = self.write('set.jsonl', rows)
    _, output = self.run_main(
      source='jsonl',
      name='tiny',
      input=[f'test={path}'],
      benchmarks=[str(path)],
    )
    self.assertIn('12 exact, 0 near', output)
    self.assertEqual(output.count('is like'), 10)
    self.assertIn('  and 2 more\n', output)

  def test_gsm8k_is_written_from_files(self):
    train = self.write('train.jsonl.gz', GSM8K)
    test = self.write('test.jsonl', GSM8K)
    code, output = self.run_main(
      source='gsm8k', input=[f'train={train}', f'test={test}']
    )
    self.assertEqual(code, 0, output)
    folder = self.out / 'gsm8k/1.0.0'
    for split in ('train', 'test'):
      (problem,) = datasets.read(folder, split=split)
      self.assertEqual(problem[1:], ('What is 1 + 1?', '2'))
    self.assertIn('train holds 1 of the 1 problems of test: 1 exact', output)

  def test_a_download_must_be_the_published_file(self):
    asked = []

    def fetch(url):
      asked.append(url)
      return b'something else'

    with self.assertRaisesRegex(ValueError, 'train.jsonl = .*: must be'):
      prepare_data.prepare_gsm8k({}, out=self.out, fetch=fetch)
    self.assertLen(asked, 1)
    self.assertFalse(self.out.exists())

  @absltest.skipIf(shared_data.folder() is None, shared_data.ABSENT)
  def test_the_published_files_are_taken(self):
    folder = shared_data.folder() / 'gsm8k'
    contents = {
      'train.jsonl': gzip.decompress((folder / 'train.jsonl.gz').read_bytes()),
      'test.jsonl': (folder / 'test.jsonl').read_bytes(),
    }
    with contextlib.redirect_stdout(io.StringIO()):
      made, splits = prepare_data.prepare_gsm8k(
        {}, out=self.out, fetch=lambda url: contents[url.split('/')[-1]]
      )
    for split, num_rows in (('train', 7473), ('test', 1319)):
      read = datasets.read(made, split=split)
      self.assertLen(read, num_rows)
      # The same problems, in another order.
      self.assertCountEqual(
        [p[1:] for p in read], [p[1:] for p in splits[split]]
      )

  @absltest.skipIf(shared_data.folder() is None, shared_data.ABSENT)
  def test_every_benchmark_comes_back_whole(self):
    paths = sorted((shared_data.folder() / 'benchmarks').glob('*.jsonl'))
    sizes = {}
    with contextlib.redirect_stdout(io.StringIO()):
      for path in paths:
        made, splits = prepare_data.prepare_files(
          {'test': [path]},
          file_format='jsonl',
          columns={},
          name=path.stem,
          out=self.out,
          allowed=frozenset(),
        )
        self.assertEqual(datasets.read(made, split='test'), splits['test'])
        sizes[path.stem] = len(splits['test'])
    self.assertEqual(
      sizes,
      {
        'aime24': 30,
        'amc23': 40,
        'gsm8k': 1319,
        'math500': 500,
        'minerva_math': 272,
        'olympiadbench': 675,
      },
    )

  @parameterized.parameters(
    ({'source': 'jsonl', 'name': 'x'}, '--input = []: must be given'),
    ({'source': 'jsonl', 'input': ['a=b']}, '--name = None, --input'),
    (
      {'source': 'gsm8k', 'name': 'x'},
      "--name = 'x', --allow = [], --columns = []: must",
    ),
    ({'source': 'gsm8k', 'allow': ['broken_line']}, 'must be absent'),
    ({'source': 'gsm8k', 'columns': ['id=x']}, 'must be absent'),
    (
      {'source': 'csv', 'name': 'x', 'input': ['a=b'], 'columns': ['ids=x']},
      "--columns = 'ids=x': must be FIELD=COLUMN, each field of id, problem",
    ),
    ({'source': 'gsm8k', 'input': ['x.jsonl']}, 'must be SPLIT=FILE'),
    ({'source': 'gsm8k', 'input': ['x=']}, 'must be SPLIT=FILE'),
    ({'source': 'gsm8k', 'input': ['x=a', 'x=b']}, 'each split once'),
    ({'source': 'gsm8k', 'input': ['train=no']}, "path = 'no': must be a file"),
    ({'source': 'gsm8k', 'benchmarks': ['no']}, "path = 'no': must be a file"),
    ({'source': 'gsm8k', 'overlap_words': 0}, '--overlap_words = 0: must be'),
    (
      {'source': 'jsonl', 'name': 'x', 'input': ['a=b'], 'allow': ['typo']},
      "error: --allow = ['typo']: must be among broken_line, ",
    ),
  )
  def test_wrong_flags_write_nothing(self, values, message):
    code, output = self.run_main(**values)
    self.assertEqual(code, 2)
    self.assertIn(message, output)
    self.assertFalse(self.out.exists())

  def test_broken_lines_write_nothing(self):
    path = self.write('set.jsonl', [*ROWS, ROWS[0]])
    code, output = self.run_main(
      source='jsonl', name='tiny', input=[f'test={path}']
    )
    self.assertEqual(code, 2)
    self.assertIn(
      'error: lines of tiny-test = 1 duplicate_id (lines 3): must be '
      'corrected, or dropped with --allow=duplicate_id\n',
      output,
    )
    self.assertFalse(self.out.exists())

  def test_no_flag_is_named_that_would_be_refused(self):
    broken = self.write('broken.jsonl', [{}])
    whole = self.write('set.jsonl', ROWS)
    for values in (
      {'source': 'gsm8k', 'input': [f'train={broken}']},
      {
        'source': 'jsonl',
        'name': 'tiny',
        'input': [f'test={whole}'],
        'benchmarks': [str(broken)],
      },
    ):
      code, output = self.run_main(**values)
      self.assertEqual(code, 2)
      self.assertEndsWith(output, 'must be corrected\n')
      self.assertFalse(self.out.exists())

  def test_help_names_every_flag_and_imports_nothing_heavy(self):
    done = subprocess.run(
      [sys.executable, '-X', 'importtime', 'scripts/prepare_data.py', '--help'],
      capture_output=True,
      text=True,
      check=False,
      cwd=ROOT,
    )
    for name in (
      'source',
      'input',
      'name',
      'out',
      'allow',
      'benchmarks',
      'overlap_words',
    ):
      self.assertIn(f'--{name}:', done.stdout)
    self.assertIn('python scripts/prepare_data.py --source=jsonl', done.stdout)
    self.assertNotIn('tensorflow_datasets', done.stderr)
