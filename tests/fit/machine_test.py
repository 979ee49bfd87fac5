"""Tests of the comparison of a run with the memory of its machine."""

import contextlib
import pathlib
import types
from unittest import mock

from absl.testing import parameterized

from replay_rl.fit import advice
from replay_rl.fit import machine
from replay_rl.fit import memory as memory_lib
from replay_rl.parallel import host_memory
from replay_rl.run import build
from replay_rl.run import placement
from tests import configs_test
from tests import tiny
from tests import tiny_text

_ONE = {'data': 1, 'fsdp': 1, 'tensor': 1}
_ALL = {'data': 2, 'fsdp': 2, 'tensor': 1}


def _parts(config):
  return build.experiment(config, build.planned_shape(config)).parts


def _check(config, *, free=None, allow_memory=False):
  """Checks a run on a host with so many bytes; None for those there are."""
  with contextlib.ExitStack() as stack:
    if free is not None:
      stack.enter_context(
        mock.patch.object(host_memory, 'available', return_value=free)
      )
    parts = _parts(config)
    machine.check(
      *(config, parts, *placement.meshes_of_run(config, parts)),
      allow_memory=allow_memory,
    )


def _least(config):
  mesh = memory_lib.abstract_mesh(config.mesh.shape)
  return memory_lib.least(config, _parts(config), mesh, None)


class LeastTest(parameterized.TestCase):
  @parameterized.parameters(
    {},
    {'num_seeds': 3},
    {'num_seeds': 3, 'vmap_seeds': True, 'evaluation__every': 2},
    {'sampler__weight_lag': 8, 'optimizer__microbatch_rows': 4},
    {'mesh__shape': _ALL, 'mesh__buffer_memory': 'pinned_host'},
    {
      'optimizer__gate': 'gradient_gate(threshold=0.1, window=5, squared=False)'
    },
  )
  def test_is_at_most_what_the_plan_expects_term_by_term(self, **changes):
    config = tiny.config(**changes)
    mesh = memory_lib.abstract_mesh(config.mesh.shape)
    planned = memory_lib.memory(config, _parts(config), mesh)
    least = memory_lib.least(config, _parts(config), mesh, None)
    self.assertEqual(least.kept, planned.kept)
    self.assertEqual(least.on_host, planned.on_host)
    self.assertEqual(least.programs.keys(), planned.programs.keys())
    for program, terms in least.programs.items():
      for name, size in terms.items():
        self.assertGreater(size, 0, name)
        self.assertLessEqual(size, planned.programs[program][name], name)

  def test_every_term_has_advice(self):
    least = _least(
      tiny.config(
        sampler__weight_lag=4,
        evaluation__every=2,
        model__compute_dtype='bfloat16',
        optimizer__gate='gradient_gate(threshold=0.1, window=5, squared=False)',
      )
    )
    terms = set(least.kept).union(*least.programs.values())
    self.assertContainsSubset(terms, advice.ADVICE)

  def test_a_sampler_with_its_own_mesh_has_its_own_share(self):
    config = tiny.config(
      mesh__shape={'data': 1, 'fsdp': 2, 'tensor': 1},
      mesh__sampler_shape={'data': 1, 'fsdp': 1, 'tensor': 2},
    )
    parts = _parts(config)
    own, other = placement.meshes_of_run(config, parts)
    split = memory_lib.least(config, parts, own, other).programs['sampler']
    whole = memory_lib.least(config, parts, own, None).programs['sampler']
    # Rows are split over fsdp, and heads over tensor: responses are whole.
    self.assertEqual(
      split['prompts and responses'], 2 * whole['prompts and responses']
    )


class CheckTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'model__d_model': 10**9}, 'optimizer state'),
    ({'sampler__weight_lag': 2 * 10**6}, 'published weights'),
    (
      {'evaluation__every': 1, 'evaluation__num_prompts': 10**9},
      'KV cache',
    ),
    ({'replay__capacity': 2**30}, 'replay buffer'),
    ({'num_seeds': 10**9}, 'optimizer state'),
    ({'model__vocab_size': 2**31 - 1, 'model__d_model': 64}, 'optimizer state'),
    (
      {
        'optimizer__gate': 'gradient_gate(threshold=0.1, window=2147483647, '
        'squared=False)'
      },
      'state of the gate',
    ),
    (
      {
        'num_iterations': 1,
        'replay__updates_per_iteration': 2**31 - 1,
        'logging__histogram_bins': 32,
      },
      'histograms of updates',
    ),
  )
  def test_refuses_an_absurd_size_in_one_line(self, changes, term):
    with self.assertRaisesRegex(
      ValueError,
      r'^memory = [\d.]+ GB: must be at most 16.00 GB, the free memory of this '
      rf"machine; the largest term is '{term}' with [\d.]+ "
      'GB; what helps: [^\n]*; --allow_memory starts the run all the same$',
    ):
      _check(tiny.config(**changes), free=16 * 10**9)

  def test_compares_with_what_there_is_to_the_byte(self):
    config = tiny.config()
    needed = _least(config).total
    _check(config, free=needed)
    with self.assertRaisesRegex(ValueError, 'memory = 0.00 GB: must be at m'):
      _check(config, free=needed - 1)

  def test_cpu_devices_share_the_memory(self):
    config = tiny.config(mesh__shape=_ALL, mesh__buffer_memory='pinned_host')
    least = _least(config)
    kept = sum(least.kept.values()) + least.on_host
    needed = least.total + least.on_host + 3 * kept
    _check(config, free=needed)
    with self.assertRaisesRegex(ValueError, 'memory = '):
      _check(config, free=needed - 1)

  def test_the_processes_of_a_verifier_count(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    config = tiny_text.config(
      folder, text__num_workers=1000, model__vocab_size=512
    )
    with self.assertRaisesRegex(
      ValueError,
      "memory = 40.0. GB: .* term is 'verifier' with 40.00 GB; what helps: a "
      'smaller text.num_workers; ',
    ):
      _check(config, free=39 * 10**9)
    _check(config, free=41 * 10**9)

  def test_allowed_it_is_a_warning(self):
    with self.assertWarnsRegex(UserWarning, '^memory = .*what helps: '):
      _check(tiny.config(), free=1, allow_memory=True)

  def test_passes_where_nobody_says_how_much_there_is(self):
    with mock.patch.object(host_memory, 'available', return_value=None):
      _check(tiny.config(model__d_model=10**9))

  @parameterized.parameters(
    *((name, arm) for name in ('quickstart', 'countdown') for arm in ('per',))
  )
  def test_a_small_machine_is_enough_for_the_experiments(self, name, arm):
    config = configs_test.experiment(name).get_config(arm)
    config.mesh.shape = _ONE
    _check(config, free=200 * 10**6)

  def test_a_buffer_on_the_host_of_an_accelerator(self):
    config = tiny.config(mesh__buffer_memory='pinned_host')
    least = _least(config)
    gpu = types.SimpleNamespace(
      platform='gpu',
      device_kind='H200',
      memory_stats=lambda: {'bytes_limit': least.total},
    )

    def demands(free):
      with mock.patch.object(host_memory, 'available', return_value=free):
        return machine._demands(least, 7, [gpu, gpu])  # pyright: ignore

    host, device = demands(5)
    self.assertEqual((host.needed, host.there), (2 * least.on_host + 7, 5))
    self.assertEqual(
      host.terms, {'replay buffer': least.on_host, 'verifier': 7}
    )
    self.assertEqual((device.needed, device.there), (least.total,) * 2)
    self.assertEqual(device.where, 'the memory of a H200')
    gpu.memory_stats = lambda: None  # Not every backend has numbers.
    self.assertIsNone(demands(5)[1].there)
