"""The exported model of a run against ours, in transformers."""

import functools
import pathlib

import jax
import numpy as np
import torch
import transformers
from absl.testing import absltest

from replay_rl import export
from replay_rl.lm import model
from replay_rl.lm import tokenizer
from replay_rl.lm.hf import config as hf_config
from tests import saved_run
from tests import tiny_text

_TEXT = 'Question: What is 3 + 1?\nAnswer:'


class ExportTest(absltest.TestCase):
  def test_transformers_loads_the_run_and_computes_the_same(self):
    root = pathlib.Path(self.create_tempdir().full_path)
    config = tiny_text.config(root)
    run = saved_run.save(root / 'run', config, iteration=1)
    out = root / 'model'
    code = export.main([f'--workdir={root / "run"}', f'--out={out}'])
    self.assertEqual(code, 0)
    words = transformers.AutoTokenizer.from_pretrained(out)
    tokens = tokenizer.load(out).encode(_TEXT)
    self.assertEqual(words(_TEXT, add_special_tokens=False).input_ids, tokens)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
      out, dtype=torch.float32
    ).eval()
    self.assertEqual(
      theirs.generation_config.eos_token_id, [*tokenizer.load(out).eos_ids]
    )
    with torch.no_grad():
      expected = theirs(input_ids=torch.tensor([tokens])).logits.numpy()
    ours = hf_config.read_config(
      out, max_context=len(tokens), compute_dtype='float32'
    )
    init = functools.partial(model.init, ours)
    graphdef = jax.eval_shape(init, jax.random.key(0))[0]
    params = jax.tree.map(lambda leaf: leaf[0], run.learner.params)
    logits = model.apply(graphdef, params, np.array([tokens], np.int32))
    error = np.abs(np.asarray(logits) - expected).max()
    self.assertLess(error / np.abs(expected).max(), 1e-4)


if __name__ == '__main__':
  absltest.main()
