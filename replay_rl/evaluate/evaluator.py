"""The program `python -m replay_rl.evaluate`, once its packages are there."""

import argparse
import contextlib
import functools
import json
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import rich.console
import rich.progress
from absl import logging as absl_logging

from replay_rl import base
from replay_rl import json_files
from replay_rl import rng
from replay_rl.bucket import reading
from replay_rl.evaluate import benchmark_samples
from replay_rl.evaluate import evaluation_flags
from replay_rl.evaluate import run_weights
from replay_rl.evaluate import scores
from replay_rl.evaluate import scores_table
from replay_rl.lm import architecture
from replay_rl.lm import model as model_lib
from replay_rl.lm import sampler
from replay_rl.lm import tokenizer as tokenizer_lib
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.lm.hf import config as hf_config
from replay_rl.lm.hf import layout as hf_layout
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.report import bootstrap
from replay_rl.run import logs
from replay_rl.run import placement
from replay_rl.run import state
from replay_rl.run import workdir as workdir_lib
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.text import problems as problems_lib
from replay_rl.tasks.text import prompt_stream
from replay_rl.tasks.verify import verifier

RESULTS = 'results.json'


def main(arguments: list[str] | None = None) -> int:
  """Evaluates what the flags name; returns the exit code."""
  options = evaluation_flags.parse(arguments)
  # Orbax warns that it opens the checkpoint for reading only.
  absl_logging.set_verbosity(absl_logging.ERROR)
  try:
    results = evaluate(options)
  except (ValueError, ImportError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  console = rich.console.Console()
  for table in scores_table.tables(results):
    console.print(table)
  print(options.out / RESULTS)
  return 0


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
  """Samples, judges and scores; returns what it writes to `results.json`.

  Args:
    options: from `evaluation_flags.parse`.

  Raises:
    ValueError: a flag that is not allowed, input that cannot be read, or a
      folder with an evaluation of other settings.
  """
  if (options.model is None) == (options.workdir is None):
    raise ValueError(
      f'model = {options.model!r}, workdir = {options.workdir!r}: must be one '
      'of the two, not both'
    )
  if options.workdir is None:
    return _evaluate(options, None)
  with reading.readable(
    'workdir', options.workdir, iteration=options.step
  ) as folder:
    return _evaluate(options, run_weights.read_run(folder))


def _evaluate(
  options: argparse.Namespace, run: run_weights.TrainedRun | None
) -> dict[str, Any]:
  settings, num_workers = evaluation_flags.resolve(options, run)
  tokenizer = tokenizer_lib.load(pathlib.Path(settings.tokenizer).expanduser())
  benchmarks = _benchmarks(options, settings, tokenizer)
  config = _architecture(settings, run, tokenizer)
  mesh = mesh_lib.make(settings.mesh, field='mesh')
  cache = pathlib.Path(options.cache_dir).expanduser()
  jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
  with jax.set_mesh(mesh):
    respond = _respond_fn(settings, config, tokenizer)
  versions = {
    name: benchmark_samples.fingerprints(benchmark)
    for name, benchmark in benchmarks.items()
  }
  baseline = _baseline(options, versions)
  # Outside of the mesh, since each device is written to by itself.
  params = _params(settings, run, config, mesh)
  record = settings._asdict() | {
    'weights': run_weights.fingerprint(params),
    'benchmarks': versions,
  }
  with workdir_lib.locked(options.out), jax.set_mesh(mesh):
    made_of = workdir_lib.record(
      record, functions={}, modules={}, data={}, is_in_text=True
    )
    # Each sample is judged anew, so that another version is told, not refused.
    for note in workdir_lib.claim(options.out, made_of, allow_code_change=True):
      warnings.warn(f'{note}: samples may not repeat', stacklevel=2)

    def generate(name, prompts, batch):
      rng_key = rng.stream_key(settings.eval_seed, f'benchmark/{name}')
      rows = np.arange(settings.batch_size, dtype=np.uint32)
      rollout_id = np.uint32(batch * settings.batch_size) + rows
      prompts = prompts._replace(references=None)
      return respond(params, rng_key, prompts, rollout_id)

    with verifier.Verifier(
      num_workers=num_workers,
      answer_timeout=settings.answer_timeout,
      memory_limit=settings.memory_limit,
      max_answer_chars=settings.max_answer_chars,
    ) as pool:
      for name, benchmark in benchmarks.items():
        with _progress(name, len(benchmark.problems), settings.n) as report:
          benchmark_samples.sample(
            benchmark,
            _path(options.out, name),
            num_samples=settings.n,
            batch_size=settings.batch_size,
            tokenizer=tokenizer,
            generate_fn=functools.partial(generate, name),
            judge_fn=pool.judge,
            report_fn=report,
          )
  results = _results(options, record, benchmarks, baseline)
  partial = options.out / f'{RESULTS}.partial'
  partial.write_text(json.dumps(results, indent=2, allow_nan=False) + '\n')
  partial.replace(options.out / RESULTS)
  return results


def _benchmarks(
  options: argparse.Namespace,
  settings: evaluation_flags.EvaluationSettings,
  tokenizer: tokenizer_lib.Tokenizer,
) -> dict[str, benchmark_samples.Benchmark]:
  chat = None
  if settings.chat:
    chat = prompt_stream.Chat(settings.system, settings.chat_variables)
  benchmarks = {
    name: benchmark_samples.load(
      options.data_dir,
      name,
      tokenizer,
      template=settings.template,
      chat=chat,
      max_prompt_tokens=settings.max_prompt_tokens,
    )
    for name in options.benchmarks
  }
  for name, benchmark in benchmarks.items():
    # The verifier would refuse the answer, perhaps after hours.
    problems_lib.check_answers(
      benchmark.problems, name=name, max_answer_chars=settings.max_answer_chars
    )
    if benchmark.table.bos_ids:
      note = prompt_stream.describe_bos(benchmark.table, tokenizer)
      logs.say(f'{name}: {note}')
  return benchmarks


def _architecture(
  settings: evaluation_flags.EvaluationSettings,
  run: run_weights.TrainedRun | None,
  tokenizer: tokenizer_lib.Tokenizer,
) -> architecture.TransformerConfig:
  max_context = settings.max_prompt_tokens + settings.max_new_tokens
  if run is None:
    assert settings.model is not None  # One of the two is given.
    config = hf_config.read_config(
      pathlib.Path(settings.model).expanduser(),
      max_context=max_context,
      compute_dtype=settings.compute_dtype,
    )
  else:
    config = run_weights.architecture_of(
      run.model,
      vocab_size=tokenizer.vocab_size,
      max_context=max_context,
      compute_dtype=settings.compute_dtype,
    )
  if config.vocab_size < tokenizer.vocab_size:
    raise ValueError(
      f'tokenizer = {settings.tokenizer!r}: must have at most the '
      f'{config.vocab_size} tokens of the model, has {tokenizer.vocab_size}'
    )
  return config


def _params(
  settings: evaluation_flags.EvaluationSettings,
  run: run_weights.TrainedRun | None,
  config: architecture.TransformerConfig,
  mesh: jax.sharding.Mesh,
) -> base.PyTree:
  shardings = placement.of_params(model_lib.logical_axes(config), mesh)
  if run is None:
    assert settings.model is not None
    folder = pathlib.Path(settings.model).expanduser()
    return hf.load(folder, config, shardings)
  assert settings.step is not None and settings.seed is not None
  step, seed = settings.step, settings.seed
  return run_weights.restore(
    run.folder, run.seeds, config, step=step, seed=seed, shardings=shardings
  )


def _respond_fn(
  settings: evaluation_flags.EvaluationSettings,
  config: architecture.TransformerConfig,
  tokenizer: tokenizer_lib.Tokenizer,
) -> Callable[..., tuple[base.Array, base.Array, base.Array]]:
  """Returns (params, rng_key, prompts, rollout_id) -> responses and more.

  Also the lengths of the responses, and whether each is finished.

  All benchmarks share this program, since their batches have one shape.
  """
  graphdef, _ = jax.eval_shape(
    functools.partial(model_lib.init, config, constrain_fn=mesh_lib.constrain),
    jax.random.key(0),
  )

  @jax.jit
  def respond(params, rng_key, prompts, rollout_id):
    completions = sampler.generate(
      graphdef,
      params,
      rng_key,
      *mesh_lib.split_rows((prompts, rollout_id)),
      max_new_tokens=settings.max_new_tokens,
      eos_ids=tokenizer.eos_ids,
      pad_id=tokenizer.pad_id,
      temperature=settings.temperature or None,  # At 0, greedy.
      top_k=settings.top_k,
      top_p=settings.top_p,
    )
    return completions.responses, completions.lengths, completions.is_finished

  # The sampler checks its settings, before anything is read or written.
  shape = task_lib.Shape(
    config.vocab_size,
    settings.max_prompt_tokens,
    settings.max_new_tokens,
    tokenizer.eos_ids,
    tokenizer.pad_id,
  )
  prompts = jax.eval_shape(
    lambda: state.empty_prompts(shape, settings.batch_size)
  )
  params = hf_layout.abstract_params(config)
  jax.eval_shape(respond, params, jax.random.key(0), prompts, prompts.prompt_id)
  return respond


@contextlib.contextmanager
def _progress(
  name: str, num_problems: int, num_samples: int
) -> Iterator[benchmark_samples.ProgressFn]:
  """Shows a line while a benchmark is sampled."""
  columns = (
    rich.progress.TextColumn('{task.description}'),
    rich.progress.BarColumn(bar_width=20),
    rich.progress.TextColumn('{task.fields[problems]} of'),
    rich.progress.TextColumn(f'{num_problems} problems'),
    rich.progress.MofNCompleteColumn(),
    rich.progress.TextColumn('samples {task.fields[rate]:,.0f} tokens/s'),
    rich.progress.TimeRemainingColumn(),
  )
  total = num_problems * num_samples
  done, tokens = 0, 0
  started = time.perf_counter()
  with rich.progress.Progress(*columns) as shown:
    task = shown.add_task(name, total=total, problems=0, rate=0.0)

    def report(rows, new_tokens):
      nonlocal done, tokens
      if not new_tokens and rows:
        logs.say(f'{name}: {rows} of {total} samples are done')
      done, tokens = done + rows, tokens + new_tokens
      shown.update(
        task,
        completed=done,
        problems=done // num_samples,
        rate=tokens / (time.perf_counter() - started),
      )

    yield report


def _baseline(
  options: argparse.Namespace, benchmarks: dict[str, dict[str, Any]]
) -> dict[str, Any] | None:
  """Returns the results to compare with, checked before any work is done.

  Args:
    options: the flags.
    benchmarks: name -> fingerprints; the baseline must have the same problems.
  """
  if options.baseline is None:
    return None
  path = options.baseline / RESULTS
  try:
    baseline = json_files.read_object(path, advice='run that evaluation again')
    there, here = (
      {name: version['problems'] for name, version in versions.items()}
      for versions in (baseline['settings']['benchmarks'], benchmarks)
    )
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f'baseline = {str(options.baseline)!r}: must hold the {RESULTS} of an '
      f'evaluation ({error!r})'
    ) from error
  if there != here:
    raise ValueError(
      f'baseline = {str(options.baseline)!r}: must be of the same problems '
      f'{here}, is of {there}'
    )
  return baseline


def _results(
  options: argparse.Namespace,
  record: dict[str, Any],
  benchmarks: dict[str, benchmark_samples.Benchmark],
  baseline: dict[str, Any] | None,
) -> dict[str, Any]:
  outcomes = {
    name: benchmark_samples.outcomes(
      benchmark, _path(options.out, name), num_samples=record['n']
    )
    for name, benchmark in benchmarks.items()
  }
  summary = scores.summarize(
    outcomes, statuses=verifier.STATUSES, confidence=bootstrap.CONFIDENCE
  )
  method = 'Wilson, on the effective number of problems'
  about = {'confidence': bootstrap.CONFIDENCE, 'method': method}
  results = {'settings': record, 'intervals': about} | summary
  if baseline is None:
    return results
  constants = {
    name: getattr(options, f'aes_{name}') for name in ('omega', 'beta', 'gamma')
  }
  theirs = baseline['settings']
  differing = {
    name: [value, theirs.get(name)]
    for name, value in record.items()
    if name not in _OF_THE_MODEL and value != theirs.get(name)
  }
  comparison = {
    'baseline': str(options.baseline),
    'constants': constants,
    'differing_settings': differing,
  }
  return results | {
    'comparison': comparison | scores.compare(summary, baseline, **constants)
  }


# Settings that may differ from those of the baseline without being named.
_OF_THE_MODEL = (
  'model',
  'workdir',
  'step',
  'seed',
  'weights',
  'benchmarks',
  'tokenizer',
  'mesh',
)


def _path(out: pathlib.Path, name: str) -> pathlib.Path:
  return out / f'samples-{name}.jsonl'
