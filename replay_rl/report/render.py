"""From run folders to a folder with the page, the table and the figures."""

import pathlib

import numpy as np

from replay_rl.report import export
from replay_rl.report import figures
from replay_rl.report import page
from replay_rl.report import runs
from replay_rl.report import samples
from replay_rl.report import samples_page
from replay_rl.report import table


def render(
  run_dirs: list[str],
  out_dir: str,
  *,
  thresholds: tuple[float, ...],
  smooth: int,
  baseline: str | None,
  max_samples: int,
) -> table.Table:
  """Writes index.html, table.json, table.csv and one PNG per figure.

  Where a run has samples, samples.html too, with a link to it. The same runs
  give the same bytes.

  Args:
    run_dirs: folders written by the trainer, one per arm.
    out_dir: where to write; made if it does not exist.
    thresholds: rewards to reach.
    smooth: iterations of the trailing mean of reward and entropy.
    baseline: name of the arm to compare with; None takes the first.
    max_samples: how many samples of each run to show.

  Returns:
    The table.

  Raises:
    ValueError: if a run folder or an argument is wrong.
  """
  is_increasing = list(thresholds) == sorted(set(thresholds))
  if not thresholds or not is_increasing or not np.isfinite(thresholds).all():
    raise ValueError(
      f'thresholds = {thresholds}, must be one or more increasing numbers.'
    )
  arms = runs.read_all(run_dirs)
  replayed = [
    samples.read(folder, arm=run.name, max_samples=max_samples)
    for folder, run in zip(run_dirs, arms, strict=True)
  ]
  baseline = arms[0].name if baseline is None else baseline
  results = table.make(
    arms, baseline=baseline, thresholds=thresholds, window=smooth
  )
  drawn = figures.make(
    arms, baseline=baseline, thresholds=thresholds, window=smooth
  )
  out = pathlib.Path(out_dir)
  out.mkdir(parents=True, exist_ok=True)
  for figure in drawn:
    (out / f'{figure.name}.png').write_bytes(figure.png)
  (out / 'table.json').write_text(export.to_json(results), 'utf-8')
  (out / 'table.csv').write_text(export.to_csv(results), 'utf-8')
  link = None
  if any(arm.kept for arm in replayed):
    link = 'samples.html'
    (out / link).write_text(samples_page.make(replayed), 'utf-8')
  index = page.make(arms, results, drawn, samples=link)
  (out / 'index.html').write_text(index, 'utf-8')
  return results
