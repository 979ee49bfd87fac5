"""A batch that devices and microbatches do not divide, in a run."""

import chex
import jax
from absl.testing import absltest

from replay_rl.run import programs
from tests.replay import buffers
from tests.run import tiny_run


class PaddedMeshTest(absltest.TestCase):
  def test_a_mesh_trains_as_one_device(self):
    changes = {
      'replay__batch_size': None,
      # 16 fresh rows and 4 older ones, in three microbatches.
      'replay__compose': 'fresh_anchored(replay_fraction=0.25, warmup_steps=1)',
      'optimizer__microbatch_rows': 8,
      'loss__policy': 'reinforce() + reference_kl(coefficient=0.1)',
    }
    experiment = tiny_run.experiment(**changes)
    runs, lines = [], []
    for sizes in ((1, 1, 1), (4, 2, 1)):
      mesh = buffers.make_mesh(sizes)
      with jax.set_mesh(mesh):
        built = programs.build(
          experiment.parts, tiny_run.task(), tiny_run.settings(mesh=mesh)
        )
        run = tiny_run.first_run(built, experiment.parts, [5])
        for iteration in range(2):
          run, measured = built.cycle(run, experiment.schedule(iteration))
      runs.append(jax.device_get(run))
      lines.append(tiny_run.numbers(measured))
    chex.assert_trees_all_close(*runs, rtol=1e-3, atol=1e-4)
    self.assertEqual(*(line['batch/num_valid'] for line in lines))
