"""Tests of cycles in which a gate ends the reuse of rollouts."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.run import events
from replay_rl.run import ledger
from replay_rl.run import programs
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

  return base.Gate(init=lambda: jnp.int32(0), judge=judge)


def _seven(batch, outcome):
  del outcome
  return jnp.full(batch.is_valid.shape, 7.0)


@functools.cache
def _cycle(num_iterations, gate, num_seeds=1, vmap=False, **functions):
  """Returns the runs, one after each cycle, and what each cycle measured."""
  given = dict(functions)
  if isinstance(gate, str):
    changes = CHANGES | {'optimizer__gate': gate}
  else:
    changes, given = CHANGES, given | ({'gate': gate} if gate else {})
  experiment = tiny_run.experiment(given, **changes)
  actions = events.in_jax(experiment.parts, tiny_run.task())
  cycle = jax.jit(
    lambda run, order: programs.over_seeds(
      vmap, lambda run: events.cycle(run, order, actions), run
    ),
    static_argnums=1,
  )
  run = jax.tree.map(
    lambda *leaves: jnp.stack(leaves),
    *(tiny_run.started(experiment.parts, seed) for seed in range(num_seeds)),
  )
  runs, measured = [run], []
  for iteration in range(num_iterations):
    run, found = cycle(run, experiment.schedule(iteration))
    runs.append(run)
    measured.append(tiny_run.numbers(found))
  return jax.device_get(runs), measured


def _totals(run, seed=0):
  return {
    name: ledger.total(counter[seed])
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
    runs, measured = _cycle(1, gate)
    plain = tiny_run.experiment(**CHANGES)
    cycle = jax.jit(
      functools.partial(
        events.cycle,
        events=schedule.synchronous(0, updates_per_iteration=2),
        actions=events.in_jax(plain.parts, tiny_run.task()),
      )
    )
    run, found = cycle(tiny_run.started(plain.parts, 0))
    chex.assert_trees_all_equal(
      jax.tree.map(lambda leaf: leaf[0], runs[1].learner)._replace(
        gate_state=()
      ),
      run.learner,
    )
    chex.assert_trees_all_equal(
      jax.tree.map(lambda leaf: leaf[0], runs[1].buffer), run.buffer
    )
    found = tiny_run.numbers(found)
    for name, value in measured[0].items():
      np.testing.assert_array_equal(value[0], found[name], name)

  @parameterized.parameters(
    'gradient_gate(threshold=inf, window=2)', 'accept_all()'
  )
  def test_a_gate_that_lets_all_through_is_no_gate_bit_for_bit(self, gate):
    runs, measured = _cycle(3, gate)
    plain, plain_measured = _cycle(3, None)
    chex.assert_trees_all_equal(
      runs[3]._replace(
        learner=runs[3].learner._replace(gate_state=()),
        hyper=plain[3].hyper,
      ),
      plain[3],
    )
    chex.assert_trees_all_equal(measured, plain_measured)

  def test_seeds_together_end_their_reuse_each_at_its_own_update(self):
    gate = 'gradient_gate(threshold=0.1, window=2)'
    together, measured = _cycle(3, gate, num_seeds=3, vmap=True)
    alone, measured_alone = _cycle(3, gate, num_seeds=3)
    steps = together[3].learner.step
    self.assertGreater(len(set(steps.tolist())), 1)
    self.assertLess(steps.max(), 15)
    for run, expected in zip(together, alone, strict=True):
      chex.assert_trees_all_equal(
        (run.clock, run.ledger, run.learner.step, run.buffer.times_sampled),
        (
          expected.clock,
          expected.ledger,
          expected.learner.step,
          expected.buffer.times_sampled,
        ),
      )
      chex.assert_trees_all_close(
        run.learner.params, expected.learner.params, atol=1e-4
      )
    for name in ('updates/applied', 'updates/refused', 'histogram/staleness'):
      for values, expected in zip(measured, measured_alone, strict=True):
        np.testing.assert_array_equal(values[name], expected[name])


if __name__ == '__main__':
  absltest.main()
