import copy
import importlib.util
import unittest

import yaml
from absl.testing import parameterized

from tests.launchers import fakes

FLAGS = {
  'name': 'my-run',
  'image': 'registry.example/replay_rl:abc',
  'config': 'configs/my config.py:arm',
  'workdir': '/runs/it\'s "mine": {x}',
  'claim': 'runs',
  'max-crashes': '3',
}
needs_schema = unittest.skipUnless(
  importlib.util.find_spec('kubeflow_trainer_api'),
  "needs the models of JobSet: pip install -e '.[test]'",
)


def check(manifest):
  """Raises ValueError if a JobSet has a key or value that its API refuses.

  The generated models check types and required keys, but ignore unknown keys.
  So what they read must be all that was written.
  """
  from kubeflow_trainer_api import models

  read = models.JobsetV1alpha2JobSet.from_dict(copy.deepcopy(manifest))
  assert read is not None
  if read.to_dict() != manifest:
    raise ValueError(f'unknown keys: {read.to_dict()} is not {manifest}')


class JobSetTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.fakes = fakes.Fakes(self.create_tempdir().full_path)

  def run_script(self, *more, switches=('--spot',), **changed):
    given = FLAGS | {name.replace('_', '-'): changed[name] for name in changed}
    flags = [f'--{name}={given[name]}' for name in given if given[name]]
    return self.fakes.bash('scripts/gke_jobset.sh', *flags, *switches, *more)

  def manifest(self, *more, switches=('--spot',), **changed):
    done = self.run_script('--dry-run', *more, switches=switches, **changed)
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEmpty(self.fakes.calls())
    (document,) = yaml.safe_load_all(done.stdout)
    return document

  @needs_schema
  @parameterized.parameters('--spot', '--on-demand')
  def test_the_manifest_is_of_the_api(self, switch):
    check(self.manifest(switches=[switch]))

  @needs_schema
  @parameterized.parameters(
    ('spec', 'failurePolicy', 'maxRestart'),
    ('spec', 'replicatedJobs', 0, 'template', 'podFailurePolicy'),
    ('spec', 'replicatedJobs', 0, 'template', 'spec', 'paralellism'),
  )
  def test_a_key_that_the_api_does_not_know_would_be_found(self, *path):
    manifest = self.manifest()
    place = manifest
    for key in path[:-1]:
      place = place[key]
    place[path[-1]] = 4
    with self.assertRaisesRegex(ValueError, 'unknown keys'):
      check(manifest)

  @needs_schema
  def test_a_value_of_the_wrong_type_would_be_found(self):
    manifest = self.manifest()
    manifest['spec']['failurePolicy']['maxRestarts'] = '3'
    with self.assertRaisesRegex(ValueError, 'maxRestarts'):
      check(manifest)

  def test_the_slice_is_four_hosts_of_four_chips(self):
    manifest = self.manifest()
    self.assertEqual(manifest['apiVersion'], 'jobset.x-k8s.io/v1alpha2')
    self.assertEqual(manifest['metadata']['name'], 'my-run')
    (replicated,) = manifest['spec']['replicatedJobs']
    self.assertEqual(replicated['replicas'], 1)
    job = replicated['template']['spec']
    pod = job['template']['spec']
    (container,) = pod['containers']
    self.assertEqual(job['completionMode'], 'Indexed')
    self.assertEqual((job['parallelism'], job['completions']), (4, 4))
    self.assertEqual(
      container['resources'],
      {'requests': {'google.com/tpu': 4}, 'limits': {'google.com/tpu': 4}},
    )
    self.assertEqual(
      pod['nodeSelector'],
      {
        'cloud.google.com/gke-tpu-accelerator': 'tpu-v5-lite-podslice',
        'cloud.google.com/gke-tpu-topology': '4x4',
      },
    )

  def test_saved_runs_go_on_and_crashes_are_counted(self):
    manifest = self.manifest(max_crashes='7')
    policy = manifest['spec']['failurePolicy']
    self.assertEqual(policy['maxRestarts'], 7)
    self.assertEqual(policy['restartStrategy'], 'BlockingRecreate')
    self.assertEqual(
      policy['rules'],
      [
        {
          'name': 'saved',
          'action': 'RestartJobSetAndIgnoreMaxRestarts',
          'onJobFailureReasons': ['PodFailurePolicy'],
        }
      ],
    )
    job = manifest['spec']['replicatedJobs'][0]['template']['spec']
    pod = job['template']['spec']
    self.assertEqual(job['backoffLimit'], 0)
    self.assertEqual(pod['restartPolicy'], 'Never')
    saved, disrupted = job['podFailurePolicy']['rules']
    name = pod['containers'][0]['name']
    self.assertEqual(
      saved,
      {
        'action': 'FailJob',
        'onExitCodes': {
          'containerName': name,
          'operator': 'In',
          'values': [143],
        },
      },
    )
    self.assertEqual(
      disrupted,
      {
        'action': 'FailJob',
        'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
      },
    )

  def test_the_training_is_called_with_every_argument_as_given(self):
    more = [
      "--config.mesh.shape={'data': -1}",
      '',
      '$(HOME) ${name} $x',
      'é\n#',
    ]
    manifest = self.manifest('--', *more)
    pod = manifest['spec']['replicatedJobs'][0]['template']['spec']['template']
    (container,) = pod['spec']['containers']
    self.assertEqual(container['command'], ['python', '-m', 'replay_rl.train'])
    more[2] = '$$(HOME) ${name} $x'  # Kubernetes reads this as what was given.
    self.assertEqual(
      container['args'],
      [
        *fakes.MANY_HOSTS,
        f'--config={FLAGS["config"]}',
        f'--workdir={FLAGS["workdir"]}',
        *more,
      ],
    )
    self.assertEqual(container['image'], FLAGS['image'])
    self.assertIn(
      {'name': 'JAX_PLATFORMS', 'value': 'tpu,cpu'}, container['env']
    )
    (mount,) = container['volumeMounts']
    (volume,) = pod['spec']['volumes']
    self.assertEqual(mount, {'name': volume['name'], 'mountPath': '/runs'})
    self.assertEqual(
      volume['persistentVolumeClaim'], {'claimName': FLAGS['claim']}
    )

  @parameterized.parameters(
    ('--spot', 'Exists'), ('--on-demand', 'DoesNotExist')
  )
  def test_nodes_are_spot_only_if_asked_for(self, switch, operator):
    manifest = self.manifest(switches=[switch])
    pod = manifest['spec']['replicatedJobs'][0]['template']['spec']['template']
    affinity = pod['spec']['affinity']['nodeAffinity']
    self.assertEqual(
      affinity['requiredDuringSchedulingIgnoredDuringExecution'],
      {
        'nodeSelectorTerms': [
          {
            'matchExpressions': [
              {'key': 'cloud.google.com/gke-spot', 'operator': operator}
            ]
          }
        ]
      },
    )

  def test_kubectl_applies_what_a_dry_run_prints(self):
    done = self.run_script()
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(self.fakes.calls(), [['kubectl', 'apply', '-f', '-']])
    applied = yaml.safe_load((self.fakes.folder / 'manifest').read_text())
    self.assertEqual(applied, self.manifest())

  def test_a_word_of_the_manifest_that_is_not_given_is_an_error(self):
    path = self.fakes.repository / 'scripts/gke_jobset.yaml'
    path.write_text(path.read_text().replace('{claim}', '{claims}'))
    done = self.run_script()
    self.assertNotEqual(done.returncode, 0)
    self.assertIn("KeyError: 'claims'", done.stderr)
    self.assertEmpty(self.fakes.calls())

  @parameterized.parameters(*FLAGS)
  def test_every_flag_must_be_given(self, name):
    done = self.run_script(**{name.replace('-', '_'): ''})
    self.assertEqual(done.returncode, 2)
    self.assertEqual(done.stderr, f'error: --{name}: must be given\n')

  @parameterized.parameters(
    ({'switches': []}, '--spot, --on-demand: exactly one must be given'),
    ({'switches': ['--spot', '--on-demand']}, 'exactly one must be given'),
    ({'name': 'My_run'}, '--name = My_run: must have at most 40 of a-z'),
    ({'name': 'a' * 41}, 'must have at most 40'),
    ({'workdir': '/mnt/x'}, '--workdir = /mnt/x: must be in /runs'),
    ({'workdir': '/runs/'}, '--workdir = /runs/: must be in /runs'),
    ({'max_crashes': 'few'}, '--max-crashes = few: must be a whole number'),
    ({'zone': 'z'}, 'argument = --zone=z: must be one of --name'),
  )
  def test_wrong_flags_are_named(self, changed, message):
    done = self.run_script(**changed)
    self.assertEqual(done.returncode, 2)
    self.assertStartsWith(done.stderr, 'error: ')
    self.assertIn(message, done.stderr)
    self.assertEmpty(self.fakes.calls())
