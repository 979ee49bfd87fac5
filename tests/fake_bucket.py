"""Servers on this machine that answer as the services of buckets do."""

import contextlib
import logging
import os
from collections.abc import Iterator
from unittest import mock

import boto3
from gcp_storage_emulator import server as gcs_server
from google.cloud import storage
from moto.server import ThreadedMotoServer

BUCKET = 'runs'


@contextlib.contextmanager
def amazon() -> Iterator[dict[str, str]]:
  """Yields the environment in which s3:// is a server of moto, and sets it."""
  logging.getLogger('werkzeug').setLevel(logging.ERROR)  # A line a request.
  server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
  server.start()
  host, port = server.get_host_and_port()
  environment = {
    'AWS_ENDPOINT_URL_S3': f'http://{host}:{port}',
    'AWS_ACCESS_KEY_ID': 'key',
    'AWS_SECRET_ACCESS_KEY': 'secret',
    'AWS_DEFAULT_REGION': 'us-east-1',
  }
  try:
    with mock.patch.dict(os.environ, environment):
      boto3.client('s3').create_bucket(Bucket=BUCKET)
      yield environment
  finally:
    server.stop()


@contextlib.contextmanager
def google() -> Iterator[dict[str, str]]:
  """Yields the environment in which gs:// is a server, and sets it.

  The server keeps no preconditions: a create writes over what is there.
  """
  server = gcs_server.create_server('127.0.0.1', 0, in_memory=True)
  server.start()
  port = server._api._httpd.socket.getsockname()[1]
  environment = {
    'STORAGE_EMULATOR_HOST': f'http://127.0.0.1:{port}',
    'GOOGLE_CLOUD_PROJECT': 'project',
  }
  try:
    with mock.patch.dict(os.environ, environment):
      storage.Client().create_bucket(BUCKET)
      yield environment
  finally:
    server.stop()
