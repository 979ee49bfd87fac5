# The other scripts source this: it makes .venv and installs the package in it.
# shellcheck shell=bash
# Usage: install_extras [<extra>[,<extra>...]]
#   PYTHON  the interpreter that makes the environment (python3), such as
#           PYTHON=python3.12; all that setup.py names use constraints.txt
#   VENV    the folder of the environment (.venv); the launchers use .venv

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# Huge pages make training on a CPU about a fifth faster.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}

VENV=${VENV:-.venv}

say() { printf '\n== %s\n' "$*"; }

install_extras() {
  local extras=${1:-}
  local python=${PYTHON:-python3} version made_with
  local stamp=$VENV/.installed-${extras:-no-extras}
  if [ ! -x "$VENV/bin/python" ]; then
    version=$("$python" --version)
    say "Making $VENV with $version"
    "$python" -m venv "$VENV"
  elif [ -n "${PYTHON:-}" ]; then
    version=$("$python" --version) made_with=$("$VENV/bin/python" --version)
    if [ "$version" != "$made_with" ]; then
      echo "error: PYTHON = $PYTHON ($version): must be the $made_with of" \
        "$VENV; give VENV another folder, or remove $VENV" >&2
      return 2
    fi
  fi
  # pip asks the package index even if nothing is to install.
  if [ ! -f "$stamp" ] || [ setup.py -nt "$stamp" ] ||
    [ constraints.txt -nt "$stamp" ]; then
    say "Installing replay_rl${extras:+[$extras]} and its pinned dependencies"
    # setuptools warns at every editable install.
    PYTHONWARNINGS=ignore "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
      --constraint constraints.txt --editable ".${extras:+[$extras]}"
    touch "$stamp"
  fi
}
