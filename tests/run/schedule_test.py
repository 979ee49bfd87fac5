"""Tests of schedules."""

from absl.testing import parameterized

from replay_rl.run import schedule


def _num_updates(rate, num_cycles):
  return [
    event.num_updates
    for iteration in range(num_cycles)
    for event in schedule.synchronous(iteration, updates_per_iteration=rate)
    if isinstance(event, schedule.Learn)
  ]


class SynchronousTest(parameterized.TestCase):
  def test_two_and_a_half_updates_are_two_and_three_in_turn(self):
    self.assertEqual(_num_updates(2.5, 6), [2, 3, 2, 3, 2, 3])

  @parameterized.parameters(0.1, 0.7, 1, 2, 2.3)
  def test_after_n_cycles_n_times_the_rate_is_done_exactly(self, rate):
    # In floats, 0.1 added up ten times is not 1.
    self.assertEqual(sum(_num_updates(rate, 1000)), round(1000 * rate))
    self.assertLessEqual(
      max(_num_updates(rate, 50)) - min(_num_updates(rate, 50)), 1
    )

  def test_weights_are_published_between_generating_and_remembering(self):
    events = schedule.synchronous(0, updates_per_iteration=3)
    self.assertEqual(
      events,
      (
        schedule.Generate(),
        schedule.Publish(),
        schedule.Remember(),
        schedule.Learn(3),
      ),
    )

  def test_events_are_equal_only_to_themselves(self):
    # As static arguments of a program, equal events would share it.
    self.assertNotEqual(schedule.Generate(), schedule.Publish())
