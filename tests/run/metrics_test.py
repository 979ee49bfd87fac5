"""Tests of what a run reports of its batches."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.replay import buffer
from replay_rl.run import learner
from replay_rl.run import metrics

# Six rows of two tokens, both sampled. Fresh: of age 0, and of age 2 from a
# lagging sampler. Replayed: of age 0, and of age 4. Then one fresh and one
# replayed row that are not valid; what they hold must not show.
IS_FRESH = np.array([1, 1, 0, 0, 1, 0], bool)
IS_VALID = np.array([1, 1, 1, 1, 0, 0], bool)
GAPS = np.array([0.25, -3.0, -0.5, 2.0, 9.0, 8.0], np.float32)
IS_CLIPPED = np.array([[1, 1], [0, 1], [0, 1], [0, 0], [1, 1], [1, 1]], bool)
MEANS = {
  'loss': 0.5,
  'grad_norm': 2.0,
  'output_projection_grad_norm': 1.5,
  'ess': np.exp(GAPS[:4]).sum() ** 2 / (4 * np.exp(2 * GAPS[:4]).sum()),
  'clip_fraction/fresh': 3 / 4,
  'clip_fraction/replayed': 1 / 4,
  'abs_log_ratio/fresh': (0.25 + 3.0) / 2,
  'abs_log_ratio/replayed': (0.5 + 2.0) / 2,
  'staleness/mean': (0 + 2 + 0 + 4) / 4,
  'batch/num_valid': 4,
  'batch/num_invalid': 2,
  # Four valid rows of two tokens, of which the model reads one each.
  'batch/padding_fraction': 0.6,
  'batch/num_fresh': 2,
  'buffer/num_eligible': 17,
}
# Of the rows of age 0, whether fresh or not.
GAP = 'sampler_learner_gap'
HISTOGRAMS = {
  'histogram/staleness': [2, 0, 1, 0, 1, 0],
  # Never used: slot 0 and the row without a slot; then 5 and 3 steps ago.
  'histogram/steps_since_last_use': [2, 0, 0, 0, 1, 0, 1],
}
# Ages are 0, 2, 0 and 4 of the valid rows; none is 1.
OF_AGES = {
  'ess/age_0': np.exp(GAPS[[0, 2]]).sum() ** 2
  / (2 * np.exp(2 * GAPS[[0, 2]]).sum()),
  'ess/age_1': np.nan,
  'ess/age_2_3': 1.0,
  'ess/age_4_or_more': 1.0,
  'abs_log_ratio/age_0': (0.25 + 0.5) / 2,
  'abs_log_ratio/age_1': np.nan,
  'abs_log_ratio/age_2_3': 3.0,
  'abs_log_ratio/age_4_or_more': 2.0,
  'clip_fraction/age_0': 3 / 4,
  'clip_fraction/age_1': np.nan,
  'clip_fraction/age_2_3': 1 / 2,
  'clip_fraction/age_4_or_more': 0.0,
}
UPDATES = ('updates/applied', 'updates/empty', 'updates/refused')


def _of_update(
  is_valid=IS_VALID,
  gaps=GAPS,
  became=0,
  num_bins=6,
  age_edges=(),
  grad_norms=None,
  token_versions=None,
):
  """Returns the metrics of an update that was applied, empty or refused."""
  rollouts = base.Rollout(
    tokens=jnp.zeros((6, 2), jnp.int32),
    loss_mask=jnp.ones((6, 2), bool),
    behavior_logprobs=jnp.full((6, 2), -10.0),
    rewards=jnp.zeros(6),
    advantages=jnp.zeros(6),
    group_id=jnp.zeros(6, jnp.int32),
    prompt_id=jnp.zeros(6, jnp.uint32),
    rollout_id=jnp.zeros(6, jnp.uint32),
    policy_version=jnp.array([5, 3, 5, 1, 5, 5], jnp.int32),
    token_versions=token_versions,
  )
  batch = base.Batch(
    rollouts=rollouts,
    slots=jnp.array([0, 4, 1, 2, 4, 4]),
    is_valid=jnp.asarray(is_valid),
    is_fresh=jnp.asarray(IS_FRESH),
    probs=jnp.zeros(6),
    num_eligible=jnp.int32(17),
  )
  gaps_BT = np.repeat(np.asarray(gaps, np.float32)[:, None], 2, axis=1)
  outcome = base.Outcome(
    loss=jnp.float32(0.5),
    logprobs=jnp.asarray(-10.0 + gaps_BT),
    is_clipped=jnp.asarray(IS_CLIPPED),
    row_weights=jnp.ones(6),
    grad_norm=jnp.float32(2.0),
    output_projection_grad_norm=jnp.float32(1.5),
    grad_norms_of_sets=grad_norms,
  )
  flags = [jnp.asarray(number == became) for number in range(3)]
  status = learner.Status(
    *flags, ends_reuse=jnp.bool_(False), num_columns=jnp.float32(10)
  )
  # Slot 3, the last one, was used at step 4; the second row was not stored.
  stored = buffer.init(rollouts, capacity=4)._replace(
    last_sampled=jnp.array([-1, 0, 2, 4], jnp.int32)
  )
  of_update = jax.jit(
    metrics.of_update, static_argnames=('num_bins', 'age_edges')
  )
  return of_update(
    *(batch, outcome, status, stored, jnp.int32(5)),
    num_bins=num_bins,
    age_edges=age_edges,
  )


def _numbers(updates):
  return metrics.as_numbers(jax.device_get(updates))


class OfUpdateTest(parameterized.TestCase):
  @parameterized.parameters(0, 2)
  def test_every_kind_of_row_is_counted_where_it_belongs(self, became):
    actual = _numbers(_of_update(became=became))
    self.assertEqual(set(actual), {*MEANS, *HISTOGRAMS, *UPDATES, GAP})
    for name, value in MEANS.items():
      self.assertAlmostEqual(float(actual[name]), value, places=5, msg=name)
    self.assertEqual(actual[GAP], 0.5)
    for name, counts in HISTOGRAMS.items():
      self.assertEqual(actual[name].tolist(), counts)
    self.assertEqual(
      [actual[name] for name in UPDATES],
      [int(number == became) for number in range(3)],
    )

  def test_what_is_too_large_for_a_bin_is_in_the_last_one(self):
    actual = _numbers(_of_update(num_bins=3))
    self.assertEqual(actual['histogram/staleness'].tolist(), [2, 0, 2])
    self.assertEqual(
      actual['histogram/steps_since_last_use'].tolist(), [2, 0, 0, 2]
    )

  def test_each_row_without_a_slot_counts_as_a_first_use(self):
    # Rows 1, 4 and 5 are in no slot, and that of row 0 was never used.
    actual = _numbers(_of_update(is_valid=[True] * 6))
    self.assertEqual(
      actual['histogram/steps_since_last_use'].tolist(), [4, 0, 0, 0, 1, 0, 1]
    )

  def test_the_age_of_tokens_leaves_out_rows_that_are_not_valid(self):
    # The first tokens have the versions of their rollouts; step 5 learns.
    versions = np.array([[5, 5], [3, 4], [5, 5], [1, 5], [5, 5], [5, 5]])
    versions[~IS_VALID] = -1000
    actual = _numbers(_of_update(token_versions=jnp.asarray(versions)))
    ages = (5 - versions)[IS_VALID]
    self.assertEqual(float(actual['staleness/tokens']), ages.mean())
    self.assertNotIn('staleness/tokens', _numbers(_of_update()))

  def test_an_update_without_rows_has_no_mean_and_no_row(self):
    actual = _numbers(_of_update(is_valid=np.zeros(6, bool), became=1))
    for name in MEANS:
      self.assertTrue(np.isnan(actual[name]), name)
    self.assertEqual(actual[GAP], 0)
    for name in HISTOGRAMS:
      self.assertEqual(sum(actual[name].tolist()), 0)
    self.assertEqual([actual[name] for name in UPDATES], [0, 1, 0])


class OfAgesTest(parameterized.TestCase):
  def test_each_bucket_has_the_tokens_of_its_rows_by_hand(self):
    actual = _numbers(_of_update(age_edges=(1, 2, 4)))
    self.assertEqual(
      set(actual), {*MEANS, *HISTOGRAMS, *UPDATES, GAP, *OF_AGES}
    )
    for name, value in OF_AGES.items():
      np.testing.assert_allclose(actual[name], value, rtol=1e-6, err_msg=name)
    for name, value in MEANS.items():
      self.assertAlmostEqual(float(actual[name]), value, places=5, msg=name)

  def test_norms_of_the_gradient_are_named_by_age(self):
    norms = jnp.array([3.0, 0.0, 5.0, 7.0])
    updates = metrics.merge(
      _of_update(age_edges=(1, 2, 4), grad_norms=norms),
      # Only the first row, of age 0.
      _of_update(
        np.arange(6) == 0,
        age_edges=(1, 2, 4),
        grad_norms=jnp.array([6.0, 0.0, 0.0, 0.0]),
      ),
    )
    actual = {
      name: value
      for name, value in _numbers(updates).items()
      if name.startswith('grad_norm/')
    }
    self.assertEqual(
      {name: str(float(value)) for name, value in actual.items()},
      {
        'grad_norm/age_0': '4.5',
        'grad_norm/age_1': 'nan',
        'grad_norm/age_2_3': '5.0',
        'grad_norm/age_4_or_more': '7.0',
      },
    )
    self.assertNotIn('grad_norm/age_0', _numbers(_of_update(age_edges=(1, 2))))

  def test_a_bucket_of_all_ages_has_what_is_reported_of_all(self):
    # All rows are younger than 9 steps.
    actual = _numbers(_of_update(age_edges=(9,)))
    self.assertEqual(actual['ess/age_0_8'], actual['ess'])
    self.assertTrue(np.isnan(actual['ess/age_9_or_more']))

  def test_over_updates_means_are_of_all_tokens_and_ess_of_the_updates(self):
    updates = [
      _of_update(age_edges=(1, 3)),
      # Of age 0, and of age 2; as many tokens of age 0 as before were.
      _of_update(np.arange(6) < 2, [0.75] * 6, age_edges=(1, 3)),
      _of_update(np.arange(6) == 0, [0.5] * 6, age_edges=(1, 3)),
      _of_update(np.zeros(6, bool), age_edges=(1, 3)),
    ]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *updates)
    actual = _numbers(metrics.total(stacked))
    expected = {
      'ess/age_0': (OF_AGES['ess/age_0'] + 1 + 1) / 3,
      'ess/age_1_2': 1.0,
      'ess/age_3_or_more': 1.0,
      'abs_log_ratio/age_0': (0.25 + 0.5 + 0.75 + 0.5) / 4,
      'abs_log_ratio/age_1_2': (3.0 + 0.75) / 2,
      'abs_log_ratio/age_3_or_more': 2.0,
      'clip_fraction/age_0': (3 + 2 + 2) / 8,
      'clip_fraction/age_1_2': 2 / 4,
      'clip_fraction/age_3_or_more': 0.0,
    }
    for name, value in expected.items():
      np.testing.assert_allclose(actual[name], value, rtol=1e-6, err_msg=name)


class SeveralUpdatesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # Applied with all kinds of rows, refused with one fresh row, and empty.
    one_row = np.arange(6) == 0
    self.updates = [
      _of_update(),
      _of_update(one_row, gaps=[0.75] * 6, became=2),
      _of_update(np.zeros(6, bool), became=1),
    ]

  def _check(self, updates):
    actual = _numbers(updates)
    # Of the updates with rows.
    self.assertEqual(actual['loss'], 0.5)
    self.assertEqual(actual['batch/num_valid'], (4 + 1) / 2)
    self.assertAlmostEqual(
      float(actual['ess']), (MEANS['ess'] + 1) / 2, places=6
    )
    # Of rows and of tokens, so that no update counts for more than it has.
    self.assertEqual(actual['staleness/mean'], (0 + 2 + 0 + 4 + 0) / 5)
    self.assertAlmostEqual(
      float(actual['abs_log_ratio/fresh']), (0.25 + 3.0 + 0.75) / 3
    )
    self.assertEqual(actual['abs_log_ratio/replayed'], (0.5 + 2.0) / 2)
    self.assertAlmostEqual(float(actual['clip_fraction/fresh']), 5 / 6)
    self.assertEqual(actual[GAP], 0.75)
    self.assertEqual(actual['histogram/staleness'].tolist(), [3, 0, 1, 0, 1, 0])
    self.assertEqual([actual[name] for name in UPDATES], [1, 1, 1])

  def test_they_count_by_their_updates_rows_and_tokens(self):
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *self.updates)
    self._check(metrics.total(stacked))

  def test_two_records_merge_into_that_of_all(self):
    def total(updates):
      return metrics.total(jax.tree.map(lambda *x: jnp.stack(x), *updates))

    for cut in (1, 2):
      for order in (self.updates, self.updates[::-1]):
        self._check(metrics.merge(total(order[:cut]), total(order[cut:])))

  def test_no_update_has_no_mean_and_counts_nothing(self):
    none = jax.tree.map(lambda leaf: leaf[None][:0], self.updates[0])
    actual = _numbers(metrics.total(none))
    for name in MEANS:
      self.assertTrue(np.isnan(actual[name]), name)
    self.assertEqual([actual[name] for name in (GAP, *UPDATES)], [0] * 4)

  def test_each_seed_has_its_own_numbers(self):
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *self.updates)
    actual = _numbers(stacked)
    np.testing.assert_array_equal(actual['loss'], [0.5, 0.5, np.nan])
    np.testing.assert_array_equal(actual['loss'].dtype, np.float32)
    self.assertEqual(actual['histogram/staleness'].shape, (3, 6))


class OfOverwrittenTest(parameterized.TestCase):
  # Also by hand, after an insert: tests/run/events_counts_test.py.
  def test_without_a_rollout_that_was_overwritten_there_is_no_fraction(self):
    stored = buffer.init(jnp.zeros((1, 2)), capacity=4)
    actual = metrics.of_overwritten(stored, jnp.array([0, 1, 4]), 3)
    self.assertEqual(int(actual['num_overwritten']), 0)
    self.assertTrue(np.isnan(actual['never_used_fraction']))
    self.assertEqual(actual['histogram/uses'].tolist(), [0, 0, 0])
