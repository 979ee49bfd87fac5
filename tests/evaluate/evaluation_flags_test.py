"""Tests of the settings that the flags of an evaluation make."""

from absl.testing import parameterized

from replay_rl.evaluate import evaluation_flags
from replay_rl.evaluate import run_weights
from replay_rl.tasks.text import prompt_stream
from tests import tiny_evaluation

_NEEDED = ('--benchmarks=a,b', '--data_dir=d', '--out=o')
_MODEL = (*_NEEDED, '--model=m', '--no-chat', '--max_new_tokens=9')


def _resolve(*flags, run=None):
  return evaluation_flags.resolve(evaluation_flags.parse([*flags]), run)


class ResolveTest(parameterized.TestCase):
  @parameterized.parameters(
    ((), 0.1, 0.95),
    (('--n=2',), 1.0, None),
    (('--n=2', '--temperature=.6'), 0.6, None),
    (('--n=2', '--top_p=.9'), 1.0, 0.9),
    (('--temperature=.6',), 0.6, 0.95),
    (('--top_p=1',), 0.1, None),
    (('--temperature=0',), 0.0, None),
  )
  def test_protocols_of_one_sample_and_of_several(
    self, flags, temperature, top_p
  ):
    settings, _ = _resolve(*_MODEL, *flags)
    self.assertEqual(settings.temperature, temperature)
    self.assertEqual(settings.top_p, top_p)

  def test_a_model_has_the_documented_defaults(self):
    settings, num_workers = _resolve(
      *_MODEL, '--mesh={"data": 1, "fsdp": 1, "tensor": -1}'
    )
    self.assertEqual(num_workers, 2)
    self.assertEqual(
      settings,
      evaluation_flags.EvaluationSettings(
        model='m',
        workdir=None,
        step=None,
        seed=None,
        tokenizer='m',
        template=prompt_stream.BOXED,
        chat=False,
        system=None,
        chat_variables={},
        n=1,
        temperature=0.1,
        top_p=0.95,
        top_k=None,
        max_prompt_tokens=1024,
        max_new_tokens=9,
        batch_size=64,
        eval_seed=0,
        compute_dtype='bfloat16',
        answer_timeout=5.0,
        memory_limit=2**30,
        max_answer_chars=1000,
        mesh={'data': 1, 'fsdp': 1, 'tensor': 8},
      ),
    )

  def test_a_tokenizer_may_be_elsewhere(self):
    settings, _ = _resolve(*_MODEL, '--tokenizer=t')
    self.assertEqual(settings.tokenizer, 't')

  def test_a_run_sets_what_is_not_given(self):
    trained = tiny_evaluation.trained()
    run = run_weights.read_run(trained.folder)
    flags = (*_NEEDED, '--workdir=r', '--seed=14')
    settings, num_workers = _resolve(
      *flags,
      '--step=1',
      '--max_new_tokens=99',
      '--tokenizer=elsewhere',
      run=run,
    )
    self.assertEqual(num_workers, 1)
    self.assertEqual(
      settings._asdict(),
      settings._asdict()
      | {
        'step': 1,
        'seed': 14,
        'tokenizer': 'elsewhere',
        'template': 'Question: {problem}\nAnswer:',
        'chat': True,
        'system': 'Think.',
        'chat_variables': {'think': True},
        'max_prompt_tokens': 64,
        'max_new_tokens': 99,
        'compute_dtype': 'float32',
        'answer_timeout': 4.0,
        'memory_limit': 2**31,
        'max_answer_chars': 100,
        'mesh': {'data': 1, 'fsdp': 1, 'tensor': 1},
      },
    )
    no_chat, _ = _resolve(*flags, '--no-chat', run=run)
    self.assertEqual((no_chat.chat, no_chat.system), (False, None))
    self.assertEqual(no_chat.chat_variables, {})
    for text, variables in (('{}', {}), ('{"a": 1}', {'a': 1})):
      given, _ = _resolve(*flags, f'--chat_variables={text}', run=run)
      self.assertEqual(given.chat_variables, variables)
    self.assertEqual(no_chat.step, 2)
    self.assertEqual(no_chat.tokenizer, trained.config.text.tokenizer)
