"""Tests of the event files of TensorBoard."""

import errno
import gc
import os
import pathlib
import warnings
from unittest import mock

from absl.testing import absltest

from replay_rl.disk import event_file


class EventFileTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path) / 'tensorboard'

  def _events(self, seed):
    """Returns (step, name, value) of a seed, with the package's reader."""
    from tensorboardX.proto import event_pb2

    events = []
    for path in sorted((self.folder / f'seed{seed}').iterdir()):
      content = path.read_bytes()
      while content:
        size = int.from_bytes(content[:8], 'little')
        event = event_pb2.Event.FromString(content[12 : 12 + size])
        events += [
          (event.step, value.tag, value.simple_value)
          for value in event.summary.value
        ]
        if event.session_log.status:
          events.append((event.step, 'start', None))
        content = content[16 + size :]
    return events

  def test_writes_finite_scalars_of_each_seed(self):
    file = event_file.EventFile(self.folder, 3)
    file.write(3, 7, seconds=1.0, loss=0.5, gap=float('nan'), uses=[1, 2])
    # What is written is on the disk before the file is closed.
    expected = [(3, 'start', None), (3, 'loss', 0.5)]
    self.assertEqual(self._events(7), expected)
    file.write(3, 8, seconds=1.0, loss=0.25)
    file.write(4, 7, seconds=1.0, loss=2.0)
    file.close()
    # Each seed is a run of TensorBoard, which hides its own earlier events.
    self.assertEqual(self._events(7), [*expected, (4, 'loss', 2.0)])
    self.assertEqual(self._events(8), [(3, 'start', None), (3, 'loss', 0.25)])
    self.assertLen(list(self.folder.iterdir()), 2)

  def test_a_failure_is_told_once_counted_and_tried_again(self):
    file = event_file.EventFile(self.folder, 0)
    file.write(0, 0, seconds=1.0, loss=0.5)

    def fail(_):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
      mock.patch('tensorboardX.event_file_writer.EventsWriter.flush', fail),
      warnings.catch_warnings(),
    ):
      # The package does not close a file that it cannot flush; Python does.
      warnings.simplefilter('ignore', ResourceWarning)
      with self.assertWarnsRegex(UserWarning, 'No space left on device'):
        file.write(1, 0, seconds=1.0, loss=0.5)
      file.write(2, 0, seconds=1.0, loss=0.5)
      gc.collect()
    self.assertEqual(file.num_lost, 2)
    file.write(3, 0, seconds=1.0, loss=0.25)
    with self.assertWarnsRegex(UserWarning, 'lack 2 lines'):
      file.close()
    self.assertLen(list((self.folder / 'seed0').iterdir()), 3)
    events = self._events(0)
    scalars = [event for event in events if event[1] != 'start']
    self.assertLen(events, len(scalars) + 1)
    self.assertContainsSubset([(0, 'loss', 0.5), (3, 'loss', 0.25)], scalars)

  def test_a_file_in_the_place_of_the_folder_is_refused(self):
    self.folder.write_text('')
    with self.assertRaisesRegex(ValueError, 'must be a folder; move that file'):
      event_file.EventFile(self.folder, 0)
