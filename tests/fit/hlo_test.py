"""Tests of reading compiled programs, on programs written by hand."""

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl.fit import hlo

_ADD = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}
"""


def _loop(
  *,
  condition='ROOT %below = pred[] compare(%i, %limit), direction=LT',
  step='%next = s32[] add(%j, %one)',
  first='%first = s32[] constant(0)',
  attributes='',
) -> str:
  """Returns a program whose loop counts up to 12."""
  called = 'condition=%condition, body=%body'
  return f"""HloModule loop, entry_computation_layout={{(f32[4]{{0}})->f32[4]}}

%fused (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %less = pred[] compare(%a, %b), direction=LT
}}

%fused_next (c: s32[]) -> s32[] {{
  %c = s32[] parameter(0)
  %three = s32[] constant(3)
  ROOT %more = s32[] add(%three, %c)
}}

%condition (state: (s32[], f32[4])) -> pred[] {{
  %state = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %limit = s32[] constant(12)
  %two = s32[] constant(2)
  %later = s32[] add(%i, %two)
  %flag = pred[] constant(true)
  {condition}
}}

%body (now: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %now = (s32[], f32[4]) parameter(0)
  %j = s32[] get-tuple-element(%now), index=0
  %v = f32[4] get-tuple-element(%now), index=1
  %one = s32[] constant(1)
  {step}
  ROOT %then = (s32[], f32[4]) tuple(%next, %v)
}}

ENTRY %main (p: f32[4], n: s32[]) -> f32[4] {{
  %p = f32[4]{{0:T(128)}} parameter(0)
  %n = s32[] parameter(1)
  {first}
  %start = (s32[], /*index=1*/f32[4]{{0:T(128)}}) tuple(%first, %p)
  %end = (s32[], f32[4]) while(%start), {called}{attributes}
  ROOT %result = f32[4] get-tuple-element(%end), index=1
}}
"""


def _passes(**changes) -> hlo.Times:
  return hlo.parse(_loop(**changes)).executed['body']


class LoopTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('as_scan_writes_it', {}, 12),
    (
      'with_the_constant_on_the_left',
      {'condition': 'ROOT %c = pred[] compare(%limit, %i), direction=GT'},
      12,
    ),
    # 12 / 5, rounded up.
    ('by_5', {'step': '%one.5 = s32[] constant(5)\n  '
              '%next = s32[] add(%j, %one.5)'}, 3),
    ('from_10', {'first': '%first = s32[] constant(10)'}, 2),
    ('from_after_the_end', {'first': '%first = s32[] constant(20)'}, 0),
    # i + 2 < 12
    (
      'of_a_later_value',
      {'condition': 'ROOT %c = pred[] compare(%later, %limit), direction=LT'},
      10,
    ),
    # i + 2 + 2 < 12
    (
      'of_a_value_later_still',
      {
        'condition': '%last = s32[] add(%later, %two)\n'
        '  ROOT %c = pred[] compare(%last, %limit), direction=LT'
      },
      8,
    ),
    (
      'in_a_fusion',
      {'condition': 'ROOT %c = pred[] fusion(%i, %limit), kind=kLoop, '
       'calls=%fused'},
      12,
    ),
    (
      'with_its_step_in_a_fusion',
      {'step': '%next = s32[] fusion(%j), kind=kLoop, calls=%fused_next'},
      4,
    ),
    (
      'copied',
      {'first': '%zero = s32[] constant(4)\n  %first = s32[] copy(%zero)'},
      8,
    ),
    # The compiler knows better.
    (
      'as_the_compiler_says',
      {'attributes': ', backend_config={"known_trip_count":{"n":"7"}}'},
      7,
    ),
  )  # fmt: skip
  def test_the_passes_are_counted(self, changes, expected):
    self.assertEqual(_passes(**changes), hlo.Times(expected, hlo.EXACT))

  @parameterized.named_parameters(
    (
      'and',
      '%c = pred[] compare(%i, %limit), direction=LT\n'
      '  ROOT %both = pred[] and(%c, %flag)',
    ),
    (
      'and_in_the_other_order',
      '%c = pred[] compare(%i, %limit), direction=LT\n'
      '  ROOT %both = pred[] and(%flag, %c)',
    ),
  )
  def test_a_loop_that_may_end_early_has_at_most_so_many(self, condition):
    self.assertEqual(_passes(condition=condition), hlo.Times(12, hlo.AT_MOST))

  @parameterized.named_parameters(
    ('an_unknown_start', {'first': '%first = s32[] copy(%n)'}),
    ('a_step_that_is_no_addition', {'step': '%next = s32[] multiply(%j, %j)'}),
    ('no_step', {'step': '%next = s32[] copy(%j)'}),
    (
      'a_step_of_another_element',
      {'step': '%k = s32[] get-tuple-element(%now), index=1\n'
       '  %next = s32[] add(%k, %one)'},
    ),
    (
      'a_step_of_another_tuple',
      {
        'step': '%pair = (s32[], s32[]) tuple(%j, %one)\n'
        '  %k = s32[] get-tuple-element(%pair), index=0\n'
        '  %next = s32[] add(%k, %one)'
      },
    ),
    ('a_flag', {'condition': 'ROOT %c = pred[] copy(%flag)'}),
    (
      'another_direction',
      {'condition': 'ROOT %c = pred[] compare(%i, %limit), direction=NE'},
    ),
    (
      'two_variables',
      {'condition': 'ROOT %c = pred[] compare(%i, %later), direction=LT'},
    ),
  )  # fmt: skip
  def test_other_loops_count_as_one_pass(self, changes):
    self.assertEqual(_passes(**changes), hlo.Times(1, hlo.PER_PASS))

  def test_the_condition_is_read_once_more_than_the_body(self):
    executed = hlo.parse(_loop()).executed
    self.assertEqual(executed['condition'], hlo.Times(13, hlo.EXACT))
    self.assertEqual(executed['main'], hlo.Times(1, hlo.EXACT))
    unknown = hlo.parse(_loop(condition='ROOT %c = pred[] copy(%flag)'))
    self.assertEqual(unknown.executed['condition'].number, 1)

  def test_what_no_one_calls_is_not_executed(self):
    self.assertEqual(hlo.parse(_loop()).executed['fused'].number, 0)


class ModuleTest(parameterized.TestCase):
  def test_a_branch_is_executed_at_most_once(self):
    text = f"""{_ADD}
ENTRY %main (p: f32[], q: pred[]) -> f32[] {{
  %p = f32[] parameter(0)
  %q = pred[] parameter(1)
  %a = f32[] call(%p, %p), to_apply=%add
  ROOT %c = f32[] conditional(%q, %a, %p), branch_computations={{%add, %add}}
}}
"""
    # Once by the call, and in both branches.
    self.assertEqual(hlo.parse(text).executed['add'], hlo.Times(3, hlo.AT_MOST))

  def test_names_need_no_percent_sign_and_operands_may_have_a_shape(self):
    text = """ENTRY main (p: f32[2]) -> f32[2] {
  p = f32[2]{0} parameter(0)
  ROOT twice = f32[2]{0} add(f32[2]{0} p, f32[2]{0} p), metadata={op_name="a"}
}
"""
    (parameter, root) = hlo.parse(text).computations['main']
    self.assertEqual(parameter.operands, ('0',))
    self.assertEqual(root.operands, ('p', 'p'))
    self.assertEqual(root.shape, 'f32[2]{0}')
    self.assertEqual(root.opcode, 'add')

  def test_the_root_is_last_wherever_it_is_written(self):
    text = """ENTRY %main (p: f32[2]) -> f32[2] {
  %p = f32[2] parameter(0)
  ROOT %root = f32[2] copy(%p)
  %after = f32[2] copy(%root)
}
"""
    names = [actual.name for actual in hlo.parse(text).computations['main']]
    self.assertEqual(names, ['p', 'after', 'root'])

  def test_real_programs_are_read(self):
    @jax.jit
    def program(x):
      return jax.lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, length=6)[0]

    text = program.lower(jnp.ones((8, 8))).compile().as_text()
    module = hlo.parse(text)
    numbers = {times.number for times in module.executed.values()}
    self.assertIn(6, numbers)

  @parameterized.parameters('', 'HloModule m\n', _ADD)
  def test_text_without_an_entry_is_refused(self, text):
    with self.assertRaisesRegex(ValueError, 'must have an ENTRY'):
      hlo.parse(text)

  def test_an_instruction_that_is_cut_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'must close its parentheses'):
      hlo.parse('ENTRY %main (p: f32[]) -> f32[] {\n  %p = f32[] add(%a, (\n')


class SizesTest(parameterized.TestCase):
  @parameterized.parameters(
    ('f32[2,3]{1,0:T(8,128)}', 24),
    ('bf16[5]', 10),
    ('pred[7]', 7),
    ('s4[3]', 2),
    ('f8e4m3fn[4]', 4),
    ('c64[2]', 16),
    ('u32[]', 4),
    ('f32[0,3]', 0),
    ('token[]', 0),
    ('s32[<=4]', 16),
    ('(f32[2]{0}, (s8[3], bf16[1,1]{1,0:T(2,128)(2,1)S(1)}))', 13),
  )
  def test_bytes(self, shape, expected):
    self.assertEqual(hlo.num_bytes(shape), expected)

  def test_sums_and_products_are_as_certain_as_their_parts(self):
    exact, at_most = hlo.Times(2, hlo.EXACT), hlo.Times(3, hlo.AT_MOST)
    per_pass = hlo.Times(5, hlo.PER_PASS)
    self.assertEqual(hlo.product(exact, at_most), hlo.Times(6, hlo.AT_MOST))
    self.assertEqual(
      hlo.total([exact, per_pass, at_most]), hlo.Times(10, hlo.PER_PASS)
    )
    never = hlo.Times(0, hlo.PER_PASS)
    self.assertEqual(hlo.total([exact, never]), exact)
