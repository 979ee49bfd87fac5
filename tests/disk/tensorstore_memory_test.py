"""Tests of what is replaced in TensorStore and Orbax."""

import gc
import inspect
import sys

import tensorstore
from absl.testing import absltest

from replay_rl.disk import tensorstore_memory


class HoldFlatTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    tensorstore_memory.hold_flat()

  def _spec(self, path='/a/b/'):
    return tensorstore.KvStore.Spec({'driver': 'file', 'path': path})

  def test_the_answer_of_a_spec_is_its_own(self):
    for path in ('/a/b/', '/a/c/', '/ä/"\'\n/', '/a/b/'):
      self.assertEqual(
        self._spec(path).to_json(), {'driver': 'file', 'path': path}
      )
    self.assertIn('file_io_sync', self._spec().to_json(include_defaults=True))
    self.assertNotIn('file_io_sync', self._spec().to_json())

  def test_a_changed_answer_changes_no_other(self):
    self._spec().to_json()['path'] = 'changed'
    self.assertEqual(self._spec().to_json()['path'], '/a/b/')

  def test_nothing_stays_in_memory(self):
    def num_blocks():
      for _ in range(1000):
        self._spec().to_json()
      gc.collect()
      return sys.getallocatedblocks()

    before = num_blocks()
    self.assertLess(num_blocks() - before, 100)  # It was 4,000.

  def test_many_specs_do_not_stay_either(self):
    for i in range(100):
      self.assertEqual(self._spec(f'/{i}/').to_json()['path'], f'/{i}/')
    kept = inspect.getclosurevars(tensorstore.KvStore.Spec.to_json).nonlocals
    self.assertLen(kept['answers'], 16)

  def test_a_second_call_does_nothing(self):
    before = tensorstore.KvStore.Spec.to_json
    tensorstore_memory.hold_flat()
    self.assertIs(tensorstore.KvStore.Spec.to_json, before)


if __name__ == '__main__':
  absltest.main()
