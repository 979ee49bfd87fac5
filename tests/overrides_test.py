"""Tests of how overrides on the command line are read."""

import dataclasses
import math
import pathlib
import sys
from typing import Annotated
from unittest import mock

from absl import flags
from absl.testing import parameterized
from ml_collections import config_flags

from replay_rl import overrides
from replay_rl.run import config as config_lib

_PATH = pathlib.Path(__file__).parents[1] / 'configs' / 'quickstart.py'


@dataclasses.dataclass
class _Inner:
  count: Annotated[int, 'of this test']


@dataclasses.dataclass
class _Outer:
  inner: _Inner | None


class OverridesTest(parameterized.TestCase):
  def _parsed(self, *overrides) -> config_lib.Config:
    own = flags.FlagValues()
    argv = ['train', f'--config={_PATH}', *overrides]
    # ml_collections looks for overrides in sys.argv.
    with mock.patch.object(sys, 'argv', argv):
      holder = config_flags.DEFINE_config_file('config', flag_values=own)
      own(argv)
    return holder.value

  @parameterized.parameters(
    ('replay.capacity=640', 640),
    ('sampler.top_k=5', 5),
    ('sampler.top_k=None', None),
    ('sampler.top_p=0.5', 0.5),
    ('replay.batch_size=None', None),
    ('replay.updates_per_iteration=2.5', 2.5),
    ('replay.weights=uniform()', 'uniform()'),
    ('replay.weights=None', None),
    ('optimizer.max_grad_norm=inf', math.inf),
    ('logging.age_grad_norms=False', False),
    ('logging.writers=tensorboard()', 'tensorboard()'),
    ('model.qk_norm=True', True),
    ('model.rope_scaling=null', None),
    ('model.rope_scaling=None', None),
    ('model.qk_norm=None', None),
    ('optimizer.max_grad_norm=-Infinity', -math.inf),
    ('seed=0x10', 16),
    ('seed=1_000', 1000),
    ('mesh.shape={"data": 2}', {'data': 2}),
    ('mesh.sampler_shape={"data": 2}', {'data': 2}),
    ('name=None', 'None'),
    ('logging.age_buckets=1,2,4', (1, 2, 4)),
    ('logging.age_buckets=(1, 2,)', (1, 2)),
    ('logging.age_buckets=3', (3,)),
    ('logging.age_buckets=()', ()),
    ('logging.age_buckets=None', None),
  )
  def test_a_field_is_read_by_its_type(self, override, value):
    name = override.partition('=')[0]
    config = self._parsed(f'--config.{override}')
    actual = config_lib.flatten(config)[name]
    self.assertEqual(actual, value)
    self.assertIs(type(actual), type(value))

  @parameterized.parameters(
    ('replay.capacity=abc', 'abc'),
    ('replay.capacity=None', 'None'),
    ('mesh.shape=[1]', 'must be a JSON object'),
    ('mesh.shape={', 'must be JSON'),
    ('mesh.shape={"data": NaN}', 'must be JSON .must be a finite number'),
    ('mesh.shape={"data": 1e400}', 'must be JSON .must be a finite number'),
    ('mesh.shape=' + '[' * 10**5, 'must be JSON .maximum recursion'),
    ('seed=１２', 'must be a whole number in digits 0 to 9'),
    ('seed=1e400', 'invalid literal'),
    ('seed=' + '9' * 5000, 'Exceeds the limit'),
    ('mu=1e400', 'must be a finite number'),
    ('mu=nan', 'must be a finite number'),
    ('mu=１', 'must be a finite number'),
    ('mu={"a": 1}', 'could not convert'),
    ('optimizer.max_grad_norm=1e400', 'must be a finite number'),
    ('sampler=5', 'Unable to parse'),
    ('model.qk_norm=5', 'Non-boolean'),
    ('logging.age_buckets=1,,2', 'invalid literal'),
    ('logging.age_buckets=1,x', 'invalid literal'),
  )
  def test_another_type_is_refused(self, override, message):
    with self.assertRaisesRegex(flags.IllegalFlagValueError, message):
      self._parsed(f'--config.{override}')

  def test_a_section_that_may_be_none_is_registered_too(self):
    overrides.register(_Outer)
    own = flags.FlagValues()
    argv = ['train', '--outer.inner.count=3']
    config_flags.DEFINE_config_dataclass(
      'outer', _Outer(_Inner(1)), flag_values=own, sys_argv=argv
    )
    own(argv)
    self.assertEqual(own.outer, _Outer(_Inner(3)))
