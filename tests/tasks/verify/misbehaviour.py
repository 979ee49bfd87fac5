"""Verify functions that workers import: they misbehave on command."""

import os
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
