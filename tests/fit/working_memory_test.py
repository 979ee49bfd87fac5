"""Tests of the memory of what a program computes, beside the compiler."""

import functools

import jax
import jax.numpy as jnp
import optax
from absl.testing import parameterized

from replay_rl import base
from replay_rl.fit import working_memory
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import sampler
from replay_rl.lm import scoring
from replay_rl.rl import losses
from replay_rl.run import build
from replay_rl.run import learner
from replay_rl.run import state as run_state
from tests import tiny
from tests.replay import buffers

_ONE = {'data': 1, 'fsdp': 1, 'tensor': 1}


def _transformer(**changes) -> architecture.TransformerConfig:
  """Returns a model of more layers than are unrolled."""
  fields = {
    'vocab_size': 512,
    'd_model': 32,
    'num_layers': 10,
    'num_heads': 4,
    'num_kv_heads': 2,
    'head_dim': 8,
    'd_ff': 96,
    'rope_theta': 1e4,
    'rope_scaling': None,
    'norm_eps': 1e-6,
    'qk_norm': True,
    'qkv_bias': False,
    'tied_embeddings': True,
    'max_context': 64,
    'compute_dtype': 'float32',
  }
  return architecture.TransformerConfig(**(fields | changes))


def _compiled_update(transformer, *, num_microbatches, chunk_size, remat):
  """Returns what XLA says of an update on 4 rows a microbatch."""
  graphdef, params = jax.eval_shape(
    functools.partial(model.init, transformer), jax.random.key(0)
  )
  num_rows = 4 * num_microbatches
  rows = buffers.make_rows(range(num_rows), transformer.max_context)
  rows_B = jnp.zeros(num_rows)
  batch = base.Batch(rows, rows_B, rows_B > 0, rows_B > 0, rows_B, rows_B[0])
  functions = learner.UpdateFunctions(
    logprobs_fn=functools.partial(
      scoring.token_logprobs,
      graphdef,
      temperature=1.0,
      chunk_size=chunk_size,
      remat=remat,
    ),
    loss_fn=functools.partial(
      losses.clipped_surrogate, clip_low=0.2, clip_high=0.2, dual_clip=None
    ),
    statistics_fn=None,
    normalizer_fn=losses.token_mean,
    row_weight_fn=None,
    optimizer=optax.adamw(1e-3),
    gate=None,
  )
  update = functools.partial(
    learner.update,
    functions=functions,
    num_updates_since_fresh=0,
    num_microbatches=num_microbatches,
  )
  state = jax.eval_shape(lambda tree: learner.init(tree, functions), params)
  return _analysis(jax.jit(update, donate_argnums=0), state, batch)


def _analysis(program, *arguments):
  return program.lower(*arguments).compile().memory_analysis()


class ActivationsTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'vocab_size': 4096}, 1, None, False),
    ({'vocab_size': 4096}, 2, 16, True),
    ({'max_context': 128}, 1, None, True),
    ({}, 1, 16, False),
  )
  def test_the_estimate_is_within_a_factor_of_two_of_the_compiler(
    self, changes, num_microbatches, chunk_size, remat
  ):
    transformer = _transformer(**changes)
    actual = _compiled_update(
      transformer,
      num_microbatches=num_microbatches,
      chunk_size=chunk_size,
      remat=remat,
    ).temp_size_in_bytes
    terms = working_memory.activations(
      transformer, num_rows=4, chunk_size=chunk_size, remat=remat
    )
    gradients = 4 * num_microbatches * architecture.num_params(transformer)
    ratio = (sum(terms.values()) + gradients) / actual
    self.assertGreater(ratio, 0.5)
    self.assertLess(ratio, 2.0)

  def test_generation_is_within_a_factor_of_two_of_the_compiler(self):
    transformer = _transformer(vocab_size=4096)
    shape = build.planned_shape(tiny.config())
    graphdef, params = jax.eval_shape(
      functools.partial(model.init, transformer), jax.random.key(0)
    )
    shape = shape._replace(prompt_length=32, max_new_tokens=32)
    prompts = jax.eval_shape(lambda: run_state.empty_prompts(shape, 32))
    generate = functools.partial(
      sampler.generate,
      graphdef,
      max_new_tokens=32,
      eos_ids=(0,),
      pad_id=0,
      temperature=1.0,
      top_k=None,
      top_p=None,
    )
    actual = _analysis(
      jax.jit(generate), params, jax.random.key(0), prompts, prompts.prompt_id
    ).temp_size_in_bytes
    rows = working_memory.SampledRows(32, 32, 32)
    terms = working_memory.sampling(transformer, shape, rows)
    ratio = sum(terms.values()) / actual
    self.assertGreater(ratio, 0.5)
    self.assertLess(ratio, 2.0)

  def test_a_step_has_the_logits_of_the_slots_alone(self):
    shape = build.planned_shape(tiny.config())._replace(prompt_length=2)
    for slots in (4, 32):
      terms = working_memory.sampling(
        _transformer(vocab_size=4096),
        shape,
        working_memory.SampledRows(responses=32, prompts=4, slots=slots),
      )
      self.assertEqual(
        terms['sampler working set'], working_memory.WORKING * slots * 4096 * 4
      )

  def test_a_smaller_chunk_and_remat_need_less(self):
    def total(chunk_size, remat):
      terms = working_memory.activations(
        _transformer(vocab_size=4096),
        num_rows=4,
        chunk_size=chunk_size,
        remat=remat,
      )
      return sum(terms.values())

    whole = total(None, False)
    self.assertLess(total(16, False), whole)
    self.assertLess(total(None, True), whole)
    self.assertLess(total(16, True), min(total(16, False), total(None, True)))

  def test_what_grows_with_the_rows_doubles_with_them(self):
    once, twice = (
      working_memory.activations(
        _transformer(compute_dtype='bfloat16'),
        num_rows=rows,
        chunk_size=None,
        remat=True,
      )
      for rows in (4, 8)
    )
    for name, size in once.items():
      factor = 1 if name == 'copies of weights' else 2
      self.assertEqual(twice[name], factor * size, name)
    # The embedding, 512 x 32, in bfloat16.
    self.assertEqual(once['copies of weights'], 512 * 32 * 2)
