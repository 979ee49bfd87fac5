"""Verify functions that workers import: they misbehave on command."""

import os
import sys
import time

from replay_rl.tasks import verifier_worker

HELD = []


def obey(answer, reference):
  """Does what the answer says; 'equal' compares with the reference."""
  if answer == 'sleep':
    time.sleep(1000)
  elif answer == 'spin':
    while True:
      pass
  elif answer == 'exit':
    os._exit(3)
  elif answer == 'segfault':
    os.kill(os.getpid(), 11)
  elif answer == 'stop':
    os.kill(os.getpid(), 19)
  elif answer == 'eat':
    HELD.append(bytearray(1 << 40))
  elif answer == 'raise':
    raise RecursionError
  elif answer == 'unreadable':
    raise verifier_worker.UnreadableError
  elif answer == 'leak':
    HELD.append(b'x' * (1 << 28))
  elif answer == 'exit if not first':
    if HELD:
      os._exit(3)
  elif answer == 'jax?':
    return 'jax' in sys.modules
  elif answer == 'pid':
    return str(os.getpid()) == reference
  HELD.append(None)
  return answer == reference


def fail(answer, reference):
  raise ValueError(f'{answer} {reference} at the start')
