"""The samples of all arms as one HTML page without other files or network."""

import html
import json
import string
from collections.abc import Sequence

from replay_rl.report import page
from replay_rl.report import sample_log
from replay_rl.report import samples_script

# Column -> label and unit, in the order of the table.
_COLUMNS = {
  'arm': ('arm', ''),
  'seed': ('seed', ''),
  'iteration': ('iteration', ''),
  'group_id': ('group', ''),
  'prompt': ('prompt', ''),
  'response': ('response', ''),
  'is_correct': ('verdict', ''),
  'reference': ('reference', ''),
  'reward': ('reward', ''),
  'advantage': ('advantage', ''),
  'age': ('age', 'learner steps'),
  'times_sampled': ('times sampled', 'uses so far'),
  'is_finished': ('finished', ''),
  'learner_step': ('learner step', 'updates'),
  'policy_version': ('policy version', 'learner step'),
  'prompt_id': ('prompt id', ''),
  'rollout_id': ('rollout id', ''),
}
_RANGES = (
  'iteration',
  'learner_step',
  'reward',
  'advantage',
  'age',
  'times_sampled',
  'prompt_id',
)
# Texts that many samples share are stored once.
_INTERNED = ('arm', 'prompt', 'response', 'reference')

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
body { max-width: none; margin: 1.5rem 1rem; }
button, input, select { font: inherit; font-size: .9rem; }
:focus-visible { outline: 2px solid Highlight; outline-offset: 1px; }
#filters { display: flex; flex-wrap: wrap; gap: .7rem 1.2rem;
  align-items: end; font-size: .9rem; }
fieldset { border: 0; margin: 0; padding: 0; }
legend { padding: 0; }
#filters select, #words { display: block; }
#filters :is(button, input, select) { height: 1.9rem; box-sizing: border-box; }
::placeholder { color: inherit; opacity: .7; }
#filters input[type=number] { width: 5.5rem; }
#words { width: 18rem; }
nav { display: flex; flex-wrap: wrap; gap: .6rem 1rem; align-items: center;
  position: sticky; top: 0; z-index: 1; background: Canvas;
  padding: .6rem 0; margin-top: .6rem; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid Highlight; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
th small { font-weight: 400; }
.number { text-align: right; }
.first td { border-top: 2px solid var(--line); }
.arm { max-width: 12rem; min-width: 5rem; overflow-wrap: anywhere; }
.prompt { min-width: 9rem; width: 25%; }
.response { min-width: 12rem; width: 35%; }
.reference { min-width: 11rem; width: 15%; }
td.text div { display: -webkit-box; -webkit-box-orient: vertical;
  -webkit-line-clamp: 2; overflow: hidden; overflow-wrap: anywhere; }
td.text div, pre { font: .85rem/1.45 ui-monospace, monospace; }
.texts td { padding: 0 0 1rem 2.2rem; }
h3 { font-size: .9rem; margin: .8rem 0 .2rem; }
h3 small { display: inline; font-weight: 400; }
pre { margin: 0; padding: .5rem .7rem; background: var(--faint);
  white-space: pre-wrap; overflow-wrap: anywhere; max-width: 60rem;
  max-height: 70vh; overflow-y: auto; }
.odd { border: 1px solid; border-radius: 3px; padding: 0 .15em;
  font-size: .85em; }
</style>
</head>
<body>
<p><a href="index.html">Back to the report</a></p>
<h1>$title</h1>
<p>Rollouts of the replay buffer, drawn uniformly after an iteration; the
learner need not have used them. Age is the learner step at that time less the
policy version that sampled the response, in learner steps. Reward and advantage
are those stored with the rollout. The verdict says whether the answer is right,
whatever the reward. Rollouts of one group, a visit to a prompt, stand together
below a thick line, unless the table is sorted by a column. A framed sign, such
as <span class="odd">U+0000</span>, stands for a character that cannot be
seen.</p>
$notes
<noscript><p>The samples are listed by JavaScript, which is off.</p></noscript>
<form id="filters">
$filters
<label>text in prompt, response or reference
<input id="words" data-kind="words" type="search"></label>
<button type="reset">Remove filters</button>
</form>
<nav aria-label="pages">
<button id="previous" type="button">Previous</button>
<button id="next" type="button">Next</button>
<output id="place"></output>
<label>a page <select id="size"><option>20</option>
<option selected>50</option><option>100</option></select></label>
<label><input id="open" type="checkbox"> full texts</label>
<small>Keys: n next page, p previous page, / search. A column's name sorts by
it.</small>
</nav>
<div class="wide" role="region" aria-label="samples" tabindex="0"><table>
<thead><tr><td></td>$header</tr></thead>
<tbody id="rows"></tbody>
</table></div>
<script type="application/json" id="samples">$packed</script>
<script>$script</script>
</body>
</html>
""")


def make(arms: Sequence[sample_log.ShownSamples]) -> str:
  """Returns the page; the same input gives the same bytes.

  Args:
    arms: their samples, in the order of the report.
  """
  shown = [arm for arm in arms if arm.kept]
  names = ', '.join(arm.arm for arm in shown)
  return _PAGE.substitute(
    title=html.escape(f'Samples of the buffer: {names}'),
    style=page.STYLE,
    notes='\n'.join(f'<p>{html.escape(note)}</p>' for note in _notes(arms)),
    filters='\n'.join(_filters(shown)),
    header='\n'.join(map(_header, _COLUMNS)),
    packed=_pack(shown),
    script=samples_script.SCRIPT,
  )


def _notes(arms: Sequence[sample_log.ShownSamples]) -> list[str]:
  """Says what the page does not show."""
  notes = [
    f'{arm.arm}: a random {len(arm.kept):,} of '
    f'{len(arm.kept) + arm.num_left_out:,} samples; {arm.num_left_out:,} are '
    'left out (--max_samples).'
    for arm in arms
    if arm.num_left_out
  ]
  absent = [arm.arm for arm in arms if not arm.kept and not arm.num_left_out]
  if absent:
    notes.append(f'Without samples: {", ".join(absent)}.')
  return notes


def _filters(arms: Sequence[sample_log.ShownSamples]) -> list[str]:
  seeds = sorted({sample.seed for arm in arms for sample in arm.kept})
  return [
    _choice('arm', 'arm', {arm.arm: arm.arm for arm in arms}),
    _choice('seed', 'seed', {str(seed): seed for seed in seeds}),
    _choice('is_correct', 'verdict', {'right': True, 'wrong': False}),
    _choice('is_finished', 'finished', {'yes': True, 'no': False}),
    *map(_range, _RANGES),
  ]


def _choice(name: str, label: str, values: dict[str, str | int | bool]) -> str:
  options = [
    f'<option value="{html.escape(json.dumps(value))}">{html.escape(text)}'
    '</option>'
    for text, value in values.items()
  ]
  return (
    f'<label>{label}<select name="{name}" data-kind="equal">'
    f'<option value="">any</option>{"".join(options)}</select></label>'
  )


def _range(name: str) -> str:
  label, unit = _COLUMNS[name]
  ends = [
    f'<input name="{name}" data-kind="{kind}" type="number" step="any" '
    f'placeholder="{placeholder}" aria-label="{placeholder} {label}">'
    for kind, placeholder in (('low', 'lowest'), ('high', 'highest'))
  ]
  legend = f'{label}, {unit}' if unit else label
  return f'<fieldset><legend>{legend}</legend>{ends[0]} – {ends[1]}</fieldset>'


def _header(name: str) -> str:
  label, unit = _COLUMNS[name]
  small = f'<small>{unit}</small>' if unit else ''
  return (
    f'<th data-name="{name}" aria-sort="none"><button type="button">{label}'
    f'</button>{small}</th>'
  )


def _pack(arms: Sequence[sample_log.ShownSamples]) -> str:
  places = {}

  def cell(name, value):
    if name not in _INTERNED:
      return value
    return places.setdefault(value, len(places))

  rows = [
    [cell(name, values[name]) for name in _COLUMNS]
    for arm in arms
    for values in (
      {'arm': arm.arm} | line._asdict() for line in sorted(arm.kept, key=_group)
    )
  ]
  return page.for_script(
    {
      'columns': list(_COLUMNS),
      'interned': _INTERNED,
      'rows': rows,
      'texts': list(places),
    }
  )


def _group(line: sample_log.SampleLine) -> tuple[int, int, int]:
  """Returns what puts the rollouts of a group together, in a stable sort."""
  return line.iteration, line.seed, line.group_id
