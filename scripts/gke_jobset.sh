#!/usr/bin/env bash
# Trains on a TPU v5e slice of 4x4 chips on GKE, as a JobSet, or runs a part of a
# sweep in one process on one host.
#
# Usage: bash scripts/gke_jobset.sh --name=NAME --image=IMAGE --config=FILE --workdir=/runs/DIR
#          --claim=CLAIM --max-crashes=N --spot|--on-demand [--dry-run] [-- FLAG OF THE TRAINING ...]
#        bash scripts/gke_jobset.sh --name=NAME --image=IMAGE --sweep=FILE --out=/runs/DIR
#          --chips=1|4|8 --claim=CLAIM --max-crashes=N --spot|--on-demand [--dry-run]
#          [-- FLAG OF THE SWEEP ...], see replay_rl/sweep/jobs.py
#   --image        built from scripts/Dockerfile
#   --workdir, --out  folder of the run or the sweep, in /runs, where the pods mount
#                  the claim
#   --chips        of the host
#   --claim        a ReadWriteMany volume claim, such as one of Filestore
#   --max-crashes  how often a crash may be followed by another start
#   --dry-run      prints the manifest and applies nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/launch.sh

flag_name='' flag_image='' flag_config='' flag_workdir='' flag_claim=''
flag_sweep='' flag_out='' flag_chips=''
flag_max_crashes='' flag_spot='' flag_on_demand='' flag_dry_run=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  set_flag "$1" 'name image config workdir sweep out chips claim max-crashes' \
    'spot on-demand dry-run'
  shift
done
[ $# -eq 0 ] || shift
require_flags name image claim max-crashes
require_count max-crashes
# The names of the pods begin with it, and have at most 63 characters.
if ! [[ $flag_name =~ ^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$ ]]; then
  fail "--name = $flag_name: must have at most 40 of a-z, 0-9 and -, a letter first and no - last"
fi
require_in_runs() {
  case $2 in
    /runs/?*) ;;
    *) fail "$1 = $2: must be in /runs, where all hosts mount the claim" ;;
  esac
}
if [ -n "$flag_sweep" ]; then
  require_flags out chips
  require_in_runs --out "$flag_out"
  [ -z "$flag_config$flag_workdir" ] ||
    fail '--config, --workdir: must not be given with --sweep'
  program=replay_rl.sweep hosts=1 domain=kubernetes.io/hostname
  case $flag_chips in
    1) topology=1x1 ;;
    4) topology=2x2 ;;
    8) topology=2x4 ;;
    *) fail "--chips = $flag_chips: must be 1, 4 or 8, the chips of a host" ;;
  esac
  arguments=("--sweep=$flag_sweep" "--out=$flag_out")
else
  require_flags config workdir
  require_in_runs --workdir "$flag_workdir"
  [ -z "$flag_out$flag_chips" ] ||
    fail '--out, --chips: must be given with --sweep'
  program=replay_rl.train hosts=4 domain=cloud.google.com/gke-nodepool
  flag_chips=4 topology=4x4
  arguments=("${many_hosts[@]}" "--config=$flag_config" "--workdir=$flag_workdir")
fi
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
(name, image, claim, max_crashes, spot, program, hosts, chips, topology, domain,
 *arguments) = sys.argv[1:]
# Kubernetes would replace $(NAME) by a variable.
arguments = [argument.replace("$(", "$$(") for argument in arguments]
values = dict(name=name, image=image, claim=claim, spot=spot,
              max_crashes=int(max_crashes), program=program, hosts=int(hosts),
              chips=int(chips), topology=topology, domain=domain,
              arguments=arguments)
template = pathlib.Path("scripts/gke_jobset.yaml").read_text(encoding="utf-8")
print(string.Template(template).substitute(
    {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}))
'
manifest=$("${PYTHON:-python3}" -c "$render" "$flag_name" "$flag_image" \
  "$flag_claim" "$flag_max_crashes" "$spot" "$program" "$hosts" "$flag_chips" \
  "$topology" "$domain" "${arguments[@]}" "$@")

if [ -n "$flag_dry_run" ]; then
  printf '# For: kubectl apply -f -\n%s\n' "$manifest"
else
  printf '%s\n' "$manifest" | kubectl apply -f -
fi
