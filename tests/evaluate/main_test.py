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

from replay_rl.bucket import mirror
from replay_rl.evaluate import __main__ as evaluate
from replay_rl.evaluate import scores
from replay_rl.lm import tokenizer
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.tasks.verify import equality
from replay_rl.tasks.verify import verifier as verifier_lib
from tests import tiny
from tests import tiny_evaluation
from tests import tiny_tokenizer
from tests.bucket import memory_store


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
      *self.flags('real', eval_seed=1),
      '--no-chat',
      verifier=verifier_lib.Verifier,
    )
    self.assertEqual(code, 0)
    self.assertIn('pass@5', shown)
    results = json.loads((self.folder / 'real/results.json').read_text())
    outcomes, num_correct = {}, 0
    for name, rows in tiny_evaluation.BENCHMARKS.items():
      lines = self.lines('real', name)
      answers = [answer for _, _, answer in rows for _ in range(5)]
      self.assertEqual(
        [line['problem'] for line in lines],
        [identity for identity, _, _ in rows for _ in range(5)],
      )
      is_correct = []
      for line, answer in zip(lines, answers, strict=True):
        self.assertContainsSubset(line['response'], {'1', '2'})
        self.assertEqual(
          line['length'], len(line['response']) + line['is_finished']
        )
        is_correct.append(line['response'] == answer)
        self.assertEqual(line['status'] == 'correct', is_correct[-1])
      num_correct += sum(is_correct)
      outcomes[name] = scores.Outcomes(
        np.reshape(is_correct, (-1, 5)),
        *(
          np.reshape([line[key] for line in lines], (-1, 5))
          for key in ('length', 'is_finished', 'status')
        ),
      )
    self.assertBetween(num_correct, 1, 24)
    expected = scores.summarize(
      outcomes, statuses=verifier_lib.STATUSES, confidence=0.95
    )
    expected = json.loads(json.dumps(expected))  # Tuples become lists.
    self.assertEqual({key: results[key] for key in expected}, expected)
    self.assertEqual(results['settings']['temperature'], 1.0)
    # Samples of a problem differ, and so do benchmarks and batches.
    responses = [line['response'] for line in self.lines('real', 'short')]
    self.assertGreater(len(set(responses[:5])), 1)
    others = [line['response'] for line in self.lines('real', 'long')]
    # A batch has eight rows. The model ignores the prompt, so that equal ids
    # would give equal responses; the second batch ends with seven rows.
    self.assertLen(responses, 8 + 7)
    self.assertNotEqual(responses[:7], responses[8:])
    self.assertNotEqual(responses[:8], others[:8])

  def test_a_trained_run_gives_what_its_weights_give_as_a_folder(self):
    trained = tiny_evaluation.trained()
    config = trained.config
    hf.save(
      self.folder / 'exported',
      trained.transformer,
      jax.tree.map(lambda leaf: leaf[1], trained.state.learner.params),
      dtype='float32',
      max_file_bytes=10**6,
      max_position_embeddings=72,
      bos_id=None,
      eos_ids=tokenizer.load(config.text.tokenizer).eos_ids,
      tokenizer_folder=pathlib.Path(config.text.tokenizer),
    )
    template = {'template': config.text.template}
    sizes = {'max_prompt_tokens': 64, 'max_new_tokens': 8}
    code, _, error = self.main(
      *self.flags(
        'a',
        model=self.folder / 'exported',
        system='Think.',
        chat_variables='{"think": true}',
        **template,
        **sizes,
      ),
      '--chat',
    )
    self.assertEqual(code, 0, error)
    # The run is in a bucket.
    memory = memory_store.Memory()
    self.enter_context(memory.connected())
    store = memory.store()
    claimed = mirror.claim(store, take_over=False)
    copy = mirror.Mirror(store, trained.folder, claimed, at_end=[])
    copy.upload(2, {})
    of_run = self.flags(
      'b',
      workdir=memory_store.ADDRESS,
      **dict.fromkeys(('model', 'compute_dtype', *template, *sizes)),
    )
    code, _, error = self.main(*of_run, '--seed=14')
    self.assertEqual(code, 0, error)
    for name in tiny_evaluation.BENCHMARKS:
      self.assertEqual(self.lines('a', name), self.lines('b', name))
    one, other = (
      json.loads(self.files(out)['results.json'])['settings'] for out in 'ab'
    )
    self.assertEqual(
      {name for name, value in one.items() if value != other[name]},
      {'model', 'workdir', 'step', 'seed', 'memory_limit', 'answer_timeout'}
      | {'tokenizer'},
    )
    code, _, error = self.main(*of_run)
    self.assertEqual(code, 2)
    self.assertIn('seed = None: must be one of [13, 14], the seeds of ', error)
    code, _, error = self.main(*of_run, '--seed=13')
    self.assertIn('seed = 13 (there: 14)', error)

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
    for result in (*content['benchmarks'].values(), content['average']):
      result['pass_at_k']['1']['mean'] = 0.5
      result['response_length'] = 2 * result['response_length']
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
    for result in (*comparison['benchmarks'].values(), comparison['average']):
      self.assertEqual(
        result, {'length_reduction': 0.5, 'accuracy_gain': -1.0, 'aes': -9.5}
      )
    self.assertEqual(
      comparison['constants'], {'omega': 1.0, 'beta': 5.0, 'gamma': 10.0}
    )

    short = self.flags('short', baseline=self.folder / 'base', **greedy)
    code, _, error = self.main(*short, '--no-chat', '--benchmarks=short')
    self.assertEqual(code, 2)
    self.assertIn("must be of the same problems {'short': ", error)
    self.assertEqual(self.files('short'), {})

  def test_a_text_begins_as_the_tokenizer_begins_one(self):
    folder = self.folder / 'with_bos'
    shutil.copytree(self.folder / 'model', folder)
    tiny_tokenizer.change_json(
      folder / 'tokenizer_config.json', add_bos_token=None
    )
    flags = {'n': 1, 'temperature': 0}
    lengths = []
    for out, model in (('without', self.folder / 'model'), ('with', folder)):
      code, shown, error = self.main(
        *self.flags(out, model=model, **flags), '--no-chat'
      )
      self.assertEqual(code, 0, error)
      note = "short: each prompt begins with '<|start|>', as the tokenizer begi"
      self.assertEqual(note in ' '.join(shown.split()), out == 'with')
      lengths.append(
        [line['prompt_tokens'] for line in self.lines(out, 'long')]
      )
    self.assertEqual([length + 1 for length in lengths[0]], lengths[1])


class BadInputTest(EvaluateTestCase):
  @parameterized.parameters(
    ({'model': None}, 'model = None, workdir = None: must be one of the two'),
    ({'workdir': 'x'}, "workdir = 'x': must be one of the two, not both"),
    ({'benchmarks': 'short,maths'}, "benchmarks = 'maths': must be among ['l"),
    (
      {'max_new_tokens': None},
      'max_new_tokens = None: must be given with --model',
    ),
    ({'seed': 1}, 'step = None, seed = 1: must be given only with --workdir'),
    ({'temperature': 0}, 'n = 5: must be 1 with temperature = 0'),
    ({'temperature': 0, 'n': 1, 'top_k': 3}, 'top_k = 3: must not be given'),
    ({'temperature': -1}, 'temperature = -1.0: must be in [0.001, 1000]'),
    ({'top_p': 1.5}, 'top_p = 1.5: must be in (0, 1]'),
    ({'n': 0}, 'n = 0: must be in [1, 2147483647]'),
    ({'eval_seed': 2**32}, 'eval_seed = 4294967296: must be in [0, 4294967295'),
    ({'eval_seed': -1}, 'eval_seed = -1: must be in [0, 4294967295]'),
    ({'temperature': 'inf'}, 'temperature = inf: must be in [0.001, 1000]'),
    ({'temperature': 1e-30}, 'temperature = 1e-30: must be in [0.001, 1000]'),
    ({'batch_size': 10**12}, 'batch_size = 1000000000000: must be in [1, 21'),
    ({'answer_timeout': 'inf'}, 'answer_timeout = inf: must be in [0.001, 86'),
    ({'num_workers': 0}, 'num_workers = 0: must be in [1, 1024]'),
    ({'aes_beta': -1}, 'aes_beta = -1.0: must be in [0, 1e+06]'),
    ({'system': 'Hello'}, "system = 'Hello', chat_variables = None: must be"),
    ({'batch_size': 7}, 'batch_size = 7: must be a multiple of the 2 devices'),
    ({'max_answer_chars': 1}, 'max_answer_chars = 1: must be at least 2, the'),
    (
      {'chat_variables': '{"a": 1}'},
      "system = None, chat_variables = {'a': 1}: must be given only with --ch",
    ),
    ({'max_prompt_tokens': 2}, 'prompts that fit (max_prompt_tokens = 2'),
    ({'max_new_tokens': 99}, 'must be at most max_position_embeddings = 64'),
    ({'baseline': 'nowhere'}, "baseline = 'nowhere': must hold the results.j"),
    ({'template': 'no field'}, 'must have the one field {problem}'),
  )
  def test_ends_with_a_line_that_names_the_flag(self, changes, message):
    code, _, error = self.main(*self.flags('bad', **changes), '--no-chat')
    self.assertEqual(code, 2)
    self.assertStartsWith(error, 'error: ')
    self.assertIn(message, error)
    self.assertEqual(self.files('bad'), {})

  @parameterized.parameters(
    '',
    '{',
    '[]',
    '{"settings": 3}',
    '{"settings": {"benchmarks": [3]}}',
    '[' * 100_000,
  )
  def test_a_damaged_baseline_is_named(self, content):
    (self.folder / 'damaged').mkdir(exist_ok=True)
    (self.folder / 'damaged/results.json').write_text(content)
    flags = self.flags('bad', baseline=self.folder / 'damaged')
    code, _, error = self.main(*flags, '--no-chat')
    self.assertEqual(code, 2)
    self.assertRegex(
      error, '^error: baseline = .*: must hold the results.j.*\n$'
    )

  def test_whether_to_chat_must_be_said(self):
    code, _, error = self.main(*self.flags('bad'))
    self.assertEqual(code, 2)
    self.assertIn('chat = None: must be given with --model', error)

  @parameterized.parameters(
    ({'benchmarks': 'short,short'}, 'must be distinct names'),
    ({'benchmarks': '../short'}, 'must be distinct names'),
    ({'mesh': 'data'}, 'must be a JSON object'),
    ({'chat_variables': '3'}, 'must be a JSON object'),
    ({'mesh': '[' * 100_000}, 'must be a JSON object'),
    ({'chat_variables': 'null'}, 'must be a JSON object'),
    ({'chat_variables': '[' * 10**5}, 'must be a JSON object'),
    ({'eval_seed': '１'}, 'invalid integer value'),
    ({'eval_seed': '1e400'}, 'invalid integer value'),
    ({'answer_timeout': 'nan'}, 'invalid real value'),
    ({'top_p': '1e400'}, 'invalid real value'),
    ({'bench': 'short'}, 'unrecognized arguments'),
  )
  def test_flags_that_cannot_be_read_end_the_process(self, changes, message):
    with (
      self.assertRaises(SystemExit),
      contextlib.redirect_stderr(io.StringIO()) as error,
    ):
      evaluate.main(self.flags('bad', **changes))
    self.assertIn(message, error.getvalue())
