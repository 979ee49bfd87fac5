"""Stand-ins for gcloud, srun, scontrol and kubectl, and for their machines.

Each stand-in records how it was called. A worker of gcloud is a folder, which
is its home folder; a command for the worker runs there.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

# What all launchers give to the training, before the flags of the user.
MANY_HOSTS = ['--distributed', '--initialization_timeout=300']
ROOT = pathlib.Path(__file__).resolve().parents[2]

_RECORD = """\
import json, os, pathlib, shutil, subprocess, sys
name, *arguments = sys.argv[1:]
here = pathlib.Path(os.environ['FAKES'])
with (here / 'calls').open('a') as file:
  file.write(json.dumps([name, *arguments]) + '\\n')

def take(path):  # Removes the first line of a file and returns it.
  lines = path.read_text().split('\\n') if path.exists() else []
  path.write_text('\\n'.join(lines[1:]))
  return lines[0] if lines else ''

def value(flag):
  return next(a.split('=', 1)[1] for a in arguments if a.startswith(flag))
"""

_GCLOUD = (
  _RECORD
  + """
homes = sorted(here.glob('worker*'))
if 'describe' in arguments:
  state = take(here / 'states')
  print(state)
  sys.exit(0 if state else 1)
if 'ssh' in arguments or 'scp' in arguments:
  if value('--worker=') != 'all':
    homes = [homes[int(value('--worker='))]]
status = 0
for home in homes if 'ssh' in arguments else []:
  environ = os.environ | {'HOME': str(home)}
  environ['PATH'] = str(home / 'bin') + ':' + environ['PATH']
  status |= subprocess.run(
    ['bash', '-c', value('--command=')], cwd=home, env=environ
  ).returncode
for home in homes if 'scp' in arguments else []:
  start = arguments.index('scp')
  source, to = [
    str(home / path.split(':')[1]) if path.startswith('my-pod:') else path
    for path in arguments[start + 1 : start + 3]
  ]
  shutil.copy(source, to)
sys.exit(status)
"""
)
_SRUN = (
  _RECORD
  + """
(here / 'environ').write_text(json.dumps(dict(os.environ)))
status = take(here / 'statuses')
if status == 'wait':
  import time
  (here / 'waits').touch()
  time.sleep(2)
  status = 143
sys.exit(int(status))
"""
)
_KUBECTL = _RECORD + "(here / 'manifest').write_text(sys.stdin.read())\n"

# A stand-in for the training. It records how it was called, and ends with the
# next status of the list; if this is `wait`, it ends with 143 on SIGTERM. After
# a status may stand how many lines of timing.jsonl it keeps and then adds.
TRAINING = """\
#!/usr/bin/env bash
printf '%s\\0' "$JAX_PLATFORMS" "$@" >>"$HOME/trainings"
printf '\\n' >>"$HOME/trainings"
echo 'one line of the training'
read -r status keep add <"$HOME/statuses"
tail -n +2 "$HOME/statuses" >"$HOME/rest"
mv "$HOME/rest" "$HOME/statuses"
workdir=.
for argument in "$@"; do
  case $argument in --workdir=*) workdir=${argument#--workdir=} ;; esac
done
if [ -n "$keep" ]; then
  log=$workdir/timing.jsonl
  touch "$log"
  kept=$(head -n "$keep" "$log")
  {
    [ -z "$kept" ] || echo "$kept"
    for _ in $(seq "$add"); do echo "{\"seconds\": $RANDOM.$$}"; done
  } >"$log"
fi
if [ "$status" = wait ]; then
  trap 'echo saved; exit 143' TERM
  touch "$HOME/waits"
  for _ in $(seq 400); do sleep .05; done  # It ends even if a test fails.
fi
exit "$status"
"""


class Fakes:
  """A repository with the launchers, and the programs that they call."""

  def __init__(self, folder):
    self.folder = pathlib.Path(folder)
    self.repository = self.folder / 'my clone'
    shutil.copytree(
      ROOT / 'scripts',
      self.repository / 'scripts',
      ignore=shutil.ignore_patterns('__pycache__'),
    )
    shutil.copy(ROOT / '.gitignore', self.repository)
    (self.folder / 'bin').mkdir()
    for name, code in (
      ('gcloud', _GCLOUD),
      ('srun', _SRUN),
      ('scontrol', _RECORD),
      ('kubectl', _KUBECTL),
    ):
      path = self.folder / 'bin' / f'{name}.py'
      path.write_text(code)
      executable(
        path.with_suffix(''),
        f'#!/bin/sh\nexec "{sys.executable}" -I -S "{path}" {name} "$@"\n',
      )
    self.environ = {
      'PATH': f'{self.folder / "bin"}:/usr/local/bin:/usr/bin:/bin',
      'HOME': str(self.folder),
      'FAKES': str(self.folder),
      'PYTHON': sys.executable,
      'GIT_CONFIG_GLOBAL': os.devnull,
      'GIT_CONFIG_SYSTEM': os.devnull,
    } | {
      f'GIT_{who}_{what}': 'nobody'
      for who in ('AUTHOR', 'COMMITTER')
      for what in ('NAME', 'EMAIL')
    }
    self.git('init', '--quiet')
    self.commit()

  def git(self, *arguments):
    return subprocess.run(
      ['git', *arguments],
      cwd=self.repository,
      env=self.environ,
      check=True,
      capture_output=True,
      text=True,
    ).stdout.strip()

  def commit(self):
    self.git('add', '--all')
    self.git('commit', '--quiet', '--message=A commit')

  def worker(self, statuses=()):
    """Adds a worker; returns its home folder."""
    home = self.folder / f'worker{len(list(self.folder.glob("worker*")))}'
    home.mkdir()
    executable(home / 'replay_rl/.venv/bin/python', TRAINING)
    executable(home / 'bin/hostname', f'#!/bin/sh\necho host-{home.name}\n')
    executable(home / 'bin/sleep', '#!/bin/sh\nexec /bin/sleep 0.05\n')
    (home / 'statuses').write_text('\n'.join(map(str, statuses)) + '\n')
    return home

  def bash(self, *arguments, timeout=60, **environ):
    """Runs bash from the root of the repository, for some seconds at most."""
    return subprocess.run(
      ['bash', *arguments],
      cwd=self.repository,
      env=self.environ | environ,
      capture_output=True,
      text=True,
      timeout=timeout,
    )

  def calls(self):
    """Returns the calls of the stand-ins since the last call of this method."""
    path = self.folder / 'calls'
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [json.loads(line) for line in lines]


def executable(path, content):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(content)
  path.chmod(0o755)


def trainings(home):
  """Returns the arguments of each start of the training on a worker."""
  path = home / 'trainings'
  lines = path.read_text().splitlines() if path.exists() else []
  return [line.split('\0')[:-1] for line in lines]
