"""A bucket in the memory of a test, whose requests can be made to fail."""

import contextlib
import dataclasses
from collections.abc import Callable
from unittest import mock

from replay_rl.bucket import objects

ADDRESS = objects.Address('s3', 'bucket', 'run')


@dataclasses.dataclass
class Memory:
  """Objects by name, and what to do before each request.

  content: of the objects.
  before: (request, name) -> None; may raise.
  """

  content: dict[str, bytes] = dataclasses.field(default_factory=dict)
  before: Callable[[str, str], None] = lambda request, name: None

  def connected(self) -> contextlib.AbstractContextManager:
    """Returns a context in which every address is this bucket."""
    return mock.patch.object(
      objects, 'connect', side_effect=lambda address: self.store()
    )

  def store(self) -> objects.Store:
    """Returns the store."""

    def asked(request, name=''):
      self.before(request, name)

    def names():
      asked('names')
      return list(self.content)

    def read(name):
      asked('read', name)
      if name not in self.content:
        raise FileNotFoundError(name)
      return self.content[name]

    def create(name, content):
      asked('create', name)
      return self.content.setdefault(name, content) is content

    def upload(name, content):
      asked('upload', name)
      self.content[name] = content.read()

    def download(name, file):
      file.write(read(name))

    def remove(listed):
      for name in listed:
        asked('remove', name)
        self.content.pop(name, None)

    return objects.Store(ADDRESS, names, read, create, upload, download, remove)
