"""Tests of the expected histograms, by hand, by simulation, on a real run."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from replay_rl.report import closed_forms
from replay_rl.report import sweep_data
from replay_rl.report import sweep_runs
from tests.report import swept

_BINS = 60


def _simulated(model, rng):
  """Returns the histograms of a ring, and the uses of what it still holds."""
  inserted, last, uses = np.full((3, model.capacity), -1)
  ages, ended, gaps = np.zeros((3, _BINS + 1), int)
  place = step = 0
  for i in range(model.num_iterations):
    slots = (place + np.arange(model.num_fresh)) % model.capacity
    place += model.num_fresh
    np.add.at(ended, uses[slots][inserted[slots] >= 0], 1)
    inserted[slots], last[slots], uses[slots] = step, -1, 0
    for _ in range(model.num_updates):
      num_filled = min(model.capacity, (i + 1) * model.num_fresh)
      drawn = rng.integers(num_filled, size=model.batch_size)
      np.add.at(ages, step - inserted[drawn], 1)
      for slot in drawn:
        gaps[0 if last[slot] < 0 else 1 + step - last[slot]] += 1
        last[slot] = step
        uses[slot] += 1
      step += 1
  return ages, ended, gaps, np.bincount(uses[uses >= 0], minlength=_BINS + 1)


class ClosedFormsTest(parameterized.TestCase):
  def test_by_hand(self):
    # Two slots, both replaced by each iteration, one draw: ages are 0, and half
    # of the rollouts are used once; the last two are not overwritten.
    model = closed_forms.Synchronous(2, 2, 1, 1, 3)
    np.testing.assert_allclose(closed_forms.staleness(model, 3), [3, 0, 0])
    for with_stored, expected in ((False, [2, 2, 0]), (True, [3, 3, 0])):
      actual = closed_forms.uses(model, 3, with_stored=with_stored)
      np.testing.assert_allclose(actual, expected, atol=1e-12)
    actual = closed_forms.steps_since_last_use(model, 2)
    np.testing.assert_allclose(actual, [3, 0, 0], atol=1e-12)

  def test_of_a_long_run_they_are_those_of_the_paper(self):
    # x = 4 generations of R = 8, y = 2 uses; one update each.
    model = closed_forms.Synchronous(32, 8, 16, 1, 100_000)
    ages = closed_forms.staleness(model, 6)
    np.testing.assert_allclose(
      ages / ages.sum(), [0.25] * 4 + [0, 0], atol=1e-4
    )
    uses = closed_forms.uses(model, 12, with_stored=False)
    expected = stats.binom.pmf(range(11), 16 * 4, 1 / 32)
    np.testing.assert_allclose(uses[:-1] / uses.sum(), expected, atol=1e-4)
    np.testing.assert_allclose(expected[0], np.exp(-2), atol=0.01)
    gaps = closed_forms.steps_since_last_use(model, 6)
    q = 1 - (1 - 1 / 32) ** 16
    # First uses after 0 to 3 updates, of 8 rollouts each.
    first = 8 * q * sum((1 - q) ** k for k in range(4))
    again = [
      8 * (4 - gap) * q * q * (1 - q) ** (gap - 1) for gap in range(1, 4)
    ]
    expected = [first, 16 - 32 * q, *again, 0, 0]
    np.testing.assert_allclose(gaps / 100_000, expected, atol=1e-3)

  @parameterized.parameters(
    # Warm-up and all of a run; N is no multiple of R; it ends before it fills.
    (closed_forms.Synchronous(24, 8, 16, 1, 12),),
    (closed_forms.Synchronous(20, 8, 6, 2, 9),),
    (closed_forms.Synchronous(32, 4, 8, 2, 5),),
  )
  def test_they_are_the_means_of_a_simulation(self, model):
    rng = np.random.default_rng(0)
    num_runs = 200
    runs = [_simulated(model, rng) for _ in range(num_runs)]
    ages, ended, gaps, stored = (
      sum(one[k] for one in runs) / num_runs for k in range(4)
    )
    bins = _BINS + 1
    for actual, expected in (
      (closed_forms.staleness(model, bins), ages),
      (closed_forms.uses(model, bins, with_stored=False), ended),
      (closed_forms.uses(model, bins, with_stored=True), ended + stored),
      (closed_forms.steps_since_last_use(model, _BINS), gaps),
    ):
      self.assertAlmostEqual(actual.sum(), expected.sum())
      # A mean of 200 runs is within 5 of its standard errors.
      limit = 5 * np.sqrt((expected + 0.1) / num_runs)
      self.assertTrue((np.abs(actual - expected) < limit).all())

  def test_the_last_bin_holds_the_rest(self):
    model = closed_forms.Synchronous(32, 4, 8, 2, 20)
    for make in (
      closed_forms.staleness,
      closed_forms.steps_since_last_use,
      lambda *args: closed_forms.uses(*args, with_stored=True),
    ):
      many, few = make(model, 40), make(model, 3)
      np.testing.assert_allclose(few[:-1], many[: len(few) - 1])
      np.testing.assert_allclose(few[-1], many[len(few) - 1 :].sum())

  def test_a_real_run_agrees(self):
    sweep = sweep_data.read(swept.folder())
    for cell in (swept.NAMES[0], swept.NAMES[2]):
      run = sweep_runs.histograms_of(sweep, cell)
      model, reason = closed_forms.model_of(run.config, run.num_iterations)
      batch_size = 8 if 'batch_size=8' in cell else 4
      self.assertEqual((model, reason), ((32, 16, batch_size, 2, 6), ''))
      assert model is not None
      self.assertTrue(run.is_every_update_applied)
      for key, expected, ddof in (
        ('staleness', closed_forms.staleness(model, 4), 0),
        (
          'uses',
          closed_forms.uses(model, 4, with_stored=run.with_stored),
          1,
        ),
        (
          'steps_since_last_use',
          closed_forms.steps_since_last_use(model, 4),
          0,
        ),
      ):
        counts = run.counts[key]
        self.assertAlmostEqual(counts.sum(), 6 * expected.sum(), msg=key)
        fit = closed_forms.fit(counts, expected, ddof=ddof)
        self.assertGreater(fit.p_value, 0.001, key)
        self.assertLess(fit.total_variation, 0.1, key)

  def test_other_settings_have_none(self):
    sweep = sweep_data.read(swept.folder())
    config = sweep_runs.histograms_of(sweep, swept.NAMES[0]).config
    for section, name, value in (
      ('replay', 'weights', 'recency(half_life=2)'),
      ('replay', 'draw', 'gumbel_top_k()'),
      ('replay', 'keep', 'positive_bias(fraction=0.5)'),
      ('replay', 'compose', 'fresh_only()'),
      ('replay', 'drop_zero_variance', True),
      ('replay', 'updates_per_iteration', 0.5),
      ('replay', 'capacity', 15),
      ('sampler', 'weight_lag', 1),
      ('optimizer', 'gate', 'ess_scaled_rate(on_policy_ess=1.0)'),
    ):
      changed = config | {section: config[section] | {name: value}}
      model, reason = closed_forms.model_of(changed, 6)
      self.assertIsNone(model)
      self.assertEqual(reason, f'{section}.{name} = {value}')


class FitTest(absltest.TestCase):
  def test_by_hand(self):
    # 25 / 15 + 25 / 5 with one degree of freedom; a quarter is elsewhere.
    fit = closed_forms.fit(np.array([10, 10]), np.array([1.5, 0.5]), ddof=0)
    self.assertAlmostEqual(fit.p_value, stats.chi2.sf(25 / 15 + 5, 1))
    self.assertAlmostEqual(fit.total_variation, 0.25)

  def test_bins_of_less_than_five_are_taken_together(self):
    counts, expected = np.array([10, 4, 4, 2]), np.array([12.0, 3, 3, 2])
    fit = closed_forms.fit(counts, expected, ddof=0)
    # 12, 3 + 3 and the 2 that are left: 12 and 8.
    self.assertAlmostEqual(fit.p_value, stats.chi2.sf(4 / 12 + 4 / 8, 1))
    self.assertTrue(
      np.isnan(closed_forms.fit(counts, expected, ddof=1).p_value)
    )

  def test_a_degree_that_is_lacking_counts(self):
    counts, expected = np.array([10, 20, 30]), np.array([12.0, 22, 26])
    fit = closed_forms.fit(counts, expected, ddof=1)
    statistic = 4 / 12 + 4 / 22 + 16 / 26
    self.assertAlmostEqual(fit.p_value, stats.chi2.sf(statistic, 1))
