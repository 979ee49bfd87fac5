#!/usr/bin/env bash
# Trains an on-policy arm and three replay arms on a CPU and writes a report.
#
# Usage: bash scripts/quickstart.sh [--out=DIR] [--arms=A,B,...] [FLAG ...]
#   --out    folder for runs and report (default: runs/quickstart)
#   --arms   arms of configs/quickstart.py (default: all four)
#   FLAG     goes to every training, such as --config.num_seeds=1
# The same command again continues what was interrupted and skips what is done.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

out=runs/quickstart
arms=on_policy,reuse_2,reuse_4,prioritized
flags=()
for argument in "$@"; do
  case $argument in
    --out=*) out=${argument#--out=} ;;
    --arms=*) arms=${argument#--arms=} ;;
    *) flags+=("$argument") ;;
  esac
done

install_extras
folders=()
for arm in ${arms//,/ }; do
  say "Training the arm $arm"
  "$VENV/bin/python" -m replay_rl.train --config="configs/quickstart.py:$arm" \
    --workdir="$out/$arm" ${flags[@]+"${flags[@]}"}
  folders+=("$out/$arm")
done
say "Writing the report"
"$VENV/bin/python" -m replay_rl.report "${folders[@]}" --out="$out/report" \
  --thresholds=0.5,0.7,0.8
say "A demonstration: experiments/replay_study has more seeds, and intervals"
say "Done. Open $out/report/index.html"
