"""Runs the documented command lines in a clean clone, and says what happened.

    python experiments/documented_lines/run_lines.py --folder=build/lines

It copies each line from its page as a reader would, with continuation lines,
and gives it to bash in a clone of HEAD, whose `.venv` the lines of README.md
make. Files that a page asks to save are saved. What ran is kept in
results.json: the same command again runs the rest.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = (
  'README.md',
  *sorted(str(x.relative_to(ROOT)) for x in ROOT.glob('docs/**/*.md')),
  'scripts/README.md',
)
_NAMES = 'bash|python3?|pip|source|replay-rl|hf|git|mkdocs|mkdir|gcloud|docker'
_COMMAND = re.compile(
  rf'(?:[A-Z_]+=\S+ )*(?:{_NAMES}|kubectl|sbatch|cd) |[A-Z]+='
)
# What the other lines of a page rely on: they come before each of these.
_STATE = re.compile(r'[A-Z]+=|source |cd ')
# Words of a line -> why it is left out, the first one that fits.
LEFT_OUT = (
  (r'--dry-run|plan memory', None),
  (r'\.\.\.|=FILE|=FOLDER|runs/a ', 'has a place for a name of the reader'),
  (r'gcloud|tpu_pod|gke_jobset|kubectl|docker|^POD=', 'needs a cloud account'),
  (r'sbatch|slurm|executor=jobset|jobs/submit', 'needs a cluster'),
  (r'\[[\w,-]*gpu|extras gpu', 'needs a GPU'),
  (r'compile_check|\[[\w,-]*tpu|math,tpu', 'installs the compiler of a TPU'),
  (r'hf download|git clone', 'downloads'),
  (
    r'--source=|checkpoints/|data/|--data|gsm8k|math_q|benchmarks=|FOLDER',
    'needs data or weights that are downloaded',
  ),
  (r'mkdocs serve', 'does not end'),
  (r'test\.sh', 'runs for every change, see .ci/run'),
  (r'other_pythons', 'runs every night, see scripts/nightly.sh'),
  (r'\[[\w,-]*(?:bench|parity)|python benchmarks/', 'installs torch'),
  (r'964eb22|num_seeds=16', 'is for another commit'),
  (
    r'headline|addition\.py|tune|edges/|many_processes|kill_resume|nightly',
    'takes over 5 minutes',
  ),
)


class Line(NamedTuple):
  """A command line: its page, the number of its first line, and its text."""

  page: str
  number: int
  text: str


def lines_of(page: str, text: str) -> Iterator[Line]:
  """Yields the command lines of a page: in indented blocks, fences and tables.

  Args:
    page: its name.
    text: Markdown.
  """
  fence, before, rows = '', '', text.split('\n')
  for i, row in enumerate(rows):
    if row.lstrip().startswith('```'):
      fence = '' if fence else row.strip().strip('`') or 'text'
    elif fence in ('', 'bash', 'sh') and (fence or row.startswith('    ')):
      part = row.strip() if fence else row[4:]
      before += f'{part}\n'
      if part.endswith('\\'):
        continue
      first = i - before.count('\n') + 2
      if _COMMAND.match(before):
        yield Line(page, first, before.rstrip('\n'))
    elif row.startswith('|'):
      for command in re.findall(
        r'`((?:PYTHONPATH=\. )?(?:bash|python) .*?)`', row
      ):
        yield Line(page, i + 1, command)
    before = ''


def files_of(text: str) -> dict[str, str]:
  """Returns the files that a page asks its reader to save, by name."""
  blocks = r'[Ss]ave (?:it|this) as `([\w.]+)`:\n\n```python\n(.*?)```'
  return dict(re.findall(blocks, text, re.DOTALL))


def reason(text: str) -> str | None:
  """Returns why a line is left out; None if it runs."""
  for pattern, why in LEFT_OUT:
    if re.search(pattern, text):
      return why
  return None


def ran(line: Line, state: list[str], folder: pathlib.Path, minutes: float):
  """Runs a line after the lines that it relies on; returns what happened."""
  environ = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(('JAX', 'XLA', 'PYTHON', 'VIRTUAL_ENV'))
  }
  started = time.perf_counter()
  process = subprocess.Popen(
    ['bash', '-c', '\n'.join([*state, line.text])],
    cwd=folder,
    env=environ,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,
  )
  try:
    output, _ = process.communicate(timeout=60 * minutes)
    status = process.returncode
    last = (output.strip().split('\n') or [''])[-1]
    happened = 'ran' if status == 0 else f'status {status}: {last[:150]}'
  except subprocess.TimeoutExpired:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    happened = f'stopped after {minutes:g} minutes'
  return happened, round((time.perf_counter() - started) / 60, 1)


def table(lines: list[Line], results: dict[str, list]) -> str:
  """Returns the Markdown table of all lines."""
  rows = ['| line | what happened | minutes |', '|---|---|---|']
  for line in lines:
    text = re.sub(r' *\\\n *', ' ', line.text).replace('|', '\\|')
    left_out = reason(line.text)
    happened, minutes = results.get(line.text, ['not run yet', ''])
    if left_out:
      happened, minutes = f'left out: {left_out}', ''
    rows.append(
      f'| {line.page}:{line.number} `{text}` | {happened} | {minutes} |'
    )
  return '\n'.join(rows) + '\n'


def main() -> None:
  """Runs the lines that have no result yet, and writes the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--folder', type=pathlib.Path, required=True)
  parser.add_argument('--minutes', type=float, default=5, help='for a line')
  parser.add_argument('--only', default='', help='words of the lines to run')
  flags = parser.parse_args()
  folder = flags.folder.resolve() / 'replay_rl'
  if not folder.exists():
    subprocess.run(
      ['git', 'clone', '--quiet', '--no-hardlinks', ROOT, folder], check=True
    )
  lines = [
    line
    for page in PAGES
    for line in lines_of(page, (folder / page).read_text())
  ]
  file = HERE / 'results.json'
  results = json.loads(file.read_text()) if file.exists() else {}
  environment = [line.text for line in lines if line.text.startswith('source ')]
  for page in PAGES:
    # Every page expects the environment of README.md.
    state = [] if page == PAGES[0] else environment[:1]
    for name, content in files_of((folder / page).read_text()).items():
      (folder / name).write_text(content)
    for line in lines:
      if line.page != page or reason(line.text):
        continue
      if line.text not in results and re.search(flags.only, line.text):
        results[line.text] = ran(line, state, folder, flags.minutes)
        print(line.page, line.text, *results[line.text], flush=True)
        file.write_text(json.dumps(results, indent=1) + '\n')
      if _STATE.match(line.text):
        state.append(line.text)
  (HERE / 'table.md').write_text(table(lines, results))


if __name__ == '__main__':
  main()
