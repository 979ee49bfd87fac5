"""Answers judged per second, beside math-verify without a pool.

Usage: python benchmarks/verifier.py [--quick] [--out=FILE]

Responses are 2,000 characters of text with a boxed answer, in groups of eight
to one reference, each right (in one of two writings) or wrong (in its own way)
by halves. They are integers, fractions, or expressions that have to be parsed;
the mix has them in about the shares of the MATH benchmark, 6 : 2 : 2. Peers run
in this process, on the same responses: math-verify on the extracted answer, and
math-verify on the whole response, which also finds the answer.

Sides take turns, in rounds; a rate is the median over rounds. Rates are given
by the clock and by processor seconds, those of the workers included, which
other load on the machine disturbs less. Exits with 1 if a verdict is not as
made, or if two processor seconds judge less than 300 answers of the mix.
"""

import functools
import importlib.metadata
import json
import logging
import os
import pathlib
import random
import statistics
import sys
import time

import machine
import math_verify
from absl import app
from absl import flags

from replay_rl.tasks.verify import equality
from replay_rl.tasks.verify import extraction
from replay_rl.tasks.verify import verifier

_QUICK = flags.DEFINE_bool('quick', False, 'Fewer and smaller measurements.')
_OUT = flags.DEFINE_string(
  'out', 'benchmarks/results/verifier.json', 'Where to write the results.'
)

TARGET = 300  # Answers in two processor seconds.
SETTINGS = {
  'answer_timeout': 5.0,
  'memory_limit': 1 << 30,
  'max_answer_chars': 1000,
}
TEXT = 'So the sum of 12 and 30 is 42, and we go on with $x^2 + 1$. ' * 33
GROUP_SIZE = 8
# (reference, two writings of it, wrong), of three numbers of the group from 11
# to 99, and one of the row.
INTEGERS = [('{a}{b}', '{a}{b}', r'{a}{b}\text{{ cm}}', '{a}{row}')]
FRACTIONS = [
  (r'\frac{{{a}}}{{{b}}}', '{a}/{b}', r'\dfrac{{{a}}}{{{b}}}', '{a}/1{b}{row}'),
]
EXPRESSIONS = [
  (
    r'{a}\sqrt{{{b}}}+{c}',
    r'{c}+{a}\sqrt{{{b}}}',
    r'{c}+\sqrt{{{b}}}\cdot {a}',
    r'{a}\sqrt{{{b}}}+{row}',
  ),
  (
    r'\left( {a}, {b}, \frac{{1}}{{{c}}} \right)',
    r'({a},{b},\frac1{{{c}}})',
    r'({a}, {b}, 1/{c})',
    r'({a}, {b}, {row}\pi)',
  ),
  (
    '{a}x^2+{b}x-{c}',
    '-{c}+{b}x+{a}x^2',
    'x({a}x+{b})-{c}',
    '{a}x^2+{b}x+{row}',
  ),
  (
    r'[{a},1{b}{c})',
    r'[{a}, 1{b}{c})',
    r'[{a}.0, 1{b}{c})',
    r'[{a}, \infty)',
  ),
  (
    r'\frac{{{a}\pi}}{{{b}}}',
    r'\frac{{{a}}}{{{b}}}\pi',
    r'{a}\pi/{b}',
    r'\frac{{{a}\pi}}{{1{row}}}',
  ),
  ('{a},{b},1{c}', '1{c},{a},{b}', '{b}, {a}, 1{c}', '{a},{b},-{row}'),
]
MIXES = {
  'integers': INTEGERS,
  'fractions': FRACTIONS,
  'expressions': EXPRESSIONS,
  'mixed': INTEGERS * 18 + FRACTIONS * 6 + EXPRESSIONS,
}


def make(templates, num_rows, seed):
  """Returns responses, references and which responses are right."""
  rng = random.Random(seed)
  templates = rng.choices(templates, k=num_rows // GROUP_SIZE)
  responses, references, is_right = [], [], []
  for reference, *right, wrong in templates:
    values = dict(zip('abc', rng.sample(range(11, 100), 3), strict=True))
    for row in range(100, 100 + GROUP_SIZE):
      is_right.append(rng.random() < 0.5)
      template = rng.choice(right) if is_right[-1] else wrong
      answer = template.format(**values, row=row)
      responses.append(f'{TEXT} The answer is $\\boxed{{{answer}}}$.')
      references.append(reference.format(**values))
  return responses, references, is_right


def judge_in(pool, responses, references):
  return [v.is_correct for v in pool.judge(responses, references)]


def judge_extracted(responses, references):
  verdicts = []
  for response, reference in zip(responses, references, strict=True):
    answer, _ = extraction.extract(response)
    verdicts.append(equality.verify_parsed(answer, reference))
  return verdicts


def judge_whole(responses, references):
  return [
    math_verify.verify(
      math_verify.parse(f'\\boxed{{{reference}}}', parsing_timeout=None),
      math_verify.parse(response, parsing_timeout=None),
      timeout_seconds=None,
    )
    for response, reference in zip(responses, references, strict=True)
  ]


def processor_seconds(pids):
  """Returns those of this process and of the given ones, so far."""
  ticks = 0
  for pid in pids:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
    ticks += sum(int(field) for field in stat.split()[11:13])
  return time.process_time() + ticks / os.sysconf('SC_CLK_TCK')


def measure(mix, sides, num_rows, num_rounds):
  """Returns one row of results."""
  rates = {side: [] for side in sides}
  processor_rates = {side: [] for side in sides}
  num_wrong = {side: 0 for side in sides}
  for index in range(num_rounds):
    # New rows in each round, so that no cache has seen them.
    responses, references, is_right = make(MIXES[mix], num_rows, index)
    for side, (judge, pids) in sides.items():
      spent, started = processor_seconds(pids), time.perf_counter()
      verdicts = judge(responses, references)
      rates[side].append(num_rows / (time.perf_counter() - started))
      spent = processor_seconds(pids) - spent
      processor_rates[side].append(num_rows / spent)
      num_wrong[side] += sum(
        verdict != right
        for verdict, right in zip(verdicts, is_right, strict=True)
      )
  by_clock, by_processor = (
    {side: round(statistics.median(values[side])) for side in sides}
    for values in (rates, processor_rates)
  )
  return {
    'mix': mix,
    'per_second': by_clock,
    'per_processor_second': by_processor,
    'num_wrong': num_wrong,
    'ratios_of_pool_of_2': {
      side: round(by_clock['pool of 2'] / by_clock[side], 2)
      for side in sides
      if side.startswith('math-verify')
    },
  }


def measure_hostile(pool, num_rows):
  """Returns the rate when one answer in a hundred never ends."""
  responses, references, _ = make(MIXES['mixed'], num_rows, 99)
  for row in range(0, num_rows, 100):
    # No power tower: the verifier would recognise it.
    integral = rf'\int_1^{{{row + 2}}} \frac{{\sin x^3}}{{x^x+1}} dx'
    responses[row] = rf'\boxed{{{integral}}}'
    references[row] = '10'
  started = time.perf_counter()
  counts = verifier.count(pool.judge(responses, references))
  return {
    'per_second': round(num_rows / (time.perf_counter() - started)),
    'statuses': counts,
  }


def main(argv):
  del argv
  logging.disable(logging.CRITICAL)
  num_rows, num_rounds = (128, 2) if _QUICK.value else (512, 3)
  with (
    verifier.Verifier(num_workers=1, **SETTINGS) as one,
    verifier.Verifier(num_workers=2, **SETTINGS) as two,
  ):
    sides = {
      'pool of 1': (functools.partial(judge_in, one), one.pids()),
      'pool of 2': (functools.partial(judge_in, two), two.pids()),
      'math-verify, extracted': (judge_extracted, []),
      'math-verify, whole': (judge_whole, []),
    }
    for judge, _ in sides.values():  # Starts workers, fills caches.
      judge(*make(EXPRESSIONS, 64, -1)[:2])
    results = [measure(mix, sides, num_rows, num_rounds) for mix in MIXES]
    for row in results:
      print(json.dumps(row))
    hostile = measure_hostile(two, num_rows)
    print('hostile', json.dumps(hostile))
  checks = {
    f'at least {TARGET} of the mix in two processor seconds': (
      2 * results[-1]['per_processor_second']['pool of 2'] >= TARGET
    ),
    'every verdict as made': not any(
      row['num_wrong']['pool of 2'] for row in results
    ),
  }
  for claim, holds in checks.items():
    print(f'{"pass" if holds else "FAIL"}  {claim}')
  versions = {
    name: importlib.metadata.version(name) for name in ('math-verify', 'sympy')
  }
  machine.write_results(
    _OUT.value,
    {
      'versions': versions,
      'quick': _QUICK.value,
      'rows': num_rows,
      'settings': SETTINGS,
      'results': results,
      'hostile': hostile,
      'checks': checks,
    },
  )
  if not all(checks.values()):
    sys.exit(1)


if __name__ == '__main__':
  app.run(main)
