#!/usr/bin/env bash
# A short part of the tests with each further Python of setup.py: all modules
# are imported, the tests of the buffer, and a run of two iterations.
#
# Usage: bash scripts/other_pythons.sh
# Each Python has an environment of its own, such as .venv-3.12, with the
# versions of constraints.txt. At the end stands which Python passed, failed or
# was not found; the status is 1 if one failed. A Python is found as python3.12
# on the path, also where pyenv has it installed and not chosen.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# Prints the version of an interpreter, such as 3.12; fails if there is none.
version_of() {
  "$@" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Makes the environment of one Python, in a shell of its own so that the first
# error ends it.
install() {
  set -euo pipefail
  VENV=.venv-$1 PYTHON=python$1 install_extras math
  # The extra `test` has much that these tests do not need.
  ".venv-$1/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt pytest hypothesis
}

tests=(
  tests/imports_test.py
  tests/replay/buffer_test.py
  tests/train_test.py::ConfigsTest::test_every_config_runs_through_main1
)
export JAX_PLATFORMS=cpu
export PIP_NO_COMPILE=1  # Python compiles the few modules that it imports.
tried=$(version_of .venv/bin/python || true)
passed='' failed='' missing='' running=''
versions=$(sed -n "s/.*'Programming Language :: Python :: \(3\.[0-9]*\)'.*/\1/p" setup.py)
for version in $versions; do
  [ "$version" != "$tried" ] || continue
  # pyenv has a command for each of its Pythons, and runs the one named here.
  export PYENV_VERSION=$version
  if [ "$(version_of "python$version")" != "$version" ]; then
    missing+=" $version"
    continue
  fi
  say "Python $version"
  # Under `if`, the first error would not end `install`.
  set +e
  (install "$version")
  status=$?
  set -e
  if [ "$status" -ne 0 ]; then
    failed+=" $version"
    continue
  fi
  # They run while the next environment is made.
  ".venv-$version/bin/python" -m pytest -q "${tests[@]}" \
    >".venv-$version/tests.log" 2>&1 &
  running+=" $version:$!"
done
for each in $running; do
  version=${each%:*} status=0
  wait "${each#*:}" || status=$?
  say "Tests with Python $version"
  cat ".venv-$version/tests.log"
  if [ "$status" -eq 0 ]; then passed+=" $version"; else failed+=" $version"; fi
done
say "Other Pythons: passed:${passed:- none}; failed:${failed:- none}; not found:${missing:- none}"
[ -z "$failed" ]
