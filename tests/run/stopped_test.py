"""Tests of what is saved of a run that stops within a generation."""

import contextlib
import pathlib
import tempfile
import types
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest

from replay_rl.run import checkpoint
from replay_rl.run import judged_beside
from replay_rl.run import session as session_lib
from replay_rl.run import state
from replay_rl.run import stopped


def _run(iteration, in_flight=None):
  number, zeros = jnp.full(1, iteration), jnp.zeros(1)
  return state.RunState(
    seed=number,
    clock=state.Clock(number, number, number, number),
    hyper={'sampler': {'temperature': zeros}},
    sampler=None,
    reference_params=None,
    learner=zeros,
    buffer=zeros,
    ledger=zeros,
    in_flight=in_flight,
  )


class RestoreTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.workdir = pathlib.Path(folder.name)
    self.stack = contextlib.ExitStack()
    self.addCleanup(self.stack.close)

  def _restore(self, newest, in_flight):
    found = None if newest is None else checkpoint.Restored(_run(newest), {})
    return stopped.restore(
      *(self.workdir, _run(0), found, self.stack),
      in_flight=in_flight,
      check_files=lambda marks: None,
      upload=None,
    )

  def test_it_is_copied_as_a_checkpoint_is(self):
    uploads = []
    saved, _ = stopped.restore(
      *(self.workdir, _run(0), checkpoint.Restored(_run(2), {}), self.stack),
      in_flight=jax.device_put(jnp.zeros(3)),
      check_files=lambda marks: None,
      upload=lambda iteration, marks: uploads.append((iteration, marks)),
    )
    saved.save(_run(2, jnp.ones(3)), {})
    saved.wait()
    self.assertEqual(uploads, [(2, {})])

  def test_it_goes_on_where_it_stopped_if_that_is_later(self):
    like = jax.device_put(jnp.zeros(3))
    saved, restored = self._restore(2, like)
    self.assertEqual(restored.run.in_flight, None)
    for number in (4, 7):  # The second one replaces the first.
      saved.clear()
      saved.save(_run(2, jnp.full(3, float(number))), {})
      saved.wait()
    # After iteration 2, so later than the checkpoint of iteration 2.
    saved, restored = self._restore(2, like)
    self.assertEqual(restored.run.in_flight.tolist(), [7, 7, 7])
    self.assertEqual(restored.run.clock.iteration.tolist(), [2])
    with self.assertRaisesRegex(
      ValueError, r"^path = '.*stopped': must be continued with the .* after 2 "
    ):
      self._restore(2, None)
    # A state of other shapes is no state of this run.
    with self.assertRaisesRegex(ValueError, '^checkpoints of .*stopped = '):
      self._restore(2, jnp.zeros(4))
    # A later checkpoint makes it obsolete.
    self.assertEqual(self._restore(3, None)[0], None)
    saved, restored = self._restore(3, like)
    self.assertEqual(restored.run.clock.iteration.tolist(), [3])
    self.assertEqual(saved.steps(), [])

  def test_without_a_checkpoint_the_run_begins_anew(self):
    saved, restored = self._restore(None, jnp.zeros(3))
    self.assertIsNone(restored)
    saved.save(_run(0, jnp.zeros(3)), {})
    saved.wait()
    saved, restored = self._restore(None, jnp.zeros(3))
    self.assertIsNone(restored)
    self.assertEqual(saved.steps(), [])


class WatchTest(absltest.TestCase):
  def test_a_run_stops_within_a_generation_once_it_has_a_checkpoint(self):
    for can_stop, received, steps, expected in (
      (True, {15}, [1], True),
      (True, {15}, [], False),
      (True, set(), [1], False),
      (False, {15}, [1], False),
    ):
      watch = judged_beside.Watch()
      session = types.SimpleNamespace(
        stopped=object() if can_stop else None,
        checkpoints=types.SimpleNamespace(steps=lambda steps=steps: steps),
        programs=types.SimpleNamespace(watch=watch),
        workdir=None,
      )
      with (
        mock.patch.object(session_lib.profiling, 'check'),
        mock.patch.object(session_lib.profiling, 'Tracer', mock.MagicMock()),
        mock.patch.object(session_lib, '_span', return_value=(0, 1)),
        mock.patch.object(
          session_lib, 'iterations', lambda *_, **__: (x for x in ())
        ),
      ):
        session_lib.run(session, received, stop_after=None, profile=None)  # pyright: ignore
      self.assertEqual(watch.is_to_stop(), expected)
