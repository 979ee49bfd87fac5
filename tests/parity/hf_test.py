"""Our model against transformers, on the same weights.

Needs torch and transformers: pip install -e '.[test,parity]'.
"""

import atexit
import dataclasses
import functools
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from absl.testing import parameterized
from transformers.models.llama import modeling_llama as llama

from replay_rl import base
from replay_rl.lm import families
from replay_rl.lm import layers
from replay_rl.lm import model
from replay_rl.lm import rope
from replay_rl.lm import sampler
from replay_rl.lm import scoring
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.lm.hf import config as hf_config

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # Tiny models: threads would only wait.

_V, _CONTEXT, _ORIGINAL = 151, 128, 24
_SIZES = {
  'vocab_size': _V,
  'hidden_size': 42,
  'num_hidden_layers': 3,
  'num_attention_heads': 6,
  'num_key_value_heads': 2,
  'head_dim': 14,
  'intermediate_size': 52,
  'max_position_embeddings': _CONTEXT,
  'rms_norm_eps': 1e-5,
  'bos_token_id': 0,
  'eos_token_id': 1,
  'pad_token_id': 0,
}
_QWEN3 = (transformers.Qwen3Config, {'hidden_size': 40})
_QWEN2 = (transformers.Qwen2Config, {'hidden_size': 40})
# Deeper than `layers.UNROLL_LIMIT`: runs as a scan. Heads of the usual size.
_DEEP = (
  transformers.Qwen2Config,
  {'hidden_size': 36, 'head_dim': None, 'num_hidden_layers': 10},
)
_LLAMA = (transformers.LlamaConfig, {})
_LLAMA3 = (
  transformers.LlamaConfig,
  {
    'rope_parameters': {
      'rope_type': 'llama3',
      'rope_theta': 1000.0,
      'factor': 8.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      'original_max_position_embeddings': _ORIGINAL,
    }
  },
)
_PLAIN_ROPE = {'rope_type': 'default', 'rope_theta': 1000.0}
_FAMILIES = {
  'qwen3': _QWEN3,
  'qwen2': _QWEN2,
  'qwen2_deep': _DEEP,
  'llama': _LLAMA,
  'llama3': _LLAMA3,
}
_VARIANTS = tuple(
  (f'{name}_{"tied" if is_tied else "untied"}', name, is_tied)
  for name in _FAMILIES
  for is_tied in (True, False)
)


def _random_model(name, is_tied):
  """Returns a model whose biases and norms are random too."""
  config_class, changes = _FAMILIES[name]
  fields = {'rope_parameters': dict(_PLAIN_ROPE), **_SIZES, **changes}
  fields = {key: value for key, value in fields.items() if value is not None}
  config = config_class(tie_word_embeddings=is_tied, **fields)
  torch.manual_seed(0)
  theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
  rng = torch.Generator().manual_seed(1)
  with torch.no_grad():
    for parameter in theirs.parameters():
      noise = torch.randn(parameter.shape, generator=rng)
      # Weights keep the scale of activations; norms vary around 1.
      if parameter.ndim == 2:
        parameter.copy_(noise * parameter.shape[1] ** -0.5)
      else:
        parameter.add_(0.3 * noise)
  return theirs


@functools.cache
def _folder(name, is_tied, dtype=torch.float32):
  folder = pathlib.Path(tempfile.mkdtemp()) / name
  atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
  _random_model(name, is_tied).to(dtype).save_pretrained(folder)
  return folder


def _load_theirs(folder, dtype=torch.float32):
  return transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=dtype
  ).eval()


@functools.cache
def _load_ours(name, is_tied):
  return _import(_folder(name, is_tied), 'float32')


def _import(folder, compute_dtype):
  config = hf_config.read_config(
    folder, max_context=_CONTEXT, compute_dtype=compute_dtype
  )
  return config, _graphdef(config), hf.load(folder, config)


def _graphdef(config):
  init = functools.partial(model.init, config)
  return jax.eval_shape(init, jax.random.key(0))[0]


_apply = jax.jit(model.apply, static_argnums=0)
_score = jax.jit(
  functools.partial(scoring.token_logprobs, chunk_size=None, remat=False),
  static_argnums=0,
  static_argnames='temperature',
)


def _tokens_and_mask(columns, lengths, side):
  rng = np.random.default_rng(2)
  tokens = rng.integers(2, _V, (len(lengths), columns)).astype(np.int32)
  index = np.arange(columns)[None]
  if side == 'left':
    index = index[:, ::-1]
  return tokens, index < np.array(lengths)[:, None]


def _their_logits(theirs, tokens, mask):
  # As `generate` does: positions count the tokens that are not padding.
  positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
  with torch.no_grad():
    logits = theirs(
      input_ids=torch.tensor(tokens, dtype=torch.long),
      attention_mask=torch.tensor(mask.astype(np.int64)),
      position_ids=torch.tensor(positions, dtype=torch.long),
    ).logits
  return logits.float().numpy()


def _relative_difference(ours, theirs, mask):
  ours, theirs = np.asarray(ours)[mask], theirs[mask]
  return np.abs(ours - theirs).max() / np.abs(theirs).max()


def _generate(config, graphdef, params, prompts, *, num_tokens, temperature):
  return sampler.generate(
    graphdef,
    params,
    jax.random.key(0),
    prompts,
    prompts.prompt_id,
    max_new_tokens=num_tokens,
    eos_ids=(1,),
    pad_id=0,
    temperature=temperature,
    top_k=None,
    top_p=None,
  )


class ParityTest(parameterized.TestCase):
  @parameterized.named_parameters(*_VARIANTS)
  def test_logits_are_those_of_transformers(self, name, is_tied):
    config, graphdef, params = _load_ours(name, is_tied)
    self.assertEqual(config.tied_embeddings, is_tied)
    self.assertEqual(
      layers.is_unrolled(config.num_layers), name != 'qwen2_deep'
    )
    theirs = _load_theirs(_folder(name, is_tied))
    # Far beyond the original context, so that the scaling of Llama 3 shows.
    for side in ('left', 'right'):
      tokens, mask = _tokens_and_mask(100, [100, 71, 1], side)
      expected = _their_logits(theirs, tokens, mask)
      logits = _apply(graphdef, params, tokens, is_valid=mask)
      difference = _relative_difference(logits, expected, mask)
      print(f'{name} tied={is_tied} {side}: {difference:.1e}')
      self.assertLess(difference, 1e-5)

  def test_the_scaling_of_llama_3_matters_here(self):
    config, graphdef, params = _load_ours('llama3', True)
    self.assertEqual(config.rope_scaling.original_max_context, _ORIGINAL)
    plain = dataclasses.replace(config, rope_scaling=None)
    tokens, mask = _tokens_and_mask(100, [100], 'right')
    logits = np.asarray(_apply(graphdef, params, tokens))
    wrong = _apply(_graphdef(plain), params, tokens)
    self.assertGreater(_relative_difference(wrong, logits, mask), 1e-2)

  @parameterized.named_parameters(*_VARIANTS)
  def test_greedy_tokens_are_those_of_transformers(self, name, is_tied):
    config, graphdef, params = _load_ours(name, is_tied)
    theirs = _load_theirs(_folder(name, is_tied))
    lengths = [9, 4, 1]
    left, left_mask = _tokens_and_mask(9, lengths, 'left')
    with torch.no_grad():
      expected = theirs.generate(
        input_ids=torch.tensor(left, dtype=torch.long),
        attention_mask=torch.tensor(left_mask.astype(np.int64)),
        do_sample=False,
        max_new_tokens=64,
        eos_token_id=1,
        pad_token_id=0,
      ).numpy()[:, 9:]
    right = np.zeros_like(left)
    for row, length in enumerate(lengths):
      right[row, :length] = left[row, 9 - length :]
    prompts = base.Prompts(
      tokens=jnp.asarray(right),
      lengths=jnp.asarray(lengths, jnp.int32),
      prompt_id=jnp.arange(len(lengths), dtype=jnp.uint32),
      references=(),
    )
    completions = _generate(
      config, graphdef, params, prompts, num_tokens=64, temperature=None
    )
    ours = np.asarray(completions.responses)[:, : expected.shape[1]]
    np.testing.assert_array_equal(ours, expected)
    self.assertEqual(int(completions.lengths.max()), expected.shape[1])
    # The texts are not one token over and over.
    self.assertGreater(len(set(ours.flatten().tolist())), 10)

  @parameterized.named_parameters(*_VARIANTS)
  def test_export_gives_back_the_same_model(self, name, is_tied):
    config, _, params = _load_ours(name, is_tied)
    first = _load_theirs(_folder(name, is_tied))
    folder = pathlib.Path(self.create_tempdir().full_path) / 'export'
    hf.save(
      folder,
      config,
      params,
      dtype='float32',
      max_file_bytes=60_000,
      max_position_embeddings=2 * _CONTEXT,
      bos_id=0,
      eos_ids=(1, 7),
    )
    self.assertGreater(len(list(folder.glob('*.safetensors'))), 1)
    second = _load_theirs(folder)
    self.assertIs(type(second), type(first))
    self.assertEqual(second.config.eos_token_id, [1, 7])
    self.assertEqual(second.generation_config.eos_token_id, [1, 7])
    self.assertEqual(second.config.bos_token_id, 0)
    self.assertEqual(second.config.max_position_embeddings, 2 * _CONTEXT)
    self.assertEqual(second.config.tie_word_embeddings, is_tied)
    self.assertEqual(
      second.config.rope_parameters, first.config.rope_parameters
    )
    old, new = first.state_dict(), second.state_dict()
    self.assertEqual(set(old), set(new))
    for key, value in old.items():
      self.assertTrue(torch.equal(value, new[key]), key)
    tokens, mask = _tokens_and_mask(40, [40, 7], 'right')
    np.testing.assert_array_equal(
      _their_logits(second, tokens, mask), _their_logits(first, tokens, mask)
    )

  @parameterized.named_parameters(*_VARIANTS[1::2])
  def test_sampler_and_learner_agree_on_an_imported_model(self, name, is_tied):
    config, graphdef, params = _load_ours(name, is_tied)
    tokens, mask = _tokens_and_mask(9, [9, 4, 1, 6], 'right')
    prompts = base.Prompts(
      tokens=jnp.asarray(np.where(mask, tokens, 0)),
      lengths=jnp.asarray(mask.sum(axis=1), jnp.int32),
      prompt_id=jnp.arange(len(tokens), dtype=jnp.uint32),
      references=(),
    )
    completions = _generate(
      config, graphdef, params, prompts, num_tokens=64, temperature=1.0
    )
    logprobs, _ = _score(graphdef, params, completions.tokens, temperature=1.0)
    gap = np.where(
      completions.loss_mask, logprobs - completions.behavior_logprobs, 0.0
    )
    print(f'{name}: sampler and learner differ by {np.abs(gap).max():.1e}')
    self.assertLess(np.abs(gap).max(), 1e-5)

  @parameterized.named_parameters(*_VARIANTS[1::2])
  def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(
    self, name, is_tied
  ):
    folder = _folder(name, is_tied, torch.bfloat16)
    tokens, mask = _tokens_and_mask(40, [40, 23], 'right')
    exact, theirs = (
      _their_logits(_load_theirs(folder, dtype), tokens, mask)
      for dtype in (torch.float32, torch.bfloat16)
    )
    _, graphdef, params = _import(folder, 'bfloat16')
    ours = _apply(graphdef, params, tokens, is_valid=mask)
    self.assertEqual(jax.tree.leaves(params)[0].dtype, jnp.float32)
    our_error = _relative_difference(ours, exact, mask)
    their_error = _relative_difference(theirs, exact, mask)
    gap = _relative_difference(ours, theirs, mask)
    print(f'{name} bfloat16: {our_error:.4f} {their_error:.4f} gap {gap:.4f}')
    # A bfloat16 is rounded by up to 2 ** -9 = 0.002. The two round in other
    # places (we rotate and scale in float32), so that each is its own sample of
    # a sum of some ten such errors; neither is the truth.
    self.assertBetween(our_error, 1e-3, 1.5 * their_error)
    self.assertLess(gap, 20 * 2.0**-9)

  @parameterized.parameters('Qwen3-8B-Base', 'Llama-3.2-1B')
  def test_angles_differ_by_the_rounding_of_their_frequencies(self, name):
    ours = families.shape(name, max_context=128, compute_dtype='float32')
    fields = hf_config.numbers_of(
      ours,
      max_position_embeddings=131_072,
      bos_id=0,
      eos_ids=(1,),
      dtype='float32',
    )
    theirs = transformers.LlamaConfig.from_dict(fields)
    rotary = llama.LlamaRotaryEmbedding(theirs)
    positions = np.array([[0, 1, 77, 1000, 32_767, 131_071]])
    cosines, sines = rotary(torch.zeros(1), torch.tensor(positions))
    freqs = rope.frequencies(ours)
    half = len(freqs)
    # Frequency and angle are rounded to 24 bits, by each of us for itself:
    # ours once each, theirs in each of a few steps.
    bound = 2e-6 + 4 * 2.0**-24 * positions[0, :, None] * freqs
    for mine, other in zip(
      rope.rotations(jnp.asarray(positions), freqs),
      (cosines, sines),
      strict=True,
    ):
      gap = np.abs(mine[0] - other[0, :, :half].numpy())
      self.assertLess((gap / bound).max(), 1.0)
      print(f'{name}: {np.asarray(gap.max(axis=1))}')
