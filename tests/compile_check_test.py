"""Tests of the check: the real main, for virtual devices of this machine."""

import contextlib
import functools
import importlib.metadata
import io
import itertools
import json
import pathlib
import sys
from unittest import mock

import rich.console
from absl.testing import parameterized

from replay_rl import command_line
from replay_rl import compile_check
from replay_rl.fit import compilation
from replay_rl.fit import fitting
from replay_rl.fit import hlo
from replay_rl.fit import hlo_costs
from tests import tpu_library

ROOT = pathlib.Path(__file__).parents[1]
_MESH = '--mesh={"data": 2, "fsdp": 2, "tensor": 2}'
_TINY = """
from tests import tiny

def get_config():
  return tiny.config(
    replay__batch_size=16,
    replay__updates_per_iteration=1,
  )
"""


def _main(*arguments) -> tuple[int, str, str]:
  """Returns the exit status and what was printed."""
  argv = ['compile_check', *arguments]
  out, err = io.StringIO(), io.StringIO()
  status = 0
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      with mock.patch.object(sys, 'argv', argv):
        compile_check.main(command_line.parse(argv, compile_check._FLAGS))
    except SystemExit as ended:
      status = ended.code
    finally:
      for name in ('config', 'topology', 'smallest', 'mesh', 'memory', 'json'):
        compile_check._FLAGS[name].unparse()
      compile_check._FLAGS.unparse_flags()
  return status, out.getvalue(), err.getvalue()


class MainTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path)
    (self.path / 'config.py').write_text(_TINY)
    self.config = f'--config={self.path}/config.py'

  def test_a_run_on_eight_devices(self):
    status, out, err = _main(
      self.config,
      '--topology=cpu:8',
      _MESH,
      '--config.logging.samples_every=2',
      f'--json={self.path}/out.json',
    )
    self.assertEqual(status, 0, out + err)
    for words in (
      'mesh data 2 x fsdp 2 x tensor 2\n',
      'GB on each chip',
      'all all-reduce',
      f'jax {importlib.metadata.version("jax")}',
      'cpu:8 data 2 x fsdp 2 x tensor 2: it fits.',
    ):
      self.assertIn(words, out)
    self.assertIn('cycle took', err)
    read = json.loads((self.path / 'out.json').read_text())
    self.assertEqual(read['skipped'], [])
    (check,) = read['checks']
    self.assertTrue(check['fits'])
    self.assertEqual(
      list(check['programs']), ['init', 'cycle', 'samples', 'checkpoint']
    )
    kinds = [
      actual['kind'] for actual in check['programs']['cycle']['collectives']
    ]
    self.assertEqual(
      out.count('cycle        all '), len(set(kinds)), (set(kinds), out)
    )
    self.assertBetween(check['programs']['cycle']['peak_over_planned'], 0.2, 5)

  def test_a_chip_with_too_little_memory(self):
    programs = compilation.programs
    with mock.patch.object(
      compilation,
      'programs',
      side_effect=lambda *of_run: itertools.islice(programs(*of_run), 1),
    ):
      status, out, _ = _main(
        self.config, '--topology=cpu:1', '--memory=0.00002'
      )
    self.assertEqual(status, 1)
    self.assertRegex(out, 'init does not fit: 0.000 GB of 0.000')

  def test_a_mesh_may_leave_chips_unused(self):
    program = compilation.Program('init', None, None, None, 'no room', 1.0)
    config = self.path / 'sampler.py'
    config.write_text(
      _TINY.replace(
        'replay__batch_size=16,',
        'replay__batch_size=16,\n'
        "    mesh__sampler_shape={'data': -1, 'fsdp': 1, 'tensor': 1},",
      )
    )
    with mock.patch.object(
      compilation, 'programs', return_value=iter([program])
    ):
      status, out, _ = _main(
        f'--config={config}',
        '--topology=cpu:8',
        '--mesh={"data": 1, "fsdp": 2, "tensor": 1}',
      )
    self.assertEqual(status, 1)
    self.assertIn('data 1 x fsdp 2 x tensor 1: 2 of 8 chips are used\n', out)
    self.assertIn('generation on data 2 x fsdp 1 x tensor 1\n', out)
    self.assertIn('init does not compile: no room', out)

  def test_a_program_that_cannot_be_read_is_said(self):
    memory = compilation.ProgramMemory(1, 1, 1, 1, 1, 1, 1)
    program = compilation.Program('init', memory, None, None, 'odd', 1.0)
    with mock.patch.object(
      compilation, 'programs', return_value=iter([program])
    ):
      status, out, _ = _main(self.config, '--topology=cpu:8')
    self.assertEqual(status, 0)
    self.assertIn('init cannot be read: odd', out)

  def test_the_numbers_of_the_tables(self):
    exact = functools.partial(hlo.Times, certainty=hlo.EXACT)
    source = 'jit(<lambda>)/while/body/closed_call/meanwhile/add'
    actual = [
      hlo_costs.Collective('all-gather', size, times, f'f32[{size}]', source)
      for size, times in (
        *((1_000_000 * i, exact(2)) for i in range(1, 7)),
        (500, hlo.Times(3, hlo.AT_MOST)),
      )
    ]
    memory = compilation.ProgramMemory(
      10**9, 2 * 10**9, 0, 0, 3 * 10**9, 0, 10**9
    )
    program = compilation.Program(
      'generate', memory, exact(2 * 10**12), actual, None, 1
    )
    chips = compile_check.topology_lib.Topology('v5e:2x2', 16e9, range(4))
    out = io.StringIO()
    compile_check.show(
      fitting.Check(
        chips, {'data': 4}, None, {'generate': 2 * 10**9}, [program], []
      ),
      rich.console.Console(file=out, width=150),
    )
    lines = [line.split() for line in out.getvalue().splitlines()]
    # Four of the chip's 16 GB, and twice what was planned.
    self.assertIn(
      ['generate', *'1.000 2.000 0.000 0.000 3.000 0.000 1.000 4.000'.split()]
      + '25% 2.000 2.00 2.000'.split(),
      lines,
    )
    # 2 x (1 + ... + 6) MB and 3 x 500 bytes, executed 2 x 6 + 3 times.
    self.assertIn(
      'generate all all-gather 7 at most 15 at most 42.002'.split(), lines
    )
    largest = [line for line in lines if line[:1] == ['all-gather']]
    self.assertEqual(
      largest[0],
      'all-gather 2 6.000 12.000 f32[6000000] meanwhile/add'.split(),
    )
    self.assertLen(largest, 5)
    self.assertNotIn('f32[1000000]', out.getvalue())

  def test_the_smallest_slice_is_named(self):
    topology = compile_check.topology_lib.Topology('v5e:2x2', 16e9, [])
    no = fitting.Check(topology, {'data': 1}, None, {}, [], ['too large'])
    yes = fitting.Check(topology, {'data': 2}, None, {}, [], [])
    for actual, status, words in (
      (['skipped one', no, yes], 0, 'The smallest slice is v5e:2x2.'),
      ([no], 1, 'It fits no slice of v5e that is known.'),
      (['skipped one'], 1, 'It fits no slice of v5e that is known.'),
    ):
      with mock.patch.object(fitting, 'smallest', return_value=iter(actual)):
        got, out, _ = _main(
          self.config, '--smallest=v5e', f'--json={self.path}/out.json'
        )
      self.assertEqual(got, status)
      self.assertIn(words, out)
      read = json.loads((self.path / 'out.json').read_text())
      self.assertEqual(
        read['skipped'], [line for line in actual if isinstance(line, str)]
      )

  @parameterized.parameters(
    (('--topology=v9:2x2',), "topology = 'v9:2x2': must be one of v5e"),
    ((), '--topology = None, --smallest = None: must be one of'),
    (('--topology=cpu:8', '--smallest=v5e'), "= 'v5e': must be one of"),
    (('--smallest=v9',), "smallest = 'v9'"),
    (('--topology=cpu:8', '--memory=0'), 'memory = 0.0: must be in'),
    (('--topology=cpu:8', '--mesh={'), 'must be JSON'),
    (
      ('--topology=cpu:8', '--mesh={"data": 9, "fsdp": 1, "tensor": 1}'),
      'must use at most 8 devices',
    ),
    (
      ('--topology=cpu:8', '--mesh={"data": 1, "fsdp": 1, "tensor": 4}'),
      'model.num_heads = 2',
    ),
    (
      (
        '--topology=cpu:8',
        _MESH,
        '--config.mesh.sampler_shape={"data": 2, "fsdp": 1, "tensor": 2}',
      ),
      'mesh.sampler_shape = .*: must use all 8 devices of mesh.shape',
    ),
    (('--topology=cpu:8', '--config.replay.capcity=3'), 'capcity'),
    (('--topology=cpu:8', 'more'), 'must be flags'),
  )
  def test_bad_input_ends_with_one_line(self, flags, message):
    status, _, err = _main(self.config, *flags)
    self.assertEqual(status, 2)
    self.assertRegex(err, f'^error: .*{message}')

  def test_a_config_must_be_given(self):
    status, _, err = _main('--topology=cpu:8')
    message = 'error: --config = None: must be given\n'
    self.assertEqual((status, err), (2, message))

  @tpu_library.needed
  def test_a_run_on_a_tpu_that_is_not_here(self):
    status, out, _ = _main(
      self.config,
      '--topology=v5e:2x2',
      '--mesh={"data": 1, "fsdp": 2, "tensor": 2}',
    )
    self.assertEqual(status, 0, out)
    self.assertIn('GB on each chip, which has 16.000', out)
    self.assertRegex(out, r'libtpu \d')

  @tpu_library.needed
  def test_no_program_of_a_tpu_moves_a_buffer_that_is_on_the_host(self):
    results = self.create_tempfile('results.json').full_path
    capacity = 2**20
    status, out, _ = _main(
      self.config,
      '--topology=v5e:2x2',
      '--mesh={"data": 1, "fsdp": 4, "tensor": 1}',
      '--config.mesh.buffer_memory=pinned_host',
      '--config.num_seeds=1',
      f'--config.replay.capacity={capacity}',
      f'--json={results}',
    )
    self.assertEqual(status, 0, out)
    (actual,) = json.loads(pathlib.Path(results).read_text())['checks']
    # A chip would pad the tokens of a row, 4 bytes each, to 128.
    tokens = capacity // 4 * 128 * 4
    for name, program in actual['programs'].items():
      self.assertLess(program['memory']['peak'], tokens, name)
