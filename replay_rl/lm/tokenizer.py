"""Text to tokens and back, with the files of a Hugging Face model folder.

Reads `tokenizer.json`, or builds the byte-level BPE of Qwen2 and Qwen3 from
`vocab.json` and `merges.txt`. Needs `tokenizers`, not `transformers`.
"""

import itertools
import json
import pathlib
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from replay_rl.lm import chat_template

try:
  import tokenizers
  from tokenizers import decoders
  from tokenizers import models
  from tokenizers import normalizers
  from tokenizers import pre_tokenizers
except ImportError as error:
  raise ImportError("Tokenizers need: pip install -e '.[math]'") from error

# How Qwen2 and Qwen3 cut text before merging; each digit is a piece of its own.
# https://huggingface.co/Qwen/Qwen3-0.6B-Base/blob/main/tokenizer.json
QWEN_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
  r'|[^\r\n\p{L}\p{N}]?\p{L}+'
  r'|\p{N}'
  r'| ?[^\s\p{L}\p{N}]+[\r\n]*'
  r'|\s*[\r\n]+'
  r'|\s+(?!\S)'
  r'|\s+'
)
QWEN_CLASSES = ('Qwen2Tokenizer', 'Qwen2TokenizerFast')
# Stands in decoded text for a token without text, as for broken UTF-8.
NO_TEXT = '\N{REPLACEMENT CHARACTER}'

_NAMED_TOKENS = (
  'bos_token',
  'eos_token',
  'unk_token',
  'sep_token',
  'pad_token',
  'cls_token',
  'mask_token',
)


class Tokenizer:
  """Text to tokens and back. Made by `load`.

  Attributes:
    vocab_size: the largest id and one. The model's may be larger: it is padded.
    eos_ids: tokens that end a response; the first is the main one.
    pad_id: token after the end of a row.
  """

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    *,
    eos_ids: tuple[int, ...],
    pad_id: int,
    template: str | None,
    named_tokens: Mapping[str, str],
  ):
    """Wraps a tokenizer of the `tokenizers` library.

    Args:
      backend: does the work; must neither truncate nor pad.
      eos_ids: at least one.
      pad_id: see the class.
      template: the chat template, in Jinja; None if the model has none.
      named_tokens: `bos_token` and the like, which the template can read.
    """
    self._backend = backend
    self._ids = frozenset(backend.get_vocab(with_added_tokens=True).values())
    self._template = template
    self._named_tokens = dict(named_tokens)
    self.vocab_size = max(self._ids) + 1
    self.eos_ids = eos_ids
    self.pad_id = pad_id

  def encode(self, text: str) -> list[int]:
    """Returns the tokens of a text.

    Special tokens written out in the text become one token each; none is added.
    """
    return self._backend.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Iterable[int], *, skip_special: bool) -> str:
    """Returns the text of tokens.

    Args:
      ids: integers. One that is no token of the vocabulary (a model can emit
        such, see `vocab_size`) becomes `NO_TEXT`, as do broken bytes.
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
      add_generation_prompt: end with what comes before an answer.
      **variables: further ones that the template reads, `enable_thinking=False`
        for one. They go before the named tokens of the tokenizer.

    Raises:
      ValueError: if the model has no chat template, or it refuses the messages.
    """
    if self._template is None:
      raise ValueError(
        'the tokenizer has no chat template: neither chat_template.jinja nor '
        '`chat_template` in tokenizer_config.json.'
      )
    return chat_template.render(
      self._template,
      messages,
      add_generation_prompt=add_generation_prompt,
      variables={**self._named_tokens, **variables},
    )


def load(folder: str | pathlib.Path) -> Tokenizer:
  """Returns the tokenizer of a model folder.

  Reads `tokenizer.json`; without it, builds the tokenizer of a Qwen2 or Qwen3
  from `vocab.json`, `merges.txt` and `tokenizer_config.json`. The ids that end
  a response are the `eos_token_id` of `generation_config.json`, else the
  `eos_token` of `tokenizer_config.json`. For `pad_id`, that file's `pad_token`,
  else the first id that ends a response.

  Raises:
    ValueError: if files are missing, broken, or do not agree.
  """
  folder = pathlib.Path(folder)
  config = _read_config(folder / 'tokenizer_config.json')
  generation = _read_config(folder / 'generation_config.json')
  if (folder / 'tokenizer.json').is_file():
    backend = _from_tokenizer_json(folder / 'tokenizer.json')
  else:
    backend = _from_vocab_and_merges(folder, config)
  _check_added_tokens(folder, backend, config)
  eos_ids = _eos_ids(folder, backend, config, generation)
  pad = _content(config.get('pad_token'))
  return Tokenizer(
    backend,
    eos_ids=eos_ids,
    pad_id=eos_ids[0] if pad is None else _id(folder, backend, 'pad', pad),
    template=chat_template.find(folder, config),
    named_tokens={
      name: content
      for name in _NAMED_TOKENS
      if (content := _content(config.get(name))) is not None
    },
  )


def _from_tokenizer_json(path: pathlib.Path) -> tokenizers.Tokenizer:
  try:
    backend = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # The library raises nothing narrower.
    raise ValueError(f'{path}: not a tokenizer: {error}') from error
  # Some models were published with the limits of their training.
  backend.no_truncation()
  backend.no_padding()
  return backend


def _from_vocab_and_merges(
  folder: pathlib.Path, config: Mapping[str, Any]
) -> tokenizers.Tokenizer:
  names = ('vocab.json', 'merges.txt', 'tokenizer_config.json')
  missing = [name for name in names if not (folder / name).is_file()]
  if missing:
    raise ValueError(
      f'{folder}: found neither tokenizer.json nor {", ".join(missing)}. '
      f'Get the files with: hf download MODEL --local-dir {folder}'
    )
  if config.get('tokenizer_class') not in QWEN_CLASSES:
    raise ValueError(
      f'{folder}: tokenizer_class = {config.get("tokenizer_class")!r}, but '
      f'only {" or ".join(QWEN_CLASSES)} can be built from vocab.json and '
      'merges.txt; other models need tokenizer.json.'
    )
  try:
    model = models.BPE.from_file(
      str(folder / 'vocab.json'), str(folder / 'merges.txt')
    )
  except Exception as error:  # The library raises nothing narrower.
    raise ValueError(
      f'{folder}: vocab.json or merges.txt cannot be read: {error}'
    ) from error
  backend = tokenizers.Tokenizer(model)
  backend.normalizer = normalizers.NFC()
  backend.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(QWEN_SPLIT), behavior='isolated'),
      pre_tokenizers.ByteLevel(
        add_prefix_space=config.get('add_prefix_space', False), use_regex=False
      ),
    ]
  )
  backend.decoder = decoders.ByteLevel()
  # Ids are given out in this order.
  for _, token in _added_tokens(config):
    backend.add_tokens([tokenizers.AddedToken(**token)])
  return backend


def _added_tokens(
  config: Mapping[str, Any],
) -> list[tuple[int, dict[str, Any]]]:
  entries = config.get('added_tokens_decoder', {})
  return sorted(
    ((int(key), token) for key, token in entries.items()),
    key=lambda pair: pair[0],
  )


def _check_added_tokens(
  folder: pathlib.Path,
  backend: tokenizers.Tokenizer,
  config: Mapping[str, Any],
) -> None:
  # A token that is missing or has moved would be cut up without a word.
  for number, token in _added_tokens(config):
    found = backend.token_to_id(token['content'])
    if found != number:
      raise ValueError(
        f'{folder}: token {token["content"]!r} has the id {found} in the '
        f'vocabulary, but {number} in tokenizer_config.json.'
      )


def _eos_ids(
  folder: pathlib.Path,
  backend: tokenizers.Tokenizer,
  config: Mapping[str, Any],
  generation: Mapping[str, Any],
) -> tuple[int, ...]:
  found = generation.get('eos_token_id')
  if found is None:
    content = _content(config.get('eos_token'))
    if content is None:
      raise ValueError(
        f'{folder}: neither `eos_token_id` in generation_config.json nor '
        '`eos_token` in tokenizer_config.json says what ends a response. Get '
        f'the files with: hf download MODEL --local-dir {folder}'
      )
    return (_id(folder, backend, 'eos', content),)
  eos_ids = (found,) if isinstance(found, int) else tuple(found)
  unknown = [i for i in eos_ids if backend.id_to_token(i) is None]
  if unknown or not eos_ids:
    raise ValueError(
      f'{folder}: eos_token_id = {found} in generation_config.json, must be '
      'one or more ids of the vocabulary.'
    )
  return eos_ids


def _id(
  folder: pathlib.Path, backend: tokenizers.Tokenizer, name: str, content: str
) -> int:
  found = backend.token_to_id(content)
  if found is None:
    raise ValueError(
      f'{folder}: {name}_token = {content!r} in tokenizer_config.json is not '
      'in the vocabulary.'
    )
  return found


def _content(token: str | Mapping[str, Any] | None) -> str | None:
  # Older files spell a token out as an object.
  return token['content'] if isinstance(token, Mapping) else token


def _read_config(path: pathlib.Path) -> Mapping[str, Any]:
  if not path.is_file():
    return {}
  try:
    config = json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(f'{path}: not JSON: {error}') from error
  if not isinstance(config, dict):
    raise ValueError(f'{path}: not a JSON object.')
  return config
