import json
import pathlib

from absl.testing import parameterized

from replay_rl import json_files


class ReadObjectTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.path = self.folder / 'some.json'

  def read(self):
    return json_files.read_object_if_there(self.path, advice='write it anew')

  def test_an_object_is_returned(self):
    self.path.write_text(json.dumps({'é': [1, None]}), encoding='utf-8')
    self.assertEqual(self.read(), {'é': [1, None]})

  def test_what_is_absent_is_none_or_an_error(self):
    self.assertIsNone(self.read())
    with self.assertRaisesRegex(ValueError, r'\(No such file or directory\)'):
      json_files.read_object(self.path, advice='write it anew')

  @parameterized.parameters(
    (b'', 'it is empty'),
    (b' \n', 'it is empty'),
    (b'{"a": 1', 'Expecting'),
    (b'[]', r'it holds \[\]'),
    (b'null', 'it holds None'),
    (b'"' + b'a' * 1000 + b'"', r"it holds 'a{39}"),
    (b'\xff{}', "can't decode byte 0xff"),
    (b'[' * 100_000, 'nested too deeply'),
    (b'{"a":' * 100_000, 'nested too deeply'),
    (b'1' * 5000, 'integer string conversion'),
  )
  def test_anything_else_is_refused_in_one_line(self, content, reason):
    self.path.write_bytes(content)
    with self.assertRaisesRegex(
      ValueError,
      rf"^path = '{self.path}': must be a JSON object \([^\n]*{reason}[^\n]*\);"
      ' write it anew$',
    ):
      self.read()

  def test_what_is_no_file_is_not_taken_for_absent(self):
    self.path.mkdir()
    with self.assertRaisesRegex(ValueError, r'\(Is a directory\); write it'):
      self.read()
    self.path.rmdir()
    self.path.symlink_to(self.folder / 'nowhere')
    with self.assertRaisesRegex(ValueError, r'\(No such file or directory\)'):
      self.read()
