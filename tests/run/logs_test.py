"""Tests of what a run writes."""

import json
import math
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.run import logs


class LineWriterTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path) / 'lines.jsonl'

  def _write(self, first, iterations):
    writer = logs.LineWriter(self.path, first, has_gaps=False)
    for iteration in iterations:
      for seed in range(2):
        writer.write(iteration=iteration, seed=seed, value=iteration / 3)
    writer.close()

  def test_a_resumed_file_equals_an_uninterrupted_one(self):
    self._write(0, range(6))
    whole = self.path.read_bytes()
    for cut in (0, 1, 40, 41, 170, len(whole) - 1, len(whole)):
      # All lines of iterations 0 to 2 are there, and some of those after.
      kept = b''.join(whole.splitlines(keepends=True)[:6])
      self.path.write_bytes(kept + whole[len(kept) : len(kept) + cut])
      self._write(3, range(3, 6))
      self.assertEqual(self.path.read_bytes(), whole)

  def test_lines_that_are_missing_are_an_error_and_nothing_is_lost(self):
    self._write(0, range(4))
    lines = self.path.read_bytes().splitlines(keepends=True)
    damaged = b''.join([*lines[:2], b'{"iter\n', *lines[3:]])
    self.path.write_bytes(damaged)
    with self.assertRaisesRegex(ValueError, 'at iteration 1, but .* at 3'):
      logs.LineWriter(self.path, 3, has_gaps=False)
    self.assertEqual(self.path.read_bytes(), damaged)

  def test_a_missing_file_of_a_resumed_run_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'at iteration 0, but .* at 3'):
      logs.LineWriter(self.path, 3, has_gaps=False)

  def test_lines_with_gaps_between_them_are_cut_to_where_the_run_is(self):
    for iteration in (1, 4, 7):
      writer = logs.LineWriter(self.path, iteration, has_gaps=True)
      writer.write(iteration=iteration)
      writer.close()
    whole = self.path.read_bytes()
    logs.LineWriter(self.path, 8, has_gaps=True).close()
    self.assertEqual(self.path.read_bytes(), whole)
    logs.LineWriter(self.path, 7, has_gaps=True).close()
    self.assertEqual(
      self.path.read_text(), '{"iteration": 1}\n{"iteration": 4}\n'
    )

  def test_what_is_not_finite_is_written_as_null(self):
    writer = logs.LineWriter(self.path, 0, has_gaps=False)
    writer.write(iteration=0, a=math.nan, b=math.inf, c=[1, 2], d=1.5)
    writer.close()
    self.assertEqual(
      json.loads(self.path.read_text()),
      {'iteration': 0, 'a': None, 'b': None, 'c': [1, 2], 'd': 1.5},
    )


class LogTest(absltest.TestCase):
  def test_a_line_per_seed_seconds_apart_and_tensorboard_files(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    with logs.open_all(
      folder,
      name='arm',
      num_iterations=1,
      iteration=0,
      tensorboard=True,
      samples=True,
    ) as log:
      lines = [
        {'iteration': 0, 'seed': seed, 'reward': 0.5, 'loss': math.nan}
        | {'ledger/generated_tokens': 7, 'histogram/uses': [1, 2]}
        for seed in (3, 4)
      ]
      log.write(lines, seconds=2.0)
      log.write_samples([{'iteration': 0, 'prompt': '1+1', 'reward': 1.0}])
    written = (folder / 'metrics.jsonl').read_text().splitlines()
    self.assertEqual([json.loads(line)['seed'] for line in written], [3, 4])
    self.assertNotIn('seconds', written[0])
    self.assertEqual(
      json.loads((folder / 'timing.jsonl').read_text()),
      {'iteration': 0, 'seconds': 2.0, 'process': 0},
    )
    self.assertEqual(
      json.loads((folder / 'samples.jsonl').read_text()),
      {'iteration': 0, 'prompt': '1+1', 'reward': 1.0},
    )
    (events,) = (folder / 'tensorboard').iterdir()
    self.assertIn(b'reward/seed4', events.read_bytes())


if __name__ == '__main__':
  absltest.main()
