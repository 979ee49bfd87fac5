r"""How long the verifier takes for 1,000 answers made to stop it.

The answers come in families: power towers, factorials, huge exponents, deep
nesting, long sums, matrices, nested functions, calculus, lists, code, control
characters and random commands. The seed makes them; each is compared with one
of a few ordinary references. The program prints, for each family, the status of
its answers and the processor seconds that they took.

Command: python experiments/verifier/hostile.py
"""

import argparse
import collections
import json
import pathlib
import random
import resource
import time
from collections.abc import Callable

import verifier as experiment

from replay_rl.tasks.verify import verifier

SETTINGS = {
  'num_workers': 1,
  'answer_timeout': 2.0,
  'memory_limit': 1 << 30,
  'max_answer_chars': 10_000,
}
REFERENCES = ('5', r'\frac{1}{2}', 'x+1', '(1,2)', 'x=5', r'\sqrt{2}', '1,2')
_COMMANDS = (
  r'\frac \sqrt \left( \right) \begin{matrix} \end{matrix} \sum \int \lim \log '
  r'\sin \cdot \times \pm \cup \cap \in \le \infty \binom \overline \text{ '
  r'{ } [ ] ( ) ^ _ ! | & , ; = < > + - * / \\ 1 2 37 999 x y n e i \pi'
).split()


def main() -> None:
  """Prints a table and writes hostile.json beside this file."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--num', type=int, default=1000, help='answers')
  arguments = parser.parse_args()
  rng = random.Random(arguments.seed)
  names = [list(FAMILIES)[i % len(FAMILIES)] for i in range(arguments.num)]
  answers = [(name, FAMILIES[name](rng)) for name in names]
  results = {}
  started, spent = time.monotonic(), _processor_seconds()
  for name in FAMILIES:
    rows = [answer for family, answer in answers if family == name]
    results[name] = measure(rows)
    print(name, json.dumps(results[name]), flush=True)
  total = collections.Counter()
  for result in results.values():
    total.update(result['statuses'])
  summary = {
    'num': arguments.num,
    'seed': arguments.seed,
    'statuses': dict(total),
    'seconds': round(time.monotonic() - started, 1),
    'processor_seconds': round(_processor_seconds() - spent, 1),
  }
  print(json.dumps(summary))
  about = experiment.about() | {'settings': SETTINGS}
  path = pathlib.Path(__file__).with_name('hostile.json')
  path.write_text(
    json.dumps(about | summary | {'families': results}, indent=1) + '\n'
  )


def measure(answers: list[str]) -> dict:
  """Returns the statuses of a family and the seconds that it took.

  Each family has a pool of its own, whose workers end with it, so that their
  processor time can be read. They are ready before the time starts.
  """
  with verifier.Verifier(**SETTINGS) as judge:
    judge.judge([r'\boxed{2x}'], ['x+x'])
    started, spent = time.monotonic(), _processor_seconds()
    verdicts = judge.judge(
      [rf'\boxed{{{answer}}}' for answer in answers],
      [REFERENCES[i % len(REFERENCES)] for i in range(len(answers))],
    )
    seconds = time.monotonic() - started
  return {
    'num': len(answers),
    'statuses': {k: n for k, n in verifier.count(verdicts).items() if n},
    'seconds': round(seconds, 1),
    'processor_seconds': round(_processor_seconds() - spent, 1),
  }


def _processor_seconds() -> float:
  usage = resource.getrusage(resource.RUSAGE_CHILDREN)
  return usage.ru_utime + usage.ru_stime


def tower(rng: random.Random) -> str:
  """Powers of powers, from 9^{9^9} on."""
  digits = [str(rng.randint(7, 99)) for _ in range(rng.randint(3, 6))]
  kind = rng.randrange(5)
  if kind == 0:
    return ''.join(f'{digit}^{{' for digit in digits) + '9' + '}' * len(digits)
  if kind == 1:
    return '**'.join(digits)
  if kind == 2:
    return '^'.join(digits)
  if kind == 3:
    return rf'\left({digits[0]}^{{{digits[1]}}}\right)^{{{digits[2]}^{{9}}}}'
  return rf'\frac{{1}}{{e^{{e^{{{digits[0]}^{{{digits[1]}}}}}}}}}+x'


def factorial(rng: random.Random) -> str:
  """Factorials of large numbers and of factorials."""
  number = 10 ** rng.randint(5, 12) + rng.randrange(10**5)
  kind = rng.randrange(5)
  if kind == 0:
    return f'{number}!'
  if kind == 1:
    return rf'\left(10^{{{rng.randint(6, 20)}}}\right)!'
  if kind == 2:
    return f'((({rng.randint(5, 40)}!)!)!)!'
  if kind == 3:
    return rf'\frac{{{number}!}}{{{number - 7}!}}'
  return rf'\binom{{{number}}}{{{number // 2}}}'


def exponent(rng: random.Random) -> str:
  """Huge exponents of numbers, of sums and of decimals."""
  number = rng.randrange(10 ** rng.randint(6, 15))
  kind = rng.randrange(6)
  if kind == 0:
    return f'{rng.randint(2, 99)}^{{{number}}}'
  if kind == 1:
    return f'10^{{-{number}}}'
  if kind == 2:
    return f'(x+{rng.randint(1, 9)})^{{{number}}}'
  if kind == 3:
    return f'1.{rng.randint(1, 99)}^{{{number}}}'
  if kind == 4:
    return rf'\frac{{{rng.randint(2, 99)}}}{{7}}^{{{number}}}'
  return rf'(1+\sqrt{{2}})^{{{number}}}'


def nested(rng: random.Random) -> str:
  """One thing in itself, up to a thousand times."""
  depth = rng.choice((12, 25, 50, 100, 300, 1000))
  start, middle, end = rng.choice(
    (
      ('(', '5', ')'),
      ('{', '5', '}'),
      (r'\left(', '5', r'\right)'),
      (r'\sqrt{', '2', '}'),
      (r'\sqrt{2+', '2', '}'),
      (r'\frac{1}{1+', 'x', '}'),
      ('|', 'x', '|'),
      (r'\{', '1', r'\}'),
      ('[', '1', ']'),
      ('-', '5', ''),
      ('x^{', '2', '}'),
      ('', 'x', '!'),
      (r'\lfloor ', 'x', r'\rfloor '),
    )
  )
  return start * depth + middle + end * depth


def long_sum(rng: random.Random) -> str:
  """Many terms, factors or letters."""
  num = rng.choice((50, 200, 600))
  kind = rng.randrange(5)
  if kind == 0:
    return '+'.join(str(rng.randint(1, 10**6)) for _ in range(num))
  if kind == 1:
    return '+'.join(rf'\sqrt{{{rng.randint(2, 999)}}}' for _ in range(num))
  if kind == 2:
    return ''.join(f'(x-{rng.randint(1, 99)})' for _ in range(num))
  if kind == 3:
    return ''.join(rng.choices('abcdexyz', k=num))
  return '+'.join(f'{rng.randint(2, 99)}x^{{{n}}}' for n in range(num))


def matrix(rng: random.Random) -> str:
  """Large matrices, and their powers and determinants."""
  size = rng.choice((5, 20, 40))
  row = '&'.join(str(rng.randint(-9, 9)) for _ in range(size))
  body = r'\begin{pmatrix}' + r'\\'.join([row] * size) + r'\end{pmatrix}'
  return rng.choice(('{}', '{}^{{1000}}', r'\det {}', '{}{}')).format(
    body, body
  )


def functions(rng: random.Random) -> str:
  """Functions of functions."""
  depth = rng.choice((3, 10, 30))
  names = (r'\sin', r'\cos', r'\tan', r'\log', r'\ln', r'\arctan', r'\exp')
  start = ''.join(f'{rng.choice(names)}(' for _ in range(depth))
  return f'{start}x+{rng.randint(1, 9)}' + ')' * depth


def calculus(rng: random.Random) -> str:
  """Integrals, sums, products and limits."""
  n = 10 ** rng.randint(2, 9)
  return rng.choice(
    (
      rf'\int_0^{{{n}}} \frac{{\sin x^3}}{{x^x+1}} dx',
      rf'\int e^{{x^{{{rng.randint(2, 9)}}}}} \tan x \, dx',
      rf'\sum_{{k=1}}^{{{n}}} \frac{{1}}{{k^k}}',
      rf'\sum_{{k=1}}^{{{n}}} k^{{{rng.randint(2, 99)}}}',
      rf'\prod_{{k=1}}^{{{n}}} (k^2+1)',
      r'\lim_{x\to 0} \frac{\sin x^{\cos x}-x}{x^{x}-1}',
      r'\frac{d}{dx} x^{x^{x^{x}}}',
    )
  )


def lists(rng: random.Random) -> str:
  """Long lists, sets, unions and chains of relations."""
  numbers = [str(rng.randint(1, 10**6)) for _ in range(rng.choice((50, 500)))]
  kind = rng.randrange(5)
  if kind == 0:
    return ','.join(numbers)
  if kind == 1:
    return r'\{' + ','.join(numbers) + r'\}'
  if kind == 2:
    return r'\cup'.join(f'({number},{number}1)' for number in numbers)
  if kind == 3:
    return '<'.join(numbers)
  return ','.join(f'x_{{{i}}}={number}' for i, number in enumerate(numbers))


def equation(rng: random.Random) -> str:
  """Equations that are hard to solve."""
  a, b = rng.randint(2, 9), rng.randint(2, 99)
  return rng.choice(
    (
      f'x^{{{a + 5}}}+y^{{{b}}}-xy={a}',
      rf'\sin(x^{{{a}}})+e^x={b}',
      f'x^{{{b}}}-{a}x+1>0',
      f'(x+y+z)^{{{b}}}',
      f'(x+y)^{{{b}}}=(x-y)^{{{a}}}',
      rf'\frac{{x^{{{b}}}-1}}{{x-1}}',
    )
  )


def code(rng: random.Random) -> str:
  """Python, and commands that TeX would run."""
  return rng.choice(
    (
      f"__import__('os').system('sleep {rng.randint(1, 99)}')",
      f'10**10**{rng.randint(5, 99)}',
      f'eval("9**9**{rng.randint(5, 99)}")',
      rf'\input{{|sleep {rng.randint(1, 99)}}}',
      f'lambda: {rng.randint(1, 99)}',
      r'\def\a{\a\a}\a',
      f'[x for x in range(10**{rng.randint(5, 99)})]',
    )
  )


def characters(rng: random.Random) -> str:
  """Characters that no answer has."""
  alphabet = rng.choice(
    ('\0\1\2\x7f', '\ud800\udfff', '\u0661\u0662\u0663', '²³¹', '\u202e5', '❄7')
  )
  return ''.join(rng.choices(alphabet + '15+', k=rng.choice((3, 30, 3000))))


def commands(rng: random.Random) -> str:
  """Random words of LaTeX."""
  return ' '.join(rng.choices(_COMMANDS, k=rng.choice((4, 10, 40))))


FAMILIES: dict[str, Callable[[random.Random], str]] = {
  family.__name__: family
  for family in (
    tower,
    factorial,
    exponent,
    nested,
    long_sum,
    matrix,
    functions,
    calculus,
    lists,
    equation,
    code,
    characters,
    commands,
  )
}


if __name__ == '__main__':
  main()
