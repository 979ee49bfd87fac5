"""Tests of the files about the project: they agree with the package."""

import re

import yaml
from absl.testing import absltest

import replay_rl
from tests import configs_test
from tests import install_test

ROOT = configs_test.ROOT


class ProjectFilesTest(absltest.TestCase):
  def test_the_citation_has_the_version_and_license_of_the_package(self):
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    self.assertEqual(citation['version'], replay_rl.__version__)
    self.assertEqual(
      citation['license'], install_test.setup_keywords()['license']
    )
    # What version 1.2.0 of the format requires.
    self.assertContainsSubset(
      {'cff-version', 'message', 'title', 'authors'}, citation
    )
    self.assertEqual(citation['cff-version'], '1.2.0')

  def test_the_license_is_the_one_that_is_named(self):
    text = (ROOT / 'LICENSE').read_text()
    self.assertIn('Apache License\n', text)
    self.assertIn('Version 2.0, January 2004', text)
    self.assertIn('END OF TERMS AND CONDITIONS', text)

  def test_the_changelog_begins_with_the_version_of_the_package(self):
    text = (ROOT / 'CHANGELOG.md').read_text()
    versions = re.findall(r'(?m)^## (\d[\w.]*)', text)
    self.assertEqual(versions[0], replay_rl.__version__)

  def test_what_they_say_to_touch_is_there(self):
    text = (ROOT / 'CONTRIBUTING.md').read_text()
    table = text.split('| to add |')[1].split('\n\n')[0]
    paths = re.findall(r'`([\w/]+\.py)`', table)
    self.assertGreater(len(paths), 15)
    for path in paths:
      self.assertTrue((ROOT / 'replay_rl' / path).is_file(), path)


if __name__ == '__main__':
  absltest.main()
