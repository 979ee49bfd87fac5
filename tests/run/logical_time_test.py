"""Tests of the emulated clock, against a simulation of workers and trainers."""

import fractions
import math

import numpy as np
from absl.testing import parameterized

from replay_rl.run import logical_time
from replay_rl.run import schedule

_NUM_TOKENS = 7
_FRACTION = fractions.Fraction


def _simulate(system: logical_time.System, num_generations: int):
  """Moves workers and trainers from one happening to the next.

  The unit of time is the training of one rollout by one trainer. Nothing of it
  is a formula of the module.

  Returns:
    The tokens of each generation as publications `[_NUM_TOKENS]`, the updates
    that start between the end of each generation and the next, and the times
    when weights were published.
  """
  one_generation = system.num_fresh * system.mu
  one_update = _FRACTION(system.batch_size, system.num_trainers)
  # The workers take turns, and all of them worked before time 0.
  ends = [
    one_generation * (worker + 1) / system.num_workers
    for worker in range(system.num_workers)
  ]
  spans, order, published, num_updates = [], [], [], 0
  is_free_at, num_unused = one_update, 0
  while len(spans) <= num_generations:
    worker = int(np.argmin(ends))
    # All updates that can start before this generation ends.
    needed = system.batch_size if system.uses_once else 1
    while is_free_at < ends[worker] and num_unused >= needed:
      order[-1] += 1
      num_updates += 1
      num_unused -= system.batch_size if system.uses_once else 0
      is_free_at += one_update
      if num_updates % system.publish_every == 0:
        published.append(is_free_at)
    started = ends[worker] - one_generation
    spans.append(
      [
        sum(
          time <= started + one_generation * _FRACTION(token, _NUM_TOKENS)
          for time in published
        )
        for token in range(_NUM_TOKENS)
      ]
    )
    order.append(0)
    num_unused += system.num_fresh
    # A trainer that waits starts when this generation ends.
    if num_unused >= needed:
      is_free_at = max(is_free_at, ends[worker])
    ends[worker] += one_generation
  return spans[:-1], order[:-1], published


def _tokens(spans) -> list[int]:
  """Returns the publication of each token, as the spans say."""
  return [
    [x for x in spans if math.ceil(x.start * _NUM_TOKENS) <= token][
      -1
    ].publication
    for token in range(_NUM_TOKENS)
  ]


class SystemTest(parameterized.TestCase):
  def test_the_rate_of_the_paper_is_added_up_exactly(self):
    system = logical_time.System(6, 2, _FRACTION('5.28'), 60, 1, 1, False)
    self.assertEqual(system.rollouts_per_update, _FRACTION(375, 11))
    self.assertEqual(
      [system.rollouts_until(n) for n in (1, 2, 11)], [34, 68, 375]
    )
    # A generation of one rollout each: cycle g ends where rollout g + 2 does.
    cycles = [
      schedule.num_updates(
        schedule.asynchronous(
          generation,
          **_constants(system._replace(publish_every=1)),
          in_flight=True,
        )
      )
      for generation in range(376)
    ]
    # The updates 0, 1 and 10 start with 34, 68 and 375 rollouts.
    starts = np.repeat(np.arange(376) + 1, cycles)
    self.assertEqual(starts[[0, 1, 10]].tolist(), [34, 68, 375])

  @parameterized.parameters(range(24))
  def test_a_simulation_has_the_same_events(self, seed):
    rng = np.random.default_rng(seed)
    system = logical_time.System(
      num_workers=int(rng.integers(1, 8)),
      num_trainers=int(rng.integers(1, 8)),
      mu=_FRACTION(int(rng.integers(1, 900)), 100),
      batch_size=int(rng.integers(1, 30)),
      num_fresh=int(rng.integers(1, 20)),
      publish_every=int(rng.integers(1, 5)),
      uses_once=bool(seed % 2),
    )
    make = schedule.queue if system.uses_once else schedule.asynchronous
    spans, order, published = _simulate(system, 60)
    num_published, num_kept, num_spans = 0, 0, 0
    for generation, (tokens, num_updates) in enumerate(
      zip(spans, order, strict=True)
    ):
      events = make(generation, **_constants(system), in_flight=True)
      generate = events[0]
      self.assertEqual(_tokens(generate.spans), tokens, generation)
      self.assertEqual(generate.num_published, num_published)
      self.assertEqual(schedule.num_updates(events), num_updates, generation)
      num_kept = max(
        num_kept, num_published - generate.spans[0].publication + 1
      )
      num_spans = max(num_spans, len(generate.spans))
      needs = generate.needs
      num_published += events.count(schedule.Publish())
      # Without updates of weights in flight: those of the first token.
      held = make(generation, **_constants(system), in_flight=False)
      self.assertEqual(_tokens(held[0].spans), tokens[:1] * _NUM_TOKENS)
      self.assertEqual(held[1:], events[1:])
      self.assertEqual(held[0].needs, needs._replace(num_spans=1))
    # The bounds hold; without waiting they are not far from what was needed.
    self.assertGreaterEqual(needs.num_publications, num_kept)
    self.assertGreaterEqual(needs.num_spans, num_spans)
    if not system.uses_once:
      self.assertLessEqual(needs.num_publications, num_kept + 3)
      self.assertLessEqual(needs.num_spans, num_spans + 3)
    self.assertEqual(num_published, len(published))

  def test_weights_that_come_when_a_generation_ends_are_of_the_next_one(self):
    # A generation and an update take the same time, from 0, 1, 2, ... on.
    system = logical_time.System(
      num_workers=1,
      num_trainers=1,
      mu=_FRACTION(1),
      batch_size=4,
      num_fresh=4,
      publish_every=1,
      uses_once=False,
    )
    # Update 0 starts at 1, when generation 0 ends, and is published at 2.
    self.assertEqual(
      [[*system.publications(generation)] for generation in range(4)],
      [[(max(0, generation - 1), 0)] for generation in range(4)],
    )

  def test_a_queue_trains_on_no_rollout_twice_and_leaves_few(self):
    for num_workers in (1, 2, 9):
      constants = {
        'workers': num_workers,
        'trainers': 3,
        'publish_every': 2,
        'in_flight': True,
        'mu': 2.5,
        'batch_size': 12,
        'num_fresh': 8,
      }
      generated = trained = 0
      for cycle in range(200):
        events = schedule.queue(cycle, **constants)
        generated += 8
        trained += 12 * schedule.num_updates(events)
        self.assertLessEqual(trained, generated)
      if num_workers < 9:  # Generation is what the trainers wait for.
        self.assertGreater(trained, generated - 24)

  def test_a_schedule_without_spans_needs_nothing(self):
    self.assertEqual(
      schedule.needs(
        lambda i: schedule.synchronous(i, updates_per_iteration=2)
      ),
      (0, 0),
    )

  @parameterized.parameters(
    ({'mu': 0.0}, '^mu = 0.0: must be above 0'),
    ({'batch_size': None}, '^replay.batch_size = None: must be given'),
    (
      {'mu': 1e6, 'num_fresh': 50},
      '^schedule.publish_every = 1: must be such .* not 5e',
    ),
  )
  def test_what_has_no_time_raises(self, changes, message):
    constants = {
      'workers': 1,
      'trainers': 1,
      'publish_every': 1,
      'in_flight': True,
      'mu': 2.0,
      'batch_size': 10,
      'num_fresh': 4,
    }
    with self.assertRaisesRegex(ValueError, message):
      schedule.asynchronous(0, **(constants | changes))


def _constants(system: logical_time.System) -> dict:
  return {
    'workers': system.num_workers,
    'trainers': system.num_trainers,
    'publish_every': system.publish_every,
    'mu': float(system.mu),
    'batch_size': system.batch_size,
    'num_fresh': system.num_fresh,
  }
