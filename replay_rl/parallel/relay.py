"""A connection that stays open for a while after its other end has closed.

JAX ends a process from C++, with a stack trace, as soon as its connection to
process 0 closes. Over a relay on its own host it learns that later than
`peers`, which says in one line who is gone.
"""

import asyncio
import contextlib
import socket
import threading

_DELAY = 10  # Seconds, from the end of one connection to that of the other.
_CHUNK = 2**16  # Bytes.


def start(host: str, port: int) -> str:
  """Returns HOST:PORT, on this host alone, of a relay to another one.

  A thread serves it as long as this process lives.
  """
  listener = socket.create_server(('127.0.0.1', 0))
  threading.Thread(
    target=lambda: asyncio.run(_serve(listener, host, port)), daemon=True
  ).start()
  return f'127.0.0.1:{listener.getsockname()[1]}'


async def _serve(listener: socket.socket, host: str, port: int) -> None:
  async def attend(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    try:
      far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError:
      writer.close()
      return
    await asyncio.gather(
      _pass_on(reader, far_writer, 0), _pass_on(far_reader, writer, _DELAY)
    )

  server = await asyncio.start_server(attend, sock=listener)
  await server.serve_forever()


async def _pass_on(
  reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float
) -> None:
  with contextlib.suppress(OSError):
    while chunk := await reader.read(_CHUNK):
      writer.write(chunk)
      await writer.drain()
  await asyncio.sleep(delay)
  writer.close()
