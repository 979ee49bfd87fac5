"""Tests of the program that writes the model of a run for transformers."""

import contextlib
import io
import json
import pathlib
import shutil
import tempfile

import jax
import numpy as np
from absl.testing import absltest

from replay_rl import export
from replay_rl.lm import tokenizer
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.lm.hf import config as hf_config
from tests import saved_run
from tests import tiny
from tests import tiny_text


class ExportTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
    cls.config = tiny_text.config(cls.root, num_seeds=2, seed=5)
    cls.run_state = saved_run.save(cls.root / 'run', cls.config, iteration=3)

  def _main(self, workdir, *flags, code=0):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      actual = export.main([f'--workdir={self.root / workdir}', *flags])
    self.assertEqual(actual, code, err.getvalue())
    return (err if code else out).getvalue()

  def _loaded(self, folder, max_context):
    config = hf_config.read_config(
      folder, max_context=max_context, compute_dtype='float32'
    )
    return config, hf.load(folder, config)

  def test_the_folder_has_the_weights_of_the_seed_bit_for_bit(self):
    out = self.root / 'model'
    printed = self._main('run', '--seed=6', '--iteration=3', f'--out={out}')
    self.assertEqual(printed, f'{out}\n')
    config, loaded = self._loaded(out, 40)
    expected = jax.tree.map(lambda leaf: leaf[1], self.run_state.learner.params)
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)
    self.assertEqual(config.d_model, self.config.model.d_model)
    # It stops where the run does, and writes the same tokens.
    words, own = (
      tokenizer.load(x) for x in (out, pathlib.Path(self.config.text.tokenizer))
    )
    self.assertEqual(words.content_hash, own.content_hash)
    for name in ('config.json', 'generation_config.json'):
      numbers = json.loads((out / name).read_text())
      self.assertEqual(numbers['eos_token_id'], [*own.eos_ids])
    self.assertEqual(
      json.loads((out / 'config.json').read_text())['max_position_embeddings'],
      40,
    )

  def test_the_card_says_what_the_model_is(self):
    out = self.root / 'card'
    self._main('run', '--seed=5', f'--out={out}', '--dtype=bfloat16')
    text = (out / 'README.md').read_text()
    for part in (
      'library_name: transformers',
      ', iteration 3 of seed 5\n',
      'Trained from random weights',
      'stored in bfloat16',
      '| `replay.weights` | "uniform()" |',
      'Question: {problem}\nAnswer:',
      'without a chat template',
    ):
      self.assertIn(part, text)

  def test_a_run_without_text_has_its_tokens_in_the_card(self):
    saved_run.save(self.root / 'sums', tiny.config(), iteration=1)
    out = self.root / 'sums model'
    self._main('sums', f'--out={out}')
    self.assertIn('`9` `+` `=` `<eos>`', (out / 'README.md').read_text())
    numbers = json.loads((out / 'config.json').read_text())
    self.assertEqual(numbers['max_position_embeddings'], 8)
    self.assertEqual(numbers['model_type'], 'qwen3')
    self.assertFalse((out / 'tokenizer.json').exists())

  def test_what_cannot_be_exported_is_one_line(self):
    out = f'--out={self.root / "none"}'
    for arguments, message in (
      (['run', out], 'seed = None: must be one of [5, 6], the seeds of '),
      (['run', '--seed=5', '--iteration=2', out], 'step = 2: must be one of'),
      (['run', '--seed=5', f'--out={self.root / "run"}'], 'must not exist'),
      (['nowhere', out], 'must be a JSON object'),
    ):
      text = self._main(*arguments, code=2)
      self.assertIn(message, text)
      self.assertLen(text.splitlines(), 1)
    self.assertFalse((self.root / 'none').exists())


if __name__ == '__main__':
  absltest.main()
