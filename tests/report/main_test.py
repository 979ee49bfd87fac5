"""Tests of the whole report: its files, its page and its program."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from absl.testing import parameterized

from replay_rl.report import __main__ as program
from replay_rl.report import figures
from replay_rl.report import page
from replay_rl.report import readings
from replay_rl.report import runs
from replay_rl.report import table
from tests.report import synthetic
from tests.report import trained

SLOW = [[0.1, 0.3, 0.5, 0.7, 0.9], [0.0, 0.2, 0.4, 0.6, 0.8]]
FAST = [[0.4, 0.6, 0.8, 0.8, 0.8], [0.2, 0.4, 0.6, 0.8, 0.8]]
LOW = [[0.1] * 5, [0.2] * 5]
EVIL = '<script>alert("$x & y")</script>'


class ReportTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.stdout = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
    self.stderr = self.enterContext(contextlib.redirect_stderr(io.StringIO()))

  def write(self, folder, rewards, seconds=1.0, **more):
    return synthetic.write_run(
      self.root / folder,
      synthetic.rows_of_rewards(rewards),
      seconds=[seconds] * len(rewards[0]),
      **more,
    )

  def pair(self, seconds=1.0, rewards=FAST):
    return [
      self.write('base', SLOW, config={'replay': {'capacity': 8, 'x': 1}}),
      self.write(
        'fast', rewards, seconds, config={'replay': {'capacity': 9, 'x': 1}}
      ),
    ]

  def page_of(self, folders, thresholds=(0.5,), window=20):
    """The page with plain spaces and no figures, which are slow to draw."""
    arms = runs.read_all(folders)
    results = table.make(
      arms,
      baseline=arms[0].name,
      thresholds=thresholds,
      rule=readings.choose(arms, window),
    )
    text = page.make(arms, results, [], has_samples=False)
    return text.replace('\N{NO-BREAK SPACE}', ' ')

  def test_the_same_runs_give_the_same_bytes(self):
    folders = self.pair()
    flags = ['--thresholds=.5,.95', '--window_rollouts=20']
    for out in ('one', 'two'):
      program.main([*folders, *flags, f'--out={self.root / out}'])
    names = sorted(path.name for path in (self.root / 'one').iterdir())
    self.assertEqual(
      names, ['index.html', 'reward.png', 'table.csv', 'table.json']
    )
    for name in names:
      self.assertEqual(
        (self.root / 'one' / name).read_bytes(),
        (self.root / 'two' / name).read_bytes(),
      )
    text = (self.root / 'one' / 'index.html').read_text('utf-8')
    # Self-contained: every image is embedded, nothing is linked.
    self.assertNotRegex(text, r'<script|<link|href=|https?:|url\(')
    self.assertLen(re.findall('<img ', text), 1)
    self.assertLen(re.findall('src="data:image/png;base64,iVBOR', text), 1)

  def test_the_page_shows_table_and_configuration(self):
    text = self.page_of(self.pair())
    self.assertIn('<th>base (baseline)</th><td>0, 1</td><td>0 to 4</td>', text)
    self.assertIn('<tr><th>replay.capacity</th><td>8</td><td>9</td></tr>', text)
    self.assertNotIn('replay.x', text)
    self.assertIn('<td>101<small>50 · 152</small></td>', text)
    self.assertIn('<td>+55 %</td>', text)
    self.assertIn('n = 2 seeds', text)
    self.assertIn('a centred window of 20 rollouts in every arm, since', text)

  def test_six_seeds_have_an_interval_and_a_p_value(self):
    folders = [
      self.write(name, [rewards[0]] * 6)
      for name, rewards in (('base', SLOW), ('fast', FAST), ('low', LOW))
    ]
    text = self.page_of(folders)
    self.assertIn('+75 % [+75 %, +75 %]<small>p = 0.0002</small>', text)
    self.assertIn(
      'not reached [not reached, not reached]<small>p = 1.0000</small>', text
    )

  def test_different_prices_of_generation_are_said_not_to_compare(self):
    folders = [str(self.root / name) for name in ('a', 'b')]
    for folder in folders:
      shutil.copytree(trained.folder(), folder)
    text = self.page_of(folders)
    self.assertIn('μ = 2.0 in every arm', text)
    (measured, spent), _ = re.findall(
      r'<li>[^<]*: μ = (\S+) measured, 2.0 in the config \(([^;]*); medians',
      text,
    )
    lines = trained.lines('timing.jsonl')[1:]
    mu = statistics.median(line['mu'] for line in lines)
    self.assertEqual(measured, f'{mu:.3g}')
    learning = statistics.median(line['learn_seconds'] for line in lines)
    self.assertIn(f'learn {learning:.3g} s', spent)
    header = self.root / 'b' / 'config.json'
    content = json.loads(header.read_text())
    content['config'] |= {'mu': content['config']['mu'] + 3, 'name': 'other'}
    header.write_text(json.dumps(content))
    text = self.page_of(folders)
    self.assertIn('μ differs between the arms (tiny: 2.0, other: 5.0)', text)
    self.assertIn('<tr><th>mu</th><td>2.0</td><td>5.0</td></tr>', text)

  def test_fields_absent_from_one_arm_differ(self):
    folders = [
      self.write('a', SLOW, config={'task': {'digits': 3}}),
      self.write('b', FAST),
    ]
    self.assertEqual(
      page.differences(runs.read_all(folders)), {'task.digits': ['3', '–']}
    )

  def test_versions_are_told_once_or_by_arm(self):
    folders = [self.write('a', SLOW), self.write('b', FAST)]
    self.assertIn('<p>Versions: jax 0.10.2.</p>', self.page_of(folders))
    header = self.root / 'b' / 'config.json'
    header.write_text(
      header.read_text().replace('"0.10.2"', '"0.11", "<x>": "1", "y": null')
    )
    self.assertIn(
      '<p>Versions: a: jax 0.10.2; b: jax 0.11, &lt;x&gt; 1.</p>',
      self.page_of(folders),
    )

  def test_equal_configurations_are_said_to_be_equal(self):
    folders = [self.write('a', SLOW), self.write('b', FAST)]
    self.assertIn('have the same configuration', self.page_of(folders))

  # The baseline reaches .5 after 2.25 s, the fast arm after one iteration.
  @parameterized.parameters(
    (
      FAST,
      1.0,
      'fast: level 0.5 took 1 s, against 2.25 s of the baseline: wall-clock '
      'improved, and generated tokens fell (−55 %).',
    ),
    (
      FAST,
      3.0,
      'fast: level 0.5 took 3 s, against 2.25 s of the baseline: wall-clock '
      'not improved, although generated tokens fell (−55 %).',
    ),
    (SLOW, 1.0, 'not improved, and generated tokens did not fall (+0 %).'),
    (
      LOW,
      1.0,
      'level 0.5 was not reached, against 2.25 s of the baseline: wall-clock '
      'not improved.',
    ),
  )
  def test_the_sentence_on_wall_clock_follows_from_the_data(
    self, rewards, seconds, expected
  ):
    self.assertIn(expected, self.page_of(self.pair(seconds, rewards)))

  def test_the_sentence_takes_the_highest_reward_that_is_known(self):
    folders = self.pair()
    text = self.page_of(folders, thresholds=(0.4, 0.5, 0.99))
    self.assertIn('fast: level 0.5 took', text)
    text = self.page_of(folders, thresholds=(0.95,))
    self.assertIn('fast: wall-clock against the baseline is unknown', text)

  def test_an_arm_that_did_not_reach_is_said_so(self):
    text = self.page_of(self.pair(rewards=LOW))
    self.assertIn('0 of 2', text)
    self.assertIn('not reached<small>not reached · not reached</small>', text)

  def test_text_of_a_run_is_escaped(self):
    flops = {f'ledger/{kind}_flops': 1 for kind in ('prefill', 'decode')}
    folders = [
      synthetic.write_run(
        self.root / str(mu),
        synthetic.rows_of_rewards(
          SLOW, **flops, **{'ledger/training_flops': 6}
        ),
        name=f'{EVIL}{mu}',
        hardware=EVIL,
        config={EVIL: f'{EVIL}{mu}', 'mu': mu},
      )
      for mu in (1, 2)
    ]
    arms = runs.read_all(folders)
    results = table.make(
      arms,
      baseline=arms[0].name,
      thresholds=(0.5,),
      rule=readings.choose(arms, 20),
    )
    drawn = [figures.Figure(EVIL, EVIL, b'')]
    text = page.make(arms, results, drawn, has_samples=True)
    self.assertNotIn('<script', text)
    escaped = '&lt;script&gt;alert(&quot;$x &amp; y&quot;)&lt;/script&gt;'
    self.assertIn(f'{escaped}1: 25 %, {escaped}2: 25 %', text)
    self.assertIn(f'({escaped}1: 1, {escaped}2: 2)', text)
    self.assertIn(f'<li>{escaped}2: wall-clock against the baseline', text)
    self.assertIn(f'<figcaption>{escaped}</figcaption>', text)

  def test_the_program_prints_the_table_and_the_page(self):
    out = str(self.root / 'out')
    # Markup of the terminal is text in a name.
    folders = [*self.pair(), self.write('low', LOW, name='[red]low[/red]')]
    code = program.main(
      [*folders, f'--out={out}', '--thresholds=.5,.6', '--window_rollouts=20']
    )
    self.assertEqual(code, 0)
    printed = self.stdout.getvalue()
    self.assertEndsWith(printed, f'{out}/index.html\n')
    self.assertIn('the mean over a centred window of 20 rollouts', printed)
    for expected in (
      '226',
      '101',
      '+55\N{NO-BREAK SPACE}%',
      '(0 of 2)',
      '[red]low[/red]',
    ):
      self.assertIn(expected, printed)

  @parameterized.parameters(
    (['nowhere'], "nowhere/config.json': must be a JSON object"),
    (['{a}', '--baseline=b'], "baseline = 'b': must be one of ['a']"),
    (
      ['{a}', '--window_rollouts=9'],
      'window_rollouts = 9: must be at least 10, the rollouts of an iteration '
      "of 'a', and at most 50",
    ),
    (['{a}', '--thresholds=.6,.5'], 'thresholds = (0.6, 0.5): must be incr'),
    (['{a}', '--thresholds=.5,.5'], 'thresholds = (0.5, 0.5): must be incr'),
    (['{a}', '--thresholds=.5,inf'], 'thresholds = (0.5, inf): must be incr'),
    (['{a}', '--thresholds=nan'], 'thresholds = (nan,): must be increasing'),
    (['{a}', '--out={a}/config.json'], 'File exists'),
  )
  def test_an_error_is_one_line_and_exit_code_2(self, arguments, message):
    folder = self.write('a', SLOW)
    out = self.root / 'out'
    code = program.main(
      [f'--out={out}', *(a.replace('{a}', folder) for a in arguments)]
    )
    self.assertEqual(code, 2)
    *_, line = self.stderr.getvalue().splitlines()
    self.assertStartsWith(line, 'error: ')
    self.assertIn(message, line)
    self.assertFalse(out.exists())

  def test_wrong_thresholds_are_named(self):
    with self.assertRaises(SystemExit) as stopped:
      program.main(['a', '--thresholds=.5;.6'])
    self.assertEqual(stopped.exception.code, 2)
    self.assertIn(
      "must be numbers with commas between them, not '.5;.6'",
      self.stderr.getvalue(),
    )

  def test_the_report_does_not_import_jax(self):
    command = (
      'import sys; from replay_rl.report import __main__; '
      'sys.exit("jax" in sys.modules)'
    )
    subprocess.run([sys.executable, '-c', command], check=True)
