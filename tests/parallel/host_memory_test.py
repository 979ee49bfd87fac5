"""Tests of how much memory the host is said to have."""

import pathlib

from absl.testing import parameterized

from replay_rl.parallel import host_memory

# What Linux writes, in kB.
_MEMINFO = """\
MemTotal:       24684084 kB
MemFree:        21088652 kB
MemAvailable:   1000 kB
HugePages_Total:       0
SwapFree:             24 kB
"""
_FREE = 1024 * 1024  # Bytes: what is available, and the free swap.


class AvailableTest(parameterized.TestCase):
  def _available(self, files) -> int | None:
    root = pathlib.Path(self.create_tempdir().full_path)
    for name, text in files.items():
      (root / name).parent.mkdir(parents=True, exist_ok=True)
      (root / name).write_text(text)
    return host_memory.available(root / 'proc', root / 'cgroup')

  @parameterized.parameters(
    ({}, None),
    ({'proc/meminfo': 'MemTotal: 5 kB\n'}, None),
    ({'proc/meminfo': _MEMINFO}, _FREE),
    # Version 2: a group may take what its parents may take.
    (
      {'proc/self/cgroup': '0::/a/b\n', 'cgroup/a/memory.max': '5000\n'},
      5000 + 24 * 1024,
    ),
    (
      {
        'proc/self/cgroup': '0::/a/b\n',
        'cgroup/a/memory.max': '7000\n',
        'cgroup/a/b/memory.max': '6000\n',
      },
      6000 + 24 * 1024,
    ),
    ({'proc/self/cgroup': '0::/a\n', 'cgroup/a/memory.max': 'max\n'}, _FREE),
    # A container sees its own group as the root.
    (
      {'proc/self/cgroup': '0::/\n', 'cgroup/memory.max': '5000\n'},
      5000 + 24 * 1024,
    ),
    # Version 1.
    (
      {
        'proc/self/cgroup': '5:cpu,cpuacct:/x\n4:memory:/docker/x\n',
        'cgroup/memory/memory.limit_in_bytes': '5000\n',
        # Of a group that has the name of another controller's.
        'cgroup/memory/x/memory.limit_in_bytes': '1\n',
      },
      5000 + 24 * 1024,
    ),
    (
      {
        'proc/self/cgroup': '4:memory:/\n',
        'cgroup/memory/memory.limit_in_bytes': '9223372036854771712\n',
      },
      _FREE,
    ),
  )
  def test_is_the_least_that_the_system_and_its_limits_leave(
    self, files, expected
  ):
    if 'proc/self/cgroup' in files:
      files = {'proc/meminfo': _MEMINFO} | files
    self.assertEqual(self._available(files), expected)

  def test_this_machine_has_some(self):
    if pathlib.Path('/proc/meminfo').exists():
      self.assertGreater(host_memory.available(), 0)
