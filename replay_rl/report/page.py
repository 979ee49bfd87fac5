"""The report as one HTML page without scripts, other files or network."""

import base64
import html
import json
import math
import string
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import numpy as np

from replay_rl.report import bootstrap
from replay_rl.report import efficiency
from replay_rl.report import figures
from replay_rl.report import levels
from replay_rl.report import runs
from replay_rl.report import table
from replay_rl.report import words

SAMPLES = 'samples.html'  # The page of samples beside this one.
STYLE = """\
:root { color-scheme: light dark; --line: #8886; --faint: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p, ul { max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
  border-bottom: 1px solid var(--line); }
thead th { border-bottom-width: 2px; }
tbody th[colspan] { background: var(--faint); padding-left: .4rem; }
tbody th { font-weight: 600; }
small { display: block; opacity: .7; font-size: .8rem; }
figure { margin: 1.5rem 0 2.5rem; }
figure img { width: 100%; background: #fff; border-radius: 4px; }
figcaption { font-size: .9rem; max-width: 52rem; }"""

_PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<h1>$title</h1>
$link<h2>What was run</h2>
$arms
$differences
<h2>What it took to reach a level</h2>
$results
<h2>At the end</h2>
$ends
<h2>Cost and wall-clock</h2>
$cost
<h2>Figures</h2>
$figures
</body>
</html>
""")

_LINK = f'<p><a href="{SAMPLES}">Browse samples of the buffer</a></p>\n'


def make(
  arms: list[runs.Run],
  results: table.Results,
  drawn: list[figures.Figure],
  *,
  has_samples: bool,
) -> str:
  """Returns the page; the same input gives the same bytes.

  Args:
    arms: the runs, in the order of the table.
    results: their table.
    drawn: their figures, embedded as base64.
    has_samples: whether to link to the page of samples.
  """
  names = ', '.join(run.name for run in arms)
  return _PAGE.substitute(
    title=_text(f'Experience replay: {names}'),
    style=STYLE,
    link=_LINK if has_samples else '',
    arms=_arms(arms, results),
    differences=_differences(arms),
    results=_results(results),
    ends=_ends(results),
    cost=_cost(results),
    figures='\n'.join(_figure(figure) for figure in drawn),
  )


def differences(arms: list[runs.Run]) -> dict[str, list[str]]:
  """Returns the configuration fields in which the arms differ.

  Returns:
    Dotted field -> its value in each arm, as text; a dash where it is absent.
    The name of an arm is not among the fields.
  """
  flat = [_flatten(run.config) for run in arms]
  fields = sorted(set().union(*flat) - {'name'})
  values = {
    field: [config.get(field, words.UNKNOWN) for config in flat]
    for field in fields
  }
  return {field: row for field, row in values.items() if len(set(row)) > 1}


def for_script(content: Any) -> str:
  """Returns JSON in ASCII that can stand inside a script element."""
  packed = json.dumps(content, separators=(',', ':'), allow_nan=False)
  # So that no text ends the element, nor opens a comment in it.
  return packed.replace('<', r'\u003c')


def _wall_clock_sentence(arm: table.Arm, baseline: table.Arm) -> str:
  """Says, at the highest threshold known, what time an arm took."""
  pairs = list(zip(arm.milestones, baseline.milestones, strict=True))
  known = [pair for pair in pairs if pair[0].wall_clock != 'unknown']
  if not known:
    return (
      f'{arm.name}: wall-clock against the baseline is unknown (no timing, '
      'another hardware or number of seeds, or a level the baseline did not '
      'reach).'
    )
  ours, theirs = max(known, key=lambda pair: pair[0].threshold)
  seconds = ours.spent['seconds'].median
  took = f'took {seconds:.3g} s' if np.isfinite(seconds) else 'was not reached'
  sentence = (
    f'{arm.name}: level {ours.threshold:g} {took}, against '
    f'{theirs.spent["seconds"].median:.3g} s of the baseline: wall-clock '
    f'{ours.wall_clock}'
  )
  saving = ours.spent['generated_tokens'].saving
  if saving is None or not np.isfinite(saving.comparison.saving):
    return f'{sentence}.'
  is_lower = saving.comparison.saving > 0
  is_faster = ours.wall_clock == 'improved'
  joined = 'and' if is_lower == is_faster else 'although'
  moved = 'fell' if is_lower else 'did not fall'
  change = words.percent(-saving.comparison.saving)
  return f'{sentence}, {joined} generated tokens {moved} ({change}).'


def _arms(arms: list[runs.Run], results: table.Results) -> str:
  rows = [
    [
      run.name + (' (baseline)' if run.name == results.baseline else ''),
      ', '.join(map(str, run.seeds)),
      f'{run.iterations[0]} to {run.iterations[-1]}',
      run.commit,
      run.hardware,
    ]
    for run in arms
  ]
  header = ['arm', 'seeds', 'iterations', 'commit', 'hardware']
  return (
    _table(header, [_row(map(_text, row)) for row in rows])
    + f'<p>Versions: {_text(_versions(arms))}.</p>'
  )


def _versions(arms: list[runs.Run]) -> str:
  """Lists the packages once for all arms that ran with the same ones."""
  names = {}
  for run in arms:
    # A package that is not installed has the version None.
    packages = [f'{name} {v}' for name, v in run.versions.items() if v]
    names.setdefault(', '.join(packages) or 'unknown', []).append(run.name)
  if len(names) == 1:
    return next(iter(names))
  return '; '.join(f'{", ".join(names[v])}: {v}' for v in names)


def _differences(arms: list[runs.Run]) -> str:
  rows = [[field, *values] for field, values in differences(arms).items()]
  if not rows:
    return '<p>The arms have the same configuration.</p>'
  return '<p>Configuration fields in which the arms differ:</p>\n' + _table(
    ['field', *(_text(run.name) for run in arms)],
    [_row(map(_text, row)) for row in rows],
  )


def _results(results: table.Results) -> str:
  groups = []
  for index, milestone in enumerate(results.arms[0].milestones):
    groups.append(
      f'<tr><th colspan="8">level {milestone.threshold:g}</th></tr>'
    )
    groups += [_row(_result(arm, index)) for arm in results.arms]
  header = [
    'arm',
    'seeds that reached it',
    'generated tokens',
    'saving',
    'cost units',
    'saving',
    'wall-clock, s',
    'entropy, nats per token',
  ]
  counts = sorted({len(arm.seeds) for arm in results.arms})
  return (
    f'<p>{_text(results.rule.in_words())} Large numbers are medians over '
    'seeds. In these, a seed that did not reach the level counts as infinite, '
    'and so does one of the same arm that needed more than that seed had. '
    'Small numbers are those of each seed. Savings are 1 − the ratio of the '
    f'medians of arm and baseline, with a {100 * bootstrap.CONFIDENCE:.0f} % '
    f'interval in brackets: percentile bootstrap, {levels.NUM_RESAMPLES:,} '
    'resamples, seeds of both arms drawn apart, from '
    f'{levels.MIN_SEEDS} seeds on; here n = {" or ".join(map(str, counts))} '
    'seeds. p is of no saving, one-sided, after Holm for the arms at a level; '
    f'a saving is claimed below {levels.MAX_P_VALUE:g}.</p>\n'
  ) + _table(header, groups)


def _result(arm: table.Arm, index: int) -> list[str]:
  milestone = arm.milestones[index]
  cells = [_text(arm.name), f'{milestone.num_reached} of {len(arm.seeds)}']
  for name, spending in milestone.spent.items():
    per_seed = _small(map(words.amount, spending.per_seed))
    cells.append(words.amount(spending.median) + per_seed)
    if name in table.SAVED:
      cells.append(_saving(spending.saving))
  if milestone.wall_clock:
    cells[-1] += f'<small>{milestone.wall_clock}</small>'
  return [*cells, words.median(milestone.entropy)]


def _interval(ends: tuple[float, float], say: Callable[[float], str]) -> str:
  low, high = map(say, ends)
  return f' [{low},\N{NO-BREAK SPACE}{high}]'


def _saving(saving: table.Saving | None) -> str:
  if saving is None:
    return 'baseline'
  value, interval, _ = saving.comparison
  text = words.percent(value)
  if interval is not None:
    text += _interval(interval, words.percent)
  if saving.adjusted is not None:
    text += f'<small>p = {saving.adjusted:.4f}</small>'
  return text


def _ends(results: table.Results) -> str:
  rows = [
    [
      _text(arm.name),
      *(
        words.median(values) + _small(map(words.number, values))
        for key in ('reward', 'entropy', 'accuracy', 'response_length')
        for values in [getattr(arm, key)]
      ),
      *([_aes(*one) for one in arm.aes] or [''] * len(efficiency.CONSTANTS)),
      words.median(arm.replay_ratio),
      words.median(arm.replay_ratio_inserted),
      words.number(arm.seconds_per_iteration),
    ]
    for arm in results.arms
  ]
  header = [
    'arm',
    'reward',
    'entropy, nats per token',
    'accuracy',
    'tokens of a response',
    *(f'AES {constants}' for constants in efficiency.CONSTANTS),
    'realised replay ratio',
    'of inserted rollouts',
    'seconds per iteration',
  ]
  return (
    '<p>Reward, entropy, accuracy and length are means over the last '
    f'{results.rule.window:,} rollouts. AES is the accuracy-efficiency score '
    'of this accuracy and this length, as means over seeds, against '
    f'{_text(results.baseline)}, by the constants (ω, β, γ). The replay ratio '
    'is uses per generated rollout; of those that the buffer took, it is '
    'higher where others were dropped. Seconds are the median over iterations, '
    'of all seeds together, without the iterations that compile.</p>\n'
  ) + _table(header, [_row(row) for row in rows])


def _aes(score: float, ends: tuple[float, float] | None) -> str:
  return words.number(score) + (_interval(ends, words.number) if ends else '')


def timed_sentence(arm: table.Arm) -> str:
  """Says what an iteration of a timed arm took, and the mu that it makes."""
  mu = arm.timed.get('mu', math.nan)
  spent = ', '.join(
    f'{key.removesuffix("_seconds")} {words.number(value)} s'
    for key, value in arm.timed.items()
    if key.endswith('_seconds')
  )
  return (
    f'{arm.name}: μ = {words.number(mu)} measured, {arm.mu} in '
    f'the config ({spent}; medians over iterations, without those that compile)'
  )


def _cost(results: table.Results) -> str:
  mus = {arm.name: arm.mu for arm in results.arms}
  if len(set(mus.values())) == 1:
    mu = f'μ = {_text(results.arms[0].mu)} in every arm.'
  else:
    listed = ', '.join(f'{name}: {value}' for name, value in mus.items())
    mu = (
      f'μ differs between the arms ({_text(listed)}), so that their cost units '
      'do not compare.'
    )
  shares = [
    f'{arm.name}: {100 * np.median(arm.generation_flops):.0f} %'
    for arm in results.arms
    if np.isfinite(np.median(arm.generation_flops))
  ]
  flops = (
    ' Estimated share of generation in all FLOPs of these runs: '
    f'{_text(", ".join(shares))}.'
    if shares
    else ''
  )
  baseline = next(arm for arm in results.arms if arm.name == results.baseline)
  sentences = [
    f'<li>{_text(_wall_clock_sentence(arm, baseline))}</li>'
    for arm in results.arms
    if arm is not baseline
  ]
  timed = ''.join(
    f'<li>{_text(timed_sentence(arm))}.</li>'
    for arm in results.arms
    if arm.timed
  )
  return (
    '<p>Reuse saves generation and pays with training. The cost model prices '
    'an update at B + μR: training on B rollouts, and generating R of them at '
    'μ times the cost of training on one. μ is set in the configuration for '
    f'the system to be modelled. {mu}{flops}</p>\n'
    + (f'<p>Measured in these runs:</p>\n<ul>{timed}</ul>\n' if timed else '')
    + '<p>Wall-clock is the sum over iterations, compilation included, of all '
    'seeds of an arm trained together as one program. It follows generated '
    'tokens only where generation takes most of an iteration; a small model '
    'on a CPU spends little of its time there, so that fewer generated tokens '
    'need not mean less time. In these runs:</p>\n'
    f'<ul>\n{"".join(sentences) or "<li>There is one arm only.</li>"}\n</ul>'
  )


def _figure(figure: figures.Figure) -> str:
  content = base64.b64encode(figure.png).decode()
  name = _text(figure.name)
  return (
    f'<figure><img alt="{name}" src="data:image/png;base64,{content}">\n'
    f'<figcaption>{_text(figure.caption)}</figcaption></figure>'
  )


def _flatten(config: dict[str, Any], prefix: str = '') -> dict[str, str]:
  flat = {}
  for key, value in config.items():
    if isinstance(value, dict):
      flat |= _flatten(value, f'{prefix}{key}.')
    else:
      flat[f'{prefix}{key}'] = str(value)
  return flat


def _table(header: list[str], rows: list[str]) -> str:
  cells = ''.join(f'<th>{cell}</th>' for cell in header)
  body = '\n'.join(rows)
  return (
    f'<div class="wide"><table>\n<thead><tr>{cells}</tr></thead>\n'
    f'<tbody>\n{body}\n</tbody>\n</table></div>'
  )


def _row(cells: Iterable[str]) -> str:
  first, *rest = cells
  return f'<tr><th>{first}</th>{"".join(f"<td>{c}</td>" for c in rest)}</tr>'


def _small(cells: Iterable[str]) -> str:
  text = '\N{NO-BREAK SPACE}· '.join(cells)
  return f'<small>{text}</small>' if text else ''


def _text(text: str) -> str:
  return html.escape(text)
