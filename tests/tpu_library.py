"""Skips tests that compile for a TPU if libtpu is not installed."""

import importlib.util
import unittest

# It has about 500 MB, so the tests do not install it.
needed = unittest.skipIf(
  importlib.util.find_spec('libtpu') is None,
  "libtpu is not installed: pip install -e '.[tpu]'",
)
