"""Tests of replay_rl.tasks.verify.restarts."""

from absl.testing import absltest

from replay_rl.tasks.verify import restarts


class RestartsTest(absltest.TestCase):
  def test_a_minute_has_a_limit_and_the_count_has_none(self):
    now = 100
    counter = restarts.Restarts(2, lambda: now)
    self.assertEqual(counter.num, 0)
    self.assertTrue(counter.add())
    now += 59
    self.assertTrue(counter.add())
    self.assertFalse(counter.add())
    now += 59
    # The first is older than a minute, the next two are not.
    self.assertFalse(counter.add())
    now += 1
    # These two are just a minute old.
    self.assertTrue(counter.add())
    self.assertEqual(counter.num, 5)
