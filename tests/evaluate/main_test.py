"""Tests of the evaluation program: the real main on a tiny model."""

import contextlib
import io
import json
import pathlib
import shutil
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized

from replay_rl import train
from replay_rl.evaluate import __main__ as evaluate
from replay_rl.evaluate import scores
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.run import build
from replay_rl.tasks.verify import equality
from replay_rl.tasks.verify import verifier as verifier_lib
from tests import tiny
from tests import tiny_evaluation
from tests import tiny_text
from tests import tiny_tokenizer


class _Judge:
  """Judges as the pool does what needs no other process."""

  def __init__(self, **settings):
    del settings

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    pass

  def judge(self, responses, references):
    verdicts = []
    for response, reference in zip(responses, references, strict=True):
      is_correct = bool(equality.compare(response, reference))
      status = ('wrong', 'correct')[is_correct] if response else 'no answer'
      verdicts.append(
        verifier_lib.AnswerVerdict(
          is_correct, response or None, 'number', status
        )
      )
    return verdicts


class EvaluateTestCase(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(tempfile.mkdtemp())
    cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
    tiny_evaluation.write_model(cls.folder / 'model')
    tiny_evaluation.write_benchmarks(cls.folder / 'data')

  def flags(self, out, **changes):
    flags = {
      'benchmarks': 'short,long',
      'data_dir': self.folder / 'data',
      'out': self.folder / out,
      'n': 5,
      'batch_size': 8,
      'cache_dir': tiny.CACHE,
      'mesh': '{"data": 2, "fsdp": 1, "tensor": 1}',
      'model': self.folder / 'model',
      'max_new_tokens': tiny_evaluation.MAX_NEW,
      'max_prompt_tokens': tiny_evaluation.MAX_PROMPT,
      'template': tiny_evaluation.TEMPLATE,
      'compute_dtype': 'float32',
      'max_answer_chars': 100,
      **changes,
    }
    return [f'--{k}={v}' for k, v in flags.items() if v is not None]

  def main(self, *flags, verifier=_Judge):
    """Returns exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with (
      mock.patch.object(verifier_lib, 'Verifier', verifier),
      contextlib.redirect_stdout(out),
      contextlib.redirect_stderr(err),
    ):
      code = evaluate.main([*flags])
    return code, out.getvalue(), err.getvalue()

  def lines(self, out, name):
    text = (self.folder / out / f'samples-{name}.jsonl').read_text()
    return [json.loads(line) for line in text.splitlines()]

  def files(self, out):
    return {
      path.name: path.read_bytes()
      for path in (self.folder / out).glob('*.json*')
    }


class MainTest(EvaluateTestCase):
  def test_scores_are_those_of_the_samples(self):
    code, shown, _ = self.main(
      *self.flags('real'), '--no-chat', verifier=verifier_lib.Verifier
    )
    self.assertEqual(code, 0)
    self.assertIn('pass@5', shown)
    results = json.loads((self.folder / 'real/results.json').read_text())
    means, lengths = [], []
    for name, rows in tiny_evaluation.BENCHMARKS.items():
      lines = self.lines('real', name)
      self.assertLen(lines, 5 * len(rows))
      found = results['benchmarks'][name]
      counts = []
      for row, (identity, _, answer) in enumerate(rows):
        of_problem = lines[5 * row : 5 * row + 5]
        self.assertEqual({line['problem'] for line in of_problem}, {identity})
        for line in of_problem:
          self.assertContainsSubset(line['response'], {'1', '2'})
          self.assertEqual(
            line['length'], len(line['response']) + line['is_finished']
          )
          self.assertEqual(
            line['status'] == 'correct', line['response'] == answer
          )
        counts.append(sum(line['response'] == answer for line in of_problem))
      self.assertGreater(sum(counts), 0)
      # C(5, 2) = 10 pairs, of which C(5 - c, 2) hold no right one.
      wrong_pairs = np.array([10, 6, 3, 1, 0, 0])[counts]
      passes = found['pass_at_k']
      self.assertEqual(list(passes), ['1', '2', '4', '5'])
      for k, expected in (
        ('1', np.array(counts) / 5),
        ('2', 1 - wrong_pairs / 10),
        ('5', np.array(counts) > 0),
      ):
        self.assertAlmostEqual(passes[k]['mean'], np.mean(expected))
      np.testing.assert_allclose(
        passes['2']['interval'],
        scores.interval(
          [1 - wrong_pairs / 10], confidence=0.95, num_resamples=9999, seed=0
        ),
      )
      self.assertAlmostEqual(
        found['response_length'], np.mean([line['length'] for line in lines])
      )
      self.assertAlmostEqual(
        found['truncated_fraction'],
        np.mean([not line['is_finished'] for line in lines]),
      )
      self.assertEqual(sum(found['statuses'].values()), len(lines))
      means.append(passes['1']['mean'])
      lengths.append(found['response_length'])
    average = results['average']
    self.assertAlmostEqual(average['pass_at_k']['1']['mean'], np.mean(means))
    self.assertAlmostEqual(average['response_length'], np.mean(lengths))
    self.assertEqual(results['settings']['temperature'], 1.0)
    # Samples of a problem differ, and so do benchmarks and batches.
    responses = [line['response'] for line in self.lines('real', 'short')]
    self.assertGreater(len(set(responses[:5])), 1)
    others = [line['response'] for line in self.lines('real', 'long')]
    self.assertNotEqual(responses[:8], responses[8:])
    self.assertNotEqual(responses[:8], others[:8])

  def test_a_trained_run_gives_what_its_weights_give_as_a_folder(self):
    config = tiny_text.config(
      self.folder / 'sums',
      seed=5,
      num_seeds=2,
      num_iterations=1,
      evaluation__every=0,
      text__system_message='Think.',
      text__use_chat_template=True,
      text__max_prompt_tokens=64,
    )
    run = train.train(config, self.folder / 'run')
    shape = build.parts(config).transformer
    hf.save(
      self.folder / 'exported',
      shape,
      jax.tree.map(lambda leaf: leaf[1], run.learner.params),
      dtype='float32',
      max_file_bytes=10**6,
      max_position_embeddings=72,
      bos_id=None,
      eos_ids=[tiny_tokenizer.STOP],
    )
    template = {'template': config.text.template}
    sizes = {'max_prompt_tokens': 64, 'max_new_tokens': 8}
    code, _, error = self.main(
      *self.flags(
        'a',
        model=self.folder / 'exported',
        tokenizer=config.text.tokenizer,
        system='Think.',
        **template,
        **sizes,
      ),
      '--chat',
    )
    self.assertEqual(code, 0, error)
    of_run = self.flags(
      'b',
      workdir=self.folder / 'run',
      **dict.fromkeys(('model', 'compute_dtype', *template, *sizes)),
    )
    code, _, error = self.main(*of_run, '--seed=6')
    self.assertEqual(code, 0, error)
    for name in tiny_evaluation.BENCHMARKS:
      self.assertEqual(self.lines('a', name), self.lines('b', name))
    one, other = (
      json.loads(self.files(out)['results.json'])['settings'] for out in 'ab'
    )
    self.assertEqual(
      {name for name, value in one.items() if value != other[name]},
      {'model', 'workdir', 'step', 'seed', 'memory_limit'},
    )
    code, _, error = self.main(*of_run)
    self.assertEqual(code, 2)
    self.assertIn('has trained the seeds [5, 6]; name one of them', error)
    code, _, error = self.main(*of_run, '--seed=5')
    self.assertIn('seed = 5 (there: 6)', error)

  def test_a_rerun_continues_and_ends_byte_equal(self):
    flags = [*self.flags('whole', eval_seed=3), '--no-chat']
    self.main(*flags)
    whole = self.files('whole')
    path = self.folder / 'whole/samples-short.jsonl'
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 20])
    (self.folder / 'whole/samples-long.jsonl').unlink()
    (self.folder / 'whole/results.json').unlink()
    code, shown, _ = self.main(*flags)
    self.assertEqual(code, 0)
    self.assertIn('short: 8 of 15 samples are done', shown)
    self.assertEqual(self.files('whole'), whole)

    for change, message in (
      ({'temperature': 0.5}, 'temperature = 0.5 (there: 1.0)'),
      ({'n': 4}, 'n = 4 (there: 5)'),
      ({'eval_seed': 4}, 'eval_seed = 4 (there: 3)'),
    ):
      other = self.flags('whole', **{'eval_seed': 3, **change})
      code, _, error = self.main(*other, '--no-chat')
      self.assertEqual(code, 2)
      self.assertIn(message, error)
      self.assertEqual(self.files('whole'), whole)

  def test_greedy_and_compared_with_a_baseline(self):
    greedy = {'n': 1, 'temperature': 0}
    self.main(*self.flags('base', **greedy), '--no-chat')
    path = self.folder / 'base/results.json'
    content = json.loads(path.read_text())
    for found in (*content['benchmarks'].values(), content['average']):
      found['pass_at_k']['1']['mean'] = 0.5
      found['response_length'] = 2 * found['response_length']
    path.write_text(json.dumps(content))
    mine = self.flags('mine', baseline=self.folder / 'base', **greedy)
    code, shown, error = self.main(
      *mine, '--no-chat', '--aes_beta=5', '--aes_gamma=10', '--batch_size=4'
    )
    self.assertEqual(code, 0, error)
    self.assertIn('other settings: batch_size', ' '.join(shown.split()))
    results = json.loads((self.folder / 'mine/results.json').read_text())
    comparison = results['comparison']
    # The most probable token is the same at every place: no right answer.
    self.assertEqual(results['average']['pass_at_k']['1']['mean'], 0.0)
    for found in (*comparison['benchmarks'].values(), comparison['average']):
      self.assertEqual(
        found, {'length_reduction': 0.5, 'accuracy_gain': -1.0, 'aes': -9.5}
      )
    self.assertEqual(
      comparison['constants'], {'omega': 1.0, 'beta': 5.0, 'gamma': 10.0}
    )

    short = self.flags('short', baseline=self.folder / 'base', **greedy)
    code, _, error = self.main(*short, '--no-chat', '--benchmarks=short')
    self.assertEqual(code, 2)
    self.assertIn("is of the benchmarks {'short': ", error)
    self.assertEqual(self.files('short'), {})


class BadInputTest(EvaluateTestCase):
  @parameterized.parameters(
    ({'model': None}, 'one of --model and --workdir must be given, not both'),
    ({'workdir': 'x'}, 'one of --model and --workdir must be given, not both'),
    ({'benchmarks': 'short,maths'}, "benchmarks: 'maths' is not in "),
    ({'max_new_tokens': None}, '--max_new_tokens must be given with --model'),
    ({'seed': 1}, '--step and --seed belong to --workdir'),
    ({'temperature': 0}, '--n=5, must be 1 with --temperature=0'),
    ({'temperature': 0, 'n': 1, 'top_k': 3}, '--top_p and --top_k need'),
    ({'temperature': -1}, '--temperature=-1.0, must be at least 0'),
    ({'top_p': 1.5}, 'top_p=1.5 must be None or in'),
    ({'n': 0}, '--n=0, must be at least 1'),
    ({'system': 'Hello'}, '--system and --chat_variables need --chat'),
    ({'batch_size': 7}, '--batch_size=7, must be a multiple of the 2 devices'),
    ({'max_answer_chars': 1}, 'but an answer of short has 2 characters'),
    ({'max_prompt_tokens': 2}, "benchmark 'short': max_prompt_tokens = 2"),
    ({'max_new_tokens': 99}, 'exceeds max_position_embeddings=64'),
    ({'baseline': 'nowhere'}, 'baseline: nowhere/results.json cannot be read'),
    ({'template': 'no field'}, 'must have the one field {problem}'),
  )
  def test_ends_with_a_line_that_names_the_flag(self, changes, message):
    code, _, error = self.main(*self.flags('bad', **changes), '--no-chat')
    self.assertEqual(code, 2)
    self.assertStartsWith(error, 'error: ')
    self.assertIn(message, error)
    self.assertEqual(self.files('bad'), {})

  def test_whether_to_chat_must_be_said(self):
    code, _, error = self.main(*self.flags('bad'))
    self.assertEqual(code, 2)
    self.assertIn('--chat or --no-chat must be given with --model', error)

  @parameterized.parameters(
    ({'benchmarks': 'short,short'}, 'must be distinct names'),
    ({'benchmarks': '../short'}, 'must be distinct names'),
    ({'mesh': 'data'}, 'is not JSON'),
    ({'chat_variables': '3'}, 'must be a JSON object'),
    ({'bench': 'short'}, 'unrecognized arguments'),
  )
  def test_flags_that_cannot_be_read_end_the_process(self, changes, message):
    with (
      self.assertRaises(SystemExit),
      contextlib.redirect_stderr(io.StringIO()) as error,
    ):
      evaluate.main(self.flags('bad', **changes))
    self.assertIn(message, error.getvalue())
