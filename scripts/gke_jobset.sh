#!/usr/bin/env bash
# Trains on a TPU v5e slice of 4x4 chips on GKE, as a JobSet.
#
# Usage: bash scripts/gke_jobset.sh --name=NAME --image=IMAGE --config=FILE --workdir=/runs/DIR
#          --claim=CLAIM --max-crashes=N --spot|--on-demand [--dry-run] [-- FLAG OF THE TRAINING ...]
#   --image        built from scripts/Dockerfile
#   --workdir      folder of the run, in /runs, where the pods mount the claim
#   --claim        a ReadWriteMany volume claim, such as one of Filestore
#   --max-crashes  how often a crash may be followed by another start
#   --dry-run      prints the manifest and applies nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/launch.sh

flag_name='' flag_image='' flag_config='' flag_workdir='' flag_claim=''
flag_max_crashes='' flag_spot='' flag_on_demand='' flag_dry_run=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  set_flag "$1" 'name image config workdir claim max-crashes' \
    'spot on-demand dry-run'
  shift
done
[ $# -eq 0 ] || shift
require_flags name image config workdir claim max-crashes
require_count max-crashes
# The names of the pods begin with it, and have at most 63 characters.
if ! [[ $flag_name =~ ^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$ ]]; then
  fail "--name = $flag_name: must have at most 40 of a-z, 0-9 and -, a letter first and no - last"
fi
case $flag_workdir in
  /runs/?*) ;;
  *) fail "--workdir = $flag_workdir: must be in /runs, where all hosts mount the claim" ;;
esac
case $flag_spot$flag_on_demand in
  yes) ;;
  *) fail '--spot, --on-demand: exactly one must be given' ;;
esac
spot=DoesNotExist
[ -z "$flag_spot" ] || spot=Exists

# A word of the manifest that gets no value is a KeyError.
# shellcheck disable=SC2016  # The $ are Python's.
render='
import json, pathlib, string, sys
name, image, claim, max_crashes, spot, *arguments = sys.argv[1:]
# Kubernetes would replace $(NAME) by a variable.
arguments = [argument.replace("$(", "$$(") for argument in arguments]
values = dict(name=name, image=image, claim=claim, spot=spot,
              max_crashes=int(max_crashes), arguments=arguments)
template = pathlib.Path("scripts/gke_jobset.yaml").read_text(encoding="utf-8")
print(string.Template(template).substitute(
    {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}))
'
manifest=$("${PYTHON:-python3}" -c "$render" "$flag_name" "$flag_image" \
  "$flag_claim" "$flag_max_crashes" "$spot" "${many_hosts[@]}" \
  "--config=$flag_config" "--workdir=$flag_workdir" "$@")

if [ -n "$flag_dry_run" ]; then
  printf '# For: kubectl apply -f -\n%s\n' "$manifest"
else
  printf '%s\n' "$manifest" | kubectl apply -f -
fi
