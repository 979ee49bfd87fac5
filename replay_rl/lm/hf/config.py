"""Reads and writes the `config.json` of a Hugging Face checkpoint.

The functions refuse a model that ours would not run exactly as transformers
does.
"""

import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from replay_rl import constants
from replay_rl import json_files
from replay_rl.lm import architecture
from replay_rl.lm.hf import files as hf_files


class Family(NamedTuple):
  """Names of an architecture in config.json, and the fields it implies."""

  model_type: str
  architecture: str
  qk_norm: bool
  qkv_bias: bool


_QWEN2 = Family('qwen2', 'Qwen2ForCausalLM', qk_norm=False, qkv_bias=True)
_LLAMA = Family('llama', 'LlamaForCausalLM', qk_norm=False, qkv_bias=False)
_QWEN3 = Family('qwen3', 'Qwen3ForCausalLM', qk_norm=True, qkv_bias=False)
FAMILIES = (_QWEN3, _QWEN2, _LLAMA)

# Our field -> theirs, positive integers. None has a default, since no published
# model has the defaults of transformers.
_SIZES = {
  'vocab_size': 'vocab_size',
  'd_model': 'hidden_size',
  'num_layers': 'num_hidden_layers',
  'num_heads': 'num_attention_heads',
  'num_kv_heads': 'num_key_value_heads',
  'd_ff': 'intermediate_size',
}
# Field of `RopeScaling` -> theirs.
_SCALING = {
  'factor': 'factor',
  'low_freq_factor': 'low_freq_factor',
  'high_freq_factor': 'high_freq_factor',
  'original_max_context': 'original_max_position_embeddings',
}
_ROPE_FIELDS = {'rope_type', 'type', 'rope_theta', 'partial_rotary_factor'}


def read_config(
  folder: pathlib.Path, *, max_context: int, compute_dtype: str
) -> architecture.TransformerConfig:
  """Returns the architecture that the `config.json` of a folder describes.

  Arguments and errors are those of `config_from_numbers`. A file that is absent
  or not a JSON object is a ValueError too.
  """
  path = pathlib.Path(folder) / hf_files.CONFIG
  numbers = json_files.read_object(path, advice=hf_files.download(folder))
  try:
    return config_from_numbers(
      numbers, max_context=max_context, compute_dtype=compute_dtype
    )
  except ValueError as error:
    raise ValueError(
      f'path = {str(path)!r}: must describe a supported model ({error})'
    ) from error


def config_from_numbers(
  numbers: Mapping[str, Any], *, max_context: int, compute_dtype: str
) -> architecture.TransformerConfig:
  """Returns the architecture that the fields of a `config.json` describe.

  There are two ways to write RoPE: `rope_theta` with `rope_scaling`, and
  `rope_parameters` (transformers 5). An absent field has the default of
  transformers, if all versions have the same.

  Args:
    numbers: the fields. Fields that do not belong to the architecture, such as
      `transformers_version`, are ignored.
    max_context: tokens of prompt and response that the caller needs.
    compute_dtype: 'float32' or 'bfloat16'.

  Raises:
    ValueError: lists all fields that are missing, unknown, or describe a model
      that ours is not.
  """
  problems = []
  family = _read_family(numbers, problems)
  fields: dict[str, Any] = {
    ours: _positive(numbers, theirs, int, problems)
    for ours, theirs in _SIZES.items()
  }
  fields['head_dim'] = _read_head_dim(numbers, family, problems)
  fields['norm_eps'] = _positive(numbers, 'rms_norm_eps', float, problems)
  fields['rope_theta'], fields['rope_scaling'] = _read_rope(numbers, problems)
  # Without this field, all three families leave the embeddings untied, unlike
  # the base class of transformers 4.
  fields['tied_embeddings'] = _switch(
    numbers, 'tie_word_embeddings', (False, True), problems
  )
  for name in ('use_sliding_window', 'mlp_bias', 'attention_bias'):
    # Qwen2 has biases in any case.
    if name != 'attention_bias' or family is not _QWEN2:
      _switch(numbers, name, (False,), problems)
  kinds = numbers.get('layer_types') or []
  if not isinstance(kinds, list) or any(
    kind != 'full_attention' for kind in kinds
  ):
    problems.append(
      f"layer_types = {constants.shown(kinds)}: must all be 'full_attention'"
    )
  if numbers.get('hidden_act') != 'silu':
    problems.append(
      f"hidden_act = {numbers.get('hidden_act')!r}: must be 'silu'"
    )
  if (quantization := numbers.get('quantization_config')) is not None:
    problems.append(f'quantization_config = {quantization!r}: must be absent')
  longest = _positive(numbers, 'max_position_embeddings', int, problems)
  if longest is not None and max_context > longest:
    problems.append(
      f'max_context = {max_context}: must be at most max_position_embeddings = '
      f'{longest}'
    )
  if not problems and family is not None:
    try:
      return architecture.TransformerConfig(
        qk_norm=family.qk_norm,
        qkv_bias=family.qkv_bias,
        max_context=max_context,
        compute_dtype=compute_dtype,
        **fields,
      )
    except ValueError as error:
      problems.append(str(error))
  raise ValueError('; '.join(problems))


def family_of(config: architecture.TransformerConfig) -> Family:
  """Returns the family of an architecture.

  Raises:
    ValueError: no family has it, or transformers would refuse it.
  """
  for family in FAMILIES:
    if family[2:] == (config.qk_norm, config.qkv_bias):
      break
  else:
    raise ValueError(
      f'qk_norm = {config.qk_norm}, qkv_bias = {config.qkv_bias}: must '
      'not both be True, as no family has both'
    )
  if family is _LLAMA and config.d_model % config.num_heads:
    raise ValueError(
      f'd_model = {config.d_model}: must be a multiple of num_heads = '
      f'{config.num_heads} for {_LLAMA.architecture}'
    )
  return family


def numbers_of(
  config: architecture.TransformerConfig,
  *,
  max_position_embeddings: int,
  bos_id: int | None,
  eos_ids: Sequence[int],
  dtype: str,
) -> dict[str, Any]:
  """Returns the fields of a `config.json`, the inverse of
  `config_from_numbers`.

  RoPE has the older form, which transformers 4 and 5 both read.

  Args:
    config: architecture.
    max_position_embeddings: longest context that the weights were trained for,
      at least `config.max_context`.
    bos_id: token that begins a text; None for none.
    eos_ids: tokens that end a text; at least one.
    dtype: type of the stored weights.

  Raises:
    ValueError: as `family_of`, or an argument is not as above.
  """
  family = family_of(config)
  if max_position_embeddings < config.max_context:
    raise ValueError(
      f'max_position_embeddings = {max_position_embeddings}: must be at least '
      f'max_context = {config.max_context}'
    )
  ids = [*eos_ids] if bos_id is None else [bos_id, *eos_ids]
  if not eos_ids or not all(0 <= token < config.vocab_size for token in ids):
    raise ValueError(
      f'bos_id = {bos_id}, eos_ids = {tuple(eos_ids)}: must be in '
      f'[0, {config.vocab_size}), with at least one of eos_ids'
    )
  scaling = config.rope_scaling
  return {
    'architectures': [family.architecture],
    'model_type': family.model_type,
    **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
    'head_dim': config.head_dim,
    'hidden_act': 'silu',
    'rms_norm_eps': config.norm_eps,
    'rope_theta': config.rope_theta,
    'rope_scaling': None
    if scaling is None
    else {
      'rope_type': 'llama3',
      **{theirs: getattr(scaling, ours) for ours, theirs in _SCALING.items()},
    },
    'tie_word_embeddings': config.tied_embeddings,
    'max_position_embeddings': max_position_embeddings,
    'bos_token_id': bos_id,
    'eos_token_id': eos_ids[0] if len(eos_ids) == 1 else list(eos_ids),
    'torch_dtype': dtype,
    'use_cache': True,
  }


def _read_family(
  numbers: Mapping[str, Any], problems: list[str]
) -> Family | None:
  names = numbers.get('architectures')
  names = [] if names is None else names
  model_type = numbers.get('model_type')
  matches = [
    family
    for family in FAMILIES
    if names in ([], [family.architecture])
    and model_type in (None, family.model_type)
  ]
  if len(matches) == 1:
    return matches[0]
  supported = ', '.join(f'{f.architecture} ({f.model_type})' for f in FAMILIES)
  problems.append(
    f'architectures = {names!r}, model_type = {model_type!r}: must be one of '
    f'{supported}'
  )
  return None


def _positive(
  numbers: Mapping[str, Any],
  name: str,
  kind: type[int] | type[float],
  problems: list[str],
) -> Any:
  """Returns a field that must be a positive number; None if it is not."""
  value = numbers.get(name)
  kinds = int if kind is int else (int, float)
  shown = constants.shown(value)
  if value is None:
    problems.append(f'{name} = None: must be given')
  elif isinstance(value, bool) or not isinstance(value, kinds):
    problems.append(f'{name} = {shown}: must be a positive {kind.__name__}')
  elif not value > 0:
    problems.append(f'{name} = {shown}: must be positive')
  elif not _fits_32_bits(value, kind):
    problems.append(f'{name} = {shown}: must fit a 32-bit {kind.__name__}')
  else:
    return kind(value)
  return None


def _fits_32_bits(value: int | float, kind: type[int] | type[float]) -> bool:
  """Returns whether a positive number is neither rounded to 0 nor too large."""
  if isinstance(value, int) and value.bit_length() > 64:
    return False  # Numpy would not convert it.
  return value < 2**31 if kind is int else value in constants.POSITIVE


def _switch(
  numbers: Mapping[str, Any],
  name: str,
  allowed: Sequence[bool],
  problems: list[str],
) -> bool:
  """Returns a field that is False where absent; `allowed` values only."""
  value = numbers.get(name)
  value = False if value is None else value
  if not any(value is choice for choice in allowed):
    problems.append(
      f'{name} = {value!r}: must be ' + ' or '.join(map(str, allowed))
    )
  return bool(value)


def _read_head_dim(
  numbers: Mapping[str, Any], family: Family | None, problems: list[str]
) -> int | None:
  if numbers.get('head_dim') is not None or family is _QWEN3:
    return _positive(numbers, 'head_dim', int, problems)
  width, heads = numbers.get('hidden_size'), numbers.get('num_attention_heads')
  if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
    return None  # `_SIZES` has these two, so they are among the problems.
  if width % heads:
    problems.append(
      f'head_dim = None: must be given, as hidden_size = {width} is not a '
      f'multiple of num_attention_heads = {heads}'
    )
  return width // heads


def _read_rope(
  numbers: Mapping[str, Any], problems: list[str]
) -> tuple[float | None, architecture.RopeScaling | None]:
  """Returns theta, and the scaling if there is one."""
  given = [
    numbers[name]
    for name in ('rope_parameters', 'rope_scaling')
    if numbers.get(name)
  ]
  rope = given[0] if given else {}
  if not isinstance(rope, Mapping) or any(other != rope for other in given):
    problems.append(
      f'rope_parameters = {numbers.get("rope_parameters")!r}, rope_scaling = '
      f'{numbers.get("rope_scaling")!r}: must be one and the same mapping'
    )
    return None, None

  # Both places may have these fields; transformers changed which one it reads.
  both = dict(rope)
  for name in (
    'rope_theta',
    'partial_rotary_factor',
    _SCALING['original_max_context'],
  ):
    outer, inner = numbers.get(name), rope.get(name)
    if None not in (outer, inner) and outer != inner:
      problems.append(f'{name} = {outer!r}: must be {inner!r}, as in the rope')
    both[name] = outer if inner is None else inner
  theta = _positive(both, 'rope_theta', float, problems)
  if both['partial_rotary_factor'] not in (None, 1):
    problems.append(
      f'partial_rotary_factor = {both["partial_rotary_factor"]!r}: must be 1'
    )
  types = {str(rope[name]) for name in ('rope_type', 'type') if rope.get(name)}
  known = set(_ROPE_FIELDS)
  scaling = None
  if types == {'llama3'}:
    known |= set(_SCALING.values())
    scaling = _read_scaling(both, problems)
  elif types - {'default'}:
    problems.append(
      f"rope_type = {sorted(types)}: must be 'default' or 'llama3'"
    )
    return theta, None
  if unknown := sorted(set(rope) - known):
    problems.append(f'rope fields = {unknown}: must be of {sorted(known)}')
  return theta, scaling


def _read_scaling(
  rope: Mapping[str, Any], problems: list[str]
) -> architecture.RopeScaling | None:
  count = len(problems)
  kinds = {'original_max_context': int}
  fields = {
    ours: _positive(rope, theirs, kinds.get(ours, float), problems)
    for ours, theirs in _SCALING.items()
  }
  if len(problems) > count:
    return None
  scaling = architecture.RopeScaling(**fields)
  if not scaling.low_freq_factor < scaling.high_freq_factor:
    problems.append(
      f'low_freq_factor = {scaling.low_freq_factor}: must be below '
      f'high_freq_factor = {scaling.high_freq_factor}'
    )
  if scaling.factor < 1:
    problems.append(f'factor = {scaling.factor}: must be at least 1')
  return scaling
