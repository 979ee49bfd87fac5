"""Versions of packages, and settings outside the config that change numbers."""

import os
import pathlib
import platform
import subprocess
from importlib import metadata
from typing import Any

import jax

_PACKAGES = (
  'jax',
  'jaxlib',
  'flax',
  'optax',
  'orbax-checkpoint',
  'tensorstore',
  'chex',
  'ml_collections',
  'numpy',
)
# They decide what a prompt is and whether an answer is right.
_PACKAGES_OF_TEXT = (
  'tokenizers',
  'jinja2',
  'math-verify',
  'latex2sympy2_extended',
  'antlr4-python3-runtime',
  'sympy',
  'mpmath',
  'tensorflow-datasets',
  'array_record',
  'grain',
)
# Package with the compiler of a backend.
_PACKAGES_OF_BACKEND = {
  'cpu': (),
  'gpu': ('jax-cuda12-plugin', 'jax-cuda13-plugin', 'jax-rocm7-plugin'),
  'tpu': ('libtpu',),
}
_VARIABLES = (
  'XLA_FLAGS',
  'LIBTPU_INIT_ARGS',
  'NVIDIA_TF32_OVERRIDE',
  'TF32_OVERRIDE',
)
_OPTIONS = (
  'jax_default_matmul_precision',
  'jax_numpy_rank_promotion',
  'jax_optimization_level',
  'jax_debug_nans',
)
# With any other value the random streams, or the types of numbers, are others.
REQUIRED = {
  'jax_default_prng_impl': 'threefry2x32',
  'jax_threefry_partitionable': True,
  'jax_random_seed_offset': 0,
  'jax_enable_x64': False,
  'jax_numpy_dtype_promotion': 'standard',
  'jax_disable_jit': False,
}


def check() -> None:
  """Raises ValueError if a setting of JAX would change the random streams."""
  for name, required in REQUIRED.items():
    value = getattr(jax.config, name, required)
    if value != required:
      raise ValueError(
        f'{name.upper()} = {value!r}: must be {required!r}, because it changes '
        'the random streams or the types of a run; unset that variable'
      )


def numerics() -> dict[str, Any]:
  """Returns the settings that may change the last bits of a result."""
  return {name: os.environ.get(name) for name in _VARIABLES} | {
    name: _plain(getattr(jax.config, name, None)) for name in _OPTIONS
  }


def versions(*, is_in_text: bool) -> dict[str, str | None]:
  """Returns versions of Python and of packages; None for those missing.

  Args:
    is_in_text: whether the task is in text, and a verifier judges the answers.
  """
  names = _PACKAGES + _PACKAGES_OF_BACKEND.get(jax.default_backend(), ())
  if is_in_text:
    names += _PACKAGES_OF_TEXT
  installed = {}
  for name in names:
    try:
      installed[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      installed[name] = None
  return installed | {'python': platform.python_version()}


def hardware() -> str:
  """Returns the devices, the number of CPU cores and their architecture."""
  devices = jax.devices()
  return (
    f'{len(devices)} x {devices[0].device_kind}, {os.cpu_count()} CPU cores, '
    f'{platform.machine()}'
  )


def commit() -> str:
  """Returns the git commit of this package, or 'unknown'."""
  command = ['git', 'describe', '--always', '--dirty', '--abbrev=40']
  try:
    return subprocess.check_output(
      command,
      cwd=pathlib.Path(__file__).parent,
      stderr=subprocess.DEVNULL,
      text=True,
    ).strip()
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'


def _plain(value: Any) -> Any:
  return value if isinstance(value, (int, str, type(None))) else str(value)
