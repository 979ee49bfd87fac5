"""What the benchmarks say about the machine: name, memory, bandwidth."""

import json
import os
import pathlib
import platform
import sys
import time

import numpy as np

MEGABYTE = 1e6


def hardware():
  """Returns what a result needs to be compared with another."""
  model = platform.processor()
  cpuinfo = pathlib.Path('/proc/cpuinfo')
  if cpuinfo.exists():
    for line in cpuinfo.read_text().splitlines():
      if line.startswith('model name'):
        model = line.split(':', 1)[1].strip()
        break
  return {'cpu': model, 'cores': os.cpu_count(), 'platform': sys.platform}


def resident(field):
  """Returns VmRSS (now) or VmHWM (peak) of this process, in megabytes.

  Mapped files count. Linux only.
  """
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    name, value = line.split(':', 1)
    if name == field:
      return int(value.split()[0]) * 1024 / MEGABYTE
  raise ValueError(f'field = {field!r}: must be in /proc/self/status')


def reset_peak():
  """Makes the memory of now the peak. Linux only."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')


def peak_growth(function):
  """Returns the function's value and the MB its peak adds to resident memory.

  None where the peak cannot be reset, which needs Linux.
  """
  try:
    reset_peak()
  except OSError:
    return function(), None
  before = resident('VmRSS')
  value = function()
  return value, resident('VmHWM') - before


def copy_bandwidth(num_bytes):
  """Returns bytes read and written per microsecond by a numpy copy."""
  source = np.ones(num_bytes // 4, np.float32)
  target = np.empty_like(source)
  times = []
  for _ in range(5):
    start = time.perf_counter()
    np.copyto(target, source)
    times.append(1e6 * (time.perf_counter() - start))
  return 2 * source.nbytes / np.median(times)


def write_results(path, results):
  """Writes results as JSON, with the hardware and the version of Python."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  record = {'hardware': hardware(), 'python': platform.python_version()}
  path.write_text(json.dumps(record | results, indent=1) + '\n')
