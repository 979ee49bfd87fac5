# The other scripts source this: it makes .venv and installs the package in it.
# shellcheck shell=bash
# Usage: install_extras [<extra>[,<extra>...]]

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# Huge pages make training on a CPU about a fifth faster.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}

say() { printf '\n== %s\n' "$*"; }

install_extras() {
  local extras=${1:-}
  local stamp=.venv/.installed-${extras:-no-extras}
  if [ ! -x .venv/bin/python ]; then
    say "Making .venv with $("${PYTHON:-python3}" --version)"
    "${PYTHON:-python3}" -m venv .venv
  fi
  # pip asks the package index even if nothing is to install.
  if [ ! -f "$stamp" ] || [ setup.py -nt "$stamp" ] ||
    [ constraints.txt -nt "$stamp" ]; then
    say "Installing replay_rl${extras:+[$extras]} and its pinned dependencies"
    # setuptools warns at every editable install.
    PYTHONWARNINGS=ignore .venv/bin/python -m pip install --quiet --disable-pip-version-check \
      --constraint constraints.txt --editable ".${extras:+[$extras]}"
    touch "$stamp"
  fi
}
