"""Tests of the pages of the site; scripts/test.sh builds it as a whole."""

import json
import pathlib

import pytest
from absl.testing import absltest

from tests import configs_test

pytest.importorskip('mkdocs')
pytest.importorskip('griffe')

from docs import record_fields  # noqa: E402
from docs import site_pages  # noqa: E402


class SiteTest(absltest.TestCase):
  def test_fields_are_a_list_and_all_else_stays(self):
    text = (
      'A record.\n\nage: at a use: `[B]` int32,\n  in learner steps.\n'
      'is_on, is_off: both.\n\nIt ends: here.\n\nArgs:\n  age: of a slot.'
    )
    self.assertEqual(
      record_fields.as_list(text),
      'A record.\n\n- `age`: at a use: `[B]` int32,\n  in learner steps.\n'
      '- `is_on, is_off`: both.\n\nIt ends: here.\n\nArgs:\n  age: of a slot.',
    )

  def test_a_notebook_is_a_page_with_what_it_prints_and_draws(self):
    path = pathlib.Path(self.create_tempdir().full_path, 'x.ipynb')
    shown = [
      {'output_type': 'stream', 'text': ['1\n', '2\n']},
      {'output_type': 'display_data', 'data': {'image/png': 'iVBO'}},
    ]
    cells = [
      {'cell_type': 'markdown', 'source': ['# A\n', 'b']},
      {'cell_type': 'code', 'source': ['print(1)'], 'outputs': shown},
    ]
    path.write_text(json.dumps({'cells': cells}))
    self.assertEqual(
      site_pages.notebook_page(path),
      '# A\nb\n\n```python\nprint(1)\n```\n\n```text\n1\n2\n```\n\n'
      '![](data:image/png;base64,iVBO)',
    )

  def test_the_reference_has_every_module(self):
    parts = site_pages.parts()
    listed = [name for modules in parts.values() for name in modules]
    package = configs_test.ROOT / 'replay_rl'
    expected = {
      '.'.join(path.relative_to(package.parent).with_suffix('').parts)
      for path in package.rglob('*.py')
      if not path.name.startswith('__') and path.parent.name != 'configs'
    }
    self.assertCountEqual(listed, expected)
    self.assertEqual(next(iter(parts)), 'replay_rl')
    self.assertIn('replay_rl.base', parts['replay_rl'])
    self.assertIn('replay_rl.lm.hf.layout', parts['lm'])

  def test_links_to_notebooks_lead_to_their_pages(self):
    self.assertEqual(
      site_pages.on_page_markdown('[a](b/run.ipynb) and `run.ipynb`'),
      '[a](b/run.md) and `run.ipynb`',
    )


if __name__ == '__main__':
  absltest.main()
