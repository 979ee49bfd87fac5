"""Data that would end a run midway ends it before it begins."""

import pathlib
import shutil

from absl.testing import parameterized

from replay_rl import train
from replay_rl.tasks.text import datasets
from replay_rl.tasks.text import problems as problems_lib
from tests import tiny_text


class DataTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.workdir = self.folder / 'run'

  def refused(self, config, message):
    with self.assertRaisesRegex(ValueError, message) as caught:
      train.train(config, self.workdir)
    self.assertNotIn('\n', str(caught.exception))
    self.assertFalse(self.workdir.exists())

  @parameterized.parameters('train', 'test')
  def test_an_answer_that_is_too_long(self, split):
    long = problems_lib.Problem('long', 'What is 10 + 1?', '11' * 51)
    splits = {'train': tiny_text.PROBLEMS, 'test': tiny_text.HELD_OUT}
    splits[split] = (*splits[split], long)
    folder = datasets.prepare(splits, name='long', out=self.folder)
    config = tiny_text.config(
      self.folder,
      text__problems=str(folder),
      text__evaluation_problems=str(folder),
      evaluation__every=6,
      evaluation__num_prompts=3,
    )
    self.refused(
      config, "^max_answer_chars = 100: must be at least 102.*'long'"
    )

  def test_more_prompts_to_evaluate_on_than_there_are(self):
    config = tiny_text.config(
      self.folder, evaluation__every=6, evaluation__num_prompts=5000
    )
    self.refused(
      config, '^evaluation.num_prompts = 5000: must be at most the 6'
    )

  @parameterized.parameters('dataset_info.json', 'features.json')
  def test_a_damaged_data_set(self, name):
    config = tiny_text.config(self.folder)
    (pathlib.Path(config.text.problems) / name).write_text('{')
    self.refused(
      config, '^folder = .*: must hold a whole dataset .*make it aga'
    )

  def test_a_damaged_tokenizer(self):
    config = tiny_text.config(self.folder)
    path = pathlib.Path(config.text.tokenizer) / 'generation_config.json'
    path.write_text('[' * 100_000)
    self.refused(
      config, r'^path = .*generation_config\.json.: must be a JSON ob'
    )

  def test_a_data_set_that_changes_under_its_path(self):
    config = tiny_text.config(self.folder, num_iterations=2)
    train.train(config, self.workdir, stop_after=1)
    before = (self.workdir / 'metrics.jsonl').read_bytes()
    data = pathlib.Path(config.text.problems).parents[2]
    shutil.rmtree(data)
    first, *others = tiny_text.PROBLEMS
    datasets.prepare(
      {
        'train': (first._replace(answer='2'), *others),
        'test': tiny_text.HELD_OUT,
      },
      name='sums',
      out=data,
    )
    with self.assertRaisesRegex(
      ValueError,
      'have the data of the run that it holds; problems = .* .there: [^;]*$',
    ):
      train.train(config, self.workdir)
    self.assertEqual((self.workdir / 'metrics.jsonl').read_bytes(), before)
