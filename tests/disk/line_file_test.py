"""Tests of files of JSON lines."""

import json
import math
import pathlib

from absl.testing import parameterized

from replay_rl.disk import durable
from replay_rl.disk import line_file


class LineFileTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path) / 'lines.jsonl'

  def _write(self, mark, iterations):
    file = line_file.LineFile(self.path, mark)
    for iteration in iterations:
      for seed in range(2):
        file.write(iteration=iteration, seed=seed, value=iteration / 3)
    mark = file.mark()
    file.close()
    return mark

  def test_a_resumed_file_equals_an_uninterrupted_one(self):
    self._write(line_file.START, range(6))
    whole = self.path.read_bytes()
    mark = self._write(line_file.START, range(3))
    kept = self.path.read_bytes()
    self.assertEqual(mark.num_bytes, len(kept))
    for cut in (0, 1, 40, 41, 170, len(whole) - len(kept)):
      self.path.write_bytes(whole[: len(kept) + cut])
      self._write(mark, range(3, 6))
      self.assertEqual(self.path.read_bytes(), whole)

  def test_a_mark_goes_on_from_a_mark(self):
    first = self._write(line_file.START, range(2))
    last = self._write(first, range(2, 4))
    self.assertEqual(self._write(line_file.START, range(4)), last)

  def test_lines_with_gaps_may_be_continued(self):
    marks = [line_file.START]
    for iteration in (1, 4, 7):
      marks.append(self._write(marks[-1], [iteration]))
    self._write(marks[2], [])
    lines = self.path.read_text().splitlines()
    self.assertEqual([json.loads(x)['iteration'] for x in lines], [1, 1, 4, 4])

  @parameterized.named_parameters(
    ('garbled', lambda x: [*x[:3], b'{' + x[3], *x[4:]], 'line 4 unreadable'),
    ('nested', lambda x: [b'[' * 100_000 + b'\n', *x[1:]], 'line 1 unreadable'),
    ('lost', lambda x: [*x[:2], *x[3:]], 'bytes of .* = '),
    ('lost but long', lambda x: [*x[:2], *x[3:], *x], 'line .* after 3'),
    ('doubled', lambda x: [*x[:2], *x[1:]], 'changed, missing or repeated'),
    ('swapped', lambda x: [x[2], x[0], x[1], *x[3:]], 'line 2 of iteration 0'),
    ('changed', lambda x: [x[0].replace(b'0.0', b'0.5'), *x[1:]], 'changed'),
    (
      'changed before other lines',
      lambda x: [x[0].replace(b'0.0', b'0.5'), *x[1:], b'{junk\n'],
      'changed, missing',
    ),
    ('last lost', lambda x: x[:-1], 'must be at least the'),
    ('cut', lambda x: [*x[:-1], x[-1][:-1]], 'must be at least the'),
    ('last cut', lambda x: [*x[:-1], x[-1][:-2] + b'\n\n'], 'unreadable|bytes'),
  )
  def test_what_differs_is_refused_and_nothing_is_lost(self, damage, message):
    mark = self._write(line_file.START, range(4))
    lines = self.path.read_bytes().splitlines(keepends=True)
    damaged = b''.join(damage(lines))
    self.path.write_bytes(damaged)
    with self.assertRaisesRegex(ValueError, message) as raised:
      line_file.LineFile(self.path, mark)
    self.assertIn(str(self.path), str(raised.exception))
    self.assertEqual(self.path.read_bytes(), damaged)

  def test_a_missing_file_is_created_at_its_start_only(self):
    with self.assertRaisesRegex(ValueError, 'No such file'):
      line_file.LineFile(self.path, line_file.Mark(3, 'abc'))
    line_file.LineFile(self.path, line_file.START).close()
    self.assertEqual(self.path.read_bytes(), b'')

  def test_a_folder_of_that_name_is_refused(self):
    self.path.mkdir()
    with self.assertRaisesRegex(ValueError, 'Is a directory'):
      line_file.LineFile(self.path, line_file.START)

  def test_what_is_not_finite_is_written_as_null(self):
    file = line_file.LineFile(self.path, line_file.START)
    file.write(iteration=0, a=math.nan, b=math.inf, c=[1, 2], d=1.5)
    file.close()
    self.assertEqual(
      json.loads(self.path.read_text()),
      {'iteration': 0, 'a': None, 'b': None, 'c': [1, 2], 'd': 1.5},
    )

  def test_a_full_disk_is_one_line(self):
    self.path.symlink_to('/dev/full')
    file = line_file.LineFile.__new__(line_file.LineFile)
    file._path, file._file = self.path, open('/dev/full', 'wb')
    with self.assertRaisesRegex(
      durable.WriteError, r'No space left on device\); it needs up to 17 bytes'
    ):
      file.write(iteration=0)
    file.close()
