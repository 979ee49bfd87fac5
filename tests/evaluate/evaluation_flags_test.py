"""Tests of the settings that the flags of an evaluation make."""

import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.evaluate import evaluated
from replay_rl.evaluate import evaluation_flags
from replay_rl.tasks.text import prompt_stream
from tests import tiny
from tests import tiny_evaluation

_NEEDED = ('--benchmarks=a,b', '--data_dir=d', '--out=o')
_MODEL = (*_NEEDED, '--model=m', '--no-chat', '--max_new_tokens=9')


def _resolve(*flags, run=None):
  return evaluation_flags.resolve(evaluation_flags.parse([*flags]), run)


def _run():
  return evaluated.Run(
    folder=pathlib.Path('r'),
    model=tiny.config().model,
    text=tiny_evaluation.text(
      't',
      template='{problem}!',
      use_chat_template=True,
      system_message='Think.',
      max_prompt_tokens=11,
      max_new_tokens=12,
      num_workers=3,
      answer_timeout=4.0,
      memory_limit=5,
      max_answer_chars=6,
    ),
    seeds=(3,),
    mesh={'data': 2, 'fsdp': 1, 'tensor': 2},
  )


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
      evaluation_flags.Settings(
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

  def test_several_greedy_samples_are_refused(self):
    with self.assertRaisesRegex(ValueError, '--n=2, must be 1 with'):
      _resolve(*_MODEL, '--n=2', '--temperature=0')

  def test_a_run_sets_what_is_not_given(self):
    with mock.patch.object(evaluated, 'pick_step', return_value=7) as pick:
      settings, num_workers = _resolve(
        *_NEEDED,
        '--workdir=r',
        '--step=7',
        '--max_new_tokens=99',
        '--tokenizer=elsewhere',
        '--chat_variables={"think": false}',
        run=_run(),
      )
      no_chat, _ = _resolve(*_NEEDED, '--workdir=r', '--no-chat', run=_run())
    self.assertEqual(pick.call_args_list[0].args, (pathlib.Path('r'), 7))
    self.assertEqual(num_workers, 3)
    self.assertEqual(
      settings._asdict(),
      settings._asdict()
      | {
        'step': 7,
        'seed': 3,
        'tokenizer': 'elsewhere',
        'template': '{problem}!',
        'chat': True,
        'system': 'Think.',
        'chat_variables': {'think': False},
        'max_prompt_tokens': 11,
        'max_new_tokens': 99,
        'compute_dtype': 'float32',
        'answer_timeout': 4.0,
        'memory_limit': 5,
        'max_answer_chars': 6,
        'mesh': {'data': 2, 'fsdp': 1, 'tensor': 2},
      },
    )
    self.assertFalse(no_chat.chat)
    self.assertIsNone(no_chat.system)
    self.assertEqual(no_chat.tokenizer, 't')


if __name__ == '__main__':
  absltest.main()
