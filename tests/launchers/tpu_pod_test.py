import shlex

from absl.testing import parameterized

from tests.launchers import fakes

PLACE = ['--zone=us-west4-a', '--project=my-project']
COMMON = ['--name=my-pod', *PLACE]
CREATE = ['--type=v5litepod-16', '--runtime-version=v2-alpha-tpuv5-lite']
TPUS = ['gcloud', 'compute', 'tpus']
CREATED = [
  *[*TPUS, 'queued-resources', 'create', 'my-pod', *PLACE],
  *['--node-id=my-pod', '--accelerator-type=v5litepod-16'],
  '--runtime-version=v2-alpha-tpuv5-lite',
]
DESCRIBED = [*TPUS, 'queued-resources', 'describe', 'my-pod', *PLACE]
DELETED = [*TPUS, 'queued-resources', 'delete', 'my-pod', *PLACE, '--force']
TRAINING = [
  '--config=configs/my config.py:arm',
  '--workdir=/runs/it\'s "mine" $HOME',
  "--config.mesh.shape={'data': -1}",
]


def ssh(workers, command, *more):
  return [
    *[*TPUS, 'tpu-vm', 'ssh', 'my-pod', *PLACE, *more],
    *[f'--worker={workers}', f'--command={command}'],
  ]


def scp(source, to, workers):
  return [*[*TPUS, 'tpu-vm', 'scp', source, to, *PLACE, f'--worker={workers}']]


class TpuPodTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.fakes = fakes.Fakes(self.create_tempdir().full_path)

  def pod(self, subcommand, *arguments, common=COMMON):
    """Returns the status and what was printed."""
    done = self.fakes.bash(
      'scripts/tpu_pod.sh', subcommand, *common, *arguments
    )
    return done.returncode, done.stdout + done.stderr

  def dry_run(self, subcommand, *arguments):
    """Returns the commands that were printed, each as its words."""
    status, output = self.pod(subcommand, '--dry-run', *arguments)
    self.assertEqual(status, 0, output)
    self.assertEmpty(self.fakes.calls())
    return [shlex.split(line, comments=True) for line in output.splitlines()]

  @parameterized.parameters(
    ('create', [*CREATE, '--spot'], [*CREATED, '--spot']),
    ('create', [*CREATE, '--reserved'], [*CREATED, '--reserved']),
    ('create', [*CREATE, '--on-demand'], CREATED),
    (
      'create',
      [*CREATE, '--spot', '--valid-until-duration=6h'],
      [*CREATED, '--spot', '--valid-until-duration=6h'],
    ),
    ('status', [], [*DESCRIBED, '--format=value(state.state)']),
    ('delete', [], DELETED),
    ('delete', ['--yes'], [*DELETED, '--quiet']),
    ('logs', [], ssh('all', 'tail -n 50 replay_rl.log')),
    (
      'logs',
      ['--worker=2', '--lines=7', '--follow'],
      ssh(2, 'tail -n 7 -F replay_rl.log'),
    ),
    (
      'logs',
      ['--gcloud-flag=--internal-ip', '--gcloud-flag=--account=a b'],
      ssh('all', 'tail -n 50 replay_rl.log', '--internal-ip', '--account=a b'),
    ),
    (
      'exec',
      ['--worker=1-2', '--', 'ls', 'a b', '$HOME'],
      ssh('1-2', "ls 'a b' '$HOME'"),
    ),
  )
  def test_one_gcloud_command_is_printed_or_run(
    self, subcommand, arguments, expected
  ):
    self.assertEqual(self.dry_run(subcommand, *arguments), [expected])
    (self.fakes.folder / 'states').write_text('ACTIVE\n')
    self.pod(subcommand, *arguments)
    self.assertEqual(self.fakes.calls(), [expected])

  def test_a_name_with_spaces_stays_one_word(self):
    common = ['--name=my  pod', "--zone=it's here", '--project=$p']
    _, output = self.pod('status', '--dry-run', common=common)
    self.assertEqual(
      shlex.split(output),
      [
        *[*TPUS, 'queued-resources', 'describe', 'my  pod'],
        *["--zone=it's here", '--project=$p', '--format=value(state.state)'],
      ],
    )

  def test_sync_sends_the_commit(self):
    commit = self.fakes.git('rev-parse', 'HEAD')
    bundle = 'build/launch/replay_rl.bundle'
    made, bundled, sent, applied = self.dry_run('sync')
    self.assertEqual(made, ['mkdir', '-p', 'build/launch'])
    self.assertEqual(
      bundled, ['git', 'bundle', 'create', '--quiet', bundle, 'HEAD']
    )
    self.assertEqual(sent, scp(bundle, 'my-pod:replay_rl.bundle', 'all'))
    self.assertEqual(applied[:-1], ssh('all', '')[:-1])
    self.assertIn(
      f'git checkout --quiet --force --detach {commit}', applied[-1]
    )

  def test_workers_get_the_commit_and_keep_what_git_ignores(self):
    homes = [self.fakes.worker(), self.fakes.worker()]
    for times in range(2):
      (self.fakes.repository / 'new file').write_text(str(times))
      self.fakes.commit()
      status, output = self.pod('sync')
      self.assertEqual(status, 0, output)
      commit = self.fakes.git('rev-parse', 'HEAD')
      self.assertEqual(output.count(f'{commit}\n'), 2)
      for home in homes:
        clone = home / 'replay_rl'
        self.assertEqual((clone / 'new file').read_text(), str(times))
        self.assertTrue((clone / '.venv/bin/python').exists())
        self.assertFalse((clone / 'left over').exists())
        self.assertEqual((clone / 'data').is_symlink(), times == 1)
        (clone / 'left over').touch()
        if times == 0:
          (clone / 'data').symlink_to('/mnt/runs/data')
        (clone / 'new file').write_text('changed on the worker')

  def test_changes_that_are_not_committed_are_refused_by_name(self):
    with (self.fakes.repository / 'scripts/launch.sh').open('a') as file:
      file.write('# more\n')
    (self.fakes.repository / 'new file').touch()
    for flags in (), ('--dry-run',):
      status, output = self.pod('sync', *flags)
      self.assertEqual(status, 2)
      self.assertIn('error: changes: must be committed, or be sent too', output)
      self.assertIn(' M scripts/launch.sh\n?? "new file"', output)
    self.assertEmpty(self.fakes.calls())

  def test_changes_that_are_not_committed_are_sent_if_allowed(self):
    home = self.fakes.worker()
    with (self.fakes.repository / 'scripts/launch.sh').open('a') as file:
      file.write('# more\n')
    (self.fakes.repository / 'new file').write_bytes(bytes(range(256)))
    before = self.fakes.git('status', '--porcelain')
    status, output = self.pod('sync', '--allow-dirty')
    self.assertEqual(status, 0, output)
    commit = self.fakes.git('rev-parse', 'HEAD')
    self.assertIn(f'{commit}-dirty\n', output)
    for name in 'scripts/launch.sh', 'new file':
      self.assertEqual(
        (home / 'replay_rl' / name).read_bytes(),
        (self.fakes.repository / name).read_bytes(),
      )
    self.assertEqual(self.fakes.git('status', '--porcelain'), before)

  @parameterized.parameters(
    ([], 'installs tpu with python3\n'),
    (
      ['--extras=tpu,math', '--python=my python'],
      'installs tpu,math with my python\n',
    ),
  )
  def test_install_makes_the_environment_with_the_extras(self, flags, expected):
    home = self.fakes.worker()
    fakes.executable(
      home / 'replay_rl/scripts/environment.sh',
      'install_extras() { echo "installs $1 with $PYTHON"; }\n',
    )
    for name in 'python3', 'my python':
      fakes.executable(home / 'bin' / name, '#!/bin/sh\n')
    self.assertEqual(self.pod('install', *flags), (0, expected))

  def test_install_refuses_an_old_python(self):
    home = self.fakes.worker()
    fakes.executable(
      home / 'replay_rl/scripts/environment.sh',
      'install_extras() { echo installs; }\n',
    )
    fakes.executable(
      home / 'bin/python3',
      '#!/bin/sh\nprintf "%s\\n" "import sys" '
      '"sys.version_info, sys.version = (3, 10), \'3.10.12 (main)\'" '
      '"$2" | "$PYTHON" -\n',
    )
    status, output = self.pod('install')
    self.assertNotEqual(status, 0)
    self.assertEqual(
      output,
      'error: Python = 3.10.12: must be 3.11 or newer; see --python\n',
    )

  def test_fetch_copies_results_and_logs(self):
    workdir = self.fakes.folder / 'shared folder' / "it's"
    (workdir / 'checkpoints').mkdir(parents=True)
    for name in 'metrics.jsonl', 'checkpoints/1':
      (workdir / name).write_text(name)
    for _ in range(2):
      home = self.fakes.worker()
      (home / 'replay_rl.log').write_text(home.name)
    for flags, has_checkpoints in ([], False), (['--checkpoints'], True):
      out = self.fakes.folder / 'my results' / str(has_checkpoints)
      status, output = self.pod(
        'fetch', f'--workdir={workdir}', f'--out={out}', *flags
      )
      self.assertEqual(status, 0, output)
      self.assertEqual((out / 'metrics.jsonl').read_text(), 'metrics.jsonl')
      self.assertEqual((out / 'checkpoints/1').exists(), has_checkpoints)
      logs = {path.name: path.read_text() for path in out.glob('worker_logs/*')}
      self.assertEqual(
        logs, {'host-worker0.log': 'worker0', 'host-worker1.log': 'worker1'}
      )

  @parameterized.parameters(
    ('sync', []),
    ('install', ['--extras=tpu,math', '--python=my python']),
    ('run', ['--max-crashes=3', '--', *TRAINING]),
    ('fetch', ['--workdir=/runs/a b', '--out=build/it is "here"']),
    ('stop', []),
  )
  def test_what_a_dry_run_prints_can_be_pasted(self, subcommand, arguments):
    # gcloud alone is a stand-in; without workers it runs nothing.
    lines = self.dry_run(subcommand, *arguments)
    lines = [line for line in lines if line[0] != 'tar']
    _, printed = self.pod(subcommand, '--dry-run', *arguments)
    self.fakes.bash('-c', printed)
    expected = [line for line in lines if line[0] == 'gcloud']
    self.assertNotEmpty(expected)
    self.assertEqual(self.fakes.calls(), expected)

  def test_wait_prints_each_new_state_until_the_slice_is_active(self):
    printed = ['CREATING', 'PROVISIONING', 'CREATING', 'ACTIVE']
    states = [*printed[:1], *printed[:1], *printed]
    (self.fakes.folder / 'states').write_text('\n'.join(states))
    status, output = self.pod('wait', '--every=0')
    self.assertEqual(status, 0, output)
    self.assertEqual(
      [line.split(' ')[1] for line in output.splitlines()], printed
    )
    self.assertEqual(
      self.fakes.calls(), [[*DESCRIBED, '--format=value(state.state)']] * 6
    )

  @parameterized.parameters('FAILED', 'SUSPENDING', 'SUSPENDED', 'DELETING')
  def test_wait_ends_when_the_slice_can_no_longer_become_active(self, state):
    states = self.fakes.folder / 'states'
    states.write_text(f'PROVISIONING\n{state}\nACTIVE\n')
    status, output = self.pod('wait', '--every=0')
    self.assertEqual(status, 2)
    self.assertIn(f'error: state of my-pod = {state}: must be deleted', output)

  def test_wait_ends_when_gcloud_does_not_know_the_slice(self):
    status, _ = self.pod('wait', '--every=0')
    self.assertEqual(status, 1)
    self.assertLen(self.fakes.calls(), 1)

  def test_a_dry_run_of_wait_says_what_it_would_do(self):
    status, output = self.pod('wait', '--dry-run')
    self.assertEqual(status, 0)
    self.assertEndsWith(
      output, '\n# again every 30 s, until it prints ACTIVE\n'
    )

  @parameterized.parameters(
    ('create', ['--spot'], '--type --runtime-version: must be given'),
    ('create', CREATE, '--on-demand, --reserved: exactly one must be'),
    ('create', [*CREATE, '--spot', '--on-demand'], 'exactly one must be given'),
    ('create', [*CREATE, '--reserved', '--spot'], 'exactly one must be given'),
    ('create', ['--typ=x'], 'argument = --typ=x: must be one of --name'),
    ('create', ['--max-crashes=3'], 'argument = --max-crashes=3: must be'),
    ('create', ['--type'], '--type: must have a value, as in --type=...'),
    ('create', ['--spot=yes'], '--spot=yes: must have no value'),
    ('create', ['v5litepod-16'], 'argument = v5litepod-16: must be a flag'),
    ('create', ['--spot --type=x'], 'argument = --spot --type=x: must be'),
    ('status', ['--', 'x'], '-- x: must be absent, because status'),
    ('wait', ['--every=often'], '--every = often: must be a whole number'),
    ('exec', [], '-- COMMAND: must be given'),
    ('logs', ['--lines=all'], '--lines = all: must be a whole number'),
    ('fetch', ['--workdir=/x'], '--out: must be given'),
    ('fetch', ['--workdir=x', '--out=y'], '--workdir = x: must be an absolute'),
    ('run', ['--', *TRAINING], '--max-crashes: must be given'),
    ('run', ['--max-crashes=3'], '--config: must be given, among'),
    ('run', ['--max-crashes=', '--'], '--max-crashes: must be given'),
    (
      'run',
      ['--max-crashes=3', '--', '--config=x'],
      '--workdir: must be given',
    ),
    (
      'run',
      ['--max-crashes=3', '--', '--config=x', '--workdir=gs://bucket/x'],
      '--workdir = gs://bucket/x: must be an absolute path on a file system',
    ),
    ('runs', [], 'subcommand = runs: must be one of'),
  )
  def test_wrong_flags_are_named(self, subcommand, arguments, message):
    status, output = self.pod(subcommand, *arguments)
    self.assertEqual(status, 2)
    self.assertStartsWith(output, 'error: ')
    self.assertIn(message, output)
    self.assertEmpty(self.fakes.calls())

  @parameterized.parameters('name', 'zone', 'project')
  def test_what_says_which_slice_has_no_default(self, flag):
    common = [given for given in COMMON if not given.startswith(f'--{flag}=')]
    status, output = self.pod('delete', common=common)
    self.assertEqual((status, output), (2, f'error: --{flag}: must be given\n'))

  def test_help_lists_every_subcommand(self):
    done = self.fakes.bash('scripts/tpu_pod.sh', '--help')
    self.assertEqual(done.returncode, 0, done.stderr)
    listed = [
      line.split()[0]
      for line in done.stdout.splitlines()
      if line.startswith('  ') and not line.startswith('   ')
    ]
    self.assertLen(listed, 11)
    for subcommand in listed:
      _, output = self.pod(subcommand, '--no-such-flag')
      self.assertIn('argument = --no-such-flag', output)

  def test_a_subcommand_must_be_given(self):
    done = self.fakes.bash('scripts/tpu_pod.sh')
    self.assertEqual(done.returncode, 2)
    self.assertIn('error: subcommand: must be given', done.stderr)
