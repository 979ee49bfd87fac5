"""Tests of whether a run fits, without compiling one."""

import functools
import json
from unittest import mock

import jax
from absl.testing import parameterized

from replay_rl.fit import compilation
from replay_rl.fit import fitting
from replay_rl.fit import hlo
from replay_rl.fit import hlo_costs
from replay_rl.fit import memory as memory_lib
from replay_rl.fit import topology
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from tests import tiny

_ONE = {'data': 1, 'fsdp': 1, 'tensor': 1}


def _program(name='cycle', peak=100, error=None) -> compilation.Program:
  exact = hlo.Times(2, hlo.EXACT)
  return compilation.Program(
    name=name,
    memory=None
    if error
    else compilation.ProgramMemory(9, 10, 5, 4, peak - 3, 2, 1),
    flops=hlo.Times(7, hlo.AT_MOST),
    collectives=[hlo_costs.Collective('all-gather', 8, exact, 'f32[2]', 'a/b')],
    error=error,
    seconds=1.26,
  )


def _experiment(config):
  return build.experiment(config, build.planned_shape(config))


def _compiling(*programs):
  """Replaces the compiler."""
  return mock.patch.object(
    compilation, 'programs', side_effect=lambda *_: iter(programs)
  )


class FittingTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.config = tiny.config(
      evaluation__every=2,
      evaluation__num_prompts=8,
      logging__samples_every=2,
    )
    cls.experiment = _experiment(cls.config)

  def _check(
    self, *programs, memory=100.0, stops_early=False, sampler_shape=None
  ):
    said = []
    with _compiling(*programs):
      actual = fitting.check(
        self.config,
        self.experiment,
        topology.make('cpu:8', memory=memory),
        {'data': 2, 'fsdp': 4, 'tensor': 1},
        sampler_shape,
        stops_early=stops_early,
        say=said.append,
      )
    return actual, said

  def test_a_run_fits_if_every_peak_does(self):
    actual, said = self._check(_program('init', 3), _program(peak=100))
    self.assertEqual(actual.problems, [])
    self.assertEqual(actual.mesh, {'data': 2, 'fsdp': 4, 'tensor': 1})
    self.assertIsNone(actual.sampler_mesh)
    self.assertEqual(
      said[1], 'cpu:8 data 2 x fsdp 4 x tensor 1: cycle took 1 s'
    )

  def test_it_does_not_if_one_is_a_byte_too_large_or_does_not_compile(self):
    programs = (
      _program('init', 2_000_000_001),
      _program(error='no room'),
      _program('evaluate', 3),
    )
    actual, _ = self._check(*programs, memory=2e9)
    self.assertEqual(
      actual.problems,
      [
        'init does not fit: 2.000 GB of 2.000',
        'cycle does not compile: no room',
      ],
    )
    self.assertLen(actual.programs, 3)

  def test_the_first_problem_can_be_enough(self):
    programs = _program('init', 1), _program(peak=200), _program('evaluate')
    actual, _ = self._check(*programs, stops_early=True)
    self.assertLen(actual.programs, 2)

  def test_a_mesh_that_does_not_divide_the_run_is_refused(self):
    with self.assertRaisesRegex(ValueError, '= 8 equal parts'):
      fitting.planned_peaks(
        self.config, self.experiment, _ONE | {'tensor': 8}, None
      )

  def test_the_plan_of_a_program_is_all_that_is_kept_and_its_own(self):
    memory = memory_lib.memory(
      self.config, self.experiment.parts, memory_lib.abstract_mesh(_ONE)
    )
    kept = sum(memory.kept.values())
    own = {name: sum(t.values()) for name, t in memory.programs.items()}
    self.assertEqual(
      fitting.planned_peaks(self.config, self.experiment, _ONE, None),
      {
        'generate': kept + own['sampler'],
        'learn': kept + own['learner'],
        'cycle': kept + max(own['sampler'], own['learner']),
        'evaluate': kept + own['evaluation'],
        'checkpoint': 2 * kept,
      },
    )
    without = tiny.config()
    self.assertNotIn(
      'evaluate', fitting.planned_peaks(without, self.experiment, _ONE, None)
    )

  def test_a_check_is_json(self):
    sampler_mesh = {'data': 4, 'fsdp': 1, 'tensor': 2}
    actual, _ = self._check(
      _program(peak=50),
      _program('generate', error='no room'),
      sampler_shape=sampler_mesh,
    )
    planned = actual.planned['cycle']
    read = json.loads(json.dumps(fitting.as_json(actual)))
    self.assertFalse(read['fits'])
    self.assertEqual(read['num_chips'], 8)
    self.assertEqual(read['sampler_mesh'], sampler_mesh)
    self.assertEqual(read['problems'], ['generate does not compile: no room'])
    cycle = read['programs']['cycle']
    self.assertEqual(cycle['memory']['peak'], 50)
    self.assertEqual(cycle['memory']['temporaries'], 4)
    self.assertEqual(cycle['planned'], planned)
    self.assertAlmostEqual(cycle['peak_over_planned'], 50 / planned)
    self.assertEqual(cycle['flops'], {'number': 7, 'certainty': 'at most'})
    self.assertEqual(
      cycle['collectives'][0]['times'], {'number': 2, 'certainty': ''}
    )
    self.assertEqual(cycle['seconds'], 1.3)
    self.assertIsNone(read['programs']['generate']['memory'])
    self.assertIsNone(read['programs']['generate']['peak_over_planned'])


class SmallestTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.config = tiny.config(replay__batch_size=16)
    cls.experiment = _experiment(cls.config)
    planned_peaks = fitting.planned_peaks
    # A second for each mesh, and many tests try the same.
    cls.planned = staticmethod(
      functools.cache(
        lambda *sizes: planned_peaks(
          cls.config,
          cls.experiment,
          dict(zip(mesh_lib.AXES, sizes, strict=True)),
          cls._joined(*sizes),
        )
      )
    )
    cls.all_tried = cls._tried([2e6] * 5)

  @staticmethod
  def _joined(data, fsdp, tensor):
    """Returns the mesh to generate on, None for the same."""
    if fsdp == 1:
      return None
    return {'data': data * fsdp, 'fsdp': 1, 'tensor': tensor}

  @classmethod
  def _tried(cls, peaks, mesh_shape=None, memory=1e6):
    """Returns what is tried if the compiler finds these peaks in turn."""
    peaks = iter(peaks)
    tried = []

    def programs(config, experiment, mesh, sampler_mesh):
      del config, experiment
      sizes = tuple(mesh.shape.values())
      tried.append(sizes)
      assert (sampler_mesh and dict(sampler_mesh.shape)) == cls._joined(*sizes)
      return iter([_program(peak=next(peaks)), _program('samples', 1)])

    make = functools.partial(topology.Topology, memory=memory)
    with (
      mock.patch.object(
        fitting,
        'planned_peaks',
        side_effect=lambda config, experiment, shape, _: cls.planned(
          *(shape[axis] for axis in mesh_lib.AXES)
        ),
      ),
      mock.patch.object(compilation, 'programs', side_effect=programs),
      mock.patch.object(
        topology, 'slices', return_value=['v5e:1x1', 'v5e:1x2', 'v5e:2x2']
      ),
      mock.patch.object(
        topology,
        'make',
        side_effect=lambda name, memory: make(
          name, devices=jax.devices()[: topology.num_chips(name)]
        ),
      ),
    ):
      actual = list(
        fitting.smallest(
          cls.config,
          cls.experiment,
          'v5e',
          mesh_shape,
          memory=memory,
          say=lambda _: None,
        )
      )
    return tried, actual

  def test_it_tries_upwards_until_one_fits(self):
    tried, actual = self._tried([2e6, 2e6, 2e6, 5.0])
    self.assertEqual(tried[0], (1, 1, 1))
    self.assertEqual({tried[1], tried[2]}, {(1, 1, 2), (1, 2, 1)})
    self.assertLen(tried, 4)
    self.assertEqual([bool(check.problems) for check in actual[:3]], [True] * 3)
    # Nothing is compiled after what does not fit.
    checks = [one for one in actual if not isinstance(one, str)]
    self.assertEqual([len(check.programs) for check in checks], [1, 1, 1, 2])
    self.assertEqual(actual[-1].topology.name, 'v5e:2x2')
    self.assertEqual(actual[-1].problems, [])

  def test_the_mesh_that_is_planned_to_need_least_comes_first(self):
    tried, _ = self.all_tried
    planned = [max(self.planned(*shape).values()) for shape in tried]
    self.assertEqual(planned[1:3], sorted(planned[1:3]))
    self.assertEqual(planned[3:], sorted(planned[3:]))

  def test_what_cannot_be_is_said_and_not_compiled(self):
    tried, actual = self.all_tried
    # Two heads cannot be split over four chips.
    self.assertNotIn((1, 1, 4), tried)
    (line,) = [one for one in actual if isinstance(one, str)]
    self.assertRegex(
      line, 'v5e:2x2 data 1 x fsdp 1 x tensor 4: .* model.num_heads'
    )

  def test_a_run_that_has_no_room_for_its_copy_is_not_compiled(self):
    tried, actual = self._tried([], memory=1000.0)
    self.assertEqual(tried, [])
    self.assertRegex(actual[0], 'the run and its copy .* of 0.000$')

  def test_a_mesh_that_is_given_is_all_that_is_tried(self):
    shape = {'data': -1, 'fsdp': 1, 'tensor': 1}
    tried, _ = self._tried([2e6, 2e6, 5.0], mesh_shape=shape)
    self.assertEqual(tried, [(1, 1, 1), (2, 1, 1), (4, 1, 1)])
