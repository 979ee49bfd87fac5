"""Text to tokens and back, with the files of a Hugging Face model folder.

`load` reads `tokenizer.json`, or builds the byte-level BPE of Qwen2 and Qwen3
from `vocab.json` and `merges.txt`. It needs `tokenizers`, not `transformers`.
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
  raise ImportError(
    "package = 'tokenizers': must be installed; pip install -e '.[math]'"
  ) from error

# Qwen2 and Qwen3 cut text so before they merge; each digit is a piece.
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
# In decoded text, this stands for a token without text, or for broken UTF-8.
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
  """Text to tokens and back; see `load`.

  Attributes:
    vocab_size: the largest id plus one. A model may have more, as padding.
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
      named_tokens: the template can read these, such as `bos_token`.
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
        `enable_thinking=False`. They go before the named tokens.

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
  `tokenizer_config.json`. A response ends with the `eos_token_id` of
  `generation_config.json`, else with the `eos_token` of
  `tokenizer_config.json`. `pad_id` is the `pad_token` of that file, else the
  first id that ends a response.

  Raises:
    ValueError: files are missing or broken, or do not agree.
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
    raise ValueError(
      f'path = {str(path)!r}: must be a tokenizer ({error})'
    ) from error
  # Some published files have the limits of training.
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
      f'folder = {str(folder)!r}: must have tokenizer.json or '
      f'{", ".join(missing)}; hf download MODEL --local-dir {folder} gets the '
      'files'
    )
  if config.get('tokenizer_class') not in QWEN_CLASSES:
    raise ValueError(
      f'tokenizer_class = {config.get("tokenizer_class")!r}: must be '
      f'{" or ".join(QWEN_CLASSES)} without tokenizer.json, in {folder}'
    )
  try:
    model = models.BPE.from_file(
      str(folder / 'vocab.json'), str(folder / 'merges.txt')
    )
  except Exception as error:  # The library raises nothing narrower.
    raise ValueError(
      f'folder = {str(folder)!r}: must have a vocab.json and a merges.txt that '
      f'fit ({error})'
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
  # The backend numbers the tokens in this order.
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
  # The backend would cut up a token that is missing or has moved, in silence.
  for number, token in _added_tokens(config):
    known = backend.token_to_id(token['content'])
    if known != number:
      raise ValueError(
        f'id of {token["content"]!r} = {known}: must be {number}, as in '
        f'{folder}/tokenizer_config.json'
      )


def _eos_ids(
  folder: pathlib.Path,
  backend: tokenizers.Tokenizer,
  config: Mapping[str, Any],
  generation: Mapping[str, Any],
) -> tuple[int, ...]:
  eos = generation.get('eos_token_id')
  if eos is None:
    content = _content(config.get('eos_token'))
    if content is None:
      raise ValueError(
        f'folder = {str(folder)!r}: must have `eos_token_id` in '
        'generation_config.json or `eos_token` in tokenizer_config.json; hf '
        f'download MODEL --local-dir {folder} gets the files'
      )
    return (_id(folder, backend, 'eos', content),)
  eos_ids = (eos,) if isinstance(eos, int) else tuple(eos)
  unknown = [i for i in eos_ids if backend.id_to_token(i) is None]
  if unknown or not eos_ids:
    raise ValueError(
      f'eos_token_id = {eos}: must be one or more ids of the vocabulary, in '
      f'{folder}/generation_config.json'
    )
  return eos_ids


def _id(
  folder: pathlib.Path, backend: tokenizers.Tokenizer, name: str, content: str
) -> int:
  number = backend.token_to_id(content)
  if number is None:
    raise ValueError(
      f'{name}_token = {content!r}: must be in the vocabulary, in '
      f'{folder}/tokenizer_config.json'
    )
  return number


def _content(token: str | Mapping[str, Any] | None) -> str | None:
  # In older files, a token is an object.
  return token['content'] if isinstance(token, Mapping) else token


def _read_config(path: pathlib.Path) -> Mapping[str, Any]:
  if not path.is_file():
    return {}
  try:
    config = json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(f'path = {str(path)!r}: must be JSON ({error})') from error
  if not isinstance(config, dict):
    raise ValueError(f'path = {str(path)!r}: must hold a JSON object')
  return config
