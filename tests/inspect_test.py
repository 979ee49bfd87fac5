"""Tests of the program that prints a buffer."""

import contextlib
import io
import pathlib
import shutil
import tempfile

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from replay_rl import inspect
from replay_rl.configs import gsm8k_tiny
from replay_rl.lm import tokenizer
from replay_rl.run import recorded
from tests import saved_run
from tests import tiny
from tests import tiny_tokenizer


def _filled(run):
  """Returns the run with four rollouts of 1+2= in slots 0, 2, 3 and 5."""
  slots = jnp.array([0, 2, 3, 5])

  def put(leaf, *rows):
    values = jnp.array(rows, leaf.dtype)
    return leaf.at[1, slots].set(values)  # Of the second seed.

  rollouts = run.buffer.rollouts
  prompt = [1, 10, 2, 11]
  num_tokens = rollouts.tokens.shape[-1]
  tokens = [[*prompt, digit, 12] for digit in (3, 4, 5, 3)]
  tokens = [[*row, *[13] * (num_tokens - 6)] for row in tokens]
  mask = [[4 <= place < 6 for place in range(num_tokens)]] * 4
  mask[3] = [4 <= place < 5 for place in range(num_tokens)]
  rollouts = rollouts._replace(
    tokens=put(rollouts.tokens, *tokens),
    loss_mask=put(rollouts.loss_mask, *mask),
    rewards=put(rollouts.rewards, 1.0, 0.0, 0.0, 1.0),
    advantages=put(rollouts.advantages, 0.5, -0.5, -0.25, 0.75),
    policy_version=put(rollouts.policy_version, 7, 3, 3, 9),
    group_id=put(rollouts.group_id, 1, 1, 2, 2),
    prompt_id=put(rollouts.prompt_id, 5, 5, 5, 5),
  )
  buffer = run.buffer
  return run._replace(
    buffer=buffer._replace(
      rollouts=rollouts,
      is_valid=put(buffer.is_valid, True, True, True, True),
      times_sampled=put(buffer.times_sampled, 0, 2, 1, 1),
      last_sampled=put(buffer.last_sampled, -1, 8, 5, 9),
      priorities=put(buffer.priorities, 0.5, 0.25, 0.5, 1.0),
      num_inserted=buffer.num_inserted.at[1].set(9),
      num_batches=buffer.num_batches.at[1].set(3),
    ),
    learner=run.learner._replace(step=jnp.full_like(run.learner.step, 9)),
  )


class InspectTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = tempfile.mkdtemp()
    cls.addClassCleanup(shutil.rmtree, root, ignore_errors=True)
    cls.folder = pathlib.Path(root) / 'a run [to] read'
    config = tiny.config(num_seeds=2, replay__capacity=16)
    cls.run_state = saved_run.save(
      cls.folder, config, iteration=4, change=_filled
    )

  def _printed(self, *arguments, code=0):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      actual = inspect.main([*map(str, arguments)])
    self.assertEqual(actual, code, err.getvalue())
    return (err if code else out).getvalue()

  def _stored(self, seed=1):
    return inspect.read(self.folder, (0, 1), iteration=4, seed=seed)

  def test_the_numbers_are_those_of_the_valid_rows_of_the_seed(self):
    stored = self._stored()
    self.assertEqual((stored.step, stored.capacity), (9, 16))
    np.testing.assert_array_equal(stored.slots, [0, 2, 3, 5])
    actual = inspect.values(stored)
    for name, expected in (
      ('age', [2, 6, 6, 0]),
      ('uses', [0, 2, 1, 1]),
      ('steps since last use', [1, 4, 0]),
      ('priority', [0.5, 0.25, 0.5, 1.0]),
      ('reward', [1, 0, 0, 1]),
      ('response tokens', [2, 2, 2, 1]),
    ):
      np.testing.assert_array_equal(actual[name], expected, name)
    self.assertEmpty(self._stored(seed=0).slots)

  def test_rows_are_sorted_by_reward_and_then_by_advantage(self):
    stored = self._stored()
    config, _ = recorded.read_config(self.folder)
    decode_fn, reason = inspect.decoder(config)
    self.assertIsNone(reason)
    best, worst = (
      inspect.rows(stored, decode_fn, count=2, best=best)
      for best in (True, False)
    )
    self.assertEqual(
      best,
      [
        'slot 5: reward 1, advantage 0.75, age 0, uses 1, priority 1',
        "  prompt:   '1+2='",
        "  response: '3'",
        'slot 0: reward 1, advantage 0.5, age 2, uses 0, priority 0.5',
        "  prompt:   '1+2='",
        "  response: '3<eos>'",
      ],
    )
    self.assertStartsWith(worst[0], 'slot 2: reward 0, advantage -0.5,')
    self.assertStartsWith(worst[3], 'slot 3: ')
    self.assertLen(worst, 6)

  def test_it_prints_counts_quartiles_ages_and_rows(self):
    text = self._printed(self.folder, '--seed=1', '--rows=1')
    self.assertIn('iteration 4, seed 1, learner step 9\n', text)
    self.assertIn(
      '4 of 16 slots hold a rollout, of 2 groups and 1 prompts; 9 rollouts '
      'were inserted in 3 inserts',
      text,
    )
    words = [line.split() for line in text.splitlines()]
    self.assertIn(['age', '0', '1.5', '4', '6', '6', '3.5'], words)
    self.assertIn(['6', '2', '0', '1.5'], words)  # Two rows of age 6.
    self.assertLen([x for x in words if x[:1] == ['prompt:']], 2)

  def test_an_empty_buffer_prints_that(self):
    text = self._printed(self.folder, '--seed=0')
    self.assertIn('0 of 16 slots hold a rollout', text)
    self.assertNotIn('rewards:', text)

  def test_many_ages_are_counted_in_ranges(self):
    stored = self._stored()
    rollouts = stored.buffer.rollouts._replace(
      policy_version=np.array([9, 8, -17, -21])
    )
    stored = stored._replace(buffer=stored.buffer._replace(rollouts=rollouts))
    columns = [list(column.cells) for column in inspect.ages(stored).columns]
    self.assertEqual(columns[0], ['0 to 2', '24 to 26', '30 to 32'])
    self.assertEqual(columns[1], ['2', '1', '1'])

  def test_what_cannot_be_read_is_one_line(self):
    damaged = pathlib.Path(self.create_tempdir().full_path) / 'run'
    shutil.copytree(self.folder, damaged)
    (damaged / 'checkpoints/4/checksums/metadata').write_text(
      '{".buffer.is_valid": 1}'
    )
    for arguments, message in (
      ([self.folder], 'seed = None: must be one of [0, 1], the seeds of '),
      ([self.folder, '--seed=1', '--iteration=3'], 'step = 3: must be one of'),
      (
        [self.folder, '--seed=1', '--rows=-1'],
        '--rows = -1: must be 0 or more',
      ),
      ([self.folder.parent, '--seed=1'], 'must be a JSON object'),
      ([damaged, '--seed=1'], "['.rollouts.tokens', "),
    ):
      text = self._printed(*arguments, code=2)
      self.assertIn(message, text)
      self.assertStartsWith(text, 'error: ')
      self.assertLen(text.splitlines(), 1)

  def test_a_run_in_text_is_decoded_by_its_tokenizer_or_shown_as_numbers(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    tiny_tokenizer.write(folder)
    config = gsm8k_tiny.get_config()
    config.text.tokenizer = str(folder)
    decode_fn, reason = inspect.decoder(config)
    self.assertIsNone(reason)
    tokens = [*tokenizer.load(folder).encode('4 + 2'), tiny_tokenizer.STOP]
    self.assertEqual(decode_fn(np.array(tokens)), '4 + 2<|stop|>')
    config.text.tokenizer = str(folder / 'nowhere')
    decode_fn, reason = inspect.decoder(config)
    self.assertIn('nowhere', reason)
    self.assertEqual(decode_fn(np.array([4, 2])), '4 2')


if __name__ == '__main__':
  absltest.main()
