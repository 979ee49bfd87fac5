"""Tests for `replay_rl.lm.hf.config`."""

import dataclasses
import json
import math
import pathlib

from absl.testing import parameterized

from replay_rl.lm import architecture
from replay_rl.lm.hf import config as hf_config

_LLAMA3_SCALING = {
  'rope_type': 'llama3',
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 32,
}
_QWEN3 = {
  'architectures': ['Qwen3ForCausalLM'],
  'model_type': 'qwen3',
  'vocab_size': 31,
  'hidden_size': 40,
  'num_hidden_layers': 3,
  'num_attention_heads': 6,
  'num_key_value_heads': 2,
  'head_dim': 14,
  'intermediate_size': 52,
  'hidden_act': 'silu',
  'rms_norm_eps': 1e-6,
  'rope_theta': 1000000,
  'rope_scaling': None,
  'tie_word_embeddings': True,
  'max_position_embeddings': 64,
  'sliding_window': 16,
  'use_sliding_window': False,
  'attention_bias': False,
}
_OTHER = {'hidden_size': 42, 'head_dim': None}
_QWEN2 = {
  **_QWEN3,
  **_OTHER,
  'architectures': ['Qwen2ForCausalLM'],
  'model_type': 'qwen2',
}
_LLAMA = {
  **_QWEN3,
  **_OTHER,
  'architectures': ['LlamaForCausalLM'],
  'model_type': 'llama',
}
_EXPECTED = architecture.TransformerConfig(
  vocab_size=31,
  d_model=40,
  num_layers=3,
  num_heads=6,
  num_kv_heads=2,
  head_dim=14,
  d_ff=52,
  rope_theta=1e6,
  rope_scaling=None,
  norm_eps=1e-6,
  qk_norm=True,
  qkv_bias=False,
  tied_embeddings=True,
  max_context=48,
  compute_dtype='float32',
)
# 42 channels of 6 heads would make heads of 7: RoPE needs an even number.
_EXPECTED_LLAMA = dataclasses.replace(
  _EXPECTED, d_model=48, head_dim=8, qk_norm=False
)


def _scaled(**changes):
  return {'rope_scaling': {**_LLAMA3_SCALING, **changes}}


def _read(numbers, **changes):
  numbers = {**numbers, **changes}
  return hf_config.config_from_numbers(
    {name: value for name, value in numbers.items() if value != 'absent'},
    max_context=48,
    compute_dtype='float32',
  )


class ReadTest(parameterized.TestCase):
  def test_each_family_sets_what_it_implies(self):
    self.assertEqual(_read(_QWEN3), _EXPECTED)
    self.assertEqual(_read(_LLAMA, hidden_size=48), _EXPECTED_LLAMA)
    self.assertEqual(
      _read(_QWEN2, hidden_size=48),
      dataclasses.replace(_EXPECTED_LLAMA, qkv_bias=True),
    )

  def test_either_name_of_the_family_is_enough(self):
    self.assertEqual(_read(_QWEN3, architectures='absent'), _EXPECTED)
    self.assertEqual(_read(_QWEN3, model_type='absent'), _EXPECTED)

  def test_layers_may_be_listed_if_all_attend_to_everything(self):
    kinds = ['full_attention'] * 3
    self.assertEqual(_read(_QWEN3, layer_types=kinds), _EXPECTED)
    self.assertEqual(_read(_QWEN3, layer_types=None), _EXPECTED)

  def test_heads_may_be_wider_than_the_stream_in_every_family(self):
    for numbers in (_LLAMA, _QWEN2):
      self.assertEqual(_read(numbers, head_dim=14).head_dim, 14)
      self.assertEqual(
        _read(numbers, head_dim='absent', hidden_size=48).head_dim, 8
      )

  @parameterized.parameters('absent', None, False)
  def test_embeddings_are_untied_unless_it_is_said(self, value):
    for numbers in (_QWEN3, {**_LLAMA, 'hidden_size': 48}):
      config = _read(numbers, tie_word_embeddings=value)
      self.assertFalse(config.tied_embeddings)

  @parameterized.parameters(
    {'rope_theta': 5e5, **_scaled()},
    {
      'rope_theta': 'absent',
      'rope_parameters': {**_LLAMA3_SCALING, 'rope_theta': 5e5},
    },
    {'rope_theta': 5e5, 'rope_parameters': _LLAMA3_SCALING},
    {
      'rope_theta': 5e5,
      'rope_parameters': {**_LLAMA3_SCALING, 'rope_theta': 5e5},
      'partial_rotary_factor': 1.0,
    },
    {'rope_theta': 5e5, **_scaled(rope_type=None, type='llama3')},
  )
  def test_the_scaling_of_llama_3_may_be_written_in_several_ways(self, **rope):
    self.assertEqual(
      _read(_LLAMA, hidden_size=48, **rope),
      dataclasses.replace(
        _EXPECTED_LLAMA,
        rope_theta=5e5,
        rope_scaling=architecture.RopeScaling(8.0, 1.0, 4.0, 32),
      ),
    )

  @parameterized.parameters(
    {'rope_parameters': {'rope_theta': 7.0, 'rope_type': 'default'}},
    {'rope_parameters': {'rope_theta': 7.0}},
    {'rope_scaling': {'rope_theta': 7.0, 'type': 'default'}},
  )
  def test_the_plain_rope_may_be_written_in_several_ways(self, **rope):
    config = _read(_QWEN3, rope_theta='absent', **rope)
    self.assertEqual(config, dataclasses.replace(_EXPECTED, rope_theta=7.0))

  def test_qwen2_has_biases_whatever_the_field_says(self):
    for value in (True, False, 'q,k,v only'):
      config = _read(_QWEN2, hidden_size=48, attention_bias=value)
      self.assertTrue(config.qkv_bias)

  @parameterized.parameters(
    ({'architectures': ['MistralForCausalLM']}, r"architectures = \['Mistral"),
    ({'model_type': 'qwen2'}, "model_type = 'qwen2': must be one of Qwen3For"),
    ({'architectures': [], 'model_type': None}, r'architectures = \[\]'),
    ({'use_sliding_window': True}, 'use_sliding_window = True: must be False'),
    (
      {'layer_types': ['full_attention', 'sliding_attention']},
      r"layer_types = \['full_attention', 'sliding_attention'\]: must all",
    ),
    ({'attention_bias': True}, 'attention_bias = True: must be False'),
    ({'mlp_bias': True}, 'mlp_bias = True: must be False'),
    ({'tie_word_embeddings': 1}, 'tie_word_embeddings = 1: must be False or'),
    ({'hidden_act': 'gelu'}, "hidden_act = 'gelu': must be 'silu'"),
    ({'hidden_act': 'absent'}, "hidden_act = None: must be 'silu'"),
    (
      {'quantization_config': {'bits': 4}},
      "quantization_config = {'bits': 4}: must",
    ),
    (
      {'max_position_embeddings': 47},
      'max_context = 48: must be at most max_p',
    ),
    ({'max_position_embeddings': None}, 'max_position_embeddings = None: must'),
    ({'max_position_embeddings': 0}, 'max_position_embeddings = 0: must be'),
    ({'vocab_size': 'absent'}, 'vocab_size = None: must be given'),
    ({'vocab_size': 0}, 'vocab_size = 0: must be positive'),
    ({'vocab_size': 31.0}, 'vocab_size = 31.0: must be a positive int'),
    ({'num_hidden_layers': True}, 'num_hidden_layers = True: must be a'),
    ({'rms_norm_eps': '1e-6'}, "rms_norm_eps = '1e-6': must be a pos"),
    ({'layer_types': 3}, "layer_types = 3: must all be 'full_attention'"),
    ({'architectures': {}}, r'architectures = \{\}, model_type'),
    ({'rope_scaling': {'rope_type': [1]}}, r"rope_type = \['\[1\]'\]: must"),
    ({'rope_scaling': {'rope_type': 3, 'type': 'a'}}, r"= \['3', 'a'\]: must"),
    ({'rope_theta': math.inf}, 'rope_theta = inf: must fit a 32-bit float'),
    ({'rope_theta': 10**400}, 'rope_theta = <int of .* must fit a 32-bit'),
    ({'rms_norm_eps': 1e-300}, 'rms_norm_eps = 1e-300: must fit a 32-bit'),
    ({'hidden_size': 2**31}, 'hidden_size = 2147483648: must fit a 32-bit int'),
    # 48 / 6 would do for the other families.
    ({'head_dim': 'absent', 'hidden_size': 48}, 'head_dim = None: must be g'),
    ({'head_dim': 7}, 'head_dim = 7: must be even'),
    ({'num_key_value_heads': 4}, 'num_heads = 6: must be a multiple of n'),
    ({'rope_theta': 'absent'}, 'rope_theta = None: must be given'),
    (
      {'rope_parameters': {'rope_theta': 3.0}},
      'rope_theta = 1000000: must be 3.0',
    ),
    ({'rope_scaling': 'yarn'}, "rope_scaling = 'yarn': must be one"),
    (
      {'rope_scaling': {'type': 'default'}, 'rope_parameters': {'a': 1}},
      r"rope_parameters = \{'a': 1\}, rope_scaling = \{'type': 'default'\}",
    ),
    (
      {'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}},
      r"rope_type = \['yarn'\]: must be 'default' or 'llama3'",
    ),
    (
      {'rope_scaling': {'type': 'linear'}},
      r"rope_type = \['linear'\]: must be",
    ),
    (_scaled(type='dynamic'), r"rope_type = \['dynamic', 'llama3'\]"),
    ({'partial_rotary_factor': 0.5}, 'partial_rotary_factor = 0.5: must be 1'),
    ({'rope_scaling': {'factor': 2}}, r"rope fields = \['factor'\]: must"),
    (_scaled(beta=2), r"rope fields = \['beta'\]: must be of \['factor'"),
    (_scaled(factor=None), 'factor = None: must be given'),
    (_scaled(factor=0.5), 'factor = 0.5: must be at least 1'),
    (
      _scaled(low_freq_factor=4.0),
      'low_freq_factor = 4.0: must be below high_freq_factor = 4.0',
    ),
    (
      {**_scaled(), 'original_max_position_embeddings': 33},
      'original_max_position_embeddings = 33: must be 32, as in the rope',
    ),
  )
  def test_what_the_model_cannot_do_is_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _read(_QWEN3, **changes)

  def test_all_that_is_wrong_is_listed_at_once(self):
    with self.assertRaises(ValueError) as caught:
      _read(
        _LLAMA,
        hidden_size=43,
        vocab_size='absent',
        mlp_bias=True,
        hidden_act='gelu',
        max_position_embeddings=8,
        rope_scaling={'rope_type': 'yarn'},
      )
    for part in (
      'head_dim = None: must be given, as hidden_size = 43 is not',
      'vocab_size = None',
      'mlp_bias = True',
      "hidden_act = 'gelu'",
      'max_context = 48: must be at most max_position_embeddings = 8',
      "rope_type = ['yarn']",
    ):
      self.assertIn(part, str(caught.exception))
    self.assertEqual(str(caught.exception).count('; '), 5)

  def test_a_file_is_read_and_named_if_it_is_wrong(self):
    folder = pathlib.Path(self.create_tempdir().full_path)

    def read():
      return hf_config.read_config(
        folder, max_context=48, compute_dtype='float32'
      )

    with self.assertRaisesRegex(ValueError, "config.json': .*No such file"):
      read()
    for text, message in (
      ('{', r"config.json': must .* \(Expecting"),
      ('[1]', r'must be a JSON object \(it holds \[1\]\); hf download'),
      ('[' * 100_000, 'must be a JSON object .* too deeply.; hf download'),
      ('', 'must be a JSON object .it is empty.; hf download'),
      ('{}', r"config.json': .*\(architectures = .*vocab_size = None"),
    ):
      (folder / 'config.json').write_text(text)
      with self.assertRaisesRegex(ValueError, message):
        read()
    (folder / 'config.json').write_text(json.dumps(_QWEN3))
    self.assertEqual(read(), _EXPECTED)


class WriteTest(parameterized.TestCase):
  @parameterized.parameters(
    {},
    {'qk_norm': False, 'qkv_bias': True, 'tied_embeddings': False},
    {
      'qk_norm': False,
      'd_model': 48,
      'rope_scaling': architecture.RopeScaling(8.0, 1.0, 4.0, 32),
    },
  )
  def test_what_is_written_is_read_as_the_same(self, **changes):
    config = dataclasses.replace(_EXPECTED, **changes)
    numbers = self._write(config)
    self.assertEqual(_read(json.loads(json.dumps(numbers))), config)
    self.assertEqual(numbers['bos_token_id'], None)
    self.assertEqual(numbers['eos_token_id'], 5)
    self.assertEqual(numbers['torch_dtype'], 'bfloat16')
    self.assertEqual(numbers['max_position_embeddings'], 48)
    several = self._write(config, bos_id=0, eos_ids=(5, 30))
    self.assertEqual(several['eos_token_id'], [5, 30])
    self.assertEqual(several['bos_token_id'], 0)

  @parameterized.parameters(
    ({'qkv_bias': True}, {}, 'qk_norm = True, qkv_bias = True: must not'),
    (
      {'qk_norm': False},
      {},
      'd_model = 40: must be a multiple of num_heads = 6',
    ),
    (
      {},
      {'max_position_embeddings': 47},
      ' = 47: must be at least max_context = 48',
    ),
    ({}, {'eos_ids': ()}, r'eos_ids = \(\): must be in'),
    ({}, {'eos_ids': (1, 31)}, r'eos_ids = \(1, 31\): must be in \[0, 31\)'),
    ({}, {'bos_id': -1}, r'bos_id = -1, eos_ids = \(5,\): must be in'),
  )
  def test_what_transformers_would_not_load_is_named(
    self, changes, arguments, message
  ):
    config = dataclasses.replace(_EXPECTED, **changes)
    with self.assertRaisesRegex(ValueError, message):
      self._write(config, **arguments)

  def _write(self, config, **arguments):
    return hf_config.numbers_of(
      config,
      **{
        'max_position_embeddings': 48,
        'bos_id': None,
        'eos_ids': (5,),
        'dtype': 'bfloat16',
        **arguments,
      },
    )
