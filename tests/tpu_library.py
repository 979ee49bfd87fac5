"""What tests need that compile for a TPU."""

import importlib.util
import unittest

# Of about 500 MB, so it is not among what the tests install.
needed = unittest.skipIf(
  importlib.util.find_spec('libtpu') is None,
  "libtpu is not installed: pip install -e '.[tpu]'",
)
