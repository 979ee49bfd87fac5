#!/usr/bin/env bash
# Lint, types and every test. Usage: bash scripts/test.sh [PYTEST ARGUMENT ...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

install_extras test
say "Lint"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
say "Types"
.venv/bin/pyright --warnings
say "Tests"
.venv/bin/python -m pytest -q "$@"
