"""Tests of judging beside generation, beside judging after it."""

import dataclasses
import threading
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import arguments
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import generation as generation_lib
from replay_rl.run import judged_beside
from replay_rl.run import programs
from replay_rl.run import rules
from replay_rl.run import schedule
from replay_rl.tasks.text import beside
from replay_rl.tasks.text import judging
from tests import tiny
from tests.fit import compilation_test
from tests.run import tiny_run

_SPANS = 'asynchronous(workers=2, trainers=1, publish_every=1, in_flight=False)'
_MESH = {'data': 2, 'fsdp': 2, 'tensor': 1}


def _config(judge_every, **changes):
  changes = {'sampler__num_slots': 4, 'sampler__temperature': 1.3} | changes
  return tiny.config(
    task='problems()',
    text=dataclasses.replace(
      compilation_test.text_config().text, judge_every=judge_every
    ),
    warm_start__num_steps=0,
    **changes,
  )


def _task(calls=None):
  """Returns a task whose responses have 1 to 8 tokens."""
  task = tiny_run.text_task(calls)
  shape = task.shape._replace(max_new_tokens=8, eos_ids=(0, 1, 2, 3))
  return dataclasses.replace(task, shape=shape)


def _built(judge_every, task, changes, **settings):
  experiment = build.experiment(_config(judge_every, **changes), task.shape)
  settings = tiny_run.settings(**settings)
  return programs.build(experiment.parts, task, settings), experiment


def _generated(judge_every, task=None, changes=(), seeds=(5,), **settings):
  """Returns what the first generation gives, and the seconds of its events."""
  task = task or _task()
  built, experiment = _built(
    *(judge_every, task, dict(changes)), num_seeds=len(seeds), **settings
  )
  event = experiment.schedule(0)[0]
  assert isinstance(event, schedule.Generate)
  with jax.set_mesh(settings.get('mesh', mesh_lib.make(tiny_run.ONE_DEVICE))):
    run = tiny_run.first_run(built, experiment.parts, list(seeds))
    generate = built.cycle.keywords['actions'].generate
    return jax.device_get(generate(run, event)), built.seconds()


class JudgedBesideTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('in_turn', {'seeds': (5, 6), 'time_events': True}),
    ('together', {'seeds': (5, 6), 'vmap_seeds': True}),
    (
      'of_one_span',
      {'changes': {'schedule': _SPANS, 'replay__updates_per_iteration': None}},
    ),
  )
  def test_every_byte_is_that_of_judging_afterwards(self, options):
    calls = []
    actual, beside_it = _generated(3, _task(calls), **options)
    expected, after_it = _generated(None, **options)
    chex.assert_trees_all_equal(actual, expected)
    events = {'generate', 'judge', 'wait'} if 'time_events' in options else ()
    self.assertEqual([set(beside_it), set(after_it)], [set(events)] * 2)
    if events:
      self.assertGreaterEqual(after_it['wait'], after_it['judge'])
    generation, rewards, _ = actual
    self.assertGreater(len(np.unique(generation.completions.lengths)), 2)
    self.assertBetween(np.mean(rewards == 1.0), 0.1, 0.9)
    # Each once; in how many pieces depends on how fast the other threads are.
    sizes = [len(references) for *_, references in calls]
    self.assertEqual(sum(sizes), rewards.size)

  def test_a_sampler_with_its_own_mesh(self):
    on_mesh = {
      'mesh': mesh_lib.make(_MESH),
      'sampler_mesh': mesh_lib.make(mesh_lib.joined(_MESH)),
    }
    actual, _ = _generated(3, **on_mesh)
    expected, _ = _generated(None, **on_mesh)
    chex.assert_trees_all_equal(actual[1:], expected[1:])
    np.testing.assert_array_equal(
      actual[0].completions.tokens, expected[0].completions.tokens
    )

  @parameterized.parameters(1, 3)
  def test_a_stop_within_a_generation_goes_on_bit_for_bit(self, num_pieces):
    task = _task()
    built, experiment = _built(3, task, {}, num_seeds=2)
    generate = built.cycle.keywords['actions'].generate
    run = tiny_run.first_run(built, experiment.parts, [5, 6])
    event = experiment.schedule(0)[0]
    expected = jax.device_get(generate(run, event))
    asked = iter([False] * (num_pieces - 1) + [True])
    built.watch.is_to_stop = lambda: next(asked)
    with self.assertRaises(judged_beside.Interrupted) as raised:
      generate(run, event)
    built.watch.is_to_stop = lambda: False
    stored = jax.device_get(raised.exception.run)
    num_ended = stored.in_flight.steps.is_sampled.any(axis=2).sum(axis=1)
    self.assertBetween(num_ended.max(), 1, 15)
    # As a checkpoint has it.
    like = judged_beside.abstract(
      experiment.parts, 2, mesh_lib.make(tiny_run.ONE_DEVICE)
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(stored.in_flight, like)
    restored = jax.device_put(
      stored.in_flight, jax.tree.map(lambda leaf: leaf.sharding, like)
    )
    run = run._replace(in_flight=restored)
    chex.assert_trees_all_equal(jax.device_get(generate(run, event)), expected)

  def test_one_set_of_weights_is_that_of_the_span_rounded_by_hand(self):
    parts = tiny_run.parts()
    parts = parts._replace(
      transformer=dataclasses.replace(
        parts.transformer, compute_dtype='bfloat16'
      )
    )
    # 257 has nine bits, and bfloat16 eight.
    params = {'embedding': jnp.array([[1.0], [2.0], [257.0]])}
    policy = generation_lib.Policy(
      *(params, jnp.array([3, 4, 5]), None, None, {}),
      spans=arguments.Spans(jnp.array([2]), jnp.array([0])),
    )
    actual = generation_lib.one_set(policy, parts)
    self.assertEqual(actual.params['embedding'].tolist(), [256.0])
    self.assertEqual(actual.params['embedding'].dtype, jnp.bfloat16)
    self.assertEqual(actual.version.tolist(), [3, 4, 5])

  def test_it_samples_as_the_config_says(self):
    config = _config(
      3, sampler__top_k=9, sampler__top_p=0.9, loss__policy='reinforce()'
    )
    parts = build.experiment(config, _task().shape).parts
    pieces = parts.bind(parts.hyper).pieces
    self.assertEqual(
      {name: pieces.step.keywords[name] for name in ('chunk', 'top_k')},
      {'chunk': 3, 'top_k': 9},
    )
    self.assertEqual(pieces.step.keywords['top_p'], 0.9)
    self.assertEqual(pieces.step.keywords['temperature'], 1.3)

  def test_what_the_verifier_raises_ends_the_generation_and_the_thread(self):
    def judge(*arguments):
      raise RuntimeError('worker = 3: must start')

    before = threading.active_count()
    with self.assertRaisesRegex(RuntimeError, '^worker = 3: must start$'):
      _generated(3, dataclasses.replace(_task(), judge_fn=judge))
    self.assertEqual(threading.active_count(), before)

  @parameterized.parameters(None, 16, 17)
  def test_slots_for_all_responses_are_refused(self, num_slots):
    config = _config(2, sampler__num_slots=num_slots)
    with self.assertRaisesRegex(
      ValueError,
      '^text.judge_every = 2: must be None where sampler.num_slots = '
      f'{num_slots}; only in fewer slots than the 16 responses do some end',
    ):
      rules.validate(config)

  @parameterized.parameters(0, 2.0, True)
  def test_a_wrong_chunk_is_named(self, judge_every):
    with self.assertRaisesRegex(
      ValueError, f'^text.judge_every = {judge_every}: must be '
    ):
      rules.validate(_config(judge_every))


class BesideTest(parameterized.TestCase):
  def test_what_ends_during_a_judgement_is_judged_together(self):
    started, goes_on = threading.Event(), threading.Event()
    calls = []
    like = _task(calls)

    def judge(*arguments):
      started.set()
      assert goes_on.wait(60)
      return like.judge_fn(*arguments)

    task = dataclasses.replace(like, judge_fn=judge)
    judging_of_four = beside.Beside(task, num_seeds=2, num_rows=2)
    tokens = np.array([[[4, 5], [5, 6]], [[6, 7], [7, 8]]], np.int32)
    ones = np.ones((2, 2), np.int32)
    references = np.array([[0, 0], [1, 1]], np.int32)

    def give(*is_valid):
      # The rows of the second seed are in the other order.
      judging_of_four.give(
        np.reshape(is_valid, (2, 2)).astype(bool),
        np.array([[0, 1], [1, 0]], np.int32),
        (tokens, ones, ones > 0),
        references,
      )

    give(1, 0, 0, 0)
    self.assertTrue(started.wait(60))
    give(0, 0, 0, 0)
    give(0, 1, 0, 0)
    give(0, 0, 1, 1)
    goes_on.set()
    rewards, measured = judging_of_four.result()
    self.assertEqual([len(call[1]) for call in calls], [1, 3])
    # First tokens 4 and 5 beside 0; 7 and 6, in the order of rows, beside 1.
    self.assertEqual(rewards.tolist(), [[1.0, -0.5], [1.0, -0.5]])
    self.assertEqual(measured['verifier/correct'].tolist(), [1, 1])
    self.assertEqual(measured['accuracy'].tolist(), [0.5, 0.5])
    self.assertEqual(rewards.dtype, np.float32)

  def test_each_process_judges_its_share(self):
    shares = []
    for index in (0, 1):
      calls = []
      with mock.patch.multiple(
        jax,
        process_count=lambda: 2,
        process_index=lambda index=index: index,
      ):
        one = beside.Beside(_task(calls), num_seeds=1, num_rows=5)
        one.give(
          np.ones((1, 5), bool),
          np.arange(5, dtype=np.int32)[None],
          (np.zeros((1, 5, 2), np.int32), *[np.ones((1, 5), np.int32)] * 2),
          np.arange(5, dtype=np.int32)[None],
        )
        one._end()
      shares.append([x for *_, references in calls for x in references])
    self.assertEqual(shares, [[0, 1, 2], [3, 4]])


class VerifyTest(parameterized.TestCase):
  def test_verdicts_are_numbers_by_hand(self):
    responses = np.array([[4, 0], [5, 0]], np.int32)
    ones = np.ones(2, np.int32)
    found = judging.verify(
      *(_task(), responses, ones, ones > 0, np.zeros(2, np.int32))
    )
    # 1.0 and -0.5 as bits; right or wrong; the number of the status.
    self.assertEqual(
      found.tolist(), [[0x3F800000, 0xBF000000 - 2**32], [1, 0], [0, 1]]
    )
    self.assertEqual(found.dtype, np.int32)
