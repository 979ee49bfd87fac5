"""Runs over many processes, on JAX's multi-controller runtime.

Every process runs the same program on global arrays. A process may see on its
own host what the others do not: a signal, a file, an error. All processes have
to agree on it before it changes what the program does next. With one process
these functions cost nothing.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from replay_rl import base

_BARRIER_TIMEOUT = 24 * 3600  # Seconds. The heartbeat ends dead processes.


class OtherProcessError(ValueError):
  """Another process of the run failed; its own output says why."""


def start(
  *,
  from_environment: bool,
  coordinator_address: str | None,
  num_processes: int | None,
  process_id: int | None,
  heartbeat_timeout: int,
) -> None:
  """Joins the processes of a run, before anything else of JAX is used.

  Does nothing if no argument asks for it.

  Args:
    from_environment: find the other processes as `jax.distributed.initialize`
      does on a TPU pod and under SLURM, Open MPI or Kubernetes.
    coordinator_address: HOST:PORT of process 0. Needed with the next two
      arguments everywhere else.
    num_processes: of the run.
    process_id: of this process, from 0.
    heartbeat_timeout: seconds after which a silent process counts as dead, and
      all others end.

  Raises:
    ValueError: an argument is missing or not allowed, or the processes do not
      find each other. The message names the flag.
  """
  explicit = {
    '--coordinator_address': coordinator_address,
    '--num_processes': num_processes,
    '--process_id': process_id,
  }
  missing = [name for name, value in explicit.items() if value is None]
  if len(missing) == len(explicit):
    if not from_environment:
      return
  elif missing:
    raise ValueError(
      f'{", ".join(missing)} = None: must be given with the others of '
      f'{", ".join(explicit)}'
    )
  else:
    _check_flags(coordinator_address, num_processes, process_id)
  if heartbeat_timeout < 1:
    raise ValueError(
      f'--heartbeat_timeout = {heartbeat_timeout}: must be at least 1 second'
    )
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # The service would catch SIGTERM, which a run handles itself.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      coordinator_address,
      num_processes,
      process_id,
      heartbeat_timeout_seconds=heartbeat_timeout,
      # How long a process that has ended waits for the others.
      shutdown_timeout_seconds=heartbeat_timeout,
    )
  except (ValueError, RuntimeError) as error:
    if missing:
      raise ValueError(
        '--distributed = True: must be in a TPU pod, SLURM, Open MPI or '
        f'Kubernetes; give {", ".join(explicit)} instead ({error})'
      ) from error
    raise ValueError(
      f'--coordinator_address = {coordinator_address!r}: must be where the '
      f'{num_processes} processes find each other ({error})'
    ) from error


def _check_flags(
  coordinator_address: str | None,
  num_processes: int | None,
  process_id: int | None,
) -> None:
  assert coordinator_address is not None
  assert num_processes is not None and process_id is not None
  host, _, port = coordinator_address.rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
    raise ValueError(
      f'--coordinator_address = {coordinator_address!r}: must be HOST:PORT'
    )
  if num_processes < 1:
    raise ValueError(f'--num_processes = {num_processes}: must be at least 1')
  if not 0 <= process_id < num_processes:
    raise ValueError(
      f'--process_id = {process_id}: must be at least 0 and less than '
      f'--num_processes = {num_processes}'
    )


def is_main() -> bool:
  """Returns whether this is the process that writes files for all."""
  # The first test makes a single process initialize no device.
  return not jax.distributed.is_initialized() or jax.process_index() == 0


def barrier(name: str) -> None:
  """Returns once all processes have called it, however long that takes.

  Collectives of a program are less patient: Gloo gives up after 30 seconds.
  """
  # Orbax waits on the coordinator, not in a collective.
  ocp.multihost.sync_global_processes(
    f'replay_rl:{name}',
    timeout=_BARRIER_TIMEOUT,
    processes=set(range(jax.process_count())),
  )


def aligned(program: Any, static_argnums: Sequence[int] = ()) -> Callable:
  """Returns a jitted program whose first run all processes begin together.

  Without this, a process that reads the program from a cache would wait in a
  collective while another still compiles it. Each value of the static arguments
  is a separate program.

  Args:
    program: jitted.
    static_argnums: those of its `jax.jit`.
  """
  if jax.process_count() == 1:
    return program
  compiled = set()

  def run(*args):
    key = tuple(args[index] for index in static_argnums)
    if key not in compiled:
      program.lower(*args).compile()
      barrier('compiled')
      compiled.add(key)
    return program(*args)

  return run


def any_process(flag: bool) -> bool:
  """Returns whether the flag is True in any process; all must call it."""
  return bool(total(np.asarray(flag, np.int32)))


def total(array: np.ndarray) -> np.ndarray:
  """Returns the sum over processes of an int32 array; all must call it."""
  if jax.process_count() == 1:
    return array
  assert array.dtype == np.int32, array.dtype
  gathered = multihost_utils.process_allgather(array)
  return np.asarray(gathered).sum(axis=0, dtype=np.int32)


def from_main(tree: base.PyTree) -> base.PyTree:
  """Returns the NumPy arrays of process 0, bit for bit, in all processes.

  Args:
    tree: arrays of float32, int32 or uint32; elsewhere than in process 0 only
      their shapes and types matter.
  """
  if jax.process_count() == 1:
    return tree
  # As integers, because adding the others' zeros must not change a bit.
  bits = jax.tree.map(lambda leaf: np.asarray(leaf).view(np.uint32), tree)
  received = multihost_utils.broadcast_one_to_all(bits)
  return jax.tree.map(
    lambda leaf, like: np.asarray(leaf).view(like.dtype), received, tree
  )


@contextlib.contextmanager
def together(what: str) -> Iterator[None]:
  """Raises an error in every process if the body fails in one of them.

  It is also a barrier: no process leaves before all have left the body. The
  body must not wait for other processes.

  Args:
    what: name of the step, for the message of the other processes.

  Raises:
    OtherProcessError: the body failed in another process only.
  """
  failure = None
  try:
    yield
  except Exception as error:
    failure = error
  barrier(what)
  is_failed = any_process(failure is not None)
  if failure is not None:
    raise failure
  if is_failed:
    raise OtherProcessError(
      f'{what}: failed in another process, which says why'
    )


def check_equal(what: str, value: Any, advice: str) -> None:
  """Raises ValueError in all processes if their values differ.

  Args:
    what: name of the value.
    value: plain JSON.
    advice: end of the message.
  """
  if jax.process_count() == 1:
    return
  text = json.dumps(value, sort_keys=True)
  digest = hashlib.sha256(text.encode()).digest()
  digests = np.asarray(
    multihost_utils.process_allgather(np.frombuffer(digest, np.uint32))
  )
  others = np.flatnonzero((digests != digests[0]).any(axis=1)).tolist()
  if others:
    raise ValueError(
      f'processes that differ in {what} = {others}: must be none; {advice}'
    )


def check_mesh(mesh: jax.sharding.Mesh) -> None:
  """Raises ValueError if a process has no device of the mesh."""
  used = {device.process_index for device in mesh.devices.flat}
  idle = sorted(set(range(jax.process_count())) - used)
  if idle:
    raise ValueError(
      f'mesh.shape = {dict(mesh.shape)}: must use devices of every process; '
      f'has none of the processes {idle}'
    )


@contextlib.contextmanager
def ending_all() -> Iterator[None]:
  """Ends this process at once if the body fails, and thereby all others.

  An orderly end would wait for the others, while they wait for this process in
  a collective. With one process it changes nothing.
  """
  try:
    yield
  except Exception as error:
    if jax.process_count() == 1:
      raise
    if isinstance(error, ValueError):
      print(f'error: {error}', file=sys.stderr)
    else:
      traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    if is_main():
      # Time for the others to report their error: they die with process 0.
      time.sleep(1)
    os._exit(1)
