import pathlib
import signal
import subprocess
import time

from absl.testing import parameterized

from tests.launchers import fakes

SCRIPT = fakes.ROOT / 'scripts' / 'restart.sh'


class RestartTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.home = pathlib.Path(self.create_tempdir().full_path)
    fakes.executable(self.home / 'train', fakes.TRAINING)
    # In the background SIGINT is ignored, and a shell cannot trap a signal that
    # was ignored when it started.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, handler)

  def start(self, statuses, *flags, arguments=('a',)):
    (self.home / 'statuses').write_text('\n'.join(statuses) + '\n')
    process = subprocess.Popen(
      [
        *['bash', SCRIPT, '--progress-file=timing.jsonl', *flags],
        *['--', './train', *arguments],
      ],
      cwd=self.home,
      env={
        'HOME': str(self.home),
        'PATH': '/usr/bin:/bin',
        'JAX_PLATFORMS': '',
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    self.addCleanup(process.kill)
    return process

  def wait_for(self, path):
    deadline = time.monotonic() + 20
    while not (self.home / path).exists():
      self.assertLess(time.monotonic(), deadline, path)
      time.sleep(0.02)

  @parameterized.parameters(
    (['0'], 0, 0, 1),
    (['143', '143', '143', '0'], 0, 0, 4),
    # After an iteration as many crashes as allowed, in a row.
    (['1 0 1', '0'], 0, 1, 1),
    (['1 0 1', '134', '7'], 2, 7, 3),
    (['1 0 1', '143', '0'], 1, 0, 3),
    (['143 0 1', '1', '143', '2'], 1, 2, 4),
    # A line more than ever before is progress, and the same lines are not.
    (['1 0 1', '1 1 1', '1 2 1', '0'], 1, 0, 4),
    (['1 0 3', '1 2 1', '1 2 1', '0'], 2, 1, 3),
    (['1 0 3', '1 2 1', '1 2 2', '1 2 1', '0'], 2, 0, 5),
  )
  def test_it_starts_again_on_143_and_on_as_many_crashes_as_allowed(
    self, statuses, max_crashes, status, starts
  ):
    process = self.start(statuses, f'--max-crashes={max_crashes}', '--delay=0')
    output, _ = process.communicate(timeout=20)
    self.assertEqual(process.returncode, status, output)
    self.assertLen(fakes.trainings(self.home), starts)
    self.assertEqual(output.count('starts: ./train a'), starts)

  @parameterized.parameters(
    # Nothing was done, neither now nor before.
    (None, ['1', '0'], 1),
    # A start that continues cuts off lines before it computes.
    (3, ['1', '0'], 1),
    (3, ['137 2 0', '0'], 1),
    (3, ['143 2 0', '1', '0'], 2),
    # It did the third iteration once more, or a fourth.
    (3, ['1 2 1', '0'], None),
    (3, ['1 3 1', '0'], None),
  )
  def test_a_crash_before_the_first_iteration_is_the_end(
    self, lines, statuses, starts
  ):
    if lines is not None:
      text = ''.join(f'{{"seconds": {i}}}\n' for i in range(lines))
      (self.home / 'timing.jsonl').write_text(text)
    process = self.start(statuses, '--max-crashes=5', '--delay=0')
    output, _ = process.communicate(timeout=20)
    self.assertLen(fakes.trainings(self.home), starts or len(statuses))
    self.assertEqual('before the first iteration' in output, bool(starts))
    last = int(statuses[starts - 1].split()[0]) if starts else 0
    self.assertEqual(process.returncode, last)

  def test_arguments_arrive_as_they_were_given(self):
    arguments = ['a b', "it's", '', '$HOME `x`', '*', "{'data': -1}"]
    process = self.start(
      ['143', '0'], '--max-crashes=0', '--delay=0', arguments=arguments
    )
    process.communicate(timeout=20)
    self.assertEqual(
      [given[1:] for given in fakes.trainings(self.home)], [arguments] * 2
    )

  @parameterized.parameters(signal.SIGTERM, signal.SIGINT)
  def test_a_signal_goes_to_the_command_which_is_not_started_again(
    self, number
  ):
    process = self.start(
      ['wait', '0'], '--max-crashes=3', '--delay=0', '--pid-file=pid file'
    )
    self.wait_for('waits')
    pid_file = self.home / 'pid file'
    self.assertEqual(pid_file.read_text(), f'{process.pid}\n')
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    self.assertEqual(process.returncode, 143, output)
    self.assertIn('saved\n', output)
    self.assertLen(fakes.trainings(self.home), 1)
    self.assertFalse(pid_file.exists())

  def test_a_signal_between_two_starts_prevents_the_second(self):
    process = self.start(['143', '0'], '--max-crashes=0', '--delay=600')
    assert process.stdout is not None
    while 'status 143' not in process.stdout.readline():
      pass
    time.sleep(0.1)
    process.terminate()
    process.communicate(timeout=20)
    self.assertEqual(process.returncode, 143)
    self.assertLen(fakes.trainings(self.home), 1)

  @parameterized.parameters(
    ([], 'error: --max-crashes: must be given'),
    (
      ['--max-crashes=1', '--progress-file='],
      'error: --progress-file: must be given',
    ),
    (['--max-crashes=-1'], '--max-crashes = -1: must be a whole number'),
    (['--max-crashes=1', '--delay=1m'], '--delay = 1m: must be a whole number'),
    (['--max-crashes'], '--max-crashes: must have a value'),
    (
      ['--crashes=1'],
      'must be one of --max-crashes --progress-file --delay --pid-file\n',
    ),
  )
  def test_wrong_flags_are_named(self, flags, message):
    process = self.start(['0'], *flags)
    output, _ = process.communicate(timeout=20)
    self.assertEqual(process.returncode, 2)
    self.assertIn(message, output)
    self.assertEmpty(fakes.trainings(self.home))

  def test_a_command_must_be_given(self):
    process = subprocess.run(
      ['bash', SCRIPT, '--max-crashes=1', '--'], capture_output=True, text=True
    )
    self.assertEqual(process.returncode, 2)
    self.assertIn('-- COMMAND: must be given', process.stderr)
