"""Tests of what the files of a tokenizer decide, and of damaged files."""

import json
import pathlib

from absl.testing import parameterized

from replay_rl.lm import tokenizer
from replay_rl.lm import tokenizer_files
from tests import tiny_tokenizer

START, STOP, END = (
  tiny_tokenizer.START,
  tiny_tokenizer.STOP,
  tiny_tokenizer.END,
)
DEEP = '[' * 100_000


class TokenizerFilesTestCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    tiny_tokenizer.write(self.folder)

  def change(self, name, **changes):
    tiny_tokenizer.change_json(self.folder / name, **changes)

  def load(self):
    return tokenizer.load(self.folder)

  def refused(self, message):
    """Asserts that the error is one line, and names the folder."""
    with self.assertRaisesRegex(ValueError, message) as caught:
      self.load()
    self.assertNotIn('\n', str(caught.exception))
    self.assertIn(str(self.folder), str(caught.exception))


class EndTest(TokenizerFilesTestCase):
  def config(self, **content):
    tiny_tokenizer.write_json(self.folder / 'config.json', content)

  def test_without_generation_config_the_model_and_the_tokenizer_end(self):
    (self.folder / 'generation_config.json').unlink()
    for eos, expected in (
      (None, (STOP,)),
      (START, (START, STOP)),
      ([END, STOP], (END, STOP)),
    ):
      self.config(eos_token_id=eos)
      self.assertEqual(self.load().eos_ids, expected)
    self.change('tokenizer_config.json', eos_token=None)
    self.config(eos_token_id=START)
    self.assertEqual(self.load().eos_ids, (START,))

  def test_a_generation_config_without_an_end_leaves_it_to_the_others(self):
    self.change('generation_config.json', eos_token_id=None, top_k=3)
    self.config(eos_token_id=END)
    self.assertEqual(self.load().eos_ids, (END, STOP))

  def test_a_generation_config_with_an_end_goes_first(self):
    self.config(eos_token_id=START)
    self.assertEqual(self.load().eos_ids, (STOP, END))

  @parameterized.parameters(
    *((eos,) for eos in ('a', 2.5, True, [[1]], [], -1, 2**70, {'a': 1})),
    (tiny_tokenizer.VOCAB_SIZE,),
  )
  def test_an_end_that_is_no_token_is_refused(self, eos):
    message = r'^eos_token_id = .*: must be one or more ids of the vocabulary'
    self.change('generation_config.json', eos_token_id=eos)
    self.refused(message)
    self.change('generation_config.json', eos_token_id=None)
    self.config(eos_token_id=eos)
    self.refused(message + r', in .*/config\.json$')


class BeginningTest(TokenizerFilesTestCase):
  def test_the_configuration_goes_before_the_post_processor(self):
    self.assertEqual(self.load().bos_ids, ())
    self.change('tokenizer_config.json', add_bos_token=None)
    self.assertEqual(self.load().bos_ids, (START,))
    self.change(
      'tokenizer_config.json', add_bos_token=True, bos_token='<|end|>'
    )
    self.assertEqual(self.load().bos_ids, (END,))

  def test_what_comes_after_a_text_is_no_beginning(self):
    self.change('tokenizer_config.json', add_bos_token=None)
    path = self.folder / 'tokenizer.json'
    content = json.loads(path.read_text())
    content['post_processor']['single'].reverse()
    path.write_text(json.dumps(content))
    self.assertEqual(self.load().bos_ids, ())

  def test_without_tokenizer_json_there_is_no_post_processor(self):
    (self.folder / 'tokenizer.json').unlink()
    self.change('tokenizer_config.json', add_bos_token=None)
    self.assertEqual(self.load().bos_ids, ())
    self.change(
      'tokenizer_config.json', add_bos_token=True, bos_token='<|start|>'
    )
    self.assertEqual(self.load().bos_ids, (START,))

  def test_no_text_gets_it_from_encode(self):
    self.change('tokenizer_config.json', add_bos_token=None)
    loaded = self.load()
    self.assertNotIn(START, loaded.encode('a'))

  @parameterized.parameters(
    ({'add_bos_token': True}, 'bos_token = None: must be given where'),
    ({'add_bos_token': 1}, 'add_bos_token = 1: must be true or false'),
    (
      {'add_bos_token': True, 'bos_token': '<no>'},
      "bos_token = '<no>': must be in the vocabulary",
    ),
  )
  def test_a_beginning_that_is_no_token_is_refused(self, changes, message):
    self.change('tokenizer_config.json', **changes)
    self.refused(message)


class ContentHashTest(TokenizerFilesTestCase):
  @parameterized.parameters(
    ({'pad_token': '<|start|>'},),
    ({'bos_token': '<|start|>'},),
    ({'add_bos_token': None},),
    ({'chat_template': 'x'},),
    ({'eos_token': '<|end|>'},),
  )
  def test_a_setting_changes_it(self, changes):
    before = self.load().content_hash
    self.change('tokenizer_config.json', **changes)
    self.assertNotEqual(self.load().content_hash, before)

  def test_each_file_that_is_read_changes_it(self):
    seen = [self.load().content_hash]
    self.change('generation_config.json', eos_token_id=[END, STOP])
    seen.append(self.load().content_hash)
    (self.folder / 'chat_template.jinja').write_text('x')
    seen.append(self.load().content_hash)
    self.change('tokenizer.json', normalizer=None)
    seen.append(self.load().content_hash)
    (self.folder / 'tokenizer.json').unlink()
    seen.append(self.load().content_hash)
    merges = self.folder / 'merges.txt'
    merges.write_text(merges.read_text().rstrip('\n').rpartition('\n')[0])
    seen.append(self.load().content_hash)
    self.change('tokenizer_config.json', add_prefix_space=True)
    seen.append(self.load().content_hash)
    path = self.folder / 'tokenizer_config.json'
    added = json.loads(path.read_text())['added_tokens_decoder']
    added[str(START)]['lstrip'] = True
    self.change('tokenizer_config.json', added_tokens_decoder=added)
    seen.append(self.load().content_hash)
    self.assertLen(set(seen), 8)

  def test_the_padding_changes_it(self):
    files = tokenizer_files.read(self.folder)
    hashes = {
      tokenizer.Tokenizer(
        files.backend,
        eos_ids=(STOP,),
        pad_id=pad_id,
        bos_ids=(),
        template=None,
        named_tokens={},
        vocabulary_hash='',
      ).content_hash
      for pad_id in (STOP, END)
    }
    self.assertLen(hashes, 2)

  def test_nothing_else_does(self):
    before = self.load().content_hash
    self.assertRegex(before, '^[0-9a-f]{64}$')
    self.change('generation_config.json', temperature=0.5)
    self.change('tokenizer_config.json', model_max_length=9)
    (self.folder / 'config.json').write_text('{"eos_token_id": 3}')
    (self.folder / 'vocab.json').unlink()
    self.assertEqual(self.load().content_hash, before)


class DamagedFilesTest(TokenizerFilesTestCase):
  @parameterized.product(
    name=(
      'tokenizer.json',
      'tokenizer_config.json',
      'generation_config.json',
      'config.json',
      'vocab.json',
    ),
    content=('', '{"a": 1', '[]', 'null', DEEP, '\udcff{}'),
  )
  def test_a_damaged_file_is_one_line(self, name, content):
    if name == 'vocab.json':
      (self.folder / 'tokenizer.json').unlink()
    if name == 'config.json':  # Else it is not read.
      (self.folder / 'generation_config.json').unlink()
    path = self.folder / name
    path.write_bytes(content.encode(errors='surrogateescape'))
    self.refused('hf download MODEL --local-dir')

  @parameterized.parameters(
    'tokenizer.json',
    'tokenizer_config.json',
    'generation_config.json',
    'vocab.json',
    'merges.txt',
    'chat_template.jinja',
  )
  def test_what_is_no_file_is_not_taken_for_absent(self, name):
    path = self.folder / name
    if name in ('vocab.json', 'merges.txt'):
      (self.folder / 'tokenizer.json').unlink()
    path.unlink(missing_ok=True)
    path.mkdir()
    self.refused('hf download MODEL --local-dir')
    path.rmdir()
    path.symlink_to(self.folder / 'nowhere')
    self.refused('hf download MODEL --local-dir')

  def test_templates_and_merges_that_are_no_text_are_named(self):
    path = self.folder / 'chat_template.jinja'
    path.write_bytes(b'\xff')
    self.refused(r"chat_template\.jinja': must be a file of text in UTF-8")
    path.unlink()
    (self.folder / 'tokenizer.json').unlink()
    (self.folder / 'merges.txt').write_text('')
    self.refused(r"merges\.txt': must have merges \(it is empty\)")

  def test_a_tokenizer_without_tokens_is_refused(self):
    path = self.folder / 'tokenizer.json'
    content = json.loads(path.read_text())
    content['model'].update(vocab={}, merges=[])
    content['added_tokens'] = []
    path.write_text(json.dumps(content))
    self.change('tokenizer_config.json', added_tokens_decoder=None)
    self.refused('must have a tokenizer with tokens')

  def test_a_panic_of_the_library_is_one_line(self):
    path = self.folder / 'tokenizer.json'
    content = json.loads(path.read_text())
    content['model']['continuing_subword_prefix'] = '<|stop|>'
    path.write_text(json.dumps(content))
    self.refused('must be a tokenizer .range end index')

  def test_a_tokenizer_that_drops_all_text_is_refused(self):
    path = self.folder / 'tokenizer.json'
    content = json.loads(path.read_text())
    content['normalizer'] = {
      'type': 'Replace',
      'pattern': {'String': 'a'},
      'content': '',
    }
    path.write_text(json.dumps(content))
    self.change('tokenizer_config.json', add_bos_token=None)
    self.refused("must have a tokenizer that reads 'a'")

  @parameterized.parameters(
    ({'added_tokens_decoder': [1]}, r"= \{'': \[1\]\}: must have the id"),
    ({'added_tokens_decoder': {'x': {'content': 'a'}}}, 'must have the id'),
    ({'added_tokens_decoder': {'297': {}}}, 'must have the id and the content'),
    ({'added_tokens_decoder': {'297': 3}}, 'must have the id and the content'),
    ({'pad_token': 3}, 'pad_token = 3: must be a text'),
    ({'pad_token': {}}, r'pad_token = \{\}: must be a text'),
    ({'chat_template': 3}, 'chat_template = 3: must be a text'),
    ({'chat_template': [3]}, r'chat_template = \[3\]: must be a text'),
    (
      {'chat_template': [{'name': 'default', 'template': 3}]},
      'chat_template = .*: must be a text, or a list',
    ),
  )
  def test_a_field_of_another_type_is_named(self, changes, message):
    self.change('tokenizer_config.json', **changes)
    self.refused(message)

  @parameterized.parameters(
    ({'add_prefix_space': 'x'}, "add_prefix_space = 'x': must be true or"),
    ({'tokenizer_class': [1]}, r'tokenizer_class = \[1\]: must be Qwen2'),
    (
      {'added_tokens_decoder': {'296': {'content': 'a', 'lstrip': 3}}},
      'added_tokens_decoder = .*: must describe a token',
    ),
  )
  def test_a_field_of_another_type_is_named_for_vocab_and_merges(
    self, changes, message
  ):
    (self.folder / 'tokenizer.json').unlink()
    self.change('tokenizer_config.json', **changes)
    self.refused(message)
