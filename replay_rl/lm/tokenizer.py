"""Text to tokens and back, with the files of a Hugging Face model folder.

`load` reads `tokenizer.json`, or builds the byte-level BPE of Qwen2 and Qwen3
from `vocab.json` and `merges.txt`. It needs `tokenizers`, not `transformers`.
"""

import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from replay_rl.lm import chat_template
from replay_rl.lm import tokenizer_files

try:
  import tokenizers
except ImportError as error:
  raise ImportError(
    "package = 'tokenizers': must be installed; pip install -e '.[math]'"
  ) from error

# In decoded text, this stands for a token without text, or for broken UTF-8.
NO_TEXT = '\N{REPLACEMENT CHARACTER}'


class Tokenizer:
  """Text to tokens and back; see `load`.

  Attributes:
    vocab_size: the largest id plus one. A model may have more, as padding.
    eos_ids: tokens that end a response; the first is the main one.
    pad_id: token after the end of a row.
    bos_ids: tokens that the tokenizer puts before a text that is not a chat;
      () for none. `encode` does not add them.
    content_hash: SHA-256, in hexadecimal, of all that decides what tokens and
      texts this object returns.
  """

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    *,
    eos_ids: tuple[int, ...],
    pad_id: int,
    bos_ids: tuple[int, ...],
    template: str | None,
    named_tokens: Mapping[str, str],
    vocabulary_hash: str,
  ):
    """Wraps a tokenizer of the `tokenizers` library.

    Args:
      backend: does the work; must neither truncate nor pad.
      eos_ids: at least one.
      pad_id: see the class.
      bos_ids: see the class.
      template: the chat template, in Jinja; None if the model has none.
      named_tokens: the template can read these, such as `bos_token`.
      vocabulary_hash: of the files that the backend was made from.
    """
    self._backend = backend
    self._ids = frozenset(backend.get_vocab(with_added_tokens=True).values())
    self._template = template
    self._named_tokens = dict(named_tokens)
    self.vocab_size = max(self._ids) + 1
    self.eos_ids = eos_ids
    self.pad_id = pad_id
    self.bos_ids = bos_ids
    content = [
      vocabulary_hash,
      eos_ids,
      pad_id,
      bos_ids,
      template,
      sorted(named_tokens.items()),
    ]
    self.content_hash = hashlib.sha256(json.dumps(content).encode()).hexdigest()

  def encode(self, text: str) -> list[int]:
    """Returns the tokens of a text.

    Special tokens written out in the text become one token each; none is added.
    """
    return self._backend.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Iterable[int], *, skip_special: bool) -> str:
    """Returns the text of tokens.

    Args:
      ids: integers. An id outside the vocabulary, which a model can emit (see
        `vocab_size`), becomes `NO_TEXT`; so do broken bytes.
      skip_special: leave special tokens out, such as end-of-sequence.
    """
    text = ''
    numbers = [int(i) for i in ids]
    for known, run in itertools.groupby(numbers, self._ids.__contains__):
      if known:
        text += self._backend.decode(
          list(run), skip_special_tokens=skip_special
        )
      else:
        text += NO_TEXT * len(list(run))
    return text

  def chat(
    self,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    **variables: Any,
  ) -> str:
    """Returns messages as one text, by the model's chat template.

    Args:
      messages: each with 'role' and 'content', such as `{'role': 'user',
        'content': 'What is 1 + 1?'}`.
      add_generation_prompt: end with the beginning of an answer.
      **variables: further variables that the template reads, such as
        `enable_thinking=False`. They go before the named tokens. The names in
        `chat_template.RESERVED` are taken.

    Raises:
      ValueError: the model has no chat template, or it refuses the messages.
    """
    if self._template is None:
      raise ValueError(
        'chat template = None: must be in chat_template.jinja, or '
        '`chat_template` of tokenizer_config.json'
      )
    return chat_template.render(
      self._template,
      messages,
      add_generation_prompt=add_generation_prompt,
      variables={**self._named_tokens, **variables},
    )


def load(folder: str | pathlib.Path) -> Tokenizer:
  """Returns the tokenizer of a model folder.

  This function reads `tokenizer.json`. Without that file, it builds the
  tokenizer of a Qwen2 or Qwen3 from `vocab.json`, `merges.txt` and
  `tokenizer_config.json`.

  A response ends with each `eos_token_id` of `generation_config.json`. If that
  file has none, it ends with those of `config.json`, and with the `eos_token`
  of `tokenizer_config.json`. `pad_id` is the `pad_token` of that file, else the
  first id that ends a response. `bos_ids` is the `bos_token` of that file if
  its `add_bos_token` is true, and empty if it is false. Without that field, it
  is what the post-processor of `tokenizer.json` puts before a text. (Versions
  of transformers differ on which of the two counts.)

  Raises:
    ValueError: files are missing or broken, or do not agree.
  """
  files = tokenizer_files.read(pathlib.Path(folder))
  return Tokenizer(
    files.backend,
    eos_ids=files.eos_ids,
    pad_id=files.pad_id,
    bos_ids=files.bos_ids,
    template=chat_template.find(pathlib.Path(folder), files.config),
    named_tokens=files.named_tokens,
    vocabulary_hash=files.vocabulary_hash,
  )
