"""Tests of the meshes of a run, and of where its arrays live."""

import math
import pathlib
import runpy

import jax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import placement
from replay_rl.run import state
from tests import tiny
from tests.run import tiny_run

_ROOT = pathlib.Path(__file__).parents[2]


def _shardings(buffer_memory='device', **changes):
  """Returns where a run of two seeds lives on 2 x 2 x 2 devices."""
  parts = tiny_run.experiment(**changes).parts
  mesh = mesh_lib.make({'data': 2, 'fsdp': 2, 'tensor': 2})
  run = state.shapes_of_run(parts, 2)
  shardings = placement.of_run(
    run,
    model.logical_axes(parts.transformer),
    parts.bind(parts.hyper).update,
    mesh,
    buffer_memory=buffer_memory,
  )
  # Raises if a spec has more axes than its array.
  jax.tree.map(
    lambda leaf, sharding: sharding.shard_shape(leaf.shape), run, shardings
  )
  return shardings


def _specs(**changes):
  return jax.tree.map(lambda sharding: sharding.spec, _shardings(**changes))


class PlacementTest(absltest.TestCase):
  def test_weights_are_split_after_the_axis_of_seeds(self):
    params = _specs().learner.params
    # [S, V, D] and [S, layers, D, 2, F].
    self.assertEqual(params['embedding'], jax.P(None, ('tensor',), ('fsdp',)))
    self.assertEqual(
      params['layers']['gate_up'],
      jax.P(None, None, ('fsdp',), None, ('tensor',)),
    )

  def test_what_the_optimizer_keeps_of_a_weight_lives_with_the_weight(self):
    learner = _specs().learner
    adam = learner.opt_state[1][0]
    self.assertEqual(adam.mu, learner.params)
    self.assertEqual(adam.nu, learner.params)
    self.assertEqual(adam.count, jax.P())

  def test_a_gradient_that_a_gate_keeps_lives_with_the_weights(self):
    learner = _specs(
      optimizer__gate='gradient_alignment(lower=0.1, upper=0.5)'
    ).learner
    self.assertEqual(learner.gate_state, learner.params)

  def test_weights_that_were_published_have_one_more_axis_in_front(self):
    specs = _specs(sampler__weight_lag=2)
    self.assertEqual(
      jax.tree.map(lambda spec: jax.P(None, *spec), specs.learner.params),
      specs.sampler.params,
    )
    self.assertEqual(specs.sampler.version, jax.P())
    self.assertEqual(specs.sampler.num_published, jax.P())

  def test_all_else_is_whole_on_every_device(self):
    specs = _specs(
      optimizer__gate='gradient_gate(threshold=1.0, window=2, squared=False)',
      replay__num_prompts=8,
    )
    self.assertIsNone(specs.sampler)
    self.assertIsNotNone(specs.buffer.prompts)
    learner = specs.learner._replace(params=None, opt_state=None)
    rest = specs.seed, specs.clock, specs.hyper, learner, specs.ledger
    numbers = specs.buffer._replace(rollouts=specs.buffer.rollouts[3:])
    for spec in jax.tree.leaves((rest, numbers)):
      self.assertEqual(spec, jax.P())

  def test_rows_of_the_buffer_are_split_along_the_slots(self):
    rollouts = _specs().buffer.rollouts
    for spec in rollouts.tokens, rollouts.loss_mask, rollouts.behavior_logprobs:
      self.assertEqual(spec, jax.P(None, ('data', 'fsdp')))

  def test_words_of_the_buffer_may_live_on_the_host(self):
    there = _shardings('pinned_host')
    rollouts = there.buffer.rollouts
    on_host = [
      leaf
      for leaf in jax.tree.leaves(there)
      if leaf.memory_kind == 'pinned_host'
    ]
    self.assertEqual(on_host, [rollouts.tokens, rollouts.behavior_logprobs])
    self.assertEqual(rollouts.tokens.spec, _specs().buffer.rollouts.tokens)

  def test_a_mesh_that_does_not_divide_the_capacity_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, '^capacity = 34: must be divisible by the 4 shards'
    ):
      _specs(replay__capacity=34)


def _shape(data, fsdp, tensor):
  return {'data': data, 'fsdp': fsdp, 'tensor': tensor}


def _of_run(**changes):
  config = tiny.config(**changes)
  return placement.meshes_of_run(config, tiny_run.experiment(**changes).parts)


class MeshesTest(parameterized.TestCase):
  def test_a_run_has_one_mesh_or_two_of_the_same_devices(self):
    mesh, sampler_mesh = _of_run(mesh__shape=_shape(2, -1, 2))
    self.assertEqual(dict(mesh.shape), _shape(2, 2, 2))
    self.assertIsNone(sampler_mesh)
    mesh, sampler_mesh = _of_run(
      mesh__shape=_shape(1, 4, 1), mesh__sampler_shape=_shape(-1, 1, 2)
    )
    self.assertEqual(dict(sampler_mesh.shape), _shape(2, 1, 2))
    self.assertEqual(sampler_mesh.devices.flatten().tolist(), jax.devices()[:4])
    self.assertEqual(mesh.devices.flatten().tolist(), jax.devices()[:4])

  @parameterized.parameters(
    ((1, 1, 2), {'num_heads': 3, 'num_kv_heads': 1}, 'tensor = 2', 'heads = 3'),
    (
      (1, 1, 4),
      {'num_heads': 4},
      'tensor = 4',
      'num_kv_heads = 2',
    ),
    ((1, 1, 2), {'d_ff': 33}, 'tensor = 2', 'model.d_ff = 33'),
    ((1, 1, 2), {'vocab_size': 33}, 'tensor = 2', 'model.vocab_size = 33'),
    ((1, 8, 1), {'d_model': 20}, 'fsdp = 8', 'model.d_model = 20'),
  )
  def test_refuses_weights_that_the_mesh_does_not_divide(
    self, shape, model, axes, size
  ):
    changes = {f'model__{field}': value for field, value in model.items()}
    for field in ('shape', 'sampler_shape'):
      meshes_of_run = {'mesh__shape': _shape(*shape)}
      if field == 'sampler_shape':
        count = shape[0] * shape[1] * shape[2]
        meshes_of_run = {
          'mesh__shape': _shape(count, 1, 1),
          'mesh__sampler_shape': _shape(*shape),
        }
      with self.assertRaisesRegex(
        ValueError, f'^mesh.{field} = .*: must split .*{size} into {axes} equal'
      ):
        _of_run(**meshes_of_run, **changes)

  @parameterized.parameters(
    (
      {'sampler__num_prompts': 5},
      r'num_prompts x sampler.group_size = 20',
    ),
    ({'warm_start__batch_size': 12}, 'warm_start.batch_size = 12'),
    ({'sampler__num_slots': 12}, 'sampler.num_slots = 12'),
    (
      {'evaluation__every': 2, 'evaluation__num_prompts': 12},
      'evaluation.num_prompts = 12',
    ),
  )
  def test_refuses_rows_that_the_mesh_does_not_divide(self, changes, message):
    changes = {'evaluation__num_prompts': 8} | changes
    with self.assertRaisesRegex(
      ValueError,
      f'^mesh.shape = .*: must split .*{message} into data x fsdp = 8 equal',
    ):
      _of_run(mesh__shape=_shape(2, 4, 1), **changes)

  def test_rows_that_are_not_computed_are_not_checked(self):
    _of_run(
      mesh__shape=_shape(8, 1, 1),
      evaluation__num_prompts=3,
      warm_start__batch_size=3,
      warm_start__num_steps=0,
    )

  def test_the_mesh_that_samples_divides_the_rows_of_generation(self):
    changes = {
      'mesh__shape': _shape(1, 1, 2),
      'mesh__sampler_shape': _shape(1, 2, 1),
    }
    # Nobody learns on two shares of rows.
    _of_run(replay__batch_size=7, sampler__num_slots=4, **changes)
    with self.assertRaisesRegex(
      ValueError, '^mesh.sampler_shape = .*group_size = 9 into .* 2 equal'
    ):
      _of_run(sampler__num_prompts=3, sampler__group_size=3, **changes)
    with self.assertRaisesRegex(
      ValueError, '^mesh.sampler_shape = .* sampler.num_slots = 3 into .* 2 '
    ):
      _of_run(sampler__num_slots=3, **changes)
    with self.assertRaisesRegex(
      ValueError, '^mesh.sampler_shape = .* evaluation.num_prompts = 5'
    ):
      _of_run(evaluation__every=2, evaluation__num_prompts=5, **changes)

  @parameterized.parameters(
    ({'data': 2, 'fsdp': 1}, 'must name the axes'),
    (_shape(8, 1, 1), 'must use at most 4 devices'),
    (_shape(1, 2, 1), 'must use all 4 devices of mesh.shape = '),
  )
  def test_refuses_a_sampler_of_other_devices(self, shape, message):
    with self.assertRaisesRegex(ValueError, f'^mesh.sampler_shape.*{message}'):
      _of_run(mesh__shape=_shape(4, 1, 1), mesh__sampler_shape=shape)


class ConfigsTest(parameterized.TestCase):
  # The others run on one device, or ask their tokenizer for the vocabulary.
  @parameterized.parameters(
    'math_llama3_2_3b', 'math_qwen2_5_7b', 'math_qwen3_4b_prioritized'
  )
  def test_the_configs_for_eight_devices_fit_them(self, name):
    path = _ROOT / 'configs' / f'{name}.py'
    config = runpy.run_path(str(path))['get_config']()
    self.assertEqual(math.prod(config.mesh.shape.values()), 8)
    parts = build.experiment(config, build.planned_shape(config)).parts
    axes = config.mesh.shape
    mesh = jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes))
    placement.check_meshes(config, parts, mesh, None)
