"""Tests that the uses of all rollouts are counted, kept or overwritten."""

import functools

import jax
import numpy as np
from absl.testing import parameterized

from replay_rl.run import events
from replay_rl.run import ledger
from replay_rl.run import schedule
from tests.run import tiny_run

NUM_BINS = 4  # Of the tiny config: 0, 1, 2, and 3 or more uses.
NEVER_FULL = {'replay__capacity': 16 * 7}
DROPPED = {
  'replay__drop_zero_variance': True,
  'replay__capacity': 20,
  'replay__batch_size': 4,
}


def _history(num_iterations, events_of=None, **changes):
  """Returns the runs after each cycle, and what each cycle measured."""
  experiment = tiny_run.experiment(**changes)
  actions = events.in_jax(experiment.parts, tiny_run.task())
  cycle = jax.jit(
    functools.partial(events.cycle, actions=actions), static_argnums=1
  )
  run = tiny_run.started(experiment.parts, seed=7)
  runs, measured = [], []
  for iteration in range(num_iterations):
    run, seen = cycle(run, (events_of or experiment.schedule)(iteration))
    runs.append(jax.device_get(run))
    measured.append(jax.device_get(seen.values))
  return runs, measured


class UsesTest(parameterized.TestCase):
  @parameterized.parameters({}, NEVER_FULL, DROPPED)
  def test_at_every_line_they_are_those_of_all_inserted_rollouts(
    self, **changes
  ):
    runs, measured = _history(6, **changes)
    uses_of, overwritten = {}, np.zeros(NUM_BINS, int)
    for run, values in zip(runs, measured, strict=True):
      # Inserts come before the updates of a cycle, so a rollout has its last
      # use before a cycle in which it is gone.
      for slot in np.flatnonzero(run.buffer.is_valid):
        rollout_id = int(run.buffer.rollouts.rollout_id[slot])
        uses_of[rollout_id] = int(run.buffer.times_sampled[slot])
      expected = np.bincount(
        np.minimum(list(uses_of.values()), NUM_BINS - 1), minlength=NUM_BINS
      )
      overwritten += values['histogram/uses']
      actual = overwritten + values['buffer_histogram/uses']
      np.testing.assert_array_equal(actual, expected)
      self.assertEqual(
        values['buffer_histogram/uses'].sum(), run.buffer.is_valid.sum()
      )
      self.assertEqual(
        ledger.total(run.ledger.inserted_rollouts), expected.sum()
      )
    # Every bin, and rollouts of both kinds where the buffer is too small.
    self.assertTrue((expected > 0).all(), expected)
    self.assertEqual(overwritten.sum() > 0, changes != NEVER_FULL)
    self.assertEqual(
      expected.sum() < 6 * 16, 'replay__drop_zero_variance' in changes
    )

  def test_a_cycle_may_insert_often_and_after_its_updates(self):
    fill = schedule.Generate(), schedule.Remember()
    runs, (_, second) = _history(
      2, lambda iteration: (*fill, schedule.Learn(2), *fill, *fill)
    )
    uses = runs[1].buffer.times_sampled
    # What came after the updates fills the buffer, and nothing has used it.
    self.assertEqual(uses.tolist(), [0] * 32)
    self.assertEqual(second['buffer_histogram/uses'].tolist(), [32, 0, 0, 0])
    # Each of three inserts overwrote 16 rollouts; only the first 32 of them
    # were in the buffer at the time of the two updates of 8 rows.
    overwritten = second['histogram/uses']
    self.assertEqual(overwritten.sum(), 3 * 16)
    self.assertBetween(overwritten[0], 16 + 16, 3 * 16 - 1)
    self.assertEqual(second['num_overwritten'], 3 * 16)
    self.assertAlmostEqual(
      float(second['never_used_fraction']), overwritten[0] / 48, places=6
    )
