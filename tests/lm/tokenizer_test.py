import datetime
import gzip
import json
import pathlib
import runpy
import sys
import unicodedata
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.lm import chat_template
from replay_rl.lm import tokenizer
from tests import shared_data
from tests import tiny_tokenizer

TEXT = 'Tom has 12 apples — \u00e9, 日本語, 😀\n\n\\boxed{6}  '
ROUTES = ('tokenizer.json', 'vocab.json')


class TokenizerTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    tiny_tokenizer.write(self.folder)

  def load(self, route='tokenizer.json'):
    if route == 'vocab.json':
      (self.folder / 'tokenizer.json').unlink()
    return tokenizer.load(self.folder)

  def change(self, name, **changes):
    tiny_tokenizer.change_json(self.folder / name, **changes)

  @parameterized.parameters(*ROUTES)
  def test_text_comes_back_and_each_digit_is_a_token(self, route):
    loaded = self.load(route)
    ids = loaded.encode(TEXT)
    self.assertEqual(loaded.decode(ids, skip_special=False), TEXT)
    self.assertLess(max(ids), loaded.vocab_size)
    self.assertLen(loaded.encode('1234'), 4)
    self.assertEqual(loaded.encode('e\u0301'), loaded.encode('\u00e9'))
    self.assertEqual(loaded.encode(''), [])
    self.assertEqual(loaded.decode([], skip_special=False), '')

  def test_both_routes_give_the_same_tokens(self):
    from_json = self.load()
    rebuilt = self.load('vocab.json')
    for text in [TEXT, "it's 1234 ... \r\n  x<think>y<|stop|>", 'e\u0301']:
      self.assertEqual(from_json.encode(text), rebuilt.encode(text))
    self.assertEqual(from_json.vocab_size, rebuilt.vocab_size)

  @parameterized.parameters(*ROUTES)
  def test_special_tokens_in_a_text_are_one_token_and_none_is_added(
    self, route
  ):
    loaded = self.load(route)
    ids = loaded.encode('<|start|><think><|stop|>')
    t = tiny_tokenizer
    self.assertEqual(ids, [t.START, t.THINK_ID, t.STOP])
    self.assertEqual(loaded.decode(ids, skip_special=True), '<think>')
    self.assertEqual(
      loaded.decode(ids, skip_special=False), '<|start|><think><|stop|>'
    )

  def test_ids_without_text_become_a_replacement_character(self):
    loaded = self.load()
    four = loaded.encode('4')
    two = loaded.encode('2')
    beyond = tiny_tokenizer.VOCAB_SIZE
    ids = np.array([*four, beyond, *two, -1, beyond + 7], np.int32)
    self.assertEqual(
      loaded.decode(ids, skip_special=True),
      '4' + tokenizer.NO_TEXT + '2' + 2 * tokenizer.NO_TEXT,
    )

  def test_end_and_padding_come_from_the_files(self):
    t = tiny_tokenizer
    loaded = self.load()
    self.assertEqual(loaded.vocab_size, t.VOCAB_SIZE)
    self.assertEqual(loaded.eos_ids, (t.STOP, t.END))
    self.assertEqual(loaded.pad_id, t.END)
    self.change('tokenizer_config.json', pad_token=None)
    self.assertEqual(self.load().pad_id, t.STOP)
    self.change('generation_config.json', eos_token_id=t.START)
    self.assertEqual(self.load().eos_ids, (t.START,))
    (self.folder / 'generation_config.json').unlink()
    loaded = self.load()
    self.assertEqual(loaded.eos_ids, (t.STOP,))
    self.assertEqual(loaded.pad_id, t.STOP)

  @parameterized.parameters(
    (['tokenizer.json', 'merges.txt'], r'must have tokenizer\.json or merges'),
    (ROUTES, r'or vocab\.json; hf download MODEL --local-dir'),
    (
      ['tokenizer_config.json', 'generation_config.json'],
      'eos_token_id.*eos_token.*hf download',
    ),
  )
  def test_missing_files_are_named_with_how_to_get_them(self, names, message):
    for name in names:
      (self.folder / name).unlink()
    with self.assertRaisesRegex(ValueError, message):
      tokenizer.load(self.folder)

  @parameterized.parameters(
    ('tokenizer.json', '{', r"tokenizer\.json': must be a tokenizer"),
    (
      'tokenizer_config.json',
      '{',
      r"tokenizer_config\.json': must be a JSON object \(Expecting .*; hf down",
    ),
    (
      'generation_config.json',
      '[1]',
      r'must be a JSON object \(it holds \[1\]',
    ),
    ('vocab.json', '{', 'must have a vocab.json and a merges.txt'),
  )
  def test_a_broken_file_is_named(self, name, content, message):
    (self.folder / name).write_text(content)
    with self.assertRaisesRegex(ValueError, message):
      self.load('vocab.json' if name == 'vocab.json' else 'tokenizer.json')

  @parameterized.parameters(
    ('generation_config.json', {'eos_token_id': [298, 999]}, 'one or more ids'),
    ('generation_config.json', {'eos_token_id': []}, 'one or more ids'),
    (
      'tokenizer_config.json',
      {'pad_token': '<no>'},
      "pad_token = '<no>': must",
    ),
    (
      'tokenizer_config.json',
      {'added_tokens_decoder': {'297': {'content': '<think>'}}},
      "id of '<think>' = 299: must be 297",
    ),
  )
  def test_files_that_do_not_agree_are_refused(self, name, change, message):
    self.change(name, **change)
    with self.assertRaisesRegex(ValueError, message):
      self.load()

  def test_only_qwen_is_built_from_vocab_and_merges(self):
    self.change('tokenizer_config.json', tokenizer_class='GPT2Tokenizer')
    with self.assertRaisesRegex(ValueError, "'GPT2Tokenizer': must be Qwen2"):
      self.load('vocab.json')

  def test_messages_become_a_text(self):
    loaded = self.load()
    messages = [
      {'role': 'system', 'content': 'Be brief.'},
      {'role': 'user', 'content': '<1 & 2>'},
    ]
    middle = (
      '<|start|>system\nBe brief.<|stop|>\n<|start|>user\n<1 & 2><|stop|>\n'
    )
    self.assertEqual(
      loaded.chat(messages, add_generation_prompt=False, think=True), middle
    )
    self.assertEqual(
      loaded.chat(messages, add_generation_prompt=True),
      middle + '<|start|>assistant\n<think>',
    )
    self.assertEqual(
      loaded.chat(
        messages, add_generation_prompt=False, facts={'é': '<'}, eos_token='!'
      ),
      middle.replace('<|stop|>', '!') + '{"é": "<"}\n',
    )

  def test_a_template_can_refuse_messages(self):
    with self.assertRaisesRegex(
      ValueError, r'chat template = .* \(no tools, please'
    ):
      self.load().chat(
        [{'role': 'tool', 'content': 'please'}], add_generation_prompt=True
      )

  def test_a_tokenizer_without_a_template_says_so(self):
    self.change('tokenizer_config.json', chat_template=None)
    with self.assertRaisesRegex(ValueError, 'chat template = None: must'):
      self.load().chat([], add_generation_prompt=True)

  def test_a_template_of_its_own_file_goes_first(self):
    (self.folder / 'chat_template.jinja').write_text('é{{ messages|length }}')
    self.assertEqual(self.load().chat([], add_generation_prompt=True), 'é0')

  def test_of_several_templates_the_default_is_taken(self):
    named = [
      {'name': 'tool_use', 'template': 'a'},
      {'name': 'default', 'template': 'é'},
    ]
    self.change('tokenizer_config.json', chat_template=named)
    self.assertEqual(self.load().chat([], add_generation_prompt=True), 'é')
    self.change('tokenizer_config.json', chat_template=named[:1])
    with self.assertRaisesRegex(
      ValueError, r"chat_template = \['tool_use'\]: must have"
    ):
      self.load()


class ChatTemplateTest(parameterized.TestCase):
  @parameterized.parameters(
    (tokenizer, 'tokenizers'), (chat_template, 'jinja2')
  )
  def test_a_missing_package_is_answered_with_the_extra(self, module, package):
    with mock.patch.dict(sys.modules, {package: None}):
      with self.assertRaisesRegex(ImportError, r"pip install -e '.\[math\]'"):
        runpy.run_path(module.__file__)

  def render(self, template, **variables):
    return chat_template.render(
      template, [], add_generation_prompt=False, variables=variables
    )

  def test_the_clock_is_never_read(self):
    template = "{{ strftime_now('%d %b %Y') }}"
    with self.assertRaisesRegex(
      ValueError, 'must not depend on the clock; give .* chat_variables, such'
    ):
      self.render(template)
    now = datetime.date(2026, 1, 31).strftime
    self.assertEqual(self.render(template, strftime_now=now), '31 Jan 2026')

  def test_loops_can_break_and_generation_is_printed(self):
    template = (
      '{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}'
      '{% generation %}a{{ i }}{% endgeneration %}{% endfor %}'
    )
    self.assertEqual(self.render(template), 'a1')

  def test_tools_and_documents_are_none_unless_given(self):
    template = '{{ tools is none and documents is none }}{{ tools }}'
    self.assertEqual(self.render(template), 'TrueNone')
    self.assertEqual(self.render(template, tools=[1]), 'False[1]')

  def test_blocks_leave_no_blank_space(self):
    self.assertEqual(
      self.render('a\n  {% if true %}\nb\n  {% endif %}'), 'a\nb\n'
    )

  def test_json_takes_the_options_of_transformers(self):
    template = '{{ {"b": 1, "a": "é"} | tojson(sort_keys=true, indent=1) }}'
    self.assertEqual(self.render(template), '{\n "a": "é",\n "b": 1\n}')
    template = '{{ [1, 2] | tojson(separators=(",", ":")) }}'
    self.assertEqual(self.render(template), '[1,2]')

  @parameterized.parameters(
    '{% if %}', '{{ messages.append(1) }}', '{{ "".__class__.__mro__ }}'
  )
  def test_broken_and_unsafe_templates_are_refused(self, template):
    with self.assertRaisesRegex(ValueError, 'chat template = .*: must render'):
      self.render(template)

  @parameterized.parameters(
    ('{{ 1 + "a" }}', 'TypeError: unsupported operand'),
    ('{{ 1 // 0 }}', 'ZeroDivisionError: integer division'),
    ('{{ 2.0 ** 5000 }}', 'OverflowError: '),
    ('{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}', 'RecursionError: '),
    ('{{ ' + 3000 * '(', 'RecursionError: '),
  )
  def test_whatever_a_template_raises_is_one_line(self, template, reason):
    with self.assertRaisesRegex(
      ValueError, rf'^chat template = .*: must render \({reason}.*\)$'
    ):
      self.render(template)

  def test_a_variable_with_a_reserved_name_is_refused(self):
    for name in chat_template.RESERVED:
      with self.assertRaisesRegex(
        ValueError, rf"^chat variables = \['{name}'\]: must have other names"
      ):
        chat_template.render(
          '',
          [],
          add_generation_prompt=False,
          variables={name: 1, 'x': 1},
        )


@absltest.skipIf(shared_data.folder() is None, shared_data.ABSENT)
class RealTokenizerTest(parameterized.TestCase):
  def unpack(self, name, files):
    target = pathlib.Path(self.create_tempdir().full_path)
    source = shared_data.folder() / 'tokenizers' / name
    for packed, unpacked in files.items():
      content = (source / packed).read_bytes()
      if packed.endswith('.gz'):
        content = gzip.decompress(content)
      (target / unpacked).write_bytes(content)
    return target

  @parameterized.parameters(
    {'files': {'tokenizer.rebuilt.json.gz': 'tokenizer.json'}},
    {'files': {'vocab.json.gz': 'vocab.json', 'merges.txt.gz': 'merges.txt'}},
  )
  def test_qwen3_gives_the_golden_tokens(self, files):
    configs = ('tokenizer_config.json', 'generation_config.json')
    loaded = tokenizer.load(
      self.unpack('qwen3', {**files, **{name: name for name in configs}})
    )
    self.assertEqual(loaded.vocab_size, 151_669)
    self.assertEqual((loaded.eos_ids, loaded.pad_id), ((151_643,), 151_643))
    path = shared_data.folder() / 'tokenizers/qwen3/golden_vectors.jsonl'
    lines = path.read_text(encoding='utf-8').strip().split('\n')
    rows = [json.loads(line) for line in lines]
    self.assertLen(rows, 72)
    for row in rows:
      self.assertEqual(loaded.encode(row['text']), row['ids'])
      self.assertEqual(
        loaded.decode(row['ids'], skip_special=False),
        unicodedata.normalize('NFC', row['text']),
      )

  def test_olmo_loads_and_text_comes_back(self):
    folder = self.unpack(
      'olmo_gpt_neox', {'tokenizer.json.gz': 'tokenizer.json'}
    )
    tiny_tokenizer.write_json(
      folder / 'tokenizer_config.json', {'eos_token': '<|endoftext|>'}
    )
    loaded = tokenizer.load(folder)
    self.assertEqual((loaded.vocab_size, loaded.eos_ids), (50_280, (50_279,)))
    ids = loaded.encode(TEXT)
    self.assertEqual(loaded.decode(ids, skip_special=False), TEXT)
