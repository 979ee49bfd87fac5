"""JAX's service for many processes: where it is, and the connection to it."""

import os
from collections.abc import Sequence

import jax

from replay_rl.parallel import hub
from replay_rl.parallel import peers
from replay_rl.parallel import relay

# Of the heartbeats of `peers`, which say in one line who is gone. Those of JAX
# end this process from C++, with a stack trace, so they come later.
_HEARTBEATS = 3


def connect(
  coordinator_address: str,
  num_processes: int,
  process_id: int,
  initialization_timeout: int,
  heartbeat_timeout: int,
) -> None:
  """Connects JAX; ends this process with one line if that takes too long.

  Args:
    coordinator_address: HOST:PORT of process 0.
    num_processes: of the run.
    process_id: of this process.
    initialization_timeout: seconds in which JAX must connect.
    heartbeat_timeout: seconds without a sign of a process, for `peers`.

  Raises:
    ValueError: JAX does not connect. The message names the flag.
  """
  address = coordinator_address
  if process_id != 0:
    address = relay.start(*hub.split(coordinator_address))
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # The service would catch SIGTERM, which a run handles itself.
  jax.config.update('jax_enable_preemption_service', False)
  problem = (
    f'--coordinator_address = {coordinator_address!r}: must be where JAX '
    f"connects the {num_processes} processes, which can reach each other's "
  )
  try:
    with peers.limited(
      initialization_timeout,
      f'error: {problem}ports; in {initialization_timeout} s it did not (is '
      'there a proxy in the environment, such as http_proxy?)',
    ):
      jax.distributed.initialize(
        address,
        num_processes,
        process_id,
        # Later than ours: in C++ it ends the process with a stack trace.
        initialization_timeout=2 * initialization_timeout + 60,
        heartbeat_timeout_seconds=_HEARTBEATS * heartbeat_timeout,
        # How long a process that has ended waits for the others.
        shutdown_timeout_seconds=heartbeat_timeout,
      )
  except (ValueError, RuntimeError) as error:
    raise ValueError(f'{problem}ports ({error})') from error


def from_environment(
  timeout: int, flags: Sequence[str]
) -> tuple[str, int, int]:
  """Returns what `jax.distributed.initialize` reads from the environment.

  Args:
    timeout: seconds to wait until the host of process 0 has an address.
    flags: names of those that say the same elsewhere.

  Returns:
    The address of process 0, the number of processes, and that of this one.

  Raises:
    ValueError: the environment describes no processes.
  """
  # Private, but JAX tells nobody the address that it finds.
  from jax._src import clusters

  try:
    # JAX finds the devices of this process itself.
    detected = clusters.ClusterEnv.auto_detect_unset_distributed_params(
      os.environ.get('JAX_COORDINATOR_ADDRESS'), None, None, None, None, timeout
    )
    address, num_processes, process_id = detected[:3]
    if address is None or num_processes is None or process_id is None:
      raise ValueError('none of these was recognized')
  except (OSError, KeyError, RuntimeError, ValueError) as error:
    raise ValueError(
      '--distributed = True: must be in a TPU pod, SLURM, Open MPI or '
      f'Kubernetes; give {", ".join(flags)} instead ({error})'
    ) from error
  return address, num_processes, process_id
