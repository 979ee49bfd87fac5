"""Tests of reading the config of a run from its folder."""

import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import train
from replay_rl.run import build
from replay_rl.run import recorded
from replay_rl.run import rules
from replay_rl.run import workdir
from tests import configs_test
from tests import tiny


class RecordedTest(parameterized.TestCase):
  def read(self, config):
    """Returns the config that a run with this one would record."""
    task = build.task(config)
    experiment = build.experiment(config, task.shape, {})
    made_of = train.record(config, experiment, task)
    folder = pathlib.Path(self.create_tempdir().full_path)
    (folder / workdir.CONFIG).write_text(json.dumps(made_of))
    return recorded.read_config(folder)[0]

  @parameterized.parameters((None,), ((1, 2, 4),))
  def test_it_comes_back_as_it_was(self, edges):
    config = tiny.config(logging__age_buckets=edges)
    read = self.read(config)
    self.assertEqual(read, config)
    rules.validate(read)

  def test_that_of_the_quickstart_is_valid(self):
    config = configs_test.experiment('quickstart').get_config()
    self.assertIsInstance(config.logging.age_buckets, tuple)
    self.assertEqual(self.read(config), config)


if __name__ == '__main__':
  absltest.main()
