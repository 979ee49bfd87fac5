"""A tokenizer of 300 tokens, in the files that a published model has."""

import json
import pathlib
from typing import Any

import tokenizers
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers

from replay_rl.lm import tokenizer_files

TEXTS = (
  'How many apples are there? There are 12 apples and 7 pears.',
  'Tom has 3 bags. How many bags does Tom have? The answer is 3.',
  'Solve for x: \\frac{x}{2} = \\sqrt{9}. The answer is \\boxed{6}.',
)
SPECIAL = ('<|end|>', '<|start|>', '<|stop|>')
THINK = '<think>'  # One token, but not a special one.
NUM_PIECES = 296
END, START, STOP, THINK_ID = range(NUM_PIECES, NUM_PIECES + 4)
VOCAB_SIZE = NUM_PIECES + 4

# Like published templates, it has white space, errors and optional parts.
TEMPLATE = """\
{% for message in messages %}
    {% if message.role == 'tool' %}
        {{ raise_exception('no tools, ' + message.content) }}
    {% endif %}
{{ '<|start|>' + message.role + '\\n' + message.content + eos_token }}
{% endfor %}
{% if facts is defined %}
{{ facts | tojson }}
{% endif %}
{% if add_generation_prompt %}<|start|>assistant
{% if not think %}{{ '<think>' }}{% endif %}
{% endif %}"""


def write(folder: pathlib.Path) -> None:
  """Writes vocab.json, merges.txt, both configs, and tokenizer.json."""
  backend = tokenizers.Tokenizer(models.BPE())
  backend.normalizer = normalizers.NFC()
  backend.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(
        tokenizers.Regex(tokenizer_files.QWEN_SPLIT), behavior='isolated'
      ),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  trainer = trainers.BpeTrainer(
    vocab_size=NUM_PIECES,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  backend.train_from_iterator(TEXTS, trainer)
  assert backend.get_vocab_size() == NUM_PIECES
  backend.model.save(str(folder))
  tokens = [*SPECIAL, THINK]
  write_json(
    folder / 'tokenizer_config.json',
    {
      'tokenizer_class': 'Qwen2Tokenizer',
      'chat_template': TEMPLATE,
      'bos_token': None,
      # It goes before what the post-processor of tokenizer.json adds.
      'add_bos_token': False,
      'eos_token': {'__type': 'AddedToken', 'content': '<|stop|>'},
      'pad_token': '<|end|>',
      'added_tokens_decoder': {
        str(NUM_PIECES + i): {
          'content': token,
          'lstrip': False,
          'normalized': False,
          'rstrip': False,
          'single_word': False,
          'special': token != THINK,
        }
        # Files list these tokens in any order.
        for i, token in reversed(list(enumerate(tokens)))
      },
    },
  )
  write_json(folder / 'generation_config.json', {'eos_token_id': [STOP, END]})
  backend.decoder = tokenizers.decoders.ByteLevel()
  for token in tokens:
    backend.add_tokens(
      [tokenizers.AddedToken(token, normalized=False, special=token != THINK)]
    )
  # Published files can set limits too; the loader ignores these.
  backend.post_processor = processors.TemplateProcessing(
    single='<|start|> $A', special_tokens=[('<|start|>', START)]
  )
  backend.enable_truncation(4)
  backend.enable_padding(length=8)
  backend.save(str(folder / 'tokenizer.json'))


def write_json(path: pathlib.Path, content: Any) -> None:
  """Writes JSON."""
  path.write_text(json.dumps(content, ensure_ascii=False), encoding='utf-8')


def change_json(path: pathlib.Path, **changes) -> None:
  """Sets fields of a file; None removes one."""
  content = {**json.loads(path.read_text(encoding='utf-8')), **changes}
  write_json(path, {k: v for k, v in content.items() if v is not None})
