"""Tests of reading the weights of a run."""

import dataclasses
import json
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.evaluate import evaluated
from replay_rl.lm import model
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import placement
from tests import tiny_evaluation
from tests import tiny_tokenizer


class EvaluatedTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
    tokens = cls.folder / 'tokenizer'
    tokens.mkdir()
    tiny_tokenizer.write(tokens)
    cls.params = tiny_evaluation.params(tokenizer_lib.load(tokens))
    tiny_evaluation.write_run(cls.folder / 'run', tokens)
    cls.run_of = evaluated.read_run(cls.folder / 'run')
    cls.config = tiny_evaluation.transformer()

  def restore(self, run=None, config=None, *, step=2, seed=6, **shape):
    config = config or self.config
    sizes = {'data': 1, 'fsdp': 1, 'tensor': 1} | shape
    axes = model.logical_axes(config)
    return evaluated.restore(
      run or self.run_of,
      config,
      step=step,
      seed=seed,
      shardings=placement.of_params(axes, mesh_lib.make(sizes)),
    )

  def copy(self):
    folder = self.folder / 'copy'
    shutil.copytree(self.folder / 'run', folder)
    self.addCleanup(shutil.rmtree, folder)
    return evaluated.read_run(folder)

  def test_restores_the_seed_and_step_onto_the_mesh(self):
    found = self.restore(fsdp=2, tensor=2)
    jax.tree.map(np.testing.assert_array_equal, found, self.params)
    shards = found['unembedding'].addressable_shards
    self.assertEqual(shards[0].data.size * 4, found['unembedding'].size)
    for step, seed in ((2, 5), (1, 6)):
      other = self.restore(step=step, seed=seed)
      self.assertTrue(all(not np.any(x) for x in jax.tree.leaves(other)))

  def test_damaged_weights_are_refused(self):
    run = self.copy()
    path = next((run.folder / 'checkpoints/2/checksums').glob('metadata'))
    checksums = json.loads(path.read_text())
    checksums[".learner.params['unembedding']"] += 1
    path.write_text(json.dumps(checksums))
    with self.assertRaisesRegex(
      ValueError, r"params\['unembedding'\] has another checksum"
    ):
      self.restore(run)

  def test_weights_without_their_data_are_refused(self):
    run = self.copy()
    shutil.rmtree(run.folder / 'checkpoints/2/run/d')
    with self.assertRaisesRegex(ValueError, 'checkpoints/2 cannot be read'):
      self.restore(run)

  def test_weights_of_another_shape_are_refused(self):
    for changes in ({'vocab_size': 400}, {'qk_norm': False, 'num_layers': 2}):
      config = dataclasses.replace(self.config, **changes)
      with self.assertRaisesRegex(ValueError, 'checkpoints/2 cannot be'):
        self.restore(config=config)

  def test_seeds_of_another_run_are_refused(self):
    run = self.run_of._replace(seeds=(6, 7))
    with self.assertRaisesRegex(ValueError, r'holds the seeds \[5, 6\]'):
      self.restore(run)

  def test_picks_the_newest_step_or_the_one_named(self):
    folder = self.folder / 'run'
    self.assertEqual(evaluated.pick_step(folder, None), 2)
    self.assertEqual(evaluated.pick_step(folder, 1), 1)
    with self.assertRaisesRegex(
      ValueError, r'step = 3: .* holds the steps \[1, 2\]'
    ):
      evaluated.pick_step(folder, 3)
    with self.assertRaisesRegex(ValueError, 'the run has no checkpoint'):
      evaluated.pick_step(self.folder, None)

  def test_picks_the_only_seed_or_the_one_named(self):
    self.assertEqual(evaluated.pick_seed(self.run_of, 5), 5)
    alone = self.run_of._replace(seeds=(7,))
    self.assertEqual(evaluated.pick_seed(alone, None), 7)
    for run, seed in ((self.run_of, None), (self.run_of, 7), (alone, 0)):
      with self.assertRaisesRegex(ValueError, f'seed = {seed}: .*seeds'):
        evaluated.pick_seed(run, seed)

  def test_the_vocabulary_is_that_of_the_config_or_of_the_tokenizer(self):
    sizes = {'vocab_size': 50, 'max_context': 30, 'compute_dtype': 'float32'}
    shape = self.run_of.model
    found = evaluated.architecture_of(shape, **sizes)
    self.assertEqual(found, self.config)
    half = sizes | {'compute_dtype': 'bfloat16'}
    found = evaluated.architecture_of(shape, **half)
    self.assertEqual(found.compute_dtype, 'bfloat16')
    shape = type(shape)(**(vars(shape) | {'vocab_size': None}))
    found = evaluated.architecture_of(shape, **sizes)
    self.assertEqual(found.vocab_size, 50)

  @parameterized.parameters(
    (None, 'not the config of a run in text: FileNotFoundError'),
    ({'config': {'text': None, 'task': 'addition()'}}, 'is of the task add'),
    ({'config': {}}, "KeyError.'text'"),
    ({'config': {'text': {}, 'model': {'x': 1}}}, 'TypeError'),
  )
  def test_what_is_not_a_run_in_text_is_refused(self, content, message):
    folder = pathlib.Path(self.create_tempdir().full_path)
    if content is not None:
      (folder / 'config.json').write_text(json.dumps(content))
    with self.assertRaisesRegex(ValueError, message):
      evaluated.read_run(folder)


class FingerprintTest(absltest.TestCase):
  def test_is_the_same_on_any_mesh_and_sees_any_change(self):
    params = {'a': jnp.arange(8.0).reshape(4, 2), 'b': jnp.ones(3)}
    expected = evaluated.fingerprint(params)
    mesh = mesh_lib.make({'data': 1, 'fsdp': 4, 'tensor': 1})
    split = jax.NamedSharding(mesh, jax.P('fsdp'))
    placed = params | {'a': jax.device_put(params['a'], split)}
    self.assertEqual(evaluated.fingerprint(placed), expected)
    for changed in (
      params | {'b': jnp.ones(3).at[1].set(1.0000001)},
      {'a': params['b'], 'b': params['a']},
      params | {'a': -params['a']},
      params | {'a': params['a'][::-1]},
      params | {'a': params['a'][:, ::-1]},
    ):
      self.assertNotEqual(evaluated.fingerprint(changed), expected)


if __name__ == '__main__':
  absltest.main()
