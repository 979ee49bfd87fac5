"""The objects of a folder of a bucket: five functions for each service.

An object is written whole, or not at all. A listing shows what was written
before it began. Both hold for Amazon S3 and for Google Cloud Storage.
"""

import contextlib
import io
import pathlib
import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from replay_rl import installed
from replay_rl.disk import durable

_ADDRESS = re.compile(r'(gs|s3)://([a-z0-9][a-z0-9._-]+[a-z0-9])/(.+)')
# Scheme -> what reads and writes there, and the extra of this package with it.
_PACKAGES = {
  'gs': ({'google.cloud.storage': 'google-cloud-storage'}, 'gcs'),
  's3': ({'boto3': 'boto3'}, 's3'),
}
_NUM_ATTEMPTS = 5  # Of a request, with waits that grow.
_PER_REQUEST = 1000  # Objects that S3 removes at once, at most.


class BucketError(OSError):
  """A bucket cannot be reached, or refuses a request."""


class Address(NamedTuple):
  """The place of a run: `scheme://bucket/prefix`."""

  scheme: str
  bucket: str
  prefix: str

  def __str__(self) -> str:
    """Returns the text that `parse` reads."""
    return f'{self.scheme}://{self.bucket}/{self.prefix}'


class Store(NamedTuple):
  """The objects below an address; their names are relative to it.

  All but `create` may be called by many threads. All raise BucketError.

  address: of the folder.
  names: () -> the names of all objects, in no order.
  read: name -> content; FileNotFoundError if there is no such object.
  create: (name, content) -> whether it was written; False if the object exists.
  upload: (name, content) -> None. The content can be read and sought.
  download: (name, open file) -> None; FileNotFoundError as `read`.
  remove: names -> None; a name without an object is no error.
  """

  address: Address
  names: Callable[[], list[str]]
  read: Callable[[str], bytes]
  create: Callable[[str, bytes], bool]
  upload: Callable[[str, io.BufferedReader], None]
  download: Callable[[str, io.BufferedWriter], None]
  remove: Callable[[Sequence[str]], None]


def parse(name: str, text: str | pathlib.Path) -> Address:
  """Returns the address that a text is.

  Args:
    name: of the setting, for the message.
    text: as a user gave it; slashes at its end do not count.

  Raises:
    ValueError: it is no address of a folder of a bucket, or the package of
      the service is missing.
  """
  match = _ADDRESS.fullmatch(str(text).rstrip('/'))
  parts = match[3].split('/') if match else ['']
  if match is None or {'', '.', '..'} & {*parts} or not match[3].isprintable():
    raise ValueError(
      f'{name} = {str(text)!r}: must be a path of a file system, or '
      'gs://BUCKET/FOLDER or s3://BUCKET/FOLDER'
    )
  modules, extra = _PACKAGES[match[1]]
  installed.check(name, str(text), modules, f"pip install -e '.[{extra}]'")
  return Address(*match.groups())


def connect(address: Address) -> Store:
  """Returns the objects of a folder.

  Credentials and regions are those that the library of the service finds.

  Raises:
    BucketError: there are no credentials.
  """
  return {'gs': _google, 's3': _amazon}[address.scheme](address)


class FileSpan(io.RawIOBase):
  """The bytes from `first` to `end` of a file, as a file of its own."""

  def __init__(self, path: pathlib.Path, first: int, end: int):
    """Opens the file."""
    super().__init__()
    self._file = open(path, 'rb')
    self._first, self._size, self._place = first, end - first, 0

  def readable(self) -> bool:
    """Returns True."""
    return True

  def seekable(self) -> bool:
    """Returns True."""
    return True

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    """Goes to a place of the span; returns it."""
    start = {
      io.SEEK_SET: 0,
      io.SEEK_CUR: self._place,
      io.SEEK_END: self._size,
    }[whence]
    self._place = start + offset
    return self._place

  def readinto(self, buffer: Any) -> int:
    """Fills a buffer from the present place on; returns the bytes read."""
    number = max(0, min(len(buffer), self._size - self._place))
    self._file.seek(self._first + self._place)
    content = self._file.read(number)
    buffer[: len(content)] = content
    self._place += len(content)
    return len(content)

  def close(self) -> None:
    """Closes the file; may be called again."""
    self._file.close()
    super().close()


def _amazon(address: Address) -> Store:
  import boto3
  import boto3.exceptions
  import boto3.session
  import botocore.config
  import botocore.exceptions

  bucket, root = address.bucket, f'{address.prefix}/'
  kinds = (
    *(botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError),
    boto3.exceptions.Boto3Error,
  )
  absent = ('NoSuchKey', '404')

  def code(error: BaseException) -> str:
    return getattr(error, 'response', {}).get('Error', {}).get('Code', '')

  @contextlib.contextmanager
  def asked(name: str = '') -> Iterator[None]:
    try:
      yield
    except kinds as error:
      if code(error) in absent and name:
        raise FileNotFoundError(f'{address}/{name}') from error
      raise _failure(address, error) from error

  with asked():
    client: Any = boto3.session.Session().client(
      's3',
      config=botocore.config.Config(
        retries={'mode': 'standard', 'total_max_attempts': _NUM_ATTEMPTS}
      ),
    )

  def names() -> list[str]:
    with asked():
      pages = client.get_paginator('list_objects_v2').paginate(
        Bucket=bucket, Prefix=root
      )
      return [
        entry['Key'].removeprefix(root)
        for page in pages
        for entry in page.get('Contents', [])
      ]

  def read(name: str) -> bytes:
    with asked(name):
      return client.get_object(Bucket=bucket, Key=root + name)['Body'].read()

  def create(name: str, content: bytes) -> bool:
    with asked():
      try:
        client.put_object(
          Bucket=bucket, Key=root + name, Body=content, IfNoneMatch='*'
        )
      except botocore.exceptions.ClientError as error:
        # The second is for two requests at the same moment.
        if code(error) in ('PreconditionFailed', 'ConditionalRequestConflict'):
          return False
        raise
    return True

  def upload(name: str, content: io.BufferedReader) -> None:
    with asked():
      client.upload_fileobj(content, bucket, root + name)

  def download(name: str, file: io.BufferedWriter) -> None:
    with asked(name):
      client.download_fileobj(bucket, root + name, file)

  def remove(listed: Sequence[str]) -> None:
    for first in range(0, len(listed), _PER_REQUEST):
      some = listed[first : first + _PER_REQUEST]
      keys = [{'Key': root + name} for name in some]
      with asked():
        answer = client.delete_objects(
          Bucket=bucket, Delete={'Objects': keys, 'Quiet': True}
        )
      if errors := answer.get('Errors'):
        raise _failure(address, errors[0].get('Message', 'not removed'))

  return Store(address, names, read, create, upload, download, remove)


def _google(address: Address) -> Store:
  import google.api_core.exceptions as api
  import google.auth.exceptions as auth
  import requests
  from google.cloud import storage

  root = f'{address.prefix}/'

  @contextlib.contextmanager
  def asked(name: str = '') -> Iterator[None]:
    try:
      yield
    except api.NotFound as error:
      if name:
        raise FileNotFoundError(f'{address}/{name}') from error
      raise _failure(address, error) from error
    except (
      *(api.GoogleAPIError, auth.GoogleAuthError),
      requests.RequestException,
    ) as error:
      raise _failure(address, error) from error

  with asked():
    client: Any = storage.Client()
  bucket = client.bucket(address.bucket)

  def names() -> list[str]:
    with asked():
      found = client.list_blobs(bucket, prefix=root)
      return [blob.name.removeprefix(root) for blob in found]

  def read(name: str) -> bytes:
    with asked(name):
      return bucket.blob(root + name).download_as_bytes()

  def create(name: str, content: bytes) -> bool:
    with asked():
      try:
        # No object has the generation 0.
        bucket.blob(root + name).upload_from_string(
          content, if_generation_match=0
        )
      except api.PreconditionFailed:
        return False
    return True

  def upload(name: str, content: io.BufferedReader) -> None:
    size = content.seek(0, io.SEEK_END)
    content.seek(0)
    with asked():
      bucket.blob(root + name).upload_from_file(content, size=size)

  def download(name: str, file: io.BufferedWriter) -> None:
    with asked(name):
      bucket.blob(root + name).download_to_file(file)

  def remove(listed: Sequence[str]) -> None:
    with asked():
      for name in listed:
        with contextlib.suppress(api.NotFound):
          bucket.blob(root + name).delete()

  return Store(address, names, read, create, upload, download, remove)


def _failure(address: Address, error: BaseException | str) -> BucketError:
  text = error if isinstance(error, str) else durable.reason(error)
  return BucketError(
    f'address = {str(address)!r}: must be a folder of a bucket that can be '
    f'reached, read and written ({text}); then the same command continues'
  )
