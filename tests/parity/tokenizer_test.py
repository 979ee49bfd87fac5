"""Chat templates against `apply_chat_template` of transformers."""

import gzip
import pathlib

import transformers
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.lm import tokenizer
from tests import shared_data
from tests import tiny_tokenizer

SYSTEM = {'role': 'system', 'content': 'Reason & <box> it.'}
USER = {'role': 'user', 'content': ' What is 1 + 1?\n'}
ASSISTANT = {'role': 'assistant', 'content': '<think>\nhm\n</think>\n\nTwo.'}
CALL = {
  'role': 'assistant',
  'content': '',
  'tool_calls': [{'name': 'add', 'arguments': {'é': [1, '<2>']}}],
}
TOOL = {'role': 'tool', 'content': '2'}
CHATS = (
  [USER],
  [SYSTEM, USER],
  [SYSTEM, USER, ASSISTANT],
  [USER, ASSISTANT, USER],
  [SYSTEM, USER, CALL, TOOL, ASSISTANT, USER],
)
TOOLS = [
  {'type': 'function', 'function': {'name': 'add', 'description': "it's <é>"}}
]


class ChatTest(parameterized.TestCase):
  def assert_same(self, folder, **variables):
    ours = tokenizer.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for messages in CHATS:
      for add_generation_prompt in (False, True):
        options = {'add_generation_prompt': add_generation_prompt, **variables}
        expected = theirs.apply_chat_template(
          messages, tokenize=False, **options
        )
        actual = ours.chat(messages, **options)
        self.assertEqual(actual, expected)
        self.assertEqual(
          ours.encode(actual),
          theirs(expected, add_special_tokens=False).input_ids,
        )

  @parameterized.parameters(
    {'think': True}, {'facts': {'é': '<&>', 'b': [1, None]}}
  )
  def test_the_tiny_template_renders_the_same(self, **variables):
    folder = pathlib.Path(self.create_tempdir().full_path)
    tiny_tokenizer.write(folder)
    template = tiny_tokenizer.TEMPLATE.replace("== 'tool'", "== 'nobody'")
    tiny_tokenizer.change_json(
      folder / 'tokenizer_config.json', chat_template=template
    )
    self.assert_same(folder, **variables)

  @parameterized.parameters(
    {},
    {'enable_thinking': False},
    {'enable_thinking': True},
    {'tools': TOOLS},
  )
  @absltest.skipIf(shared_data.folder() is None, shared_data.ABSENT)
  def test_qwen3_renders_the_same(self, **variables):
    source = shared_data.folder() / 'tokenizers/qwen3'
    folder = pathlib.Path(self.create_tempdir().full_path)
    for name in ('tokenizer_config.json', 'generation_config.json'):
      (folder / name).write_bytes((source / name).read_bytes())
    packed = (source / 'tokenizer.rebuilt.json.gz').read_bytes()
    (folder / 'tokenizer.json').write_bytes(gzip.decompress(packed))
    self.assert_same(folder, **variables)
