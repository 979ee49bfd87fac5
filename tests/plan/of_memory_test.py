"""Tests of the plan: the real main, and the configs that people plan with."""

import importlib
import json
import pathlib
import re
from unittest import mock

from absl.testing import parameterized

from replay_rl.configs import models
from replay_rl.fit import advice
from replay_rl.lm import families
from replay_rl.plan import of_memory
from replay_rl.run import build
from replay_rl.run import config as config_lib
from tests import mains
from tests import tiny
from tests.launchers import shell_test

ROOT = pathlib.Path(__file__).parents[2]
_EIGHT = {'data': 1, 'fsdp': 8, 'tensor': 1}


def _config(name, arm) -> config_lib.Config:
  return importlib.import_module(f'replay_rl.configs.{name}').get_config(arm)


def _main(*arguments) -> tuple[int, str, str]:
  """Returns the exit status and what was printed."""
  return mains.ran(of_memory.main, of_memory.FLAGS, *arguments)


class ConfigsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('gsm8k_qwen3_0_6b', 'reuse_4'),
    ('math_llama3_2_3b', 'reuse_4'),
    ('math_qwen2_5_7b', 'reuse_4'),
    ('math_qwen3_4b_prioritized', 'prioritized'),
  )
  def test_each_fits_eight_gpus(self, name, arm):
    needs = of_memory.plan(_config(name, arm), device='h200', mesh=_EIGHT)
    self.assertTrue(needs.fits)
    # 16 bytes a weight: itself, two moments, a gradient.
    self.assertGreater(needs.memory.total, 16 * needs.num_params / 8)

  def test_a_slower_device_with_less_memory_needs_as_much(self):
    config = tiny.config()
    gpu, tpu = (
      of_memory.plan(config, device=device, mesh=config.mesh.shape)
      for device in ('h200', 'v5e')
    )
    self.assertEqual(gpu.memory, tpu.memory)
    self.assertLess(tpu.limit, gpu.limit)
    self.assertLess(gpu.times.learner, tpu.times.learner)

  def test_a_long_run_has_the_updates_of_its_first_cycles(self):
    config = tiny.config(
      num_iterations=8 * 10**8, replay__updates_per_iteration=2.5
    )
    needs = of_memory.plan(config, device='h200', mesh=config.mesh.shape)
    self.assertEqual(needs.replay.updates, 2.5)

  def test_a_model_has_the_numbers_of_its_family(self):
    for name, shape in families.MODELS.items():
      actual = models.published(name, checkpoint=None, compute_dtype='bfloat16')
      for field in ('vocab_size', 'd_model', 'head_dim', 'tied_embeddings'):
        self.assertEqual(getattr(actual, field), getattr(shape, field))
      scaling = shape.rope_scaling
      self.assertEqual(actual.rope_scaling, scaling and scaling._asdict())
    with self.assertRaisesRegex(ValueError, "name = 'GPT-2': must be one of"):
      models.published('GPT-2', checkpoint=None, compute_dtype='float32')


class MainTest(parameterized.TestCase):
  def test_a_run_that_fits(self):
    status, out, _ = _main(
      f'--config={ROOT}/configs/quickstart.py', '--device=v5e'
    )
    self.assertEqual(status, 0)
    for words in ('parameters', 'KV cache', 'Lower bounds', 'It fits.'):
      self.assertIn(words, out)

  def test_a_run_that_does_not_fit_says_what_helps(self):
    status, out, _ = _main(
      f'--config={ROOT}/configs/math_qwen2_5_7b.py',
      '--device=h100',
      '--mesh={"data": 1, "fsdp": 1, "tensor": 1}',
    )
    self.assertEqual(status, 1)
    self.assertRegex(' '.join(out.split()), 'It does not fit: .* What helps: ')

  def test_it_says_how_no_token_collects_weights(self):
    config = f'--config={ROOT}/configs/gsm8k_qwen3_0_6b.py'
    mesh = '--mesh={"data": 2, "fsdp": 2, "tensor": 1}'
    sampler = '{"data": 4, "fsdp": 1, "tensor": 1}'
    _, out, _ = _main(config, mesh, '--device=v5e')
    words = ' '.join(out.split())
    self.assertIn(f'With mesh.sampler_shape = {sampler} it would', words)
    (peak,) = re.findall(r'and the peak would be ([\d.]+) GB[.,]', words)
    flag = f'--config.mesh.sampler_shape={sampler}'
    _, out, _ = _main(config, mesh, '--device=v5e', flag)
    words = ' '.join(out.split())
    self.assertNotIn('every token', words)
    self.assertIn('generation on data 4 x fsdp 1 x tensor 1', words)
    self.assertRegex(words, rf'peak always \+ evaluation {peak} ')

  def test_for_machines_and_with_paths_of_the_user(self):
    with mock.patch.object(of_memory, 'plan', wraps=of_memory.plan) as called:
      status, out, _ = _main(
        f'--config={ROOT}/configs/gsm8k_qwen3_0_6b.py:reuse_4',
        '--config.text.problems=/elsewhere',
        '--config.model.checkpoint=/there',
        '--device=h200',
        '--json',
      )
    self.assertEqual(status, 0)
    actual = json.loads(out)
    self.assertTrue(actual['fits'])
    self.assertEqual(actual['num_params'], 596_049_920)
    self.assertEqual(actual['replay']['replay_ratio'], 4.0)
    self.assertEqual(actual['kept']['parameters'], 4 * 596_049_920)
    (config,) = called.call_args.args
    self.assertEqual(config.text.problems, '/elsewhere')
    self.assertEqual(config.model.checkpoint, '/there')

  @parameterized.parameters(
    (('--device=h100',), '--config = None: must be given'),
    (('--device=abacus',), "device = 'abacus'"),
    (('--device=h100', '--mesh=[1]'), 'must be a JSON object'),
    (('--device=h100', '--mesh={'), 'must be JSON'),
    (('--device=h100', '--mesh={"data": 1}'), 'must name the axes'),
    (('--device=h100', '--config.replay.capacity=3'), 'capacity = 3'),
    (('--device=h100', '--config.replay.capcity=3'), 'capcity'),
    (('--device=h100', 'more'), 'must be flags'),
  )
  def test_bad_input_ends_with_one_line(self, flags, message):
    config = [f'--config={ROOT}/configs/quickstart.py']
    if 'must be given' in message:
      config = []
    status, _, err = _main(*config, *flags)
    self.assertEqual(status, 2)
    self.assertRegex(err, '^error: ')
    self.assertIn(message, err)

  @parameterized.parameters('device', 'pinned_host')
  def test_a_buffer_on_the_host_is_shown_beside_the_device(self, memory):
    config = tiny.config(mesh__buffer_memory=memory)
    actual = of_memory.plan(config, device='h200', mesh=config.mesh.shape)
    # Of the 32 slots: 8 tokens, 4 bytes each and 4 of their log-probabilities.
    on_host = 0 if memory == 'device' else 32 * 8 * 8
    self.assertEqual(of_memory.as_json(actual)['on_host'], on_host)
    whens = list(of_memory.table(actual).columns[0].cells)
    self.assertEqual('host' in whens, bool(on_host))

  def test_the_documented_launches_have_meshes_that_divide_their_runs(self):
    num_launches = 0
    for program in (
      ['bash', 'scripts/tpu_pod.sh'],
      ['bash', 'scripts/gke_jobset.sh'],
      ['sbatch'],
      ['python', '-m', 'replay_rl.compile_check'],
    ):
      for words in shell_test.documented(program):
        flags = [word for word in words if word.startswith('--config')]
        shapes = [word for word in words if 'mesh' in word.partition('=')[0]]
        if not shapes:
          continue
        num_launches += 1
        status, _, err = _main(
          *(flag for flag in flags if flag not in shapes),
          f'--mesh={shapes[0].partition("=")[2]}',
          '--device=h200',
        )
        self.assertIn(status, (0, 1), f'{words}: {err}')
    self.assertEqual(num_launches, 5)

  def test_a_task_in_text_needs_its_vocabulary(self):
    config = _config('gsm8k_qwen3_0_6b', 'reuse_2')
    config.model.vocab_size = None
    with self.assertRaisesRegex(ValueError, 'model.vocab_size = None'):
      build.planned_shape(config)

  def test_every_term_has_advice(self):
    actual = of_memory.plan(
      tiny.config(
        sampler__weight_lag=4,
        sampler__num_slots=8,
        model__compute_dtype='bfloat16',
        optimizer__gate='gradient_gate(threshold=0.1, window=2, squared=False)',
        loss__policy='vcpo(max_ratio=8.0) + reference_kl(coefficient=0.1) + '
        'decoupled_ppo(clip_low=0.2, clip_high=0.2, max_ratio=5.0)',
        loss__statistics='optimal_baseline(max_ratio=8.0)',
      ),
      device='h100',
      mesh={'data': 1, 'fsdp': 1, 'tensor': 1},
    )
    terms = set(actual.memory.kept).union(*actual.memory.programs.values())
    # The verifier is no part of a plan, which is of devices.
    self.assertEqual({*terms, 'verifier'}, set(advice.ADVICE))
