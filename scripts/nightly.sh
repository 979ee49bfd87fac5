#!/usr/bin/env bash
# What is too slow for every change: other Pythons, kills, many saves, random
# configs, answers.
#
# Usage: bash scripts/nightly.sh [--data=FOLDER]
#   --data=FOLDER  with gsm8k and its answers; then also kills during rollouts
#                  in text (configs/gsm8k_tiny.py has to find its data, too) and
#                  the verifier on 1,000 hostile and 14,000 real answers
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

data=
case ${1:-} in
  '') ;;
  --data=*) data=${1#--data=} ;;
  *)
    echo "error: argument = '$1': must be --data=FOLDER" >&2
    exit 2
    ;;
esac
install_extras test
export JAX_PLATFORMS=cpu
cases='start-up,warm start,writing,last iteration,two processes'
if [ -n "$data" ]; then
  cases+=',rollouts in text'
fi
say "Other Pythons"
bash scripts/other_pythons.sh
say "Kills"
"$VENV/bin/python" experiments/edges/kills.py --cases="$cases"
say "Kills of a sweep"
PYTHONPATH=. "$VENV/bin/python" experiments/replay_study/kill_sweep.py
say "Saves"
"$VENV/bin/python" experiments/edges/many_saves.py --saves=5000
say "Random configs"
PYTHONPATH=. "$VENV/bin/python" experiments/edges/fuzz.py --configs=2000
if [ -n "$data" ]; then
  say "Answers"
  "$VENV/bin/python" experiments/verifier/hostile.py
  "$VENV/bin/python" experiments/verifier/verifier.py --data="$data"
fi
