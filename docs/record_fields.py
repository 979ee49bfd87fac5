"""Shows the fields of a record as a list, for the reference.

The docstring of a record has a line `name: what it is` for each field, or for
some together. Markdown alone would run these lines into one paragraph.
"""

import re

import griffe

_FIELD = re.compile(r'[a-z]\w*(?:, [a-z]\w*)*: ')


class RecordFields(griffe.Extension):
  """Changes the docstring of each class that it is shown."""

  def on_class(self, *, cls: griffe.Class, **_: object) -> None:
    """Marks the fields of a class as the elements of a list."""
    if cls.docstring is not None:
      cls.docstring.value = as_list(cls.docstring.value)


def as_list(text: str) -> str:
  """Returns a docstring in which paragraphs of fields are Markdown lists.

  A paragraph whose first line begins with `name: ` has fields. Its other lines
  are fields too if they are not indented. The sections of Google's style begin
  with a capital, so they stay.
  """
  written = []
  for paragraph in text.split('\n\n'):
    lines = paragraph.split('\n')
    if _FIELD.match(lines[0]):
      lines = [
        f'- `{names[0][:-2]}`: {line[names.end() :]}'
        if (names := _FIELD.match(line))
        else line
        for line in lines
      ]
    written.append('\n'.join(lines))
  return '\n\n'.join(written)
