"""Tests of the memory that a run is said to need."""

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl.fit import memory as memory_lib
from replay_rl.lm import architecture
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import maker as maker_lib
from replay_rl.run import programs
from replay_rl.run import state as run_state
from tests import tiny

_ONE = {'data': 1, 'fsdp': 1, 'tensor': 1}


def _parts(config):
  return build.experiment(config, build.planned_shape(config)).parts


def _with_policy(policy):
  return tiny.config(loss__policy=policy)


class MemoryTest(parameterized.TestCase):
  @parameterized.parameters((_ONE, 1), ({'data': 1, 'fsdp': 4, 'tensor': 2}, 2))
  def test_what_is_kept_is_what_the_run_itself_keeps(self, shape, num_seeds):
    config = tiny.config(
      num_seeds=num_seeds,
      sampler__weight_lag=4,
      replay__batch_size=16,
      replay__num_prompts=1000,
    )
    parts = _parts(config)
    actual = memory_lib.memory(config, parts, memory_lib.abstract_mesh(shape))
    mesh = mesh_lib.make(shape)
    with jax.set_mesh(mesh):
      run = programs.build(
        parts,
        build.task(config),
        maker_lib.settings_of(config, mesh=mesh, sampler_mesh=None),
      ).init(
        parts.init_params_fn(jax.random.key(0)),
        jnp.arange(num_seeds, dtype=jnp.uint32),
        run_state.of_seeds(parts.hyper, num_seeds),
      )

    def first_shard(tree):
      return sum(
        leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree)
      )

    self.assertEqual(
      actual.kept,
      {
        'parameters': first_shard(run.learner.params),
        'optimizer state': first_shard(run.learner.opt_state),
        'published weights': first_shard(run.sampler),
        'replay buffer': first_shard(run.buffer),
      },
    )
    # The sampler reads the weights of one seed and one publication.
    self.assertEqual(
      actual.programs['sampler']['copy of published weights'],
      actual.kept['parameters'] // num_seeds,
    )
    self.assertEqual(
      actual.checkpoint, sum(leaf.nbytes for leaf in jax.tree.leaves(run))
    )
    self.assertEqual(
      actual.programs['checkpoint'],
      {'copy of the run': sum(actual.kept.values())},
    )

  def test_a_sampler_has_its_own_weights_once_it_rounds_or_moves_them(self):
    shape = {'data': 1, 'fsdp': 2, 'tensor': 2}

    def size(sampler_shape, name='sampler', **changes):
      config = tiny.config(evaluation__every=2, **changes)
      actual = memory_lib.memory(
        config,
        _parts(config),
        memory_lib.abstract_mesh(shape),
        sampler_shape and memory_lib.abstract_mesh(sampler_shape),
      )
      return actual.programs[name].get('weights to sample with', 0)

    joined = mesh_lib.joined(shape)
    rounds = {'model__compute_dtype': 'bfloat16'}
    self.assertEqual(size(None), 0)
    transformer = _parts(tiny.config()).transformer
    num_params = architecture.num_params(transformer)
    # The norms of channels come whole: two of each layer, and one.
    num_norms = (2 * transformer.num_layers + 1) * transformer.d_model
    # Those of queries and keys were whole.
    num_same = 2 * transformer.num_layers * transformer.head_dim
    num_split = num_params - num_norms - num_same
    self.assertEqual(size(joined), 4 * (num_split / 2 + num_norms))
    self.assertEqual(size(joined, 'evaluation'), size(joined))
    self.assertEqual(size(joined, **rounds), num_split + 4 * num_norms)
    self.assertEqual(size(None, **rounds), num_split / 2)

  def test_a_device_has_a_row_of_a_microbatch_even_if_it_only_fills_it(self):
    # 8 rows on 8 devices, and on 16, of which 8 have a row that does not count.
    config = tiny.config(replay__capacity=96)
    one, filled = (
      memory_lib.memory(
        config,
        _parts(config),
        memory_lib.abstract_mesh({'data': data, 'fsdp': 1, 'tensor': 1}),
      ).programs['learner']
      for data in (8, 16)
    )
    self.assertEqual(one, filled)

  def test_weights_of_other_policies_are_counted(self):
    plain, more = (
      memory_lib.memory(config, _parts(config), memory_lib.abstract_mesh(_ONE))
      for config in map(
        _with_policy,
        (
          'reinforce()',
          'decoupled_ppo(clip_low=0.2, clip_high=0.2, max_ratio=2.0) + '
          'reference_kl(coefficient=0.1)',
        ),
      )
    )
    size = plain.kept['parameters']
    self.assertNotIn('reference weights', plain.kept)
    self.assertEqual(more.kept['reference weights'], size)
    self.assertNotIn('proximal weights', plain.programs['learner'])
    self.assertEqual(more.programs['learner']['proximal weights'], size)

  def test_a_gradient_that_a_gate_keeps_has_the_size_of_the_weights(self):
    config = tiny.config(
      optimizer__gate='gradient_alignment(lower=0.1, upper=0.5)'
    )
    mesh = memory_lib.abstract_mesh({'data': 1, 'fsdp': 4, 'tensor': 2})
    kept = memory_lib.memory(config, _parts(config), mesh).kept
    self.assertEqual(kept['state of the gate'], kept['parameters'])

  def test_norms_of_rows_need_the_gradient_of_a_row(self):
    config = tiny.config(
      loss__policy='vcpo(max_ratio=2.0)',
      loss__statistics='optimal_baseline(max_ratio=2.0)',
    )
    device = memory_lib.abstract_mesh(_ONE)
    learner_needs = memory_lib.memory(config, _parts(config), device).programs[
      'learner'
    ]
    plain = tiny.config(loss__policy='reinforce()')
    others = memory_lib.memory(plain, _parts(plain), device).programs['learner']
    self.assertNotIn('gradient of a row', others)
    # With one microbatch, `gradients` holds one gradient of untied weights.
    self.assertEqual(
      learner_needs['gradient of a row'], learner_needs['gradients']
    )

  @parameterized.parameters((1, False, 1), (2, False, 2), (2, True, 4))
  def test_gradients_are_untied_and_summed_over_microbatches(
    self, num_microbatches, by_age, factor
  ):
    config = tiny.config(
      optimizer__microbatch_rows=8 // num_microbatches,
      logging__age_buckets=(1,),
      logging__age_grad_norms=by_age,
    )
    parts = _parts(config)
    actual = memory_lib.memory(config, parts, memory_lib.abstract_mesh(_ONE))
    vocab_size = parts.transformer.vocab_size
    num_weights = architecture.num_params(parts.transformer) + 16 * vocab_size
    self.assertEqual(
      actual.programs['learner']['gradients'], factor * 4 * num_weights
    )

  def test_packed_rows_have_the_activations_of_their_sequences(self):
    # 4 rows of the longest take as much as 4 sequences that hold one each, and
    # a sequence of two as much as 2 of them. Gradients are of microbatches.
    columns = _parts(tiny.config()).shape.num_tokens - 1
    rows, packed, alone = (
      memory_lib.memory(
        config, _parts(config), memory_lib.abstract_mesh(_ONE)
      ).programs['learner']
      for config in (
        tiny.config(optimizer__microbatch_rows=4),
        tiny.config(
          optimizer__microbatch_rows=4, optimizer__packed_tokens=columns
        ),
        tiny.config(optimizer__packed_tokens=2 * columns),
      )
    )
    self.assertEqual(rows, packed)
    name = 'kept for the backward pass'
    self.assertBetween(packed[name] / alone[name], 1.7, 2.3)
    self.assertEqual(packed['gradients'], alone['gradients'])

  def test_the_cache_is_split_over_rows_and_heads(self):
    config = tiny.config(replay__batch_size=16, evaluation__every=2)
    parts = _parts(config)
    mesh = memory_lib.abstract_mesh({'data': 2, 'fsdp': 2, 'tensor': 2})
    actual = memory_lib.memory(config, parts, mesh)
    columns = parts.shape.num_tokens - 1

    def cache(rows, heads):
      # Keys and values of float32; flags, counters and the shared one.
      return 2 * heads * 8 * columns * 4 * rows + rows * (columns + 4) + 4

    self.assertEqual(actual.programs['sampler']['KV cache'], cache(4, 1))
    self.assertEqual(actual.programs['evaluation']['KV cache'], cache(2, 1))

  def test_slots_have_a_cache_of_their_own_beside_that_of_the_prompts(self):
    mesh = memory_lib.abstract_mesh({'data': 2, 'fsdp': 1, 'tensor': 1})
    lock_step, slots = (
      memory_lib.memory(config, _parts(config), mesh)
      for config in (
        tiny.config(
          sampler__num_slots=num_slots,
          evaluation__every=2,
          evaluation__num_prompts=2,
        )
        for num_slots in (None, 4)
      )
    )
    shape = _parts(tiny.config()).shape

    def cache(rows, columns):
      return 2 * 2 * 8 * columns * 4 * rows + rows * (columns + 4) + 4

    # On each of two devices: 8 responses to two prompts in two slots.
    long, short = shape.num_tokens - 1, shape.prompt_length
    before, after = (x.programs['sampler'] for x in (lock_step, slots))
    self.assertEqual(before['KV cache'], cache(8, long))
    self.assertNotIn('KV cache of prompts', before)
    self.assertEqual(after['KV cache'], cache(2, long))
    self.assertEqual(after['KV cache of prompts'], cache(2, short))
    self.assertEqual(
      after['prompts and responses'], before['prompts and responses']
    )
    # An evaluation has two responses on a device: as many as slots.
    self.assertEqual(
      slots.programs['evaluation'], lock_step.programs['evaluation']
    )

  def test_seeds_that_run_at_once_need_their_own_temporaries(self):
    actual = []
    for vmap_seeds in (False, True):
      config = tiny.config(
        num_seeds=3, vmap_seeds=vmap_seeds, evaluation__every=2
      )
      parts = _parts(config)
      actual.append(
        memory_lib.memory(config, parts, memory_lib.abstract_mesh(_ONE))
      )
    in_turn, at_once = actual
    self.assertEqual(in_turn.kept, at_once.kept)
    for program in ('sampler', 'learner', 'evaluation'):
      self.assertEqual(
        at_once.programs[program],
        {name: 3 * n for name, n in in_turn.programs[program].items()},
      )
    self.assertEqual(
      at_once.programs['checkpoint'], in_turn.programs['checkpoint']
    )

  def test_the_peak_is_what_is_kept_and_the_largest_program(self):
    memory = memory_lib.Memory(
      kept={'a': 1, 'b': 4},
      on_host=100,
      programs={'x': {'c': 3, 'd': 3}, 'y': {'e': 5}},
      checkpoint=7,
    )
    self.assertEqual(memory.largest_program, 'x')
    self.assertEqual(memory.total, 11)
    self.assertEqual(memory.largest_term, 'b')

  def test_words_of_a_buffer_on_the_host_take_nothing_of_the_device(self):
    shape = {'data': 1, 'fsdp': 2, 'tensor': 1}
    here, there = (
      memory_lib.memory(config, _parts(config), memory_lib.abstract_mesh(shape))
      for config in (
        tiny.config(mesh__buffer_memory=memory)
        for memory in ('device', 'pinned_host')
      )
    )
    # Half of the slots: tokens and log-probabilities of 4 bytes each.
    num_tokens = _parts(tiny.config()).shape.num_tokens
    words = 16 * num_tokens * (4 + 4)
    self.assertEqual((here.on_host, there.on_host), (0, words))
    self.assertEqual(
      here.kept['replay buffer'] - there.kept['replay buffer'], words
    )
    self.assertEqual(
      here.programs['checkpoint']['copy of the run']
      - there.programs['checkpoint']['copy of the run'],
      words,
    )

  @parameterized.parameters(
    ({'data': 1, 'fsdp': 1}, 'must name the axes'),
    ({'data': 1, 'fsdp': -1, 'tensor': 1}, 'must have positive'),
    ({'data': 1, 'fsdp': 1, 'tensor': 4}, 'model.num_heads = 2 .* tensor = 4'),
    ({'data': 1, 'fsdp': 32, 'tensor': 1}, 'divide'),
    ({'data': 3, 'fsdp': 1, 'tensor': 1}, 'num_prompts x .* = 16 .* = 3'),
  )
  def test_refuses_a_mesh_that_does_not_divide_the_run(self, shape, message):
    config = tiny.config(replay__capacity=96)
    parts = _parts(config)
    with self.assertRaisesRegex(ValueError, message):
      memory_lib.memory(config, parts, memory_lib.abstract_mesh(shape))
