"""Tests of runs whose weights change at logical times."""

import fractions
import json
import pathlib

import chex
import jax
import numpy as np
from absl.testing import parameterized

from replay_rl import train
from replay_rl.lm import scoring
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import generation
from replay_rl.run import programs
from replay_rl.run import schedule
from tests import tiny
from tests import tiny_text
from tests.run import tiny_run

_SYSTEM = 'workers=2, trainers=1, publish_every={every}, in_flight={flight}'
_FRESH, _BATCH = 8, 6


def _changes(kind='asynchronous', every=2, flight=True, **changes):
  system = _SYSTEM.format(every=every, flight=flight)
  return {
    'schedule': f'{kind}({system})',
    'mu': 1.5,
    'replay__updates_per_iteration': None,
    'replay__batch_size': _BATCH,
    'replay__capacity': 80,
    'sampler__num_prompts': 2,
    **changes,
  }


_QUEUES = {
  newest: _changes(
    'queue',
    every=1,
    replay__weights=f'{newest}_unused()',
    replay__draw='largest()',
  )
  for newest in ('newest', 'oldest')
}


def _cycles(changes, num_cycles, task=None, **settings):
  """Yields the run after each cycle, and the experiment."""
  experiment = tiny_run.experiment(**changes)
  settings = tiny_run.settings(**settings)
  with jax.set_mesh(settings.mesh):
    built = programs.build(experiment.parts, task or tiny_run.task(), settings)
    seeds = list(range(5, 5 + settings.num_seeds))
    run = tiny_run.first_run(built, experiment.parts, seeds)
    for cycle in range(num_cycles):
      run, measured = built.cycle(run, experiment.schedule(cycle))
      yield jax.device_get(run), jax.device_get(measured), experiment


def _rows(run):
  """Returns the rollouts of a buffer of one seed in the order of their ids."""
  rollouts = jax.tree.map(lambda leaf: leaf[0], run.buffer.rollouts)
  order = np.argsort(rollouts.rollout_id[run.buffer.is_valid[0]])
  return jax.tree.map(lambda leaf: leaf[order], rollouts)


class VersionsTest(parameterized.TestCase):
  @parameterized.product(flight=(True, False), every=(1, 2))
  def test_the_log_probs_of_a_token_are_of_the_weights_of_its_version(
    self, flight, every
  ):
    num_cycles, params = 7, {}
    changes = _changes(every=every, flight=flight)
    for run, _, experiment in _cycles(changes, num_cycles):  # noqa: B007
      step = int(run.learner.step[0])
      params[step] = jax.tree.map(lambda leaf: leaf[0], run.learner.params)
    params[0] = experiment.parts.init_params_fn(jax.random.key(1))
    rows = _rows(run)
    mask = rows.loss_mask
    longest = experiment.parts.shape.max_new_tokens
    for cycle in range(num_cycles):
      spans = generation.spans_of(
        experiment.schedule(cycle)[0], experiment.parts
      )
      publications = np.array(
        [x.publication for x in experiment.schedule(cycle)[0].spans]
      )
      first_tokens = spans.first_tokens[: len(publications)]
      for row in range(_FRESH * cycle, _FRESH * (cycle + 1)):
        tokens = np.arange(mask[row].sum())
        expected = (
          every
          * publications[
            np.searchsorted(first_tokens, tokens, side='right') - 1
          ]
        )
        np.testing.assert_array_equal(
          rows.token_versions[row][mask[row]], expected
        )
        self.assertEqual(rows.policy_version[row], expected[0])
    self.assertEqual(longest, spans.first_tokens.max().clip(longest))
    np.testing.assert_array_equal(rows.token_versions[~mask], 0)
    is_mixed = rows.token_versions.max(1) > rows.policy_version
    self.assertEqual(is_mixed.any(), flight)

    # Scores of whole texts: right up to the first change of weights.
    graphdef = build._graphdef(experiment.parts.transformer)
    is_first = mask & (rows.token_versions == rows.policy_version[:, None])
    for version in set(rows.policy_version.tolist()) & set(params):
      logprobs, _ = scoring.token_logprobs(
        graphdef,
        params[version],
        rows.tokens,
        temperature=1.0,
        chunk_size=None,
        remat=False,
      )
      is_here = is_first & (rows.policy_version == version)[:, None]
      np.testing.assert_allclose(
        rows.behavior_logprobs[is_here], logprobs[is_here], atol=1e-4
      )
    newest = set(rows.policy_version.tolist()) & set(params)
    self.assertGreater(len(newest), 1)

  def test_spans_begin_with_the_first_token_after_their_start(self):
    parts = tiny_run.experiment(**_changes()).parts
    parts = parts._replace(num_publications=3, num_spans=4)
    longest = parts.shape.max_new_tokens
    self.assertEqual(longest, 4)
    # Publication 9 of 9 is in slot 2 of a ring of 3, and 7 in slot 0.
    event = schedule.Generate(
      (
        schedule.Span(7, 0),
        schedule.Span(8, fractions.Fraction(1, 4)),
        schedule.Span(9, fractions.Fraction(3, 10)),
      ),
      9,
    )
    spans = generation.spans_of(event, parts)
    self.assertEqual(spans.slots.tolist(), [0, 1, 2, 2])
    self.assertEqual(spans.first_tokens.tolist(), [0, 1, 2, 4])

  def test_a_generation_of_one_version_is_not_mixed(self):
    changes = _changes(every=1, flight=False)
    *_, (run, measured, _) = _cycles(changes, 4)
    self.assertEqual(
      tiny_run.numbers(measured)['mixed_versions_fraction'][0], 0
    )
    self.assertGreater(_rows(run).policy_version[-1], 0)

  def test_lines_tell_the_age_of_tokens_and_the_mixed_rollouts(self):
    *_, (run, measured, _) = _cycles(_changes(every=1), 5)
    values = tiny_run.numbers(measured)
    newest = _rows(run)
    newest = jax.tree.map(lambda leaf: leaf[-_FRESH:], newest)
    is_mixed = newest.token_versions.max(1) > newest.policy_version
    self.assertEqual(values['mixed_versions_fraction'][0], is_mixed.mean())
    self.assertGreater(is_mixed.mean(), 0)
    # A token is at most as old as the first of its rollout.
    self.assertLess(values['staleness/tokens'], values['staleness/mean'])

  @parameterized.parameters(
    ([(0, 0.5)], 0, 'must start in order'),
    ([(0, 0), (0, 1)], 0, 'all below 1'),
    ([(0, 0), (1, 0.5), (2, 0.2)], 2, 'must start in order'),
    ([(1, 0)], 0, 'of the 0 publications so far'),
    ([(1, 0)], 9, 'the latest 3 of 9 publications'),
    ([(6, 0)], 9, 'the latest 3 of 9 publications'),
    ([(7, x / 10) for x in range(9)], 9, 'must be at most 5, with'),
  )
  def test_spans_that_no_sampler_can_follow_raise(
    self, spans, num_published, message
  ):
    parts = tiny_run.experiment(**_changes()).parts
    parts = parts._replace(num_publications=3, num_spans=5)
    event = schedule.Generate(
      tuple(schedule.Span(*one) for one in spans), num_published
    )
    with self.assertRaisesRegex(ValueError, f'^spans = .*{message}'):
      generation.spans_of(event, parts)

  @parameterized.parameters(
    ({}, (schedule.Span(0, 0),)),
    ({'sampler__weight_lag': 2}, (schedule.Span(0, 0),)),
    (_changes(), None),
  )
  def test_generations_with_and_without_spans_in_one_run_raise(
    self, changes, spans
  ):
    experiment = tiny_run.experiment(**changes)
    events = (schedule.Generate(spans), schedule.Remember())
    settings = tiny_run.settings()
    with jax.set_mesh(settings.mesh):
      built = programs.build(experiment.parts, tiny_run.task(), settings)
      run = tiny_run.first_run(built, experiment.parts, [5])
      with self.assertRaisesRegex(
        ValueError, '^spans = .*: must be given in all generations of a'
      ):
        built.cycle(run, events)


class RunTest(parameterized.TestCase):
  def test_a_stopped_run_continues_bit_for_bit(self):
    config = tiny.config(num_iterations=9, **_changes())
    whole, parts = (
      pathlib.Path(self.create_tempdir()) / name for name in ('a', 'b')
    )
    expected = train.train(config, whole)
    train.train(config, parts, stop_after=4)
    chex.assert_trees_all_equal(train.train(config, parts), expected)
    lines = (whole / 'metrics.jsonl').read_bytes()
    self.assertEqual(lines, (parts / 'metrics.jsonl').read_bytes())
    fields = [set(json.loads(line)) for line in lines.splitlines()]
    self.assertTrue(all(one == fields[0] for one in fields))
    self.assertIn('staleness/tokens', fields[0])

  def test_seeds_and_meshes_have_the_same_versions_and_nearly_the_same_run(
    self,
  ):
    *_, (alone, _, _) = _cycles(_changes(), 4, num_seeds=2)
    *_, (split, _, _) = _cycles(
      _changes(),
      4,
      num_seeds=2,
      mesh=mesh_lib.make({'data': 1, 'fsdp': 2, 'tensor': 1}),
      sampler_mesh=mesh_lib.make({'data': 2, 'fsdp': 1, 'tensor': 1}),
    )
    chex.assert_trees_all_close(
      alone.learner.params, split.learner.params, atol=2e-4
    )
    np.testing.assert_array_equal(
      alone.buffer.rollouts.token_versions,
      split.buffer.rollouts.token_versions,
    )
    self.assertGreater(alone.buffer.rollouts.token_versions.max(), 0)

  def test_a_task_in_text_has_them_too(self):
    folder = pathlib.Path(self.create_tempdir())
    config = tiny_text.config(
      folder / 'data', **_changes(every=1, num_iterations=5)
    )
    run = train.train(config, folder / 'run')
    versions = np.asarray(run.buffer.rollouts.token_versions)
    self.assertGreater(versions.max(), 0)
    self.assertGreater(
      (versions.max(-1) > np.asarray(run.buffer.rollouts.policy_version)).sum(),
      0,
    )


class QueueTest(parameterized.TestCase):
  @parameterized.parameters('newest', 'oldest')
  def test_the_buffer_gives_what_a_list_gives(self, which):
    waiting, used = [], []
    for cycle, (run, _, experiment) in enumerate(_cycles(_QUEUES[which], 9)):
      waiting += range(_FRESH * cycle, _FRESH * (cycle + 1))
      for _ in range(schedule.num_updates(experiment.schedule(cycle))):
        taken = waiting[-_BATCH:] if which == 'newest' else waiting[:_BATCH]
        waiting = [one for one in waiting if one not in taken]
        used += taken
      is_used = run.buffer.times_sampled[0] > 0
      self.assertLessEqual(run.buffer.times_sampled.max(), 1)
      ids = run.buffer.rollouts.rollout_id[0][is_used]
      self.assertEqual(sorted(ids.tolist()), sorted(used))
    self.assertEqual(int(run.learner.step[0]) * _BATCH, len(used))
    self.assertGreater(len(used), 40)

  @parameterized.parameters(
    (
      {'replay__weights': 'uniform()'},
      '^replay.weights = .*: must be newest_unused or oldest_unused, because '
      'schedule = .*; a queue gives each rollout once',
    ),
    (
      {'replay__draw': 'gumbel_top_k()'},
      '^replay.draw = .*: must be largest, because replay.weights = .*order',
    ),
    (
      {'sampler__weight_lag': 2},
      '^sampler.weight_lag = 2: must be 0 or a multiple of',
    ),
    (
      {'replay__updates_per_iteration': 2},
      '^replay.updates_per_iteration = 2: must be None',
    ),
    ({'mu': 0.0}, '^mu = 0.0: must be above 0'),
    (
      {
        'sampler__num_slots': 6,
        'schedule': 'queue(workers=2, trainers=1, publish_every=1, '
        'in_flight=True)',
      },
      r'^sampler.num_slots = 6: must be None for schedule = .queue\(workers=2, '
      '.*, whose weights change at the same token of all responses$',
    ),
    (
      {
        'schedule': 'queue(workers=0, trainers=1, publish_every=1, '
        'in_flight=True)'
      },
      r'^schedule.workers = 0: must be in \[1, 65536\]',
    ),
    (
      {
        'schedule': 'queue(workers=1, trainers=1, publish_every=1, in_flight=1)'
      },
      '^schedule.in_flight = 1: must be ',
    ),
  )
  def test_what_is_no_queue_is_refused(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      tiny_run.experiment(**(_QUEUES['newest'] | changes))
