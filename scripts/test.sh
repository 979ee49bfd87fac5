#!/usr/bin/env bash
# Lint, types and every test. Usage: bash scripts/test.sh [--parity] [PYTEST ARGUMENT ...]
# --parity: also compares with transformers, which installs torch (6 GB).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

extras='test'
ignored=(--ignore=tests/parity)
if [ "${1:-}" = --parity ]; then
  shift
  extras=test,parity
  ignored=()
fi
install_extras "$extras"
say "Lint"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
say "Types"
.venv/bin/pyright --warnings
say "Tests"
# A process per core, at most 8, as each takes about 3 GB. An idle process takes
# tests over.
.venv/bin/python -m pytest -q -n logical --maxprocesses 8 --dist worksteal \
  "${ignored[@]}" "$@"
if [ "$extras" = test ]; then
  say "Left out: tests/parity, which bash scripts/test.sh --parity runs"
fi
