"""Tests of cycles in which a gate ends the reuse of rollouts."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.run import events
from replay_rl.run import ledger
from replay_rl.run import schedule
from tests.run import tiny_run

CHANGES = {'replay__updates_per_iteration': 5, 'optimizer__learning_rate': 0.05}


def _ends_after_two(*, is_accepted: bool):
  """A gate that counts its calls and lets no more than two updates through.

  The second ends the reuse, or the third, which is refused.
  """

  def judge(state, proposal):
    number = proposal.num_updates_since_fresh
    ends_reuse = number == (1 if is_accepted else 2)
    verdict = base.Verdict(
      is_accepted=~ends_reuse | is_accepted,
      ends_reuse=ends_reuse,
      rate_scale=jnp.ones(()),
    )
    return verdict, state + 1

  return base.Gate(init=lambda _: jnp.int32(0), judge=judge)


def _seven(batch, outcome):
  del outcome
  return jnp.full(batch.is_valid.shape, 7.0)


@functools.cache
def _cycle(num_iterations, gate, num_updates=5, more=(), **functions):
  """Returns the runs, one after each cycle, and what each cycle measured."""
  changes, given = CHANGES | dict(more), dict(functions)
  if isinstance(gate, str):
    changes = changes | {'optimizer__gate': gate}
  elif gate:
    given['gate'] = gate
  experiment = tiny_run.experiment(given, **changes)
  cycle = jax.jit(
    functools.partial(
      events.cycle,
      events=schedule.synchronous(0, updates_per_iteration=num_updates),
      actions=events.in_jax(experiment.parts, tiny_run.task()),
    )
  )
  run = tiny_run.started(experiment.parts, 0)
  runs, measured = [run], []
  for _ in range(num_iterations):
    run, actual = cycle(run)
    runs.append(run)
    measured.append(tiny_run.numbers(actual))
  return jax.device_get(runs), measured


def _totals(run):
  return {
    name: ledger.total(counter)
    for name, counter in run.ledger._asdict().items()
  }


class ReuseTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_the_updates_that_remain_are_left_out_and_not_counted(
    self, is_accepted
  ):
    gate = functools.partial(_ends_after_two, is_accepted=is_accepted)
    runs, measured = _cycle(2, gate, feedback=_seven)
    # Two updates are applied; a third is computed, for the gate to refuse it.
    tried = 2 if is_accepted else 3
    for number, (run, values) in enumerate(
      zip(runs[1:], measured, strict=True), start=1
    ):
      self.assertEqual(run.learner.step, 2 * number)
      self.assertEqual(run.learner.num_tried, tried * number)
      self.assertEqual(run.learner.num_empty_in_a_row, 0)
      self.assertEqual(run.learner.gate_state, tried * number)
      self.assertEqual(run.learner.opt_state[1][0].count, 2 * number)
      self.assertTrue(run.clock.is_reuse_ended)
      totals = _totals(run)
      self.assertEqual(totals['updates'], 2 * number)
      self.assertEqual(totals['trained_rollouts'], 8 * tried * number)
      self.assertEqual(
        totals['trained_prompt_tokens'], 4 * totals['trained_rollouts']
      )
      self.assertEqual(run.buffer.times_sampled.sum(), 8 * tried * number)
      was_used = run.buffer.times_sampled > 0
      self.assertBetween(was_used.mean(), 0.1, 0.9)
      np.testing.assert_array_equal(run.buffer.priorities == 7.0, was_used)
      self.assertEqual(values['updates/applied'], 2)
      self.assertEqual(values['updates/refused'], tried - 2)
      self.assertEqual(values['updates/empty'], 0)
      self.assertEqual(values['batch/num_valid'], 8)
      self.assertEqual(values['histogram/staleness'].sum(), 8 * tried)
      self.assertEqual(
        values['histogram/steps_since_last_use'].sum(), 8 * tried
      )
      self.assertTrue(np.isfinite(values['loss']))

  def test_an_update_before_the_end_is_that_of_a_run_without_a_gate(self):
    gate = functools.partial(_ends_after_two, is_accepted=True)
    (_, run), (measured,) = _cycle(1, gate, feedback=_seven)
    (_, plain), (expected,) = _cycle(1, None, num_updates=2, feedback=_seven)
    chex.assert_trees_all_equal(
      run.learner._replace(gate_state=()), plain.learner
    )
    chex.assert_trees_all_equal(run.buffer, plain.buffer)
    chex.assert_trees_all_equal(measured, expected)


def _gate(threshold):
  return f'gradient_gate(threshold={threshold}, window=2, squared=False)'


def _reusing(*, tied, num_microbatches):
  """Changes of a run that learns from its fresh rollouts alone."""
  return (
    ('replay__compose', 'fresh_only()'),
    ('replay__batch_size', None),
    ('replay__weights', None),
    ('replay__draw', None),
    ('model__tied_embeddings', tied),
    # Of 16 rows of an update.
    ('optimizer__microbatch_rows', 16 // num_microbatches),
  )


def _learned(learner):
  """What a refused update must leave as it is, with Adam's moments."""
  return learner.params, learner.opt_state, learner.step


class GradientGatingTest(parameterized.TestCase):
  """What "When to Stop Reusing" (arXiv 2605.19425) promises of its gate."""

  def _assert_no_gate(self, gated, plain):
    (runs, measured), (expected, expected_measured) = gated, plain
    last, expected = runs[-1], expected[-1]
    chex.assert_trees_all_equal(
      last._replace(
        learner=last.learner._replace(gate_state=()), hyper=expected.hyper
      ),
      expected,
    )
    chex.assert_trees_all_equal(measured, expected_measured)

  @parameterized.parameters(
    (), _reusing(tied=True, num_microbatches=1),
    _reusing(tied=False, num_microbatches=2),
  )  # fmt: skip
  def test_an_infinite_threshold_is_no_gate_bit_for_bit(self, *more):
    self._assert_no_gate(
      _cycle(3, _gate('inf'), more=more), _cycle(3, None, more=more)
    )

  def test_a_single_update_is_on_policy_bit_for_bit(self):
    more = _reusing(tied=True, num_microbatches=1)
    gated, plain = (
      _cycle(6, gate, num_updates=1, more=more) for gate in (_gate(0.0), None)
    )
    # It would have refused a later update.
    self.assertGreater(int(gated[0][-1].learner.gate_state.num_differences), 2)
    self._assert_no_gate(gated, plain)

  @parameterized.parameters((True, 1), (False, 2))
  def test_a_refused_update_changes_nothing(self, tied, num_microbatches):
    more = _reusing(tied=tied, num_microbatches=num_microbatches)
    (_, gated, *_), (measured, *_) = _cycle(4, _gate(0.0), more=more)
    num_applied = int(gated.learner.step)
    self.assertBetween(num_applied, 3, 4)  # The window of 2 needs three.
    self.assertEqual(measured['updates/refused'], 1)
    self.assertEqual(int(gated.learner.num_tried), num_applied + 1)
    (_, plain), _ = _cycle(1, None, num_updates=num_applied, more=more)
    chex.assert_trees_all_equal(
      _learned(gated.learner), _learned(plain.learner)
    )

  @parameterized.parameters(True, False)
  def test_microbatches_change_no_verdict(self, tied):
    one, two = (
      _cycle(4, _gate(0.0), more=_reusing(tied=tied, num_microbatches=number))
      for number in (1, 2)
    )
    for first, second in zip(one[0], two[0], strict=True):
      self.assertEqual(first.learner.step, second.learner.step)
      self.assertEqual(first.learner.num_tried, second.learner.num_tried)
      chex.assert_trees_all_close(
        first.learner.gate_state, second.learner.gate_state, rtol=1e-2
      )
    refused = [values['updates/refused'] for values in one[1]]
    self.assertIn(1, refused)
