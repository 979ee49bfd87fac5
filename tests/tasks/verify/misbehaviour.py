"""Verify functions that workers import: they misbehave on command."""

import os
import pathlib
import signal
import sys
import time

from replay_rl.tasks.verify import worker

HELD = []


def obey(answer, reference):
  """Does what the answer says; 'equal' compares with the reference."""
  if answer == 'sleep':
    time.sleep(1000)
  elif answer == 'nap':
    time.sleep(0.3)
  elif answer == 'spin':
    while True:
      pass
  elif answer.startswith('busy '):
    pathlib.Path(reference).touch()
    # The power takes minutes in C, which lets no other thread run.
    return bool(3 ** (3**19)) if answer == 'busy in C' else obey('sleep', '')
  elif answer == 'exit':
    os._exit(3)
  elif answer == 'segfault':
    os.kill(os.getpid(), signal.SIGSEGV)
  elif answer == 'stop':
    os.kill(os.getpid(), signal.SIGSTOP)
  elif answer == 'eat':
    HELD.append(bytearray(1 << 40))
  elif answer == 'raise':
    raise RecursionError
  elif answer == 'unreadable':
    raise worker.UnreadableError
  elif answer == 'leak':
    HELD.append(b'x' * (1 << 28))
  elif answer == 'exit if not first':
    if len(HELD) > 1:  # The first is the warm-up.
      os._exit(3)
  elif answer == 'has jax':
    return 'jax' in sys.modules
  elif answer == 'is process':
    return str(os.getpid()) == reference
  elif answer == 'has seed':
    return os.environ['PYTHONHASHSEED'] == '0'
  HELD.append(None)
  return answer == reference


def fail(answer, reference):
  raise ValueError(f'{answer} is not {reference}')


def leave(answer, reference):
  os._exit(7)


def die_at_starts(answer, reference):
  """Is killed at the first starts, as many as the answer says."""
  path = pathlib.Path(reference)
  if not path.is_dir():  # No warm-up.
    return answer == reference
  num_starts = len(list(path.iterdir()))
  (path / str(num_starts)).touch()
  if num_starts < int(answer):
    os.kill(os.getpid(), signal.SIGKILL)
  return True
