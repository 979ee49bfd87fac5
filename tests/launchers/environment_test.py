"""Tests of the environments that scripts make, with stand-ins for Python."""

import os
import pathlib
import re
import shutil
import subprocess

from absl.testing import absltest
from absl.testing import parameterized

from tests import install_test
from tests.launchers import fakes

# A Python of a version: it makes environments with itself, records what is
# installed, and ends its tests with a status.
_PYTHON = """#!/usr/bin/env bash
case "$*" in
  --version) echo 'Python {version}.4' ;;
  -c*) echo {version} ;;
  '-m venv '*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  '-m pip '*) echo "$0 $*" >>pip ;;
  '-m pytest '*) exit {status} ;;
  *) exit 9 ;;
esac
"""


class EnvironmentTestCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    (self.root / 'scripts').mkdir()
    for name in ('environment.sh', 'other_pythons.sh'):
      shutil.copy(fakes.ROOT / 'scripts' / name, self.root / 'scripts')
    for name in ('setup.py', 'constraints.txt'):
      shutil.copy(fakes.ROOT / name, self.root)

  def python(self, version, status=0, path=None):
    fakes.executable(
      self.root / (path or f'bin/python{version}'),
      _PYTHON.format(version=version, status=status),
    )

  def ran(self, command, **environ):
    return subprocess.run(
      ['bash', '-c', command],
      cwd=self.root,
      env={'PATH': f'{self.root}/bin:/usr/bin:/bin', **environ},
      capture_output=True,
      text=True,
    )


class InstallExtrasTest(EnvironmentTestCase):
  def install(self, **environ):
    command = 'set -e; source scripts/environment.sh; install_extras math'
    return self.ran(command, **environ)

  def test_python_and_venv_choose_the_interpreter_and_the_folder(self):
    self.python('3.12')
    done = self.install(PYTHON='python3.12', VENV='.venv-3.12')
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn('Making .venv-3.12 with Python 3.12.4', done.stdout)
    (installed,) = (self.root / 'pip').read_text().splitlines()
    self.assertStartsWith(installed, '.venv-3.12/bin/python -m pip install')
    self.assertIn('--constraint constraints.txt --editable .[math]', installed)
    # Again: nothing is to install.
    self.assertEqual(
      self.install(PYTHON='python3.12', VENV='.venv-3.12').stdout, ''
    )

  def test_an_environment_of_another_python_is_refused(self):
    self.python('3.12')
    self.python('3.13', path='.venv/bin/python')
    done = self.install(PYTHON='python3.12')
    self.assertEqual(done.returncode, 2)
    self.assertEqual(
      done.stderr,
      'error: PYTHON = python3.12 (Python 3.12.4): must be the Python 3.13.4 '
      'of .venv; give VENV another folder, or remove .venv\n',
    )
    self.assertFalse((self.root / 'pip').exists())
    # Without PYTHON, the environment that is there counts.
    self.assertEqual(self.install().returncode, 0)


class OtherPythonsTest(EnvironmentTestCase):
  def ending(self):
    # Only stand-ins, so that no other Python of this machine is found.
    for tool in ('bash', 'cat', 'sed', 'touch', 'mkdir', 'cp', 'dirname'):
      path = shutil.which(tool)
      assert path is not None
      (self.root / 'bin').mkdir(exist_ok=True)
      os.symlink(path, self.root / 'bin' / tool)
    done = self.ran('bash scripts/other_pythons.sh', PATH=f'{self.root}/bin')
    return done.returncode, done.stdout.splitlines()[-1]

  def test_it_says_which_passed_and_which_are_missing(self):
    self.python('3.11', path='.venv/bin/python')
    self.python('3.12')
    self.assertEqual(
      self.ending(),
      (0, '== Other Pythons: passed: 3.12; failed: none; not found: 3.13'),
    )
    installed = (self.root / 'pip').read_text()
    self.assertIn(' --constraint constraints.txt pytest hypothesis', installed)

  def test_a_python_that_fails_is_the_status_and_stops_no_other(self):
    self.python('3.11', path='.venv/bin/python')
    self.python('3.12', status=1)
    self.python('3.13')
    self.assertEqual(
      self.ending(),
      (1, '== Other Pythons: passed: 3.13; failed: 3.12; not found: none'),
    )

  def test_an_environment_that_cannot_be_made_is_a_failure(self):
    self.python('3.11', path='.venv/bin/python')
    self.python('3.12')
    self.python('3.13')
    (self.root / '.venv-3.12').touch()
    self.assertEqual(
      self.ending(),
      (1, '== Other Pythons: passed: 3.13; failed: 3.12; not found: none'),
    )

  def test_a_command_of_another_version_is_not_taken_for_it(self):
    self.python('3.11', path='.venv/bin/python')
    self.python('3.11', path='bin/python3.12')
    self.assertEqual(
      self.ending(),
      (0, '== Other Pythons: passed: none; failed: none; not found: 3.12 3.13'),
    )


class VersionsTest(absltest.TestCase):
  def test_pages_and_settings_name_the_same_pythons(self):
    keywords = install_test.setup_keywords()
    versions = re.findall(r':: (3\.\d+)', ' '.join(keywords['classifiers']))
    self.assertGreater(len(versions), 1)
    self.assertEqual(keywords['python_requires'], f'>={versions[0]}')
    settings = (fakes.ROOT / 'pyproject.toml').read_text()
    self.assertIn(f'pythonVersion = "{versions[0]}"', settings)
    self.assertIn(f'py{versions[0].replace(".", "")}"', settings)
    listed = f'{", ".join(versions[:-1])} and {versions[-1]}'
    for page in ('README.md', 'constraints.txt'):
      self.assertIn(f'Python {listed}', (fakes.ROOT / page).read_text(), page)

  def test_they_are_tried_every_night(self):
    self.assertIn(
      'bash scripts/other_pythons.sh\n',
      (fakes.ROOT / 'scripts/nightly.sh').read_text(),
    )


if __name__ == '__main__':
  absltest.main()
