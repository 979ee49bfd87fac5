"""Tests of prefill."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import model
from replay_rl.lm import prefill
from replay_rl.parallel import mesh as mesh_lib
from tests.lm import sampler_test
from tests.lm import small_models

_MODEL = sampler_test._TIED
_PROMPTS = jax.tree.map(lambda leaf: leaf[:4], sampler_test.PROMPTS)


class PrefillTest(parameterized.TestCase):
  @parameterized.parameters(
    # Prompts, size of a group, parts; reads of each prompt.
    (4, 16, 1, 1),
    (8, 4, 8, 1),
    (4, 16, 8, 2),
    (6, 4, 4, 2),
    (1, 8, 8, 8),
    # Eight parts cannot split three groups of four.
    (3, 4, 8, 4),
  )
  def test_a_prompt_is_read_on_each_device_with_rows_of_it(
    self, num_prompts, group_size, num_parts, expected
  ):
    actual = prefill.prompt_reads(num_prompts, group_size, num_parts)
    self.assertEqual(actual, expected)
    self.assertEqual(group_size % actual, 0)

  def test_the_group_does_not_add_to_what_is_read(self):
    graphdef, params = small_models.init(_MODEL)
    read = jax.jit(
      lambda params: prefill.read(
        graphdef, _MODEL, params, _PROMPTS, group_size=8
      )
    )
    actual = read(params)
    logits = model.apply(graphdef, params, _PROMPTS.tokens)
    last = logits[jnp.arange(4), _PROMPTS.lengths - 1]
    np.testing.assert_allclose(
      model.unembed(graphdef, params, actual.hidden), last, atol=1e-5
    )
    self.assertEqual(actual.cache.is_valid.shape, (4, 5))
    self.assertEqual(actual.cache.is_valid.sum(axis=1).tolist(), [1, 3, 5, 2])
    mesh = mesh_lib.make({'data': 8, 'fsdp': 1, 'tensor': 1})
    with jax.set_mesh(mesh):
      split = read(params)
    # Each of eight devices reads one of the four prompts.
    self.assertEqual(split.hidden.shape, (8, 16))
    np.testing.assert_allclose(
      split.hidden, np.repeat(actual.hidden, 2, axis=0), atol=1e-5
    )

  def test_prompts_are_repeated_side_by_side_without_references(self):
    prompts = _PROMPTS._replace(references=jnp.arange(3))
    actual = prefill.repeat(prompts, 2)
    self.assertEqual(actual.lengths.tolist(), [1, 1, 3, 3, 5, 5, 2, 2])
    self.assertEqual(actual.references, ())
