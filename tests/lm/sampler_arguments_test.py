"""Tests of what the arguments of `replay_rl.lm.sampler` may be."""

import math

import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import sampler
from tests.lm import sampler_test


class ArgumentsTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'max_new_tokens': 12}, 'max_new_tokens = 12: must be at most .* 16 less'),
    ({'max_new_tokens': 0}, r'max_new_tokens = 0: must be in \[1, inf\)'),
    ({'eos_ids': (1, 11)}, r'eos_ids = \(1, 11\): must be .* in \[0, 11\)'),
    ({'eos_ids': (-1,)}, r'eos_ids = \(-1,\): must be at least one'),
    ({'eos_ids': ()}, r'eos_ids = \(\): must be at least one'),
    ({'pad_id': -1}, r'pad_id = \(-1,\): must be at least one'),
    ({'temperature': 0.0}, r'temperature = 0.0: must be in \[0.001, 1000\]'),
    ({'temperature': -0.5}, r'temperature = -0.5: must be in'),
    ({'temperature': math.nan}, r'temperature = nan: must be in'),
    ({'top_k': 0}, r'top_k = 0: must be in \[1, inf\)'),
    ({'top_k': 12}, 'top_k = 12: must be at most vocab_size = 11'),
    ({'top_p': 0.0}, r'top_p = 0.0: must be in \(0, 1\]'),
    ({'top_p': 1.1}, r'top_p = 1.1: must be in \(0, 1\]'),
  )
  def test_a_wrong_argument_is_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      sampler_test.respond(**options)

  def test_the_longest_context_is_allowed(self):
    completions = sampler_test.respond(max_new_tokens=11)
    self.assertEqual(completions.tokens.shape, (24, 16))

  def test_prompts_of_wrong_type_raise(self):
    prompts = sampler_test.PROMPTS
    floats = prompts._replace(tokens=prompts.tokens.astype(jnp.float32))
    with self.assertRaisesRegex(AssertionError, 'type'):
      sampler_test.respond(prompts=floats)
    fewer = prompts._replace(lengths=prompts.lengths[1:])
    with self.assertRaisesRegex(AssertionError, 'shape'):
      sampler_test.respond(prompts=fewer)
    message = '^rollout_id = 23 ids: must be a multiple of the 24 prompts$'
    with self.assertRaisesRegex(ValueError, message):
      sampler_test.respond(ids=sampler_test.row_ids(23))
    with self.assertRaisesRegex(AssertionError, 'type'):
      sampler_test.respond(ids=jnp.arange(24))

  def test_other_temperatures_and_masses_need_no_compilation(self):
    sampler_test.respond(temperature=0.9, top_p=0.9)
    first = sampler._generate._cache_size()
    results = [
      sampler_test.respond(temperature=temperature, top_p=top_p)
      for temperature, top_p in ((0.5, 0.3), (1, 1), (jnp.float32(2.0), 0.9))
    ]
    self.assertEqual(sampler._generate._cache_size(), first)
    # Each took effect; a mass of 1 keeps all tokens.
    self.assertGreater(
      results[2].entropy[:, 5].mean(), results[0].entropy[:, 5].mean() + 0.1
    )
    np.testing.assert_allclose(
      results[1].behavior_logprobs, results[1].full_logprobs, atol=1e-5
    )
    sampler_test.respond(temperature=None, top_p=0.9)
    self.assertEqual(sampler._generate._cache_size(), first + 1)
