import gzip
import json
import pathlib
import runpy
import subprocess
import sys
import textwrap
from unittest import mock

import grain
import tensorflow_datasets as tfds
from absl.testing import parameterized

from replay_rl.tasks.text import datasets
from replay_rl.tasks.text import problems as problems_lib

TRAIN = tuple(
  problems_lib.Problem(f't-{i}', f'{i} + é?', str(i)) for i in range(12)
)
TEST = (problems_lib.Problem('u', r'\frac{1}{2}', '.5'),)


class BuildersTest(parameterized.TestCase):
  @parameterized.parameters(
    'tensorflow_datasets', 'array_record.python.array_record_module'
  )
  def test_a_missing_package_is_answered_with_the_extra(self, package):
    with mock.patch.dict(sys.modules, {package: None}):
      with self.assertRaisesRegex(ImportError, r"'.\[math\]'.*Linux and for M"):
        runpy.run_path(datasets.__file__)

  def setUp(self):
    super().setUp()
    self.out = pathlib.Path(self.create_tempdir().full_path)

  def prepare(self, name='tiny_set'):
    return datasets.prepare(
      {'train': TRAIN, 'test': TEST}, name=name, out=self.out
    )

  def gsm8k_files(self, lines=2):
    files = {}
    for split in ('train', 'test'):
      files[split] = self.out / f'{split}.jsonl'
      rows = [
        {'question': f'{split} {i}? ', 'answer': f'{i}.\n#### {i},000'}
        for i in range(lines)
      ]
      text = '\n'.join(json.dumps(row) for row in rows)
      files[split].write_text(text + '\n', encoding='utf-8')
    return files

  def test_problems_come_back_in_order(self):
    folder = self.prepare()
    self.assertEqual(
      folder, self.out / 'problems' / 'tiny_set' / datasets.VERSION
    )
    self.assertEqual(datasets.read(folder, split='train'), list(TRAIN))
    self.assertEqual(datasets.read(folder, split='test'), list(TEST))
    self.assertNotEmpty(list(folder.glob('*.array_record-*')))

  def test_rows_are_bytes_read_by_index(self):
    source = datasets.source(self.prepare(), split='train')
    self.assertLen(source, 12)
    self.assertEqual(source[7]['problem'], '7 + é?'.encode())
    dataset = grain.MapDataset.source(source).seed(0).shuffle()
    ids = {dataset[i]['id'] for i in range(len(dataset))}
    self.assertEqual(ids, {p.id.encode() for p in TRAIN})

  def test_tfds_finds_both_by_name(self):
    self.prepare()
    datasets.prepare_gsm8k(self.gsm8k_files(), out=self.out)
    for name, num_rows in [('problems/tiny_set', 12), ('gsm8k', 2)]:
      actual = tfds.data_source(
        name, data_dir=self.out, split='train', download=False
      )
      self.assertLen(actual, num_rows)

  def test_gsm8k_is_that_of_the_official_builder(self):
    folder = datasets.prepare_gsm8k(self.gsm8k_files(), out=self.out)
    rows = list(datasets.source(folder, split='test'))
    self.assertCountEqual(
      [row['short_answer'] for row in rows], [b'0,000', b'1,000']
    )
    self.assertEqual(
      set(rows[0]), {'question', 'answer', 'annotation', 'short_answer'}
    )
    problems = datasets.read(folder, split='test')
    self.assertEqual(
      [p.id for p in problems],
      ['tfds-gsm8k-test-00000', 'tfds-gsm8k-test-00001'],
    )
    self.assertCountEqual(
      [p[1:] for p in problems], [('test 0?', '0000'), ('test 1?', '1000')]
    )

  def test_what_is_there_is_not_taken_for_new(self):
    self.prepare()
    with self.assertRaisesRegex(ValueError, 'folder = .*: must not exist'):
      self.prepare()
    self.prepare(name='other')

  @parameterized.parameters(
    ({'Train': TRAIN}, 'x', "split = 'Train': must be lower-case"),
    ({'train': TRAIN}, 'a-b', "name = 'a-b'"),
    ({'train': TRAIN}, '2x', "name = '2x'"),
    ({'train': TRAIN, 'test': ()}, 'x', r"empty splits = \['test'\]: must be"),
    ({}, 'x', r'empty splits = \[\]: must be'),
  )
  def test_wrong_names_and_empty_splits_are_refused(
    self, splits, name, message
  ):
    with self.assertRaisesRegex(ValueError, message):
      datasets.prepare(splits, name=name, out=self.out)

  def test_broken_files_of_gsm8k_are_refused(self):
    files = self.gsm8k_files()
    with files['test'].open('a') as file:
      file.write('{"question": "no answer"}\n')
    with self.assertRaisesRegex(
      ValueError, r'lines of test = 1 broken_line \(lines 3'
    ):
      datasets.prepare_gsm8k(files, out=self.out)
    self.assertFalse((self.out / 'gsm8k').exists())

  def test_what_cannot_be_read_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'folder = .*: must hold a dataset'):
      datasets.source(self.out, split='train')
    folder = self.prepare()
    with self.assertRaisesRegex(
      ValueError, r"'val': must be one of \['test', "
    ):
      datasets.source(folder, split='val')
    path = folder / 'dataset_info.json'
    info = json.loads(path.read_text(encoding='utf-8'))
    self.assertEqual(info['fileFormat'], 'array_record')
    info['fileFormat'] = 'tfrecord'
    path.write_text(json.dumps(info), encoding='utf-8')
    with self.assertRaisesRegex(
      ValueError, 'file_format = .*: must be array_record'
    ):
      datasets.source(folder, split='train')

  @parameterized.product(
    name=('dataset_info.json', 'features.json'),
    content=('', '{"a": 1', '{}', '[]', 'null', '[' * 100_000, '\udcff'),
  )
  def test_a_damaged_description_is_one_line(self, name, content):
    folder = self.prepare()
    (folder / name).write_bytes(content.encode(errors='surrogateescape'))
    self.refused(folder)

  def test_a_description_of_other_files_is_one_line(self):
    folder = self.prepare()
    path = folder / 'dataset_info.json'
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, 'name': ''}))
    self.refused(folder)

  @parameterized.parameters('missing', 'empty', 'cut', 'zeros', 'folder')
  def test_damaged_records_are_one_line(self, damage):
    folder = self.prepare()
    (path,) = folder.glob('*train*')
    content = path.read_bytes()
    path.unlink()
    if damage == 'folder':
      path.mkdir()
    elif damage != 'missing':
      half = len(content) // 2
      path.write_bytes(
        {'empty': b'', 'cut': content[:half], 'zeros': bytes(2 * half)}[damage]
      )
    self.refused(folder)

  def refused(self, folder):
    with self.assertRaisesRegex(
      ValueError,
      rf"^folder = '{folder}': must hold a whole dataset \(.*\); delete it, "
      r'and make it again with scripts/prepare_data\.py$',
    ):
      datasets.read(folder, split='train')

  def test_a_file_of_gsm8k_may_be_packed_and_end_with_blank_lines(self):
    files = self.gsm8k_files()
    packed = files['test'].with_name('test.jsonl.gz')
    packed.write_bytes(gzip.compress(files['test'].read_bytes() + b'\n \n'))
    folder = datasets.prepare_gsm8k({**files, 'test': packed}, out=self.out)
    self.assertLen(datasets.read(folder, split='test'), 2)

  def test_rows_of_another_layout_are_refused(self):
    rows = [{'id': b'a', 'text': b'b'}]
    with mock.patch.object(datasets, 'source', return_value=rows):
      with self.assertRaisesRegex(
        ValueError, r"fields = \['id', 'text'\]: must"
      ):
        datasets.read(self.out, split='train')

  def test_tensorflow_is_never_imported(self):
    files = {k: str(path) for k, path in self.gsm8k_files().items()}
    program = f"""
      import sys
      import grain
      from replay_rl.tasks.text import datasets
      from replay_rl.tasks.text import problems
      split = [problems.Problem('a', 'b', 'c')]
      folders = [
        datasets.prepare({{'train': split}}, name='x', out={str(self.out)!r}),
        datasets.prepare_gsm8k({files}, out={str(self.out)!r}),
      ]
      for folder in folders:
        assert datasets.read(folder, split='train')
        source = datasets.source(folder, split='train')
        assert grain.MapDataset.source(source).seed(0).shuffle()[0]
      assert 'tensorflow' not in sys.modules
    """
    done = subprocess.run(
      [sys.executable, '-W', 'error', '-c', textwrap.dedent(program)],
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
