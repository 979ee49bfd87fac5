"""Runs a notebook and stores what its cells print and draw.

    python docs/run_notebook.py docs/notebooks/buffer.ipynb

The cells run in order in one Python process, as a script would. A cell shows
what it prints and the figures that it leaves open; the value of its last line
is not shown. This needs no Jupyter.
"""

import ast
import base64
import contextlib
import io
import json
import pathlib
import sys
from typing import Any

import matplotlib
from matplotlib import pyplot

_DOTS_PER_INCH = 110


def read(path: pathlib.Path) -> dict[str, Any]:
  """Returns a notebook of format 4."""
  return json.loads(path.read_text(encoding='utf-8'))


def write(path: pathlib.Path, notebook: dict[str, Any]) -> None:
  """Writes a notebook as Jupyter would."""
  text = json.dumps(notebook, indent=1, ensure_ascii=False)
  path.write_text(text + '\n', encoding='utf-8')


def run(notebook: dict[str, Any], name: str) -> dict[str, Any]:
  """Returns the notebook with the outputs of its cells.

  Args:
    notebook: see `read`.
    name: of the notebook, for tracebacks.

  Raises:
    Exception: what a cell raises.
  """
  matplotlib.use('agg')
  namespace: dict[str, Any] = {'__name__': '__main__'}
  cells = []
  for number, cell in enumerate(notebook['cells'], 1):
    if cell['cell_type'] == 'code':
      place = f'{name}, cell {number}'
      code = compile(ast.parse(''.join(cell['source'])), place, 'exec')
      with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
      outputs = _stream(printed.getvalue()) + _figures()
      cell = cell | {'outputs': outputs, 'execution_count': None}
    cells.append(cell)
  return notebook | {'cells': cells}


def printed(notebook: dict[str, Any]) -> list[str]:
  """Returns what each code cell printed, '' where nothing."""
  return [
    ''.join(
      ''.join(output['text'])
      for output in cell['outputs']
      if output['output_type'] == 'stream'
    )
    for cell in notebook['cells']
    if cell['cell_type'] == 'code'
  ]


def _stream(text: str) -> list[dict[str, Any]]:
  if not text:
    return []
  lines = text.splitlines(keepends=True)
  return [{'output_type': 'stream', 'name': 'stdout', 'text': lines}]


def _figures() -> list[dict[str, Any]]:
  """Returns the open figures as PNG, and closes them."""
  shown = []
  for number in pyplot.get_fignums():
    png = io.BytesIO()
    pyplot.figure(number).savefig(
      png,
      format='png',
      dpi=_DOTS_PER_INCH,
      bbox_inches='tight',
      metadata={'Software': None},  # The version of Matplotlib.
    )
    data = {'image/png': base64.b64encode(png.getvalue()).decode()}
    shown.append({'output_type': 'display_data', 'data': data, 'metadata': {}})
  pyplot.close('all')
  return shown


def main(paths: list[str]) -> None:
  """Runs the notebooks of these paths, in place."""
  for path in map(pathlib.Path, paths):
    write(path, run(read(path), path.name))


if __name__ == '__main__':
  main(sys.argv[1:])
