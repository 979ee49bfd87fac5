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
import re
import sys
import traceback
import zlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from replay_rl import base
from replay_rl import command_line
from replay_rl.parallel import hub
from replay_rl.parallel import peers as peers_lib
from replay_rl.parallel import service

_BARRIER_TIMEOUT = 24 * 3600  # Seconds. The heartbeat ends dead processes.
_MAX_SECONDS = 10**6  # Of a timeout: 11 days.
_SECONDS_FOR_NEWS = 3  # An error of a collective comes before its reason.


class OtherProcessError(ValueError):
  """Another process of the run failed; its own output says why."""


def start(
  *,
  from_environment: bool,
  coordinator_address: str | None,
  num_processes: int | None,
  process_id: int | None,
  initialization_timeout: int,
  heartbeat_timeout: int,
) -> peers_lib.Peers | None:
  """Joins the processes of a run, before anything else of JAX is used.

  Does nothing if no argument asks for it. From then on, this process ends with
  one line and status 1 if another one is lost.

  Args:
    from_environment: find the other processes as `jax.distributed.initialize`
      does on a TPU pod and under SLURM, Open MPI or Kubernetes.
    coordinator_address: HOST:PORT of process 0. Needed with the next two
      arguments everywhere else.
    num_processes: of the run.
    process_id: of this process, from 0.
    initialization_timeout: seconds in which all processes must find each other.
    heartbeat_timeout: seconds after which a silent process counts as dead, and
      all others end.

  Returns:
    The other processes, for `ending_all`; None if no argument asks for it.

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
      return None
  elif missing:
    raise ValueError(
      f'{", ".join(missing)} = None: must be given with the others of '
      f'{", ".join(explicit)}'
    )
  for name, seconds in (
    ('initialization_timeout', initialization_timeout),
    ('heartbeat_timeout', heartbeat_timeout),
  ):
    if not 1 <= seconds <= _MAX_SECONDS:
      raise ValueError(
        f'--{name} = {seconds}: must be at least 1 and at most {_MAX_SECONDS} '
        'seconds'
      )
  if missing:
    coordinator_address, num_processes, process_id = service.from_environment(
      initialization_timeout, tuple(explicit)
    )
  assert coordinator_address is not None
  assert num_processes is not None and process_id is not None
  _check_flags(coordinator_address, num_processes, process_id)
  peers = peers_lib.meet(
    coordinator_address,
    num_processes,
    process_id,
    initialization_timeout=initialization_timeout,
    heartbeat_timeout=heartbeat_timeout,
  )
  service.connect(
    coordinator_address,
    num_processes,
    process_id,
    initialization_timeout,
    heartbeat_timeout,
  )
  return peers


def _check_flags(
  coordinator_address: str, num_processes: int, process_id: int
) -> None:
  hub.split(coordinator_address)
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


def barrier(step: str) -> None:
  """Returns once all processes have called it, however long that takes.

  Collectives of a program are less patient: Gloo gives up after 30 seconds.

  Args:
    step: what the processes do here, without any value. They may not differ.

  Raises:
    ValueError: another process is at another step.
  """
  _meet(step, False)


def _meet(step: str, flag: bool) -> bool:
  """Returns whether the flag is True in any process, once all are here."""
  # Orbax waits on the coordinator, not in a collective. With another name for
  # each step, processes at different steps would wait for each other.
  ocp.multihost.sync_global_processes(
    'replay_rl',
    timeout=_BARRIER_TIMEOUT,
    processes=set(range(jax.process_count())),
  )
  if jax.process_count() == 1:
    return flag
  own = np.array([flag, zlib.crc32(step.encode())], np.uint32)
  flags, steps = np.asarray(multihost_utils.process_allgather(own)).T
  others = np.flatnonzero(steps != steps[jax.process_index()]).tolist()
  if others:
    raise ValueError(
      f'processes at another step than {step!r} = {others}: must be none; '
      'start all processes alike'
    )
  return bool(flags.any())


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
def together(step: str) -> Iterator[None]:
  """Raises an error in every process if the body fails in one of them.

  It is also a barrier: no process leaves before all have left the body. The
  body must not wait for other processes.

  Args:
    step: what the body does, without any value; see `barrier`.

  Raises:
    OtherProcessError: the body failed in another process only.
    ValueError: another process is at another step.
  """
  failure = None
  try:
    yield
  except Exception as error:
    failure = error
  try:
    is_failed = _meet(step, failure is not None)
  finally:
    if failure is not None:
      raise failure
  if is_failed:
    raise OtherProcessError(
      f'{step}: failed in another process, which says why'
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
def ending_all(peers: peers_lib.Peers | None) -> Iterator[None]:
  """Ends this process at once if the body fails, and thereby all others.

  An orderly end would wait for the others, while they wait for this process in
  a collective. Without other processes it changes nothing.

  Args:
    peers: see `start`.
  """
  if peers is None:
    yield
    return
  try:
    yield
  except (Exception, KeyboardInterrupt) as error:
    is_of_collective = _is_of_collective(error)
    peers.take_last_word(_SECONDS_FOR_NEWS if is_of_collective else 0)
    print(_last_word(error), file=sys.stderr, flush=True)
    peers.fail()
    sys.stdout.flush()
    os._exit(130 if isinstance(error, KeyboardInterrupt) else 1)
  except BaseException:
    # SystemExit, after a signal on which all processes agree.
    peers.finish()
    raise
  peers.finish()


def _is_of_collective(error: BaseException) -> bool:
  # JAX raises some errors of Gloo as ValueError.
  return isinstance(error, jax.errors.JaxRuntimeError) or _is_of_gloo(error)


def _is_of_gloo(error: BaseException) -> bool:
  return re.search('Gloo .* failed', str(error)) is not None


def _last_word(error: BaseException) -> str:
  """Returns a line if the user can change something, else a traceback."""
  if _is_of_gloo(error):
    return (
      f'error: silent processes = 1 or more of {jax.process_count()}: must be '
      f'none; the same command continues the run ({str(error).splitlines()[0]})'
    )
  if isinstance(error, (ValueError, OSError)):
    return command_line.last_line(error)
  if isinstance(error, KeyboardInterrupt):
    return 'error: interrupted'
  return ''.join(traceback.format_exception(error)).rstrip()
