"""Tests of replay_rl.tasks.text.tables."""

import csv
import gzip
import json
import pathlib

import pyarrow
from absl.testing import absltest
from absl.testing import parameterized
from pyarrow import parquet

from replay_rl.tasks.text import problems as problems_lib
from replay_rl.tasks.text import tables

_ROWS = (
  {'id': 'a', 'question': 'How, "many"?\nTell.', 'label': '2'},
  {'id': 'b', 'question': ' Solve $x$ ', 'label': ' 3'},
)
_COLUMNS = {'problem': 'question', 'answer': 'label'}
_EXPECTED = [
  problems_lib.Problem('a', 'How, "many"?\nTell.', '2'),
  problems_lib.Problem('b', 'Solve $x$', '3'),
]


def _write(path, rows):
  name = path.name.removesuffix('.gz')
  if name.endswith('.parquet'):
    return parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
  opened = gzip.open if path.suffix == '.gz' else open
  with opened(path, 'wt', newline='', encoding='utf-8') as file:
    if name.endswith('.csv'):
      writer = csv.DictWriter(file, rows[0])
      writer.writeheader()
      writer.writerows(rows)
    elif name.endswith('.json'):
      json.dump(list(rows), file)
    else:
      file.writelines(json.dumps(row) + '\n' for row in rows)


class ReadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def _read(self, *paths, columns=_COLUMNS, allowed=(), file_format=None):
    return tables.read(
      paths,
      file_format=file_format or paths[0].name.split('.')[1],
      columns=columns,
      source='set',
      allowed=frozenset(allowed),
      drop_flag='--allow',
    )

  def _file(self, name, content):
    path = self.folder / name
    path.write_bytes(content)
    return path

  @parameterized.parameters(
    *('x.jsonl', 'x.jsonl.gz', 'x.json', 'x.json.gz', 'x.csv', 'x.csv.gz'),
    'x.parquet',
  )
  def test_all_formats_give_the_same_problems(self, name):
    path = self.folder / name
    _write(path, _ROWS)
    problems, report = self._read(path)
    self.assertEqual(problems, _EXPECTED)
    self.assertEqual(report, problems_lib.Report(2, 2, {}, '', {}))

  def test_files_follow_one_another(self):
    paths = [self.folder / f'x-{i}.jsonl' for i in range(2)]
    for path, row in zip(paths, _ROWS, strict=True):
      _write(path, [row])
    self.assertEqual(tables.find(f'{self.folder}/x-*.jsonl'), paths)
    self.assertEqual(self._read(*paths, file_format='jsonl')[0], _EXPECTED)
    with self.assertRaisesRegex(
      ValueError, r'1 duplicate_id \(lines 2\): .* dropped with --allow=dup'
    ):
      self._read(paths[0], paths[0], file_format='jsonl')

  def test_a_file_may_have_the_name_of_a_pattern(self):
    path = self._file('x[1].jsonl', b'')
    self.assertEqual(tables.find(str(path)), [path])
    self.assertEqual(tables.find('/no/*'), [pathlib.Path('/no/*')])

  @parameterized.parameters('x.csv', 'x.parquet')
  def test_a_missing_column_names_the_flag(self, name):
    path = self.folder / name
    _write(path, _ROWS)
    for columns, message in (
      ({}, "problem = None: .*'label', 'question'.*--columns=problem=COLUMN"),
      ({**_COLUMNS, 'id': 'uuid'}, "none is 'uuid'; name it with --columns=id"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self._read(path, columns=columns)

  @parameterized.parameters(
    ('x.csv', b'a,b\n1\n', 'fields of row 1 of .* = 1: must be 2'),
    ('x.csv', b'a,b\n"1,2', 'must be CSV in UTF-8'),
    ('x.csv', b'a,b\n\xff,2', 'must be CSV in UTF-8'),
    ('x.csv', b'', 'problem = None: must be in a column; there are \\[\\]'),
    ('x.csv', b'a,a,b\n', "columns of .*'a', 'a', 'b'.: must differ"),
    ('x.json', b'{}', 'must be a JSON array$'),
    ('x.json', b'[', 'must be a JSON array .Expecting'),
    ('x.json', b'[3]', r'1 broken_line \(lines 1; .* line = 3: must be a JSON'),
    ('x.parquet', b'PAR1', 'must be a Parquet file'),
  )
  def test_damaged_files_are_refused(self, name, content, message):
    path = self._file(name, content)
    with self.assertRaisesRegex(ValueError, message):
      self._read(path, columns={'problem': 'a', 'answer': 'b'})

  @parameterized.parameters(*tables.FORMATS)
  def test_a_file_that_is_not_there_is_refused(self, file_format):
    with self.assertRaisesRegex(ValueError, "path = 'no': must be a file"):
      self._read(pathlib.Path('no'), file_format=file_format)


class ParseTest(parameterized.TestCase):
  def _parse(self, row, **columns):
    return tables.parse(row, default_id='set-7', columns=columns)

  @parameterized.parameters(
    (204, '204'),
    (-3.0, '-3'),
    (0.5, '0.5'),
    (1e20, '1' + 20 * '0'),
  )
  def test_numbers_become_text(self, number, text):
    row = {'id': 60, 'problem': 'p', 'answer': number}
    problem, conversions = self._parse(row)
    self.assertEqual(problem, ('60', 'p', text))
    self.assertEqual(conversions, ('numeric_id', 'numeric_answer'))

  @parameterized.parameters({}, {'id': None}, {'id': ''})
  def test_a_missing_id_is_made(self, **row):
    row |= {'problem': 'p', 'answer': 'a'}
    problem, conversions = self._parse(row)
    self.assertEqual(problem.id, 'set-7')
    self.assertEqual(conversions, ('missing_id',))

  def test_null_is_an_empty_text(self):
    row = {'id': 'x', 'problem': None, 'answer': None}
    self.assertEqual(self._parse(row)[0], ('x', '', ''))

  def test_the_form_of_gsm8k_needs_no_columns(self):
    line = b'{"question": "How many?", "answer": "1 x 1\\n#### -1,234"}'
    self.assertEqual(self._parse(line)[0], ('set-7', 'How many?', '-1234'))
    problem, _ = self._parse(line, problem='question')
    self.assertEqual(problem.answer, '1 x 1\n#### -1,234')

  @parameterized.parameters(
    ([], 'answer = \\[\\]: must be a text or a number'),
    (True, 'answer = True: must be a text'),
    (float('nan'), 'answer = nan: must be finite'),
    (float('inf'), 'answer = inf: must be finite'),
    ('\ud800', 'surrogates'),
  )
  def test_other_values_are_refused(self, value, message):
    with self.assertRaisesRegex(ValueError, message):
      self._parse({'id': 'a', 'problem': 'p', 'answer': value})

  def test_columns_are_parsed(self):
    entries = ['problem=q=1', 'id=uid']
    expected = {'problem': 'q=1', 'id': 'uid'}
    self.assertEqual(tables.parse_columns(entries), expected)
    for wrong in ('q', 'q=x', 'id=', 'id=uid'):
      with self.assertRaisesRegex(ValueError, f'--columns = {wrong!r}: must'):
        tables.parse_columns([*entries, wrong])


if __name__ == '__main__':
  absltest.main()
