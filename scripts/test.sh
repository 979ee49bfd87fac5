#!/usr/bin/env bash
# Lint, types, the tests and the documentation site.
#
# Usage: bash scripts/test.sh [--every] [--parity] [--tpu] [PYTEST ARGUMENT ...]
#   --every   also twelve long tests (_LONG of tests/conftest.py), and a run of
#             each method of configs/methods.py
#   --parity  also the comparison with transformers and trl, which installs torch (6 GB)
#   --tpu     also what the TPU compiler says, which installs libtpu (no TPU is used)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

extras='test,docs'
ignored=(--ignore=tests/parity)
while true; do
  case ${1:-} in
    --every) export REPLAY_RL_EVERY_TEST=1 ;;
    --parity)
      extras+=,parity
      ignored=()
      ;;
    --tpu) extras+=,tpu ;;
    *) break ;;
  esac
  shift
done
# With libtpu installed, JAX would look for a TPU first.
export JAX_PLATFORMS=cpu
install_extras "$extras"
say "Lint"
"$VENV/bin/ruff" check .
"$VENV/bin/ruff" format --check .
say "Types"
"$VENV/bin/pyright" --warnings
say "Documentation"
# A link that leads nowhere, or a docstring that cannot be read, is an error.
NO_MKDOCS_2_WARNING=1 "$VENV/bin/mkdocs" build --strict
say "Tests"
# A process per core, up to 8 of about 3 GB; an idle one takes over tests.
"$VENV/bin/python" -m pytest -q -n logical --maxprocesses 8 --dist worksteal \
  "${ignored[@]}" "$@"
case $extras in
  *parity*) ;;
  *) say "Left out: tests/parity, against transformers and trl; run bash scripts/test.sh --parity" ;;
esac
case $extras in
  *tpu*) ;;
  *) say "Left out: tests of the TPU compiler; run bash scripts/test.sh --tpu" ;;
esac
if [[ ${REPLAY_RL_EVERY_TEST:-} != 1 ]]; then
  say "Left out: twelve long tests, and runs of some methods; run bash scripts/test.sh --every"
fi
