"""A sweep as one interactive HTML page without other files or network.

The page has the evaluations of all seeds and computes costs, savings and their
intervals itself, so that the level and mu can be moved. See
`sweep_page_numbers` for the statistics, `sweep_page_view` for the drawings and
`sweep_page_start` for what is clicked.
"""

import html
import json
import math
import string
from collections.abc import Sequence
from typing import Any

from replay_rl import tolerances
from replay_rl.report import levels
from replay_rl.report import page
from replay_rl.report import sweep_data
from replay_rl.report import sweep_page_numbers
from replay_rl.report import sweep_page_start
from replay_rl.report import sweep_page_view
from replay_rl.report import sweep_saving

FILE = 'index.html'
_MAX_MU = 20.0
# Six colours for light, and for dark: Okabe and Ito's, without the yellow, and
# brighter ones. The last three are dashed too.
_COLORS = {
  'light': ('#0072b2', '#d55e00', '#009e73', '#b0578d', '#b87d00', '#3a95cf'),
  'dark': ('#4db2ee', '#ff8d42', '#2ecc9a', '#e6a3cb', '#f2b632', '#a3d8f7'),
}
_COLUMNS = {  # After the fields: name for the sort -> heading.
  'seeds': 'seeds',
  'censored': 'not reached',
  'median': 'median cost',
  '': 'each seed',
  'saving': 'saving',
  'interval': '95 % interval',
  'p': 'p, Holm',
}
_UNSORTED = ('', 'interval')

_PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
  style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<style>
$style
:root { $light }
@media (prefers-color-scheme: dark) { :root { $dark } }
body { max-width: none; margin: 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
button, input, select { font: inherit; font-size: .9rem; }
:focus-visible { outline: 2px solid Highlight; outline-offset: 1px; }
.controls { display: flex; flex-wrap: wrap; gap: .6rem 1.6rem;
  align-items: center; margin: .6rem 0; font-size: .9rem; }
.controls label { display: flex; flex-wrap: wrap; gap: .5rem;
  align-items: center; min-width: 0; }
.controls input[type=number] { width: 5rem; }
.controls input[type=range] { width: min(14rem, 50vw); }
select { max-width: min(26rem, 90vw); }
fieldset { border: 0; margin: 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .25rem; align-items: center; max-height: 7rem; overflow-y: auto; }
legend { float: left; padding: 0 .4rem 0 0; }
fieldset button, #legend button { border: 1px solid var(--line);
  border-radius: 1rem; background: none; color: inherit; padding: .1rem .6rem;
  cursor: pointer; text-align: left; overflow-wrap: anywhere; }
fieldset button[aria-pressed=true] { background: CanvasText; color: Canvas; }
#legend { display: flex; flex-wrap: wrap; gap: .3rem; font-size: .85rem; }
#legend .absent { opacity: .45; }
.figures { display: grid; gap: 0 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.figures figure { margin: .8rem 0; min-width: 0; }
.figures output { display: block; min-height: 1.4em; font-size: .8rem;
  overflow-wrap: anywhere; }
svg { display: block; max-width: 100%; }
svg text { font-size: 11px; fill: currentColor; }
button svg { display: inline-block; margin-right: .3rem; }
.grid { stroke: var(--faint); }
.zero { stroke: var(--line); }
.level { stroke: currentColor; stroke-dasharray: 3 3; opacity: .7; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.grey { stroke: currentColor; stroke-width: 1; opacity: .22; }
.line.pointed { stroke: currentColor; stroke-width: 3; pointer-events: none; }
.band { opacity: .16; }
.dot { stroke: Canvas; stroke-width: .8; }
.censored { fill: Canvas; stroke: currentColor; stroke-width: 1.3; }
td circle { fill: currentColor; opacity: .6; }
$colors
.table { overflow: auto; max-height: 85vh; }
.table thead { position: sticky; top: 0; background: Canvas; z-index: 1; }
.table th, .table td { white-space: nowrap; vertical-align: middle; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid Highlight; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
.number, th.number { text-align: right; }
.swatch { box-shadow: inset 3px 0 var(--color); padding-left: .5rem; }
details { font-size: .9rem; }
</style>
</head>
<body>
<h1>$title</h1>
<noscript><p>The figures and the table need JavaScript, which is
off.</p></noscript>
<div class="controls">
<label>level of $score
<input id="level" type="range" min="$low" max="$high" step="0.01">
<input id="level-number" type="number" min="$low" max="$high" step="any"
  aria-label="level"></label>
<label>μ <input id="mu" type="range" min="0" max="$max_mu" step="0.02">
<input id="mu-number" type="number" min="0" step="any" aria-label="mu"></label>
<label>baseline <select id="baseline">$baselines</select></label>
</div>
<div class="controls">
<label>search <input id="words" type="search"></label>
$filters
<button id="clear" type="button">Remove filters</button>
</div>
<div class="controls">
<button id="all" type="button">Draw all</button>
<button id="none" type="button">Draw none</button>
<button id="colored" type="button">Draw coloured ones only</button>
<button id="cheapest" type="button">Colour the cheapest</button>
<span id="place" role="status"></span>
</div>
<div id="legend"></div>
<div class="figures">
<figure><div id="curves"></div><output id="at-curves"></output>
<figcaption>Line: median over seeds, as far as all seeds of an arm were
evaluated; band: quartiles. Dots: where seeds reached the level, which is the
dashed line; ▷ the last evaluation of a seed that did not.</figcaption></figure>
<figure><div id="savings"></div><output id="at-savings"></output>
<figcaption>Saving against the baseline of each μ. Band: 95 % bootstrap
interval, from $min_seeds seeds on. Thin: μ = $marks; dashed: the μ chosen
above. A line ends where fewer than half of the seeds got
there.</figcaption></figure>
</div>
<div class="table" role="region" aria-label="arms" tabindex="0"><table>
<thead><tr><th>draw</th><th>colour</th>$header</tr></thead>
<tbody id="rows"></tbody>
</table></div>
<details><summary>How to read it</summary>
<p>A cost unit is the cost of training on one rollout, and generating one costs
μ of them. A seed reaches the level at the first of $num_evaluations evaluations
in a row at or above it. A seed that never does is censored, ▷: it counts as
infinitely dear, and the median stays known while fewer than half are. The
saving is 1 − the ratio of the median costs. Its interval and the p-value of no
saving, one-sided, are those of the bootstrap over seeds, not paired, in closed
form; p is adjusted for all arms of the sweep (Holm). A saving is claimed below
$max_p. Filters and colours change what is shown, and no number.</p>
</details>
<script type="application/json" id="sweep">$packed</script>
<script>$script</script>
</body>
</html>
""")


def make(sweep: sweep_data.Sweep, question: sweep_saving.Question) -> str:
  """Returns the page; the same input gives the same bytes.

  Args:
    sweep: what was measured.
    question: the level, mu and baseline that the page begins with.
  """
  columns = sweep.naming_fields()
  low, high = _range_of_scores(sweep, question.level)
  return _PAGE.substitute(
    title=html.escape(f'Sweep {sweep.path.parent.name}'),
    style=page.STYLE,
    light=_variables('light'),
    dark=_variables('dark'),
    colors='\n'.join(map(_color_rule, range(len(_COLORS['light'])))),
    score=sweep_data.GREEDY,
    low=low,
    high=high,
    max_mu=max(_MAX_MU, question.mu),
    baselines=''.join(_baselines(sweep, question)),
    filters='\n'.join(_chips(sweep, field) for field in columns),
    header=''.join(_headers(columns)),
    min_seeds=levels.MIN_SEEDS,
    marks=' and '.join(f'{mu:g}' for mu in sweep_saving.MARKED_MUS),
    num_evaluations=question.num_evaluations,
    max_p=f'{levels.MAX_P_VALUE:g}',
    packed=page.for_script(_packed(sweep, question, columns)),
    script=sweep_page_numbers.SCRIPT
    + sweep_page_view.SCRIPT
    + sweep_page_start.SCRIPT,
  )


def _packed(
  sweep: sweep_data.Sweep,
  question: sweep_saving.Question,
  columns: Sequence[str],
) -> dict[str, Any]:
  """Returns what the script reads; see `settings` in `sweep_page_numbers`."""
  return {
    'arms': [
      {
        'name': arm.name,
        'fields': {field: arm.fields[field] for field in columns},
        'seeds': [_seed(seed) for seed in arm.seeds],
      }
      for arm in sweep.arms
    ],
    'columns': columns,
    'settings': {
      'score': sweep_data.GREEDY,
      'level': question.level,
      'mu': question.mu,
      'baseline': question.baseline,
      'baselines': question.baselines,
      'numEvaluations': question.num_evaluations,
      'tolerance': tolerances.SCORE,
      'minSeeds': levels.MIN_SEEDS,
      'tail': levels.MAX_P_VALUE,
    },
    'mus': sorted({*sweep_saving.MUS, *sweep_saving.MARKED_MUS}),
    'markedMus': sweep_saving.MARKED_MUS,
  }


def _seed(seed: sweep_data.SweptSeed) -> dict[str, Any]:
  """Returns the evaluations of a seed, and what it had spent at its end."""
  at = seed.evaluated()
  return {
    'seed': seed.seed,
    'generated': [_short(x) for x in seed.generated[at]],
    'trained': [_short(x) for x in seed.trained[at]],
    'scores': [_short(x) for x in seed.scores[sweep_data.GREEDY][at]],
    'end': {
      'generated': _short(seed.generated[-1]),
      'trained': _short(seed.trained[-1]),
    },
  }


def _short(value: float) -> float | int:
  """Returns whole numbers as such, which take fewer characters."""
  return int(value) if float(value).is_integer() else float(value)


def _range_of_scores(
  sweep: sweep_data.Sweep, level: float
) -> tuple[float, float]:
  """Returns the ends of the slider: of all scores and the level, rounded."""
  scores = [
    float(score)
    for arm in sweep.arms
    for seed in arm.seeds
    for score in seed.scores[sweep_data.GREEDY][seed.evaluated()]
  ]
  low, high = min([level, *scores]), max([level, *scores])
  return math.floor(100 * low) / 100, math.ceil(100 * high) / 100


def _baselines(
  sweep: sweep_data.Sweep, question: sweep_saving.Question
) -> list[str]:
  """Returns the options of the baseline; that of the question comes first."""
  beginning = question.baselines
  cheapest = (
    f'the cheapest named {beginning}…' if beginning else 'the cheapest arm'
  )
  choices = {cheapest: (None, beginning)} | {
    arm.name: (arm.name, beginning) for arm in sweep.arms
  }
  if question.baseline is not None:
    first = {question.baseline: choices[question.baseline]}
    choices = first | choices
  return [
    _option(text, {'baseline': name, 'baselines': start})
    for text, (name, start) in choices.items()
  ]


def _option(text: str, value: dict[str, Any]) -> str:
  encoded = html.escape(json.dumps(value))
  return f'<option value="{encoded}">{html.escape(text)}</option>'


def _chips(sweep: sweep_data.Sweep, field: str) -> str:
  """Returns a button for each value of a field."""
  buttons = [
    f'<button type="button" aria-pressed="false" '
    f'data-field="{html.escape(field)}" data-value="{html.escape(value)}">'
    f'{html.escape(value or "None")}</button>'
    for value in sweep.values(field)
  ]
  legend = html.escape(sweep_data.label(field))
  return f'<fieldset><legend>{legend}</legend>\n{"".join(buttons)}\n</fieldset>'


def _headers(columns: Sequence[str]) -> list[str]:
  headings = {field: sweep_data.label(field) for field in columns} | _COLUMNS
  made = []
  for name, text in headings.items():
    side = ' class="number"' if name in _COLUMNS and name else ''
    if name in _UNSORTED:
      made.append(f'<th{side}>{html.escape(text)}</th>')
    else:
      made.append(
        f'<th{side} data-name="{html.escape(name)}" aria-sort="none">'
        f'<button type="button">{html.escape(text)}</button></th>'
      )
  return made


def _variables(scheme: str) -> str:
  return ' '.join(
    f'--c{i}: {color};' for i, color in enumerate(_COLORS[scheme])
  )


def _color_rule(index: int) -> str:
  """Returns the styles of everything that has the colour."""
  dashes = ' stroke-dasharray: 7 4;' if index >= 3 else ''
  return (
    f'.c{index} {{ --color: var(--c{index}); }}\n'
    f'.line.c{index} {{ stroke: var(--c{index});{dashes} }}\n'
    f'.band.c{index}, .dot.c{index} {{ fill: var(--c{index}); }}\n'
    f'.censored.c{index} {{ stroke: var(--c{index}); }}'
  )
