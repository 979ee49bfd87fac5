"""Samples a language model on benchmarks of problems, batch by batch.

The samples of a benchmark are rows: n to each problem, in order. A batch is the
next `batch_size` rows; it is appended to a file once it has been judged. What a
batch holds depends on its number alone. So a process that continues the file
writes what the process before it would have written.
"""

import json
import pathlib
import zlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from replay_rl import base
from replay_rl import json_files
from replay_rl.evaluate import scores
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.tasks.text import problems as problems_lib
from replay_rl.tasks.text import prompt_stream
from replay_rl.tasks.verify import verifier
from replay_rl.tasks.verify import worker

# (prompts [B], batch number) -> responses [B, R], lengths [B], is_finished [B]
SampleBatchFn = Callable[
  [base.Prompts, int], tuple[base.Array, base.Array, base.Array]
]
# (responses, references) -> verdicts
JudgeTextsFn = Callable[
  [Sequence[str], Sequence[str]], list[verifier.AnswerVerdict]
]
# (rows, generated tokens) of a batch that is done -> nothing
ProgressFn = Callable[[int, int], None]


class Benchmark(NamedTuple):
  """A set of problems. table: their prompts, in the same order."""

  name: str
  problems: list[problems_lib.Problem]
  table: prompt_stream.Table


def load(
  data_dir: pathlib.Path,
  name: str,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  template: str,
  chat: prompt_stream.Chat | None,
  max_prompt_tokens: int,
) -> Benchmark:
  """Reads a benchmark; none of its problems is left out.

  Args:
    data_dir: holds `name.jsonl`, of lines `{id, problem, answer}`; or else a
      dataset of that name with a split 'test', see `tasks.text.datasets`.
    name: of the benchmark.
    tokenizer: of the model.
    template, chat, max_prompt_tokens: see `prompt_stream.make`.

  Raises:
    ValueError: if there is no such benchmark, a line of it is broken, or a
      prompt is too long.
  """
  problems = _problems(data_dir, name)
  try:
    table = prompt_stream.make(
      problems,
      tokenizer,
      template,
      max_prompt_tokens=max_prompt_tokens,
      drop_long_prompts=False,
      chat=chat,
    )
  except ValueError as error:
    raise ValueError(
      f'benchmarks = {name!r}: must have prompts that fit ({error})'
    ) from error
  return Benchmark(name, problems, table)


def fingerprints(benchmark: Benchmark) -> dict[str, Any]:
  """Returns JSON values in which versions of a benchmark differ.

  Returns:
    'num_problems'; 'problems', a checksum of ids, problems and answers;
    'prompts', a checksum of the tokens that the model reads.
  """
  text = json.dumps(benchmark.problems).encode()
  table = benchmark.table
  tokens = [
    row[:length].tobytes()
    for row, length in zip(table.tokens, table.lengths, strict=True)
  ]
  lengths = table.lengths.tobytes()
  return {
    'num_problems': len(benchmark.problems),
    'problems': f'{zlib.crc32(text):08x}',
    'prompts': f'{zlib.crc32(b"".join([lengths, *tokens])):08x}',
  }


def sample(
  benchmark: Benchmark,
  path: pathlib.Path,
  *,
  num_samples: int,
  batch_size: int,
  tokenizer: tokenizer_lib.Tokenizer,
  generate_fn: SampleBatchFn,
  judge_fn: JudgeTextsFn,
  report_fn: ProgressFn,
) -> None:
  """Samples and judges what the file does not hold yet.

  A batch is judged while the next one is generated.

  Args:
    benchmark: the problems.
    path: of the file; created if it is not there, else cut after its last
      whole batch.
    num_samples: n, per problem.
    batch_size: B, rows generated together. The last batch is filled up with
      rows that are not judged nor written.
    tokenizer: of the model.
    generate_fn: samples a batch; a pure function, run asynchronously.
    judge_fn: judges the text of responses.
    report_fn: called with the batches in the file, then with each new one.

  Raises:
    ValueError: if the file holds samples of another evaluation.
  """
  kept, size = _read(benchmark, path, num_samples, batch_size)
  report_fn(len(kept), 0)
  num_rows = len(benchmark.problems) * num_samples
  with open(path, 'r+b' if path.exists() else 'wb') as file:
    file.truncate(size)
    file.seek(0, 2)

    def finish(places, batch, generated):
      lines = _lines(
        benchmark, places, batch, jax.device_get(generated), tokenizer, judge_fn
      )
      # One write: only a crash of the system can tear a batch.
      file.write(''.join(json.dumps(line) + '\n' for line in lines).encode())
      file.flush()
      report_fn(len(lines), sum(line['length'] for line in lines))

    pending = None
    for start in range(len(kept), num_rows, batch_size):
      rows = np.arange(start, min(start + batch_size, num_rows))
      filled = np.resize(rows, batch_size)
      prompts = prompt_stream.take(benchmark.table, filled // num_samples)
      batch = start // batch_size
      generated = generate_fn(prompts, batch)
      if pending is not None:
        finish(*pending)
      places = [divmod(int(row), num_samples) for row in rows]
      pending = (places, batch, generated)
    if pending is not None:
      finish(*pending)


def outcomes(
  benchmark: Benchmark, path: pathlib.Path, *, num_samples: int
) -> scores.Outcomes:
  """Returns what the complete file of a benchmark holds.

  Raises:
    ValueError: if it is not complete, or not of this benchmark.
  """
  num_rows = len(benchmark.problems) * num_samples
  lines, _ = _read(benchmark, path, num_samples, 1)
  if len(lines) != num_rows:
    raise ValueError(
      f'samples of {path} = {len(lines)}: must be all {num_rows}'
    )

  def column(name):
    values = [line[name] for line in lines]
    return np.array(values).reshape(-1, num_samples)

  statuses = column('status')
  return scores.Outcomes(
    is_correct=statuses == worker.CORRECT,
    lengths=column('length'),
    is_finished=column('is_finished'),
    statuses=statuses,
  )


_SPLIT = 'test'
_FIELDS = ('problem', 'sample', 'length', 'is_finished', 'status')


def _problems(data_dir: pathlib.Path, name: str) -> list[problems_lib.Problem]:
  path = data_dir / f'{name}.jsonl'
  if path.is_file():
    problems, _ = problems_lib.read(path, source=name, allowed=frozenset())
    return problems
  # The folder is a dataset, or one of TFDS, or one of prepare_data.py.
  for pattern in (name, f'{name}/*', f'problems/{name}/*'):
    for info in sorted(data_dir.glob(f'{pattern}/dataset_info.json')):
      from replay_rl.tasks.text import datasets

      return datasets.read(info.parent, split=_SPLIT)
  there = sorted(file.stem for file in data_dir.glob('*.jsonl'))
  raise ValueError(
    f'benchmarks = {name!r}: must be among {there} of {data_dir}; put its '
    f'problems into {path}, each line an object with the strings id, problem '
    f'and answer, or make a dataset of that name, split {_SPLIT!r}, with '
    'scripts/prepare_data.py'
  )


def _lines(
  benchmark: Benchmark,
  places: Sequence[tuple[int, int]],
  batch: int,
  generated: tuple[np.ndarray, np.ndarray, np.ndarray],
  tokenizer: tokenizer_lib.Tokenizer,
  judge_fn: JudgeTextsFn,
) -> list[dict[str, Any]]:
  """Returns a line for each place: the index of a problem, and which of n.

  The rows of the batch beyond the places only fill it.
  """
  responses, lengths, is_finished = generated
  texts = []
  for row in range(len(places)):
    # Without the token that ends it, special or not.
    end = int(lengths[row]) - int(is_finished[row])
    texts.append(tokenizer.decode(responses[row, :end], skip_special=True))
  problems = [benchmark.problems[index] for index, _ in places]
  verdicts = judge_fn(texts, [problem.answer for problem in problems])
  return [
    {
      'problem': problems[row].id,
      'sample': which,
      'batch': batch,
      'status': verdicts[row].status,
      'answer': verdicts[row].answer,
      'reference': problems[row].answer,
      'prompt_tokens': int(benchmark.table.lengths[index]),
      'length': int(lengths[row]),
      'is_finished': bool(is_finished[row]),
      'response': texts[row],
    }
    for row, (index, which) in enumerate(places)
  ]


def _read(
  benchmark: Benchmark,
  path: pathlib.Path,
  num_samples: int,
  batch_size: int,
) -> tuple[list[dict[str, Any]], int]:
  """Returns the lines of the whole batches at the start, and their bytes.

  Ignores a line that is torn or damaged and all lines after it.
  """
  lines, ends = [], [0]
  num_rows = len(benchmark.problems) * num_samples
  if path.exists():
    with open(path, 'rb') as file:
      for number, raw in enumerate(file):
        line = _parse(raw)
        if line is None:
          break
        place = (line['problem'], line['sample'])
        index, which = divmod(number, num_samples)
        if number >= num_rows or place != (benchmark.problems[index].id, which):
          raise ValueError(
            f'problem, sample of {path}:{number + 1} = {place}: must be those '
            'of this evaluation'
          )
        lines.append(line)
        ends.append(ends[-1] + len(raw))
  if len(lines) < num_rows:
    del lines[len(lines) // batch_size * batch_size :]
  return lines, ends[len(lines)]


def _parse(raw: bytes) -> dict[str, Any] | None:
  """Returns the line; None if it is torn or damaged."""
  try:
    line = json_files.parse(raw) if raw.endswith(b'\n') else None
  except ValueError:
    return None
  is_whole = isinstance(line, dict) and all(name in line for name in _FIELDS)
  return line if is_whole else None
