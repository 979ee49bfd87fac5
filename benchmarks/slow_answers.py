"""A verify function of known cost, for processes that judge answers."""

import time


def judge(*texts):
  """Sleeps for the seconds in the first text; the other says what is right."""
  if texts:
    seconds, answer = texts
    time.sleep(float(seconds))
    return answer == 'right'
  return False
