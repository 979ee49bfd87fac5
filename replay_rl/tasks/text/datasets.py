"""Problem sets as TFDS datasets, without TensorFlow.

The files are array_record, which `grain` reads by index. `tfds.load`,
`as_dataset` and tfrecord files need TensorFlow, so this module uses none of
them.
"""

import contextlib
import pathlib
import re
import tempfile
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from replay_rl.tasks.text import problems as problems_lib

try:
  import array_record.python.array_record_module  # noqa: F401  tfds hides it.
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import registered
  from tensorflow_datasets.text.gsm8k import gsm8k
except ImportError as error:
  raise ImportError(
    "package = 'tensorflow_datasets': must be installed; pip install -e "
    "'.[math]' (its array_record is for Linux and for Macs with Apple silicon)"
  ) from error

VERSION = '1.0.0'
# Text of each field, in UTF-8; both layouts store it so.
Row = Mapping[str, bytes]


# Neither builder is for `tfds.load`, which would find it by name.
with registered.skip_registration():

  class _Problems(tfds.core.GeneratorBasedBuilder):
    # Stores `{id, problem, answer}` in the order given; one config per set.
    name = 'problems'
    VERSION = tfds.core.Version(VERSION)
    # tfds would look for checksums of downloads beside this file.
    url_infos = None

    def __init__(
      self, splits: Mapping[str, Sequence[problems_lib.Problem]], **kwargs: Any
    ):
      self._splits = splits
      super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
      fields = problems_lib.Problem._fields
      return tfds.core.DatasetInfo(
        builder=self,
        description='Problems with answers, made from JSON Lines.',
        features=tfds.features.FeaturesDict(
          {name: tfds.features.Text() for name in fields}
        ),
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
      return {
        name: self._generate_examples(split)
        for name, split in self._splits.items()
      }

    def _generate_examples(
      self, split: Sequence[problems_lib.Problem]
    ) -> Iterator[tuple[int, dict[str, str]]]:
      for index, problem in enumerate(split):
        yield index, problem._asdict()

  class _LocalGsm8k(gsm8k.Gsm8k):
    # The official builder downloads four files; this one reads the two that are
    # given.
    name = 'gsm8k'
    url_infos = None

    def __init__(self, files: Mapping[str, pathlib.Path], **kwargs: Any):
      self._files = files
      super().__init__(**kwargs)

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
      return {
        name: self._generate_examples(path)
        for name, path in self._files.items()
      }


def prepare(
  splits: Mapping[str, Sequence[problems_lib.Problem]],
  *,
  name: str,
  out: str | pathlib.Path,
) -> pathlib.Path:
  """Writes problem sets as one dataset, in the order given.

  Args:
    splits: problems by the name of their split, such as 'train' or 'test'.
    name: of the dataset: lower-case letters, digits and underscores.
    out: folder of datasets.

  Returns:
    `out`/problems/`name`/`VERSION`, the folder of the dataset.
    `tfds.data_source('problems/NAME', data_dir=out)` finds it too.

  Raises:
    ValueError: a name is not as above, a split is empty, or the folder exists.
  """
  for kind, text in (('name', name), *(('split', split) for split in splits)):
    if not re.fullmatch(r'[a-z][a-z0-9_]*', text):
      raise ValueError(
        f'{kind} = {text!r}: must be lower-case letters, digits and '
        'underscores, a letter first'
      )
  empty = [split for split, problems in splits.items() if not problems]
  if empty or not splits:
    raise ValueError(
      f'empty splits = {empty}: must be none, of at least one split'
    )
  config = tfds.core.BuilderConfig(name=name)
  return _write(
    _Problems(
      splits, config=config, data_dir=str(out), file_format='array_record'
    )
  )


def prepare_gsm8k(
  files: Mapping[str, str | pathlib.Path], *, out: str | pathlib.Path
) -> pathlib.Path:
  """Writes GSM8K as the official `gsm8k` builder of TFDS does.

  That builder orders rows by a hash and keeps no ids.

  Args:
    files: the original JSON Lines, plain or .gz, by split: 'train' and 'test'.
    out: folder of datasets.

  Returns:
    The folder of the dataset in `out`; `tfds.data_source('gsm8k',
    data_dir=out)` finds it too.

  Raises:
    ValueError: a file is missing, a line is broken, or the folder exists.
  """
  for split, path in files.items():
    # The official builder would name no line, or would not fail at all.
    problems_lib.read(path, source=split, allowed=frozenset())
  with tempfile.TemporaryDirectory() as folder:
    # That builder reads plain files, and no blank line.
    plain = {split: pathlib.Path(folder) / f'{split}.jsonl' for split in files}
    for split, path in files.items():
      plain[split].write_bytes(b'\n'.join(problems_lib.lines(path)))
    return _write(
      _LocalGsm8k(plain, data_dir=str(out), file_format='array_record')
    )


def source(folder: str | pathlib.Path, *, split: str) -> Sequence[Row]:
  """Returns the rows of a dataset, for `grain.MapDataset.source`.

  Args:
    folder: what `prepare` or `prepare_gsm8k` returned.
    split: such as 'train'.

  Raises:
    ValueError: the folder holds no dataset in array_record files, or a damaged
      one, or no such split.
  """
  folder = pathlib.Path(folder)
  if not (folder / 'dataset_info.json').is_file():
    raise ValueError(
      f'folder = {str(folder)!r}: must hold a dataset that '
      'scripts/prepare_data.py made'
    )
  with _refusing(folder):
    # tfds hides the signatures of its methods from type checkers.
    builder: Any = tfds.builder_from_directory(folder)
  file_format = builder.info.file_format
  if file_format != tfds.core.FileFormat.ARRAY_RECORD:
    raise ValueError(
      f'file_format = {file_format}: must be array_record in {folder}, because '
      'the others need TensorFlow'
    )
  if split not in builder.info.splits:
    raise ValueError(
      f'split = {split!r}: must be one of {sorted(builder.info.splits)}'
    )
  with _refusing(folder):
    return builder.as_data_source(split=split)


def read(
  folder: str | pathlib.Path, *, split: str
) -> list[problems_lib.Problem]:
  """Returns the problems of a dataset, as text.

  Rows of the official GSM8K have no ids. They get 'tfds-gsm8k-train-00000' and
  so on, in the order of the dataset, which is not the order of the original
  file.

  Raises:
    ValueError: as `source`, or the rows have another layout.
  """
  rows, result = source(folder, split=split), []
  with _refusing(folder):
    texts = [
      {name: value.decode() for name, value in row.items()} for row in rows
    ]
  for index, text in enumerate(texts):
    if set(text) == set(problems_lib.Problem._fields):
      result.append(problems_lib.Problem(**text))
    elif {'question', 'short_answer'} <= set(text):
      result.append(
        problems_lib.Problem(
          f'tfds-gsm8k-{split}-{index:05d}',
          text['question'].strip(),
          text['short_answer'].strip().replace(',', ''),
        )
      )
    else:
      raise ValueError(
        f'fields = {sorted(text)}: must be id, problem and answer, or those of '
        f'gsm8k, in {folder}'
      )
  return result


@contextlib.contextmanager
def _refusing(folder: str | pathlib.Path) -> Iterator[None]:
  """Turns what tfds raises for a damaged dataset into a ValueError."""
  try:
    yield
  except Exception as error:  # There are many kinds, of several libraries.
    reason = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise ValueError(
      f'folder = {str(folder)!r}: must hold a whole dataset ({reason:.200}); '
      'delete it, and make it again with scripts/prepare_data.py'
    ) from error


def _write(builder: tfds.core.DatasetBuilder) -> pathlib.Path:
  folder = pathlib.Path(builder.data_dir)
  if folder.exists():
    # tfds would keep it, although it may hold something else.
    raise ValueError(f'folder = {str(folder)!r}: must not exist')
  config = tfds.download.DownloadConfig(try_download_gcs=False)
  builder.download_and_prepare(
    # tfds makes this folder even if it downloads nothing.
    download_dir=folder.parent / 'downloads',
    download_config=config,
  )
  return folder
