"""Tests of the gate that turns a gradient away from the previous one."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from replay_rl.parallel import mesh as mesh_lib
from replay_rl.rl import gates
from replay_rl.run import learner
from tests.rl import gates_test
from tests.run import updates

PREVIOUS = (2.0, 0.0)


def _tree(vector):
  """A gradient of two weights."""
  vector = jnp.asarray(vector, jnp.float32)
  return {'a': vector[:1], 'b': (vector[1:],)}


def _judged(gradient, previous, lower, upper):
  gate = gates.gradient_alignment(lower=lower, upper=upper)
  proposal = gates_test.proposal_of()._replace(gradients=_tree(gradient))
  return gate.judge(_tree(previous), proposal)


def _cosine(one, other):
  return optax.tree.vdot(one, other) / (
    optax.tree.norm(one) * optax.tree.norm(other)
  )


class GradientAlignmentTest(parameterized.TestCase):
  @parameterized.parameters(
    # Of (3, 4), the part along (2, 0) is 3 and the cosine is 0.6. The part
    # across is 4, so 3 becomes 0, 4 / sqrt(3) and 4 / sqrt(15).
    ((3.0, 4.0), 0.0, 0.61, True, (0.0, 4.0)),
    ((3.0, 4.0), 0.5, 0.61, True, (4 / 3**0.5, 4.0)),
    ((3.0, 4.0), 0.25, 1.0, True, (4 / 15**0.5, 4.0)),
    ((3.0, 4.0), 0.25, 0.59, False, None),
    ((3.0, 4.0), 0.61, 0.61, True, (3.0, 4.0)),
    ((3.0, 4.0), 1.0, 1.0, True, (3.0, 4.0)),
    # A part against it stays.
    ((-3.0, 4.0), 0.0, 0.5, True, (-3.0, 4.0)),
    ((0.0, 4.0), 0.0, 0.0, True, (0.0, 4.0)),
    # The same direction: a cosine of 1.
    ((0.1, 0.0), 0.5, 1.0, True, (0.0, 0.0)),
    ((0.1, 0.0), 1.0, 1.0, True, (0.1, 0.0)),
    ((0.1, 0.0), 0.5, 0.9, False, None),
    ((0.0, 0.0), 0.0, 0.0, True, (0.0, 0.0)),
  )
  def test_by_hand(self, gradient, lower, upper, is_accepted, expected):
    for judged in (_judged, jax.jit(_judged)):
      verdict, state = judged(gradient, PREVIOUS, lower, upper)
      self.assertEqual(gates_test.numbers(verdict), [is_accepted, False, 1.0])
      if expected:
        chex.assert_trees_all_close(
          verdict.gradients, _tree(expected), rtol=1e-6, atol=1e-7
        )
      # The next one is compared with this one, as it was.
      chex.assert_trees_all_equal(state, _tree(gradient))

  def test_the_first_gradient_stays(self):
    gate = gates.gradient_alignment(lower=0.0, upper=0.0)
    gradients = _tree((3.0, 4.0))
    state = gate.init(_tree((7.0, -7.0)))
    chex.assert_trees_all_equal(state, _tree((0.0, 0.0)))
    proposal = gates_test.proposal_of()._replace(gradients=gradients)
    verdict, _ = gate.judge(state, proposal)
    self.assertTrue(verdict.is_accepted)
    chex.assert_trees_all_equal(verdict.gradients, gradients)

  def test_a_gradient_of_zero_has_no_cosine_and_gives_no_nan(self):
    with jax.debug_nans(True):
      for gradient, previous in (((0, 0), (3, 4)), ((3, 4), (0, 0))):
        verdict, _ = _judged(gradient, previous, 0.0, 0.0)
        self.assertTrue(verdict.is_accepted)
        chex.assert_trees_all_equal(verdict.gradients, _tree(gradient))

  def test_no_rounding_takes_a_cosine_beyond_1(self):
    vectors = np.random.default_rng(0).normal(size=(1000, 3))
    vectors = vectors.astype(np.float32)
    verdict, _ = jax.vmap(lambda x: _judged(x, x, 1.0, 1.0))(vectors)
    self.assertTrue(verdict.is_accepted.all())
    turned = verdict.gradients['a'][:, 0]
    np.testing.assert_array_equal(turned, vectors[:, 0])

  def test_the_cosine_becomes_the_lower_one_and_the_rest_stays(self):
    rng = np.random.default_rng(0)
    judged = jax.jit(_judged)
    num_turned = 0
    for lower in (0.0, 0.2, 0.9):
      for scale in (1e-4, 1e4):
        previous = rng.normal(size=4)
        gradient = scale * (rng.normal(size=4) + previous)
        verdict, _ = judged(gradient, previous, lower, 1.0)
        before, turned = _tree(gradient), verdict.gradients
        cosine = _cosine(before, _tree(previous))
        np.testing.assert_allclose(
          _cosine(turned, _tree(previous)), min(cosine, lower), atol=1e-5
        )
        num_turned += cosine > lower
        removed = jax.tree.map(jnp.subtract, before, turned)
        if cosine > lower:
          np.testing.assert_allclose(
            _cosine(removed, _tree(previous)), 1.0, rtol=1e-5
          )
    self.assertGreater(num_turned, 2)

  @parameterized.parameters(
    ({'lower': -0.1}, r'lower = -0.1: must be in \[0, 1\]'),
    ({'upper': 1.1}, r'upper = 1.1: must be in \[0, 1\]'),
    ({'upper': None}, 'upper = None: must be of type'),
    ({'lower': 0.6}, 'lower = 0.6: must be at most upper = 0.5'),
  )
  def test_wrong_constants_raise(self, constants, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      gates.gradient_alignment(**({'lower': 0.2, 'upper': 0.5} | constants))

  def test_devices_with_a_part_of_the_weights_agree(self):
    mesh = mesh_lib.make({'data': 1, 'fsdp': 4, 'tensor': 2})
    spec = jax.P('fsdp', 'tensor')
    split = jax.sharding.NamedSharding(mesh, spec)
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 8, 4)).astype(np.float32)
    gate = gates.gradient_alignment(lower=0.1, upper=1.0)

    @jax.jit
    def turned(gradients, previous):
      proposal = gates_test.proposal_of()._replace(gradients=gradients)
      return gate.judge(previous, proposal)[0].gradients

    one = one + other
    here = turned({'a': one}, {'a': other})
    there = turned(*jax.device_put(({'a': one}, {'a': other}), split))
    self.assertEqual(there['a'].sharding.spec, spec)
    self.assertGreater(np.abs(here['a'] - one).max(), 0.1)
    chex.assert_trees_all_close(here, jax.device_get(there), atol=1e-5)


def _updated(lower, upper, previous=None, num_microbatches=1, **changes):
  """The learner before and after an update, its outcome and its status."""
  parts = updates.make_parts()
  params = parts.init_params_fn(jax.random.key(0))
  changes['gate'] = gates.gradient_alignment(lower=lower, upper=upper)
  start = learner.init(params, updates.make_functions(parts, **changes))
  if previous is not None:
    start = start._replace(gate_state=previous)
  return start, *updates.update(
    *(parts, params, updates.make_rollouts(parts, 4)),
    num_microbatches=num_microbatches,
    start=start,
    **changes,
  )


@functools.cache
def _first():
  """The learner after its first update, and the outcome of this update."""
  _, after, seen, _ = _updated(0.0, 0.0)
  return after, seen


class UpdateTest(parameterized.TestCase):
  def test_the_optimizer_gets_the_turned_gradient_of_the_whole_batch(self):
    plain, seen = _first()
    gradient = plain.gate_state
    chex.assert_trees_all_equal(updates.gradient(plain), gradient)
    # A gradient of before with the cosine 0.8.
    rng = np.random.default_rng(0)
    noise = jax.tree.map(
      lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), gradient
    )
    share = optax.tree.vdot(noise, gradient) / seen.grad_norm**2
    across = jax.tree.map(lambda x, y: x - share * y, noise, gradient)
    scale = 0.75 * seen.grad_norm / optax.tree.norm(across)
    previous = jax.tree.map(lambda x, y: x + scale * y, gradient, across)
    np.testing.assert_allclose(_cosine(gradient, previous), 0.8, rtol=1e-4)
    results = []
    for num_microbatches in (1, 2):
      _, turned, outcome, status = _updated(
        0.5, 0.9, previous, num_microbatches
      )
      self.assertTrue(status.is_applied)
      results.append(updates.gradient(turned))
      np.testing.assert_allclose(_cosine(results[-1], previous), 0.5, rtol=1e-4)
      # What is remembered and logged is the gradient before.
      self.assertLess(updates.distance(turned.gate_state, gradient), 1e-6)
      np.testing.assert_allclose(outcome.grad_norm, seen.grad_norm, rtol=1e-5)
    self.assertLess(updates.distance(*results), 1e-5)

  def test_a_refused_update_changes_the_previous_gradient_alone(self):
    plain, _ = _first()
    double = jax.tree.map(lambda leaf: 2 * leaf, plain.gate_state)
    start, after, _, status = _updated(
      0.0, 0.9, double, optimizer=optax.adam(1e-2)
    )
    self.assertTrue(status.is_refused)
    self.assertFalse(status.is_applied)
    self.assertEqual((int(after.step), int(after.num_tried)), (0, 1))
    chex.assert_trees_all_equal(
      (after.params, after.opt_state), (start.params, start.opt_state)
    )
    self.assertLess(updates.distance(after.gate_state, plain.gate_state), 1e-6)
