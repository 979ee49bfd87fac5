"""Tests of reading the weights of a run."""

import dataclasses
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.evaluate import run_weights
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import placement
from tests import tiny_evaluation


class EvaluatedTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.trained = tiny_evaluation.trained()
    self.folder = self.trained.folder
    self.run_of = run_weights.read_run(self.folder)

  def restore(self, run=None, config=None, *, step=2, seed=14, **shape):
    config = config or self.trained.transformer
    sizes = {'data': 1, 'fsdp': 1, 'tensor': 1} | shape
    axes = model.logical_axes(config)
    run = run or self.run_of
    return run_weights.restore(
      *(run.folder, run.seeds, config),
      step=step,
      seed=seed,
      shardings=placement.of_params(axes, mesh_lib.make(sizes)),
    )

  def copy(self):
    folder = pathlib.Path(self.create_tempdir().full_path) / 'run'
    shutil.copytree(self.folder, folder)
    return run_weights.read_run(folder)

  def test_restores_the_seed_and_step_onto_the_mesh(self):
    result = self.restore(fsdp=2, tensor=2)
    last = self.trained.state.learner.params
    for row, seed in enumerate((13, 14)):
      jax.tree.map(
        np.testing.assert_array_equal,
        self.restore(seed=seed, fsdp=2, tensor=2),
        jax.tree.map(lambda leaf, row=row: leaf[row], last),
      )
    shards = result['embedding'].addressable_shards
    self.assertEqual(shards[0].data.size * 4, result['embedding'].size)
    before = self.restore(step=1)
    self.assertFalse(np.array_equal(before['embedding'], result['embedding']))

  def test_damaged_weights_are_refused(self):
    run = self.copy()
    path = next((run.folder / 'checkpoints/2/checksums').glob('metadata'))
    checksums = json.loads(path.read_text())
    checksums[".learner.params['embedding']"] += 1
    path.write_text(json.dumps(checksums))
    with self.assertRaisesRegex(
      ValueError, r"params\['embedding'\] = \d+: must be \d+, as saved"
    ):
      self.restore(run)

  def test_weights_without_their_data_are_refused(self):
    run = self.copy()
    shutil.rmtree(run.folder / 'checkpoints/2/run/d')
    with self.assertRaisesRegex(
      ValueError, "checkpoints/2': must be readable "
    ):
      self.restore(run)

  def test_weights_of_another_shape_are_refused(self):
    for changes, message in (
      ({'vocab_size': 400}, r'embedding.. = \(.*\): must be'),
      ({'qk_norm': False, 'num_layers': 2}, r'query.. = \(.*\): must be \('),
    ):
      config = dataclasses.replace(self.trained.transformer, **changes)
      with self.assertRaisesRegex(ValueError, message):
        self.restore(config=config)

  def test_seeds_of_another_run_are_refused(self):
    run = self.run_of._replace(seeds=(14, 15))
    with self.assertRaisesRegex(
      ValueError, r'= \[13, 14\]: must be those of the config, \[14, 15\]'
    ):
      self.restore(run)

  def test_picks_the_newest_step_or_the_one_named(self):
    self.assertEqual(run_weights.pick_step(self.folder, None), 2)
    self.assertEqual(run_weights.pick_step(self.folder, 1), 1)
    with self.assertRaisesRegex(
      ValueError, r'step = 3: must be one of \[1, 2\]'
    ):
      run_weights.pick_step(self.folder, 3)
    with self.assertRaisesRegex(
      ValueError, 'workdir = .*: must hold a run with checkpoints'
    ):
      run_weights.pick_step(self.folder.parent, None)

  def test_picks_the_only_seed_or_the_one_named(self):
    self.assertEqual(run_weights.pick_seed(self.folder, (13, 14), 13), 13)
    self.assertEqual(run_weights.pick_seed(self.folder, (7,), None), 7)
    for seeds, seed in (((13, 14), None), ((13, 14), 7), ((7,), 0)):
      with self.assertRaisesRegex(
        ValueError, f'seed = {seed}: must be one of .*seeds'
      ):
        run_weights.pick_seed(self.folder, seeds, seed)

  def test_the_vocabulary_is_that_of_the_tokenizer_or_of_the_config(self):
    sizes = {'vocab_size': 300, 'max_context': 72, 'compute_dtype': 'float32'}
    shape = self.run_of.model
    result = run_weights.architecture_of(shape, **sizes)
    self.assertEqual(result, self.trained.transformer)
    half = sizes | {'compute_dtype': 'bfloat16'}
    result = run_weights.architecture_of(shape, **half)
    self.assertEqual(result.compute_dtype, 'bfloat16')
    shape = dataclasses.replace(shape, vocab_size=304)
    result = run_weights.architecture_of(shape, **sizes)
    self.assertEqual(result.vocab_size, 304)

  @parameterized.parameters(
    (None, r'must hold the config of a run in text .*No such file'),
    (
      {'config': {'text': None, 'task': 'addition()'}},
      'task = .addition...: must be .problems...',
    ),
    ({'config': {}}, "KeyError.'text'"),
    ({'config': {'text': {}, 'model': {'x': 1}}}, 'TypeError'),
  )
  def test_what_is_not_a_run_in_text_is_refused(self, content, message):
    folder = pathlib.Path(self.create_tempdir().full_path)
    if content is not None:
      (folder / 'config.json').write_text(json.dumps(content))
    with self.assertRaisesRegex(ValueError, message):
      run_weights.read_run(folder)


class FingerprintTest(absltest.TestCase):
  def test_is_the_same_on_any_mesh_and_sees_any_change(self):
    params = {'a': jnp.arange(8.0).reshape(4, 2), 'b': jnp.ones(3)}
    expected = run_weights.fingerprint(params)
    mesh = mesh_lib.make({'data': 1, 'fsdp': 4, 'tensor': 1})
    split = jax.NamedSharding(mesh, jax.P('fsdp'))
    placed = params | {'a': jax.device_put(params['a'], split)}
    self.assertEqual(run_weights.fingerprint(placed), expected)
    for changed in (
      params | {'b': jnp.ones(3).at[1].set(1.0000001)},
      {'a': params['b'], 'b': params['a']},
      params | {'a': -params['a']},
      params | {'a': params['a'][::-1]},
      params | {'a': params['a'][:, ::-1]},
    ):
      self.assertNotEqual(run_weights.fingerprint(changed), expected)
