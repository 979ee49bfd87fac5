"""Tests of table.json and table.csv."""

import json

import numpy as np
from absl.testing import absltest

from replay_rl.report import export
from replay_rl.report import levels
from replay_rl.report import readings
from replay_rl.report import table

INF = np.inf
NAN = np.nan


def spending(per_seed, saving=None):
  return table.Spending(np.array(per_seed), saving)


def results():
  """A baseline and an arm, one of whose two seeds did not reach .5."""
  saved = table.Saving(levels.Comparison(-INF, None, None), None)
  whole = table.Saving(levels.Comparison(0.5, (-INF, 0.75), 0.01), 0.02)

  def arm(name, tokens, seconds, wall_clock, token_saving, cost_saving, aes):
    return table.Arm(
      name=name,
      seeds=np.array([3, 4]),
      num_iterations=5,
      reward=np.array([0.5, 0.7]),
      entropy=np.array([0.25, 0.75]),
      accuracy=np.array([0.5, 0.25]),
      response_length=np.array([3.0, 6.0]),
      aes=aes,
      replay_ratio=np.array([NAN, NAN]),
      replay_ratio_inserted=np.array([2.0, 4.0]),
      generation_flops=np.array([0.5, 0.5]),
      seconds_per_iteration=1.5,
      timed={'learn_seconds': 0.5, 'mu': NAN},
      mu='2.0',
      milestones=(
        table.Milestone(
          threshold=0.5,
          spent={
            'generated_tokens': spending(tokens, token_saving),
            'cost_units': spending([8.0, 4.0], cost_saving),
            'seconds': spending(seconds),
          },
          entropy=np.array([0.5, INF]),
          wall_clock=wall_clock,
        ),
      ),
    )

  return table.Results(
    baseline='base',
    rule=readings.Rule(window=20, every_cost=None, why='a reason'),
    arms=(
      arm('base', [400.0, 404.0], [1.0, 2.0], '', None, None, ()),
      arm(
        *('a, "b"', [200.0, INF], [NAN, NAN], 'unknown', saved, whole),
        ((0.5, (0.25, 0.75)), (NAN, None)),
      ),
    ),
  )


class ExportTest(absltest.TestCase):
  def test_json_is_strict_and_null_where_nothing_is_known(self):
    content = json.loads(
      export.to_json(results()), parse_constant=lambda name: self.fail(name)
    )
    self.assertEqual(content['baseline'], 'base')
    self.assertEqual(
      content['levels'],
      {
        'score': 'reward',
        'evaluated_every_cost': None,
        'window_rollouts': 20,
      },
    )
    self.assertEqual(content['interval']['confidence'], 0.95)
    base, arm = content['arms']
    self.assertEqual(base['seeds'], [3, 4])
    self.assertEqual(base['reward_at_end']['median'], 0.6)
    self.assertEqual(base['seconds_per_iteration'], 1.5)
    self.assertEqual(base['accuracy_at_end']['per_seed'], [0.5, 0.25])
    self.assertEqual(base['response_length_at_end']['median'], 4.5)
    self.assertEqual(base['aes'], [])
    self.assertEqual(
      arm['aes'],
      [
        {'constants': [1, 3, 5], 'score': 0.5, 'interval': [0.25, 0.75]},
        {'constants': [1, 5, 10], 'score': None, 'interval': None},
      ],
    )
    milestone = base['milestones'][0]
    self.assertEqual(
      milestone['generated_tokens'], {'median': 402, 'per_seed': [400, 404]}
    )
    self.assertIsNone(milestone['wall_clock'])
    milestone = arm['milestones'][0]
    self.assertEqual(milestone['seeds_that_reached'], 1)
    self.assertEqual(milestone['wall_clock'], 'unknown')
    self.assertEqual(
      milestone['generated_tokens'],
      {
        'median': None,
        'per_seed': [200, None],
        'saving': {
          'of_medians': None,
          'interval': None,
          'p_value': None,
          'p_value_holm': None,
        },
      },
    )
    self.assertEqual(
      milestone['cost_units']['saving'],
      {
        'of_medians': 0.5,
        'interval': [None, 0.75],
        'p_value': 0.01,
        'p_value_holm': 0.02,
      },
    )
    self.assertEqual(
      arm['replay_ratio'], {'median': None, 'per_seed': [None] * 2}
    )
    self.assertEqual(arm['timed'], {'learn_seconds': 0.5, 'mu': None})
    self.assertEqual(
      arm['replay_ratio_inserted'], {'median': 3.0, 'per_seed': [2.0, 4.0]}
    )

  def test_csv_has_a_line_per_seed_and_one_of_medians(self):
    lines = export.to_csv(results()).splitlines()
    self.assertEqual(
      lines[0],
      'arm,threshold,seed,generated_tokens,cost_units,seconds,'
      'generated_tokens_saving,generated_tokens_saving_low,'
      'generated_tokens_saving_high,generated_tokens_saving_p,'
      'cost_units_saving,cost_units_saving_low,cost_units_saving_high,'
      'cost_units_saving_p,entropy,reward_at_end,entropy_at_end,replay_ratio',
    )
    self.assertEqual(
      lines[1:],
      [
        'base,0.5,3,400,8,1,,,,,,,,,0.5,0.5,0.25,',
        'base,0.5,4,404,4,2,,,,,,,,,,0.7,0.75,',
        'base,0.5,median,402,6,1.5,,,,,,,,,,0.6,0.5,',
        '"a, ""b""",0.5,3,200,8,,,,,,,,,,0.5,0.5,0.25,',
        '"a, ""b""",0.5,4,inf,4,,,,,,,,,,,0.7,0.75,',
        '"a, ""b""",0.5,median,inf,6,,-inf,,,,0.5,-inf,0.75,0.02,,0.6,0.5,',
      ],
    )
