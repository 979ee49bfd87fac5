#!/usr/bin/env bash
# Compiles the published-model configs for slices of v5e, and writes beside this
# file what was printed and the same as JSON. Usage: bash compile_check.sh [NAME]
# NAME: gsm8k_qwen3_0_6b, buffer_on_host or math_qwen2_5_7b; all by default.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

check() {
  local name=$1 config=$2
  shift 2
  local status=0
  "${PYTHON:-python}" -m replay_rl.compile_check "--config=configs/$config.py" \
    "--json=$here/$name.json" "$@" >"$here/$name.txt" || status=$?
  tail -n 1 "$here/$name.txt"
  # 1 says that it does not fit, which is a result too.
  [ "$status" -le 1 ] || exit "$status"
}

four='{"data": 1, "fsdp": 4, "tensor": 1}'
sampler='--config.mesh.sampler_shape={"data": 4, "fsdp": 1, "tensor": 1}'
case "${1:-all}" in
  gsm8k_qwen3_0_6b | all)
    check gsm8k_qwen3_0_6b gsm8k_qwen3_0_6b --topology=v5e:2x2 --mesh="$four" \
      "$sampler"
    ;;&
  buffer_on_host | all)
    # Tokens and log-probabilities of 4 million rows: 43 GB.
    check buffer_on_host gsm8k_qwen3_0_6b --topology=v5e:2x2 --mesh="$four" \
      "$sampler" --config.mesh.buffer_memory=pinned_host \
      --config.replay.capacity=4194304 --config.evaluation.every=0
    ;;&
  math_qwen2_5_7b | all)
    check math_qwen2_5_7b math_qwen2_5_7b --smallest=v5e
    ;;
esac
