"""Tests of the meshes of a run."""

import math
import pathlib
import runpy

import jax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.fit import memory as memory_lib
from replay_rl.run import build
from replay_rl.run import meshes
from tests import tiny

_ROOT = pathlib.Path(__file__).parents[2]


def _shape(data, fsdp, tensor):
  return {'data': data, 'fsdp': fsdp, 'tensor': tensor}


def _of_run(**changes):
  config = tiny.config(**changes)
  return meshes.of_run(config, build.parts(config))


class OfRunTest(parameterized.TestCase):
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
      'num_kv_heads = 2; there are fewer than 4 to split',
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
        ValueError, f'^mesh.{field} = .*: {axes} must divide .*{size}'
      ):
        _of_run(**meshes_of_run, **changes)

  @parameterized.parameters(
    (
      {'sampler__num_prompts': 5, 'evaluation__every': 0},
      r'num_prompts x sampler.group_size = 20',
    ),
    ({'replay__batch_size': 12}, 'rows of an update = 12'),
    (
      {'optimizer__num_microbatches': 2},
      r'rows of a microbatch \(8 / optimizer.num_microbatches\) = 4; there are '
      'fewer than 8',
    ),
    ({'warm_start__batch_size': 12}, 'warm_start.batch_size = 12'),
    ({'evaluation__num_prompts': 12}, 'evaluation.num_prompts = 12'),
  )
  def test_refuses_rows_that_the_mesh_does_not_divide(self, changes, message):
    changes = {'evaluation__num_prompts': 8} | changes
    with self.assertRaisesRegex(
      ValueError,
      f'^mesh.shape = .*: data x fsdp = 8 must divide .*{message}',
    ):
      _of_run(mesh__shape=_shape(2, 4, 1), **changes)

  def test_rows_that_are_not_computed_are_not_checked(self):
    _of_run(
      mesh__shape=_shape(8, 1, 1),
      evaluation__num_prompts=3,
      evaluation__every=0,
      warm_start__batch_size=3,
      warm_start__num_steps=0,
    )

  def test_the_mesh_that_samples_divides_the_rows_of_generation(self):
    changes = {
      'mesh__shape': _shape(1, 1, 2),
      'mesh__sampler_shape': _shape(1, 2, 1),
    }
    # Nobody learns on two shares of rows.
    _of_run(replay__batch_size=7, **changes)
    with self.assertRaisesRegex(
      ValueError, r'^mesh.sampler_shape = .* 2 must divide .*group_size = 9'
    ):
      _of_run(sampler__num_prompts=3, sampler__group_size=3, **changes)
    with self.assertRaisesRegex(
      ValueError, '^mesh.sampler_shape = .* evaluation.num_prompts = 5'
    ):
      _of_run(evaluation__num_prompts=5, **changes)

  @parameterized.parameters(
    ({'data': 2, 'fsdp': 1}, 'must name the axes'),
    (_shape(8, 1, 1), 'needs 8 devices of 4'),
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
    parts = build.parts(config, task=memory_lib.task_of(config))
    mesh = memory_lib.abstract_mesh(config.mesh.shape)
    meshes.check(config, parts, mesh, None)


if __name__ == '__main__':
  absltest.main()
