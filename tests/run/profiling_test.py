"""Tests of the trace of some iterations."""

from unittest import mock

from absl.testing import parameterized

from replay_rl import train
from replay_rl.run import profiling
from tests import tiny
from tests import train_test


class ParseTest(parameterized.TestCase):
  def test_first_and_end(self):
    self.assertEqual(profiling.parse('3:5'), profiling.Traced(3, 5))

  @parameterized.parameters('', '3', '3:', ':5', '5:5', '6:5', '-1:5', '1:2:3')
  def test_what_names_no_iterations_raises(self, text):
    with self.assertRaisesRegex(
      ValueError, f"^--profile = '{text}': must be FIRST:END, the first iterat"
    ):
      profiling.parse(text)


class TraceTest(train_test.TrainTestCase):
  def test_a_trace_has_the_events_and_layers_and_changes_nothing(self):
    config = tiny.config(num_iterations=3)
    plain, traced = self.workdir('plain'), self.workdir('traced')
    train.train(config, plain)
    train.train(config, traced, profile=profiling.Traced(1, 2))
    self.assertEqual(
      *((x / 'metrics.jsonl').read_bytes() for x in (plain, traced))
    )
    (trace,) = (traced / profiling.FOLDER).rglob('*.xplane.pb')
    content = trace.read_bytes()
    for name in ('generate', 'judge', 'remember', 'learn', 'layer'):
      self.assertIn(f'/{name}/'.encode(), content)
    self.assertEmpty([*plain.rglob('*.xplane.pb')])
    never = self.workdir('never')
    with self.assertRaisesRegex(ValueError, '^--profile = 2:4: must be within'):
      train.train(config, never, profile=profiling.Traced(2, 4))
    self.assertFalse(never.exists())
    # It goes on from iteration 3, which is behind the span.
    config.num_iterations = 5
    for first, end, whole in ((2, 4, '3:5'), (4, 6, '0:5')):
      with self.assertRaisesRegex(
        ValueError, f'^--profile = {first}:{end}: must be within {whole}, the '
      ):
        train.train(config, traced, profile=profiling.Traced(first, end))

  def test_a_run_that_ends_before_its_trace_says_so(self):
    config = tiny.config(num_iterations=4, stop='max_updates(updates=2)')
    workdir = self.workdir()
    with mock.patch.object(profiling.logs, 'say') as said:
      train.train(config, workdir, profile=profiling.Traced(2, 3))
    said.assert_any_call(
      f'{workdir.resolve()}/profile: no trace, because the run ended before it'
    )
    self.assertFalse((workdir / profiling.FOLDER).exists())
