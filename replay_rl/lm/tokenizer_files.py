"""Reads the files of a tokenizer, and refuses what does not agree.

`tokenizer.load` puts together what the functions here return.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from replay_rl import constants
from replay_rl import json_files
from replay_rl.lm.hf import files as hf_files

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
_ID = re.compile(r'[0-9]{1,9}')
_NAMED_TOKENS = (
  'bos_token',
  'eos_token',
  'unk_token',
  'sep_token',
  'pad_token',
  'cls_token',
  'mask_token',
)


class TokenizerFiles(NamedTuple):
  """What the files of a tokenizer say; see `tokenizer.load`.

  backend: does the work. config: the content of `tokenizer_config.json`.
  named_tokens: those of `_NAMED_TOKENS` that there are. vocabulary_hash:
    SHA-256 of the files that the backend was made from, in hexadecimal.
  eos_ids, bos_ids, pad_id: see `tokenizer.Tokenizer`.
  """

  backend: tokenizers.Tokenizer
  config: Mapping[str, Any]
  named_tokens: Mapping[str, str]
  vocabulary_hash: str
  eos_ids: tuple[int, ...]
  bos_ids: tuple[int, ...]
  pad_id: int


def read(folder: pathlib.Path) -> TokenizerFiles:
  """Reads the files of a folder.

  Raises:
    ValueError: files are missing or broken, or do not agree.
  """
  config = _read_config(folder, 'tokenizer_config.json')
  named_tokens = {
    name: content
    for name in _NAMED_TOKENS
    if (content := _named_token(folder, config, name)) is not None
  }
  added = _added_tokens(folder, config)
  if os.path.lexists(folder / 'tokenizer.json'):
    names, settings = ['tokenizer.json'], ()
    backend = _from_tokenizer_json(folder / 'tokenizer.json')
  else:
    names = ['vocab.json', 'merges.txt']
    settings = (added, _flag(folder, config, 'add_prefix_space'))
    backend = _from_vocab_and_merges(folder, config, added)
  _check_vocabulary(folder, backend, added)
  eos_ids = _eos_ids(folder, backend, named_tokens)
  pad = named_tokens.get('pad_token')
  contents = [(folder / name).read_bytes() for name in names]
  contents.append(json.dumps(settings, sort_keys=True).encode())
  hashes = [hashlib.sha256(content).digest() for content in contents]
  return TokenizerFiles(
    backend,
    config,
    named_tokens,
    hashlib.sha256(b''.join(hashes)).hexdigest(),
    eos_ids,
    _bos_ids(folder, backend, config, named_tokens),
    eos_ids[0] if pad is None else _id(folder, backend, 'pad', pad),
  )


@contextlib.contextmanager
def _refusing(folder: pathlib.Path, refusal: str) -> Iterator[None]:
  """Turns what the library raises into a ValueError of one line."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit):
    raise
  except BaseException as error:  # A panic of the library is no Exception.
    reason = ' '.join(str(error).split())
    raise ValueError(
      f'{refusal} ({reason}); {hf_files.download(folder)}'
    ) from error


def _from_tokenizer_json(path: pathlib.Path) -> tokenizers.Tokenizer:
  with _refusing(path.parent, f'path = {str(path)!r}: must be a tokenizer'):
    backend = tokenizers.Tokenizer.from_file(str(path))
  # Some published files have the limits of training.
  backend.no_truncation()
  backend.no_padding()
  return backend


def _from_vocab_and_merges(
  folder: pathlib.Path,
  config: Mapping[str, Any],
  added: Sequence[tuple[int, Mapping[str, Any]]],
) -> tokenizers.Tokenizer:
  names = ('vocab.json', 'merges.txt', 'tokenizer_config.json')
  missing = [name for name in names if not (folder / name).is_file()]
  if missing:
    raise ValueError(
      f'folder = {str(folder)!r}: must have tokenizer.json or '
      f'{", ".join(missing)}; {hf_files.download(folder)}'
    )
  if config.get('tokenizer_class') not in QWEN_CLASSES:
    raise ValueError(
      f'tokenizer_class = {config.get("tokenizer_class")!r}: must be '
      f'{" or ".join(QWEN_CLASSES)} without tokenizer.json, in {folder}'
    )
  with _refusing(
    folder,
    f'folder = {str(folder)!r}: must have a vocab.json and a merges.txt that '
    'fit',
  ):
    model = models.BPE.from_file(
      str(folder / 'vocab.json'), str(folder / 'merges.txt')
    )
  # The library takes an empty file for a tokenizer that merges nothing.
  if not (folder / 'merges.txt').read_bytes().strip():
    raise ValueError(
      f'path = {str(folder / "merges.txt")!r}: must have merges (it is empty); '
      f'{hf_files.download(folder)}'
    )
  backend = tokenizers.Tokenizer(model)
  backend.normalizer = normalizers.NFC()
  backend.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(QWEN_SPLIT), behavior='isolated'),
      pre_tokenizers.ByteLevel(
        add_prefix_space=_flag(folder, config, 'add_prefix_space') is True,
        use_regex=False,
      ),
    ]
  )
  backend.decoder = decoders.ByteLevel()
  # The backend numbers the tokens in this order.
  for _, token in added:
    try:
      backend.add_tokens([tokenizers.AddedToken(**token)])
    except TypeError as error:
      raise ValueError(
        f'added_tokens_decoder = {constants.shown(token)}: must describe a '
        f'token ({error}), in {folder}/tokenizer_config.json'
      ) from error
  return backend


def _added_tokens(
  folder: pathlib.Path, config: Mapping[str, Any]
) -> list[tuple[int, dict[str, Any]]]:
  """Returns id and description of each added token, by id."""
  entries = config.get('added_tokens_decoder')
  entries = {} if entries is None else entries
  if not isinstance(entries, dict):
    entries = {'': entries}
  for key, token in entries.items():
    if not (
      _ID.fullmatch(key)
      and isinstance(token, dict)
      and isinstance(token.get('content'), str)
    ):
      raise ValueError(
        f'added_tokens_decoder = {constants.shown({key: token})}: must have '
        'the id and the content of each token, in '
        f'{folder}/tokenizer_config.json'
      )
  return sorted(
    ((int(key), token) for key, token in entries.items()),
    key=lambda pair: pair[0],
  )


def _check_vocabulary(
  folder: pathlib.Path,
  backend: tokenizers.Tokenizer,
  added: Sequence[tuple[int, Mapping[str, Any]]],
) -> None:
  if not backend.get_vocab_size(with_added_tokens=True):
    raise ValueError(
      f'folder = {str(folder)!r}: must have a tokenizer with tokens; '
      f'{hf_files.download(folder)}'
    )
  # The backend would cut up a token that is missing or has moved, in silence.
  for number, token in added:
    known = backend.token_to_id(token['content'])
    if known != number:
      raise ValueError(
        f'id of {token["content"]!r} = {known}: must be {number}, as in '
        f'{folder}/tokenizer_config.json'
      )


def _eos_ids(
  folder: pathlib.Path,
  backend: tokenizers.Tokenizer,
  named_tokens: Mapping[str, str],
) -> tuple[int, ...]:
  if eos_ids := _eos_ids_in(folder, backend, 'generation_config.json'):
    return eos_ids
  eos_ids = _eos_ids_in(folder, backend, hf_files.CONFIG)
  if (content := named_tokens.get('eos_token')) is not None:
    eos_ids += (_id(folder, backend, 'eos', content),)
  if not eos_ids:
    raise ValueError(
      f'folder = {str(folder)!r}: must have `eos_token_id` in '
      f'generation_config.json or {hf_files.CONFIG}, or `eos_token` in '
      f'tokenizer_config.json; {hf_files.download(folder)}'
    )
  return tuple(dict.fromkeys(eos_ids))


def _eos_ids_in(
  folder: pathlib.Path, backend: tokenizers.Tokenizer, name: str
) -> tuple[int, ...]:
  """Returns the `eos_token_id` of a file; () if it has none."""
  eos = _read_config(folder, name).get('eos_token_id')
  if eos is None:
    return ()
  known = backend.get_vocab(with_added_tokens=True).values()
  eos_ids = eos if isinstance(eos, list) else [eos]
  # In Python, True is the token 1.
  if not eos_ids or any(type(i) is not int or i not in known for i in eos_ids):
    raise ValueError(
      f'eos_token_id = {constants.shown(eos)}: must be one or more ids of the '
      f'vocabulary, in {folder}/{name}'
    )
  return tuple(eos_ids)


def _bos_ids(
  folder: pathlib.Path,
  backend: tokenizers.Tokenizer,
  config: Mapping[str, Any],
  named_tokens: Mapping[str, str],
) -> tuple[int, ...]:
  adds_bos = _flag(folder, config, 'add_bos_token')
  if adds_bos is None:
    with _refusing(
      folder, f"folder = {str(folder)!r}: must have a tokenizer that reads 'a'"
    ):
      encoding = backend.encode('a', add_special_tokens=True)
      # The token of the text; what comes before it was added.
      first = encoding.special_tokens_mask.index(0)
    return tuple(encoding.ids[:first])
  if not adds_bos:
    return ()
  if 'bos_token' not in named_tokens:
    raise ValueError(
      'bos_token = None: must be given where add_bos_token is true, in '
      f'{folder}/tokenizer_config.json'
    )
  return (_id(folder, backend, 'bos', named_tokens['bos_token']),)


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


def _named_token(
  folder: pathlib.Path, config: Mapping[str, Any], name: str
) -> str | None:
  token = config.get(name)
  # In older files, a token is an object.
  content = token.get('content') if isinstance(token, dict) else token
  if token is not None and not isinstance(content, str):
    raise ValueError(
      f'{name} = {constants.shown(token)}: must be a text, in '
      f'{folder}/tokenizer_config.json'
    )
  return content


def _flag(
  folder: pathlib.Path, config: Mapping[str, Any], name: str
) -> bool | None:
  value = config.get(name)
  if value is not None and not isinstance(value, bool):
    raise ValueError(
      f'{name} = {constants.shown(value)}: must be true or false, in '
      f'{folder}/tokenizer_config.json'
    )
  return value


def _read_config(folder: pathlib.Path, name: str) -> Mapping[str, Any]:
  advice = hf_files.download(folder)
  return json_files.read_object_if_there(folder / name, advice=advice) or {}
