"""Tests of replay_rl.tasks.verify.scoring."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.provenance import sources
from replay_rl.tasks.verify import scoring
from replay_rl.tasks.verify import worker
from tests.tasks.verify import reward_functions

_MODULE = 'tests.tasks.verify.reward_functions'
_PATH = reward_functions.__file__


class LoadTest(parameterized.TestCase):
  def test_a_module_and_a_file_name_the_function(self):
    self.assertIs(scoring.load(f'{_MODULE}:share'), reward_functions.share)
    of_file = scoring.load(f'{_PATH}:share')
    self.assertEqual(of_file(['q'], ['12'], ['1234']), [0.5])
    (name,) = sources.of_users([of_file])
    self.assertEqual(name, 'reward_fn_reward_functions')

  def test_a_file_is_read_again(self):
    path = pathlib.Path(self.create_tempdir().full_path) / 'mine.py'
    for value in (1.0, 2.0):
      path.write_text(
        'def f(prompts, completions, references):\n'
        f'  return [{value}] * len(prompts)\n'
      )
      function = scoring.load(f'{path}:f')
      self.assertEqual(function(['q'], ['a'], ['b']), [value])

  def test_a_path_becomes_absolute(self):
    self.assertEqual(
      scoring.absolute('a/b.py:f'), f'{pathlib.Path.cwd()}/a/b.py:f'
    )
    self.assertEqual(scoring.absolute('a.b:f'), 'a.b:f')

  @parameterized.parameters(
    ('share', "reward_fn = 'share': must be module:function or file.py:func"),
    (f'{_MODULE}:', 'must be module:function'),
    (f'{_MODULE}:f()', 'must be module:function'),
    ('no_such_module:f', 'that can be imported .ModuleNotFoundError'),
    ('/no/such/file.py:f', 'that can be imported .FileNotFoundError'),
    (f'{_MODULE}:no_such', 'that can be imported .AttributeError'),
    (f'{_MODULE}:not_a_function', 'that can be imported .TypeError'),
    (
      f'{_MODULE}:other_arguments',
      r'of \(prompts, completions, references\), not of \(completions, ref',
    ),
  )
  def test_what_is_no_reward_function_is_refused(self, name, message):
    with self.assertRaisesRegex(ValueError, message):
      scoring.load(name)


class ScoreTest(parameterized.TestCase):
  def _score(self, order):
    return scoring.score('q', order, 'a', reward_fn=f'{_MODULE}:obey')

  @parameterized.parameters('none', 'number', 'text', 'texts', 'two', 'nan')
  def test_what_is_not_one_finite_number_is_unreadable(self, order):
    with self.assertRaises(worker.UnreadableError):
      self._score(order)

  def test_a_number_goes_as_text(self):
    self.assertEqual(self._score('tuple'), '0.25')
    self.assertEqual(self._score('bool'), '1.0')
    self.assertEqual(scoring.score(reward_fn=f'{_MODULE}:obey'), '')

  @parameterized.parameters('', 'correct', 'x' * 1000)
  def test_a_worker_that_says_anything_has_crashed(self, message):
    self.assertEqual(scoring._score_of(message), scoring.Score(0.0, 'crashed'))


class ScorerTest(absltest.TestCase):
  def _judged(self, function, *columns):
    scorer = scoring.Scorer(
      f'{_PATH}:{function}',
      num_workers=1,
      answer_timeout=0.2,
      memory_limit=2**29,
    )
    self.addCleanup(scorer.close)
    return scorer.judge(*columns)

  def test_rewards_by_hand(self):
    judged = self._judged(
      'share', ['q', 'q', '7'], ['1', '1 and 2', '7'], ['12', '12', '12']
    )
    self.assertEqual(
      judged,
      [
        scoring.Score(0.5, 'wrong'),
        scoring.Score(1.0, 'correct'),
        scoring.Score(2.0, 'correct'),
      ],
    )

  def test_a_failure_costs_its_own_completion_only(self):
    orders = ['is alone', 'spin', 'exit', 'raise', 'two', 'inf', 'tuple']
    judged = self._judged('obey', ['q'] * 7, orders, ['a'] * 7)
    self.assertEqual(
      [score.status for score in judged],
      [
        *('correct', 'timeout', 'crashed', 'crashed'),
        *('unreadable', 'unreadable', 'wrong'),
      ],
    )
    self.assertEqual(
      [score.reward for score in judged], [1, 0, 0, 0, 0, 0, 0.25]
    )


if __name__ == '__main__':
  absltest.main()
