"""Tests of the script that runs the documented lines: what it reads."""

import importlib.util
import pathlib
import re

from absl.testing import absltest

PATH = (
  pathlib.Path(__file__).parents[1]
  / 'experiments/documented_lines/run_lines.py'
)
_SPEC = importlib.util.spec_from_file_location('run_lines', PATH)
assert _SPEC is not None and _SPEC.loader is not None
run_lines = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(run_lines)
PAGE = """# Title

Save this as `x.py`:

```python
import os
```

    python -m replay_rl.train --config=x \\
        --workdir=y
    POD='a b'
    bash scripts/x.sh   # says
    --config.replay.weights='uniform()'

| a | `python experiments/x.py` | `configs/x.py` |

```bash
pip install -e .
```
"""


class LinesTest(absltest.TestCase):
  def test_lines_are_read_as_a_reader_copies_them(self):
    found = list(run_lines.lines_of('x.md', PAGE))
    self.assertEqual(
      [(line.number, line.text) for line in found],
      [
        (9, 'python -m replay_rl.train --config=x \\\n    --workdir=y'),
        (11, "POD='a b'"),
        (12, 'bash scripts/x.sh   # says'),
        (15, 'python experiments/x.py'),
        (18, 'pip install -e .'),
      ],
    )

  def test_a_file_to_save_is_read(self):
    self.assertEqual(run_lines.files_of(PAGE), {'x.py': 'import os\n'})

  def test_every_reason_leaves_out_a_line_and_some_lines_run(self):
    lines = [
      line.text
      for page in run_lines.PAGES
      for line in run_lines.lines_of(page, (run_lines.ROOT / page).read_text())
    ]
    for pattern, _ in run_lines.LEFT_OUT:
      self.assertTrue(any(re.search(pattern, x) for x in lines), pattern)
    self.assertGreater(sum(not run_lines.reason(x) for x in lines), 25)
    self.assertEqual(run_lines.reason('hf download x'), 'downloads')

  def test_a_line_runs_after_those_that_it_relies_on(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    line = run_lines.Line('x.md', 1, 'echo "$A" && exit 3')
    happened, _ = run_lines.ran(line, ['A=word'], folder, 1.0)
    self.assertEqual(happened, 'status 3: word')
    happened, _ = run_lines.ran(
      run_lines.Line('x.md', 1, 'sleep 9'), [], folder, 0.005
    )
    self.assertEqual(happened, 'stopped after 0.005 minutes')

  def test_the_table_has_every_line_with_what_happened(self):
    lines = [
      run_lines.Line('x.md', 1, 'pip install \\\n    x | y'),
      run_lines.Line('x.md', 4, 'mkdocs serve'),
      run_lines.Line('x.md', 5, 'cd x'),
    ]
    self.assertEqual(
      run_lines.table(lines, {lines[0].text: ['ran', 0.2]}).split('\n')[2:-1],
      [
        '| x.md:1 `pip install x \\| y` | ran | 0.2 |',
        '| x.md:4 `mkdocs serve` | left out: does not end |  |',
        '| x.md:5 `cd x` | not run yet |  |',
      ],
    )


if __name__ == '__main__':
  absltest.main()
