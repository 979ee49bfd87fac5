"""Chat templates: Jinja text in a model's files that turns messages into a
text.

`render` does as `apply_chat_template` of transformers, but never reads the
clock. Templates are code from elsewhere, so they run in Jinja's sandbox.
"""

import functools
import json
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from replay_rl import constants
from replay_rl.lm.hf import files as hf_files

try:
  import jinja2
  import jinja2.ext
  from jinja2 import nodes
  from jinja2 import parser as parser_lib
  from jinja2 import sandbox
except ImportError as error:
  raise ImportError(
    "package = 'jinja2': must be installed; pip install -e '.[math]'"
  ) from error

# Variables that `render` sets, and one that is never a template's own.
RESERVED = ('self', 'messages', 'add_generation_prompt')


def find(folder: pathlib.Path, config: Mapping[str, Any]) -> str | None:
  """Returns the chat template of a model folder; None if there is none.

  `chat_template.jinja` goes before the template in the configuration of the
  tokenizer. If that has several templates, the one with the name 'default'
  counts.

  Args:
    folder: the model's files.
    config: the content of `tokenizer_config.json`.

  Raises:
    ValueError: there are several templates, and none has the name 'default'; or
      a template cannot be read, or is no text.
  """
  path = folder / 'chat_template.jinja'
  if os.path.lexists(path):
    try:
      return path.read_text(encoding='utf-8')
    except (OSError, ValueError) as error:
      raise ValueError(
        f'path = {str(path)!r}: must be a file of text in UTF-8 ({error}); '
        f'{hf_files.download(folder)}'
      ) from error
  template = config.get('chat_template')
  if template is None or isinstance(template, str):
    return template
  entries = template if isinstance(template, list) else [template]
  if not all(
    isinstance(entry, dict)
    and isinstance(entry.get('name'), str)
    and isinstance(entry.get('template'), str)
    for entry in entries
  ):
    raise ValueError(
      f'chat_template = {constants.shown(template)}: must be a text, or a list '
      'of texts with names (`name`, `template`), in '
      f'{folder}/tokenizer_config.json'
    )
  by_name = {entry['name']: entry['template'] for entry in entries}
  if 'default' not in by_name:
    raise ValueError(
      f"chat_template = {sorted(by_name)}: must have one named 'default', in "
      f'{folder}/tokenizer_config.json'
    )
  return by_name['default']


def check_names(variables: Mapping[str, Any]) -> None:
  """Raises ValueError if a variable has a name of `RESERVED`."""
  if taken := sorted(set(variables) & set(RESERVED)):
    raise ValueError(
      f'chat variables = {taken}: must have other names than '
      f'{", ".join(RESERVED)}'
    )


def render(
  template: str,
  messages: Sequence[Mapping[str, Any]],
  *,
  add_generation_prompt: bool,
  variables: Mapping[str, Any],
) -> str:
  """Returns messages as one text.

  Args:
    template: Jinja text.
    messages: each with 'role' and 'content'.
    add_generation_prompt: end with the beginning of an answer.
    variables: further variables that the template reads, none of `RESERVED`. A
      template that shows the date of today needs a variable of its own (Llama
      3: `date_string`), or the function `strftime_now`, such as
      `datetime.date(2026, 1, 31).strftime`.

  Raises:
    ValueError: the template is broken, refuses the messages, computes something
      that is not defined, or asks for the date of today.
  """
  check_names(variables)
  try:
    return _compile(template).render(
      messages=messages,
      add_generation_prompt=add_generation_prompt,
      **{'tools': None, 'documents': None, **variables},
    )
  except Exception as error:  # Templates are programs, and raise anything.
    reason = ' '.join(str(error).split())
    if not isinstance(error, jinja2.TemplateError):
      reason = f'{type(error).__name__}: {reason}'
    raise ValueError(
      f'chat template = {template!r:.40}: must render ({reason})'
    ) from error


class _GenerationTag(jinja2.ext.Extension):
  # Some templates mark the text of an assistant so. The mark prints nothing.
  tags = {'generation'}

  def parse(self, parser: parser_lib.Parser) -> nodes.Node:
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    return nodes.Scope(body).set_lineno(line)


@functools.lru_cache
def _compile(template: str) -> jinja2.Template:
  environment = sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_GenerationTag, jinja2.ext.loopcontrols],
  )
  environment.filters['tojson'] = _to_json
  environment.globals['raise_exception'] = _raise_exception
  environment.globals['strftime_now'] = _strftime_now
  return environment.from_string(template)


def _to_json(
  value: Any,
  ensure_ascii: bool = False,
  indent: int | None = None,
  separators: tuple[str, str] | None = None,
  sort_keys: bool = False,
) -> str:
  # The filter of Jinja escapes HTML. Templates rely on the names and defaults
  # of transformers.
  return json.dumps(
    value,
    ensure_ascii=ensure_ascii,
    indent=indent,
    separators=separators,
    sort_keys=sort_keys,
  )


def _raise_exception(message: str) -> None:
  raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
  raise jinja2.TemplateError(
    f'it asks for the date of today ({pattern!r}), but a run must not depend '
    'on the clock; give the variable that it reads instead as one of '
    'chat_variables, such as {"date_string": "26 Jul 2024"} for Llama 3'
  )
