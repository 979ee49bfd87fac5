"""Tests of compiling a run whose arrays do not exist."""

import math
import types
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl.fit import compilation
from replay_rl.fit import hlo
from replay_rl.fit import memory as memory_lib
from replay_rl.parallel import host_memory
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import schedule
from tests import tiny

_TWO = {'data': 1, 'fsdp': 2, 'tensor': 1}


def text_config(**changes) -> config_lib.Config:
  """Returns a run whose files are not there."""
  text = config_lib.Text(
    problems='/absent',
    split='train',
    evaluation_problems='/absent',
    evaluation_split='test',
    tokenizer='/absent',
    template='{problem}',
    use_chat_template=False,
    system_message=None,
    chat_variables=None,
    max_prompt_tokens=6,
    drop_long_prompts=True,
    max_new_tokens=4,
    num_workers=1,
    answer_timeout=1.0,
    memory_limit=2**31,
    max_answer_chars=10,
    judge_every=None,
    reward_fn=None,
  )
  return tiny.config(
    task='problems()',
    text=text,
    model__vocab_size=32,
    model__checkpoint='/absent',
    warm_start__num_steps=0,
    **changes,
  )


def _experiment(config):
  return build.experiment(config, build.planned_shape(config))


def _programs(config, mesh_shape):
  mesh = mesh_lib.make(mesh_shape)
  experiment = _experiment(config)
  actual = compilation.programs(config, experiment, mesh)
  return experiment.parts, mesh, {program.name: program for program in actual}


def _kept(config, parts, mesh) -> int:
  memory = memory_lib.memory(
    config, parts, memory_lib.abstract_mesh(mesh.shape)
  )
  return sum(memory.kept.values())


class RunTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # Updates of two iterations, so that the sampler has a ring of two.
    cls.config = text_config(
      num_seeds=2,
      sampler__weight_lag=4,
      evaluation__every=2,
      logging__samples_every=2,
    )
    with mock.patch.object(
      compilation, 'measure', wraps=compilation.measure
    ) as measured:
      cls.parts, cls.mesh, cls.programs = _programs(cls.config, _TWO)
    cls.arguments = {
      call.args[0]: call.args[2:] for call in measured.call_args_list
    }

  def test_every_program_of_a_run_compiles_in_the_order_of_the_run(self):
    self.assertEqual(
      list(self.programs),
      [
        'init',
        'generate',
        'remember',
        'learn',
        'evaluate',
        'samples',
        'checkpoint',
      ],
    )
    for program in self.programs.values():
      self.assertIsNone(program.error)
      self.assertIsNotNone(program.collectives)
      self.assertGreater(program.seconds, 0)

  def test_a_run_takes_what_the_plan_says_that_it_keeps(self):
    # Counters and the ledger are not in the plan.
    kept = _kept(self.config, self.parts, self.mesh)
    actual = self.programs['init'].memory.outputs
    self.assertBetween(actual, kept, kept + 4096)

  def test_weights_of_a_checkpoint_are_split_before_the_run_is_made(self):
    params = jax.eval_shape(self.parts.init_params_fn, jax.random.key(0))
    whole = sum(4 * math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    actual = self.programs['init'].memory.arguments
    self.assertBetween(actual, whole / 2, 0.6 * whole)

  def test_the_learner_finds_what_was_generated_where_the_sampler_put_it(self):
    _, generation, _ = self.arguments['remember']
    _, fresh, _ = self.arguments['learn']
    for rows in generation.completions.tokens, fresh.rollouts.tokens:
      self.assertEqual(rows.sharding.shard_shape(rows.shape)[1], 8)

  @parameterized.parameters('remember', 'learn')
  def test_the_run_is_donated(self, name):
    memory = self.programs[name].memory
    run = self.programs['init'].memory.outputs
    self.assertBetween(memory.aliased, 0.9 * run, run)
    self.assertLess(memory.rest_of_run, 0.1 * run)

  def test_what_a_program_does_not_read_stays_beside_it(self):
    run = self.programs['init'].memory.outputs
    for name in ('evaluate', 'samples'):
      memory = self.programs[name].memory
      self.assertEqual(memory.arguments + memory.rest_of_run, run, name)
      self.assertGreater(memory.rest_of_run, run / 4, name)
    # It reads a copy of weights of the ring.
    self.assertEqual(self.programs['generate'].memory.rest_of_run, run)
    self.assertEqual(self.programs['init'].memory.rest_of_run, 0)

  def test_a_checkpoint_is_a_copy(self):
    memory = self.programs['checkpoint'].memory
    run = self.programs['init'].memory.outputs
    self.assertEqual(memory.outputs, run)
    self.assertBetween(memory.arguments, 0.98 * run, run)
    self.assertEqual(self.programs['checkpoint'].collectives, [])

  def test_the_learner_reduces_over_the_devices(self):
    kinds = {actual.kind for actual in self.programs['learn'].collectives}
    self.assertIn('all-reduce', kinds)

  def test_flops_grow_with_the_loops(self):
    # Two seeds, two updates each, of 8 rows and 9 positions: products alone,
    # forward and backward, are 6 FLOPs for each weight of a product.
    flops = self.programs['learn'].flops
    shape = self.parts.transformer
    weights = (
      shape.d_model * shape.head_dim * (2 * shape.num_heads + 2 * 2)
      + 3 * shape.d_model * shape.d_ff
      + shape.d_model * shape.vocab_size
    )
    ideal = 2 * 2 * 6 * 8 * 9 * weights / 2
    self.assertBetween(flops.number, ideal, 4 * ideal)
    self.assertEqual(flops.certainty, hlo.EXACT)
    self.assertEqual(self.programs['generate'].flops.certainty, hlo.AT_MOST)


class ProgramsTest(parameterized.TestCase):
  def test_a_task_in_jax_is_one_program_and_what_is_off_is_left_out(self):
    config = tiny.config()
    _, _, programs = _programs(config, {'data': 1, 'fsdp': 1, 'tensor': 1})
    self.assertEqual(list(programs), ['init', 'cycle', 'checkpoint'])
    self.assertEqual(programs['cycle'].collectives, [])
    self.assertGreater(programs['cycle'].flops.number, 0)

  def test_with_the_buffer_on_the_host_a_task_in_jax_goes_in_steps(self):
    config = tiny.config(
      mesh__buffer_memory='pinned_host',
    )
    # Which programs there are, and what the first makes, shows without
    # compiling them.
    empty = jax.jit(lambda: 0).lower().compile()
    with (
      mock.patch.object(jax.stages.Lowered, 'compile', return_value=empty),
      mock.patch.object(
        host_memory, 'init_in_place', wraps=host_memory.init_in_place
      ) as made,
    ):
      _, _, programs = _programs(config, {'data': 1, 'fsdp': 1, 'tensor': 1})
    self.assertEqual(
      list(programs), ['init', 'generate', 'remember', 'learn', 'checkpoint']
    )
    places = [call.args[1].memory_kind for call in made.call_args_list]
    self.assertContainsSubset(['pinned_host', 'pinned_host'], places)

  def test_nothing_follows_a_run_that_cannot_be_made(self):
    failure = jax.errors.JaxRuntimeError('no room\nat all')
    config = tiny.config()
    with mock.patch.object(jax.stages.Lowered, 'compile', side_effect=failure):
      _, _, programs = _programs(config, {'data': 1, 'fsdp': 1, 'tensor': 1})
    (program,) = programs.values()
    self.assertEqual(program.name, 'init')
    self.assertEqual(program.error, 'no room')
    self.assertIsNone(program.memory)

  @parameterized.parameters((text_config, True), (tiny.config, False))
  def test_weights_of_a_checkpoint_come_split(self, config_fn, is_split):
    nothing = compilation.Program('init', None, None, None, 'stop', 0.0)
    with mock.patch.object(
      compilation, 'measure', return_value=nothing
    ) as measured:
      _programs(config_fn(), _TWO)
    _, _, params, _, _ = measured.call_args.args
    shapes = jax.tree.leaves(params)
    self.assertEqual(
      {shape.sharding is not None for shape in shapes}, {is_split}
    )
    embedding = params['embedding']
    if is_split:
      self.assertEqual(embedding.sharding.shard_shape(embedding.shape)[1], 8)

  def test_the_cycle_is_the_one_with_the_most_updates(self):
    config = tiny.config(replay__updates_per_iteration=0.5)
    with mock.patch.object(
      compilation, 'measure', wraps=compilation.measure
    ) as measured:
      empty = jax.jit(lambda: 0).lower().compile()
      with mock.patch.object(jax.stages.Lowered, 'compile', return_value=empty):
        _programs(config, {'data': 1, 'fsdp': 1, 'tensor': 1})
    (events,) = [
      call.args[3]
      for call in measured.call_args_list
      if call.args[0] == 'cycle'
    ]
    self.assertEqual(events[-1], schedule.Learn(1))

  def test_no_mesh_is_left_behind_when_one_stops_early(self):
    config = tiny.config()
    mesh = mesh_lib.make(_TWO)
    actual = compilation.programs(config, _experiment(config), mesh)
    next(actual)
    self.assertTrue(jax.sharding.get_mesh().empty)


class MeasureTest(parameterized.TestCase):
  def _measure(self, function, size_of_run=0, **options):
    shape = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    return compilation.measure(
      'f',
      jax.jit(function, **options),
      shape,
      mesh=mesh_lib.make({'data': 1, 'fsdp': 1, 'tensor': 1}),
      size_of_run=size_of_run,
    )

  def test_the_peak_counts_what_is_donated_once(self):
    plain = self._measure(lambda x: x + 1)
    donated = self._measure(lambda x: x + 1, donate_argnums=0)
    self.assertEqual(plain.memory.arguments, 64)
    self.assertEqual(plain.memory.outputs, 64)
    self.assertEqual(plain.memory.peak - donated.memory.peak, 64)
    memory = compilation.ProgramMemory(1, 20, 15, 300, 4000, 50000, 600000)
    self.assertEqual(memory.peak, 654000)

  def test_the_rest_of_the_run_is_never_negative(self):
    actual = self._measure(lambda x: x + 1, size_of_run=100)
    self.assertEqual(actual.memory.rest_of_run, 36)
    actual = self._measure(lambda x: x + 1, size_of_run=10)
    self.assertEqual(actual.memory.rest_of_run, 0)

  def test_a_program_that_cannot_be_written_down_has_a_memory(self):
    failure = jax.errors.JaxRuntimeError('unknown\nthing')
    with mock.patch.object(jax.stages.Compiled, 'as_text', side_effect=failure):
      actual = self._measure(lambda x: x + 1)
    self.assertEqual(actual.memory.arguments, 64)
    self.assertIsNone(actual.collectives)
    self.assertEqual(actual.error, 'unknown')

  def test_all_is_well_with_a_plain_program(self):
    actual = self._measure(lambda x: x @ x)
    self.assertIsNone(actual.error)
    self.assertEqual(actual.flops, hlo.Times(2 * math.prod([4] * 3), hlo.EXACT))

  def test_each_size_is_that_of_the_compiler(self):
    sizes = types.SimpleNamespace(
      argument_size_in_bytes=1,
      output_size_in_bytes=20,
      alias_size_in_bytes=300,
      temp_size_in_bytes=4000,
      peak_memory_in_bytes=3000,
      host_argument_size_in_bytes=100,
      host_output_size_in_bytes=30,
      host_alias_size_in_bytes=7,
      host_temp_size_in_bytes=2,
      generated_code_size_in_bytes=50000,
    )
    with mock.patch.object(
      jax.stages.Compiled, 'memory_analysis', return_value=sizes
    ):
      actual = self._measure(lambda x: x + 1, size_of_run=600001)
      of_tpu = compilation._alive(sizes, 'tpu')
    self.assertEqual(
      actual.memory,
      compilation.ProgramMemory(1, 20, 300, 4000, 3721, 50000, 600000),
    )
    self.assertEqual(of_tpu, 3000 - 100 - 30 + 7 - 2)
