"""Makes datasets of problems: checks files, compares them, writes TFDS.

From files of JSON Lines, with `{id, problem, answer}` or GSM8K's `{question,
answer}` in each line; or from a JSON array, Parquet or CSV, with any columns:

    python scripts/prepare_data.py --source=jsonl --name=math500 \\
        --input=test=math500.jsonl --out=data
    python scripts/prepare_data.py --source=parquet --name=mine --out=data \\
        --input='train=mine/train-*.parquet' \\
        --columns=problem=question,answer=label

GSM8K, downloaded, or from files of the original:

    python scripts/prepare_data.py --source=gsm8k --out=data \\
        --benchmarks=math500.jsonl,aime24.jsonl
    python scripts/prepare_data.py --source=gsm8k --out=data \\
        --input=train=train.jsonl.gz,test=test.jsonl

Prints how many lines it read, dropped and wrote, and which problems of the
benchmarks, and of one split, are in another split too. A line that is broken,
empty or double is an error, and nothing is written. Unless the source is gsm8k,
it is dropped if `--allow` names its kind. Numbers become text and a missing id
is made from the name of the set, both counted. Files but Parquet may be .gz.
scripts/README.md has the commands for published sets.
"""

import hashlib
import itertools
import pathlib
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from absl import app
from absl import flags
from absl import logging

from replay_rl.tasks.text import problems as problems_lib
from replay_rl.tasks.text import tables

_SOURCE = flags.DEFINE_enum(
  'source',
  None,
  ['gsm8k', *tables.FORMATS],
  'gsm8k: GSM8K, by the TFDS builder. Else the format of the files of any set, '
  'which keeps their order; json is an array.',
)
_INPUT = flags.DEFINE_list(
  'input',
  [],
  'Files, as SPLIT=FILE,SPLIT=FILE. Without them, --source=gsm8k downloads. '
  'With other sources FILE may be a pattern, such as x-*.parquet.',
)
_NAME = flags.DEFINE_string(
  'name', None, 'Name of the set: letters, digits, underscores. Not for gsm8k.'
)
_OUT = flags.DEFINE_string('out', None, 'Folder of datasets to write into.')
_COLUMNS = flags.DEFINE_list(
  'columns',
  [],
  'Columns that are not named id, problem and answer, as FIELD=COLUMN, such as '
  'problem=question,answer=label. Not for gsm8k.',
)
_ALLOW = flags.DEFINE_list(
  'allow',
  [],
  'Kinds of lines to drop and count, unless --source=gsm8k, of: '
  f'{", ".join(problems_lib.KINDS)}.',
)
_BENCHMARKS = flags.DEFINE_list(
  'benchmarks', [], 'Files of problems to look for in the set.'
)
_OVERLAP_WORDS = flags.DEFINE_integer(
  'overlap_words',
  13,
  'Words in a row that two problems must share to be reported as near.',
)

GSM8K_URL = (
  'https://raw.githubusercontent.com/openai/grade-school-math/master/'
  'grade_school_math/data/{split}.jsonl'
)
GSM8K_SHA256 = {
  'train': '17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465',
  'test': '3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14',
}
# Matches to print for each benchmark.
_NUM_SHOWN = 10


def prepare_gsm8k(
  files: Mapping[str, pathlib.Path],
  *,
  out: pathlib.Path,
  fetch: Callable[[str], bytes],
) -> tuple[pathlib.Path, dict[str, list[problems_lib.Problem]]]:
  """Writes GSM8K by the official builder.

  Args:
    files: the originals by split, plain or .gz; {} to download them.
    out: folder of datasets.
    fetch: returns the content of a URL.

  Returns:
    The folder written, and the problems of each split.

  Raises:
    ValueError: a line of a file is refused, or a download is not the published
      file.
  """
  # Imported here, so that --help needs no packages of the extra [math].
  from replay_rl.tasks.text import datasets

  with tempfile.TemporaryDirectory() as folder:
    files = files or _download_gsm8k(pathlib.Path(folder), fetch)
    splits = {
      name: _read(path, source=f'gsm8k-{name}') for name, path in files.items()
    }
    return datasets.prepare_gsm8k(files, out=out), splits


def prepare_files(
  files: Mapping[str, Sequence[pathlib.Path]],
  *,
  file_format: str,
  columns: Mapping[str, str],
  name: str,
  out: pathlib.Path,
  allowed: frozenset[str],
) -> tuple[pathlib.Path, dict[str, list[problems_lib.Problem]]]:
  """Writes a set from files.

  Args:
    files: by split, in order.
    file_format: one of `tables.FORMATS`.
    columns: see `tables.parse`.
    name: of the set.
    out: folder of datasets.
    allowed: the `problems.KINDS` to drop.

  Returns:
    The folder written, and the problems of each split.

  Raises:
    ValueError: a line of a file, or the name, is refused.
  """
  from replay_rl.tasks.text import datasets

  splits = {
    split: _told(
      f'{name}-{split}',
      tables.read(
        paths,
        file_format=file_format,
        columns=columns,
        source=f'{name}-{split}',
        allowed=allowed,
        drop_flag='--allow',
      ),
    )
    for split, paths in files.items()
  }
  return datasets.prepare(splits, name=name, out=out), splits


def print_overlap_of_splits(
  splits: Mapping[str, Sequence[problems_lib.Problem]], *, num_words: int
) -> None:
  """Prints which problems of each split are in a split before it too.

  Args:
    splits: problems by split.
    num_words: see `problems.overlap`.
  """
  for first, second in itertools.combinations(splits, 2):
    print_overlap(
      {first: splits[first]}, {second: splits[second]}, num_words=num_words
    )


def print_overlap(
  splits: Mapping[str, Sequence[problems_lib.Problem]],
  benchmarks: Mapping[str, Sequence[problems_lib.Problem]],
  *,
  num_words: int,
) -> None:
  """Prints which problems of the benchmarks are in each split too.

  Args:
    splits: problems by split.
    benchmarks: problems by name.
    num_words: see `problems.overlap`.
  """
  for name, benchmark in benchmarks.items():
    for split, problems in splits.items():
      shared = problems_lib.overlap(problems, benchmark, num_words=num_words)
      num_exact = sum(entry.is_exact for entry in shared)
      print(
        f'{split} holds {len(shared)} of the {len(benchmark)} problems of '
        f'{name}: {num_exact} exact, {len(shared) - num_exact} near'
      )
      for entry in shared[:_NUM_SHOWN]:
        runs = f'{entry.num_shared} runs of {num_words} words'
        kind = 'exact' if entry.is_exact else runs
        print(f'  {entry.benchmark_id} is like {entry.train_id} ({kind})')
      if len(shared) > _NUM_SHOWN:
        print(f'  and {len(shared) - _NUM_SHOWN} more')


def _read(path: pathlib.Path, *, source: str) -> list[problems_lib.Problem]:
  read = problems_lib.read(path, source=source, allowed=frozenset())
  return _told(source, read)


def _told(
  source: str, read: tuple[list[problems_lib.Problem], problems_lib.Report]
) -> list[problems_lib.Problem]:
  """Prints what became of the lines of a source; returns its problems."""
  problems, report = read
  print(f'{source}: {report.num_kept} problems in {report.num_lines} lines')
  if report.dropped:
    print(f'  dropped {problems_lib.describe(report, report.dropped)}')
  for kind, number in sorted(report.converted.items()):
    print(f'  {number} {kind}, which became text')
  return problems


def _download_gsm8k(
  folder: pathlib.Path, fetch: Callable[[str], bytes]
) -> dict[str, pathlib.Path]:
  paths = {}
  for split, expected in GSM8K_SHA256.items():
    url = GSM8K_URL.format(split=split)
    content = fetch(url)
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != expected:
      raise ValueError(f'sha256 of {url} = {sha256}: must be {expected}')
    paths[split] = folder / f'{split}.jsonl'
    paths[split].write_bytes(content)
  return paths


def _fetch(url: str) -> bytes:
  print(f'downloading {url}')
  with urllib.request.urlopen(url) as response:
    return response.read()


def _files(entries: Sequence[str]) -> dict[str, pathlib.Path]:
  files = {}
  for entry in entries:
    split, sign, path = entry.partition('=')
    if not sign or not path or split in files:
      raise ValueError(
        f'--input = {entry!r}: must be SPLIT=FILE, each split once'
      )
    files[split] = pathlib.Path(path)
  return files


def _check_flags() -> None:
  is_gsm8k = _SOURCE.value == 'gsm8k'
  if not is_gsm8k and not (_NAME.value and _INPUT.value):
    raise ValueError(
      f'--name = {_NAME.value!r}, --input = {_INPUT.value}: must be given with '
      f'--source={_SOURCE.value}'
    )
  if is_gsm8k and (_NAME.value or _ALLOW.value or _COLUMNS.value):
    raise ValueError(
      f'--name = {_NAME.value!r}, --allow = {_ALLOW.value}, --columns = '
      f'{_COLUMNS.value}: must be absent with --source=gsm8k'
    )
  if unknown := sorted(set(_ALLOW.value) - set(problems_lib.KINDS)):
    raise ValueError(
      f'--allow = {unknown}: must be among {", ".join(problems_lib.KINDS)}'
    )
  if _OVERLAP_WORDS.value < 1:
    raise ValueError(
      f'--overlap_words = {_OVERLAP_WORDS.value}: must be at least 1'
    )


def main(arguments: Sequence[str]) -> int:
  """Makes one dataset; returns the exit code."""
  try:
    if len(arguments) > 1:
      raise ValueError(
        f'arguments = {arguments[1:]}: must be flags; see --help'
      )
    _check_flags()
    out = pathlib.Path(_OUT.value)
    files = _files(_INPUT.value)
    # Benchmarks are read first: if one is refused, nothing is written.
    benchmarks = {
      path: _read(pathlib.Path(path), source=path) for path in _BENCHMARKS.value
    }
    if _SOURCE.value == 'gsm8k':
      folder, splits = prepare_gsm8k(files, out=out, fetch=_fetch)
    else:
      folder, splits = prepare_files(
        {split: tables.find(str(path)) for split, path in files.items()},
        file_format=_SOURCE.value,
        columns=tables.parse_columns(_COLUMNS.value),
        name=_NAME.value,
        out=out,
        allowed=frozenset(_ALLOW.value),
      )
    print(f'wrote {folder}')
    print_overlap_of_splits(splits, num_words=_OVERLAP_WORDS.value)
    print_overlap(splits, benchmarks, num_words=_OVERLAP_WORDS.value)
  except (ValueError, OSError, ImportError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  flags.mark_flags_as_required([_SOURCE, _OUT])
  logging.set_verbosity(logging.WARNING)
  app.run(main)
