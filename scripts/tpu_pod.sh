#!/usr/bin/env bash
# Trains on a Cloud TPU slice that is requested as a queued resource.
#
# Usage: bash scripts/tpu_pod.sh SUBCOMMAND --name=NAME --zone=ZONE --project=PROJECT [FLAG ...] [-- ...]
#   create   asks for the slice: --type=v5litepod-16 --runtime-version=VERSION
#            and one of --spot, --on-demand, --reserved;
#            --valid-until-duration=6h gives up waiting after that time
#   status   prints the state of the request
#   wait     prints each new state until it is ACTIVE; --every=S (30)
#   sync     copies this repository's current commit to all workers;
#            --allow-dirty: also the changes that are not committed
#   install  makes the environment on all workers; --extras=A,B (tpu),
#            --python=COMMAND there (python3)
#   exec     runs a command on all workers: -- COMMAND ...; --worker=W (all)
#   run      trains on all workers, in the background: --max-crashes=N
#            -- --config=FILE --workdir=DIR [FLAG OF THE TRAINING ...]
#   logs     prints the end of each worker's log; --worker=W (all),
#            --lines=N (50), --follow
#   fetch    copies the results and each worker's log here: --workdir=DIR
#            --out=DIR; --checkpoints: also the checkpoints
#   stop     saves a checkpoint and ends the training on all workers
#   delete   deletes the slice, which then costs nothing; --yes: does not ask
# All take --dry-run, which prints the commands and runs none, and
# --gcloud-flag=FLAG, which goes to each gcloud command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/launch.sh

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' scripts/tpu_pod.sh; }

# What each subcommand takes: flags with a value, then switches.
valued='name zone project gcloud-flag' switches=dry-run
case ${1:-} in
  create)
    valued+=' type runtime-version valid-until-duration'
    switches+=' spot on-demand reserved'
    ;;
  status | stop) ;;
  wait) valued+=' every' ;;
  sync) switches+=' allow-dirty' ;;
  install) valued+=' extras python' ;;
  exec) valued+=' worker' ;;
  run) valued+=' max-crashes' ;;
  logs) valued+=' worker lines' switches+=' follow' ;;
  fetch) valued+=' workdir out' switches+=' checkpoints' ;;
  delete) switches+=' yes' ;;
  -h | --help | help)
    usage
    exit
    ;;
  '') fail 'subcommand: must be given; see bash scripts/tpu_pod.sh --help' ;;
  *) fail "subcommand = $1: must be one of those of bash scripts/tpu_pod.sh --help" ;;
esac
subcommand=$1
shift

flag_name='' flag_zone='' flag_project='' flag_gcloud_flag='' flag_dry_run=''
flag_type='' flag_runtime_version='' flag_valid_until_duration=''
flag_spot='' flag_on_demand='' flag_reserved='' flag_every=30 flag_allow_dirty=''
flag_extras=tpu flag_python=python3 flag_max_crashes='' flag_worker=all
flag_lines=50 flag_follow='' flag_workdir='' flag_out='' flag_checkpoints='' flag_yes=''
place=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  set_flag "$1" "$valued" "$switches"
  case $1 in
    --gcloud-flag=*) place+=("$flag_gcloud_flag") ;;
  esac
  shift
done
if [ $# -gt 0 ]; then
  shift
  case $subcommand in
    exec | run) ;;
    *) fail "-- $1: must be absent, because $subcommand takes no command" ;;
  esac
fi
dry_run=$flag_dry_run
require_flags name zone project
place=("--zone=$flag_zone" "--project=$flag_project" ${place[@]+"${place[@]}"})

request() {
  local verb=$1
  shift
  execute gcloud compute tpus queued-resources "$verb" "$flag_name" \
    "${place[@]}" "$@"
}

# A test for the workers' shells. The process id alone does not show that the
# script runs: after a reboot another process may have that id.
# shellcheck disable=SC2016
running='pid=$(cat replay_rl.pid 2>/dev/null) && grep -aqs restart.sh "/proc/$pid/cmdline"'
unless_running="$running && { echo 'error: training: must be stopped first, it runs here already' >&2; exit 1; }"

# Usage: on_workers WORKERS COMMAND; the command starts in the home folder.
on_workers() {
  execute gcloud compute tpus tpu-vm ssh "$flag_name" "${place[@]}" \
    "--worker=$1" "--command=$2"
}

# Usage: copy FROM TO WORKERS
copy() {
  execute gcloud compute tpus tpu-vm scp "$1" "$2" "${place[@]}" "--worker=$3"
}

create() {
  require_flags type runtime-version
  local tiers=()
  [ -z "$flag_spot" ] || tiers+=(--spot)
  [ -z "$flag_reserved" ] || tiers+=(--reserved)
  # Without a flag, gcloud asks for the tier on demand.
  [ -z "$flag_on_demand" ] || tiers+=('')
  [ ${#tiers[@]} -eq 1 ] ||
    fail '--spot, --on-demand, --reserved: exactly one must be given'
  local more=()
  [ -z "${tiers[0]}" ] || more+=("${tiers[0]}")
  [ -z "$flag_valid_until_duration" ] ||
    more+=("--valid-until-duration=$flag_valid_until_duration")
  request create "--node-id=$flag_name" "--accelerator-type=$flag_type" \
    "--runtime-version=$flag_runtime_version" ${more[@]+"${more[@]}"}
}

status() { request describe '--format=value(state.state)'; }

wait_until_active() {
  require_count every
  if [ -n "$dry_run" ]; then
    status
    echo "# again every $flag_every s, until it prints ACTIVE"
    return
  fi
  local state before=''
  while true; do
    state=$(status)
    [ "$state" = "$before" ] || printf '%s %s\n' "$(date -u +%FT%TZ)" "$state"
    before=$state
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPENDING | SUSPENDED | DELETING)
        fail "state of $flag_name = $state: must be deleted and created again, it will not become ACTIVE"
        ;;
    esac
    sleep "$flag_every"
  done
}

sync_commit() {
  local commit changes files=(replay_rl.bundle)
  commit=$(git rev-parse HEAD)
  changes=$(git status --porcelain)
  if [ -n "$changes" ] && [ -z "$flag_allow_dirty" ]; then
    fail "changes: must be committed, or be sent too with --allow-dirty:
$changes"
  fi
  # The workers get a clone, so that a run records its commit.
  local command="$unless_running; git init --quiet replay_rl && cd replay_rl"
  command+=" && git fetch --quiet ../replay_rl.bundle HEAD"
  command+=" && git checkout --quiet --force --detach $commit"
  # data and checkpoints may be links to folders that all workers see.
  command+=" && git clean --quiet --force -d --exclude=/data --exclude=/checkpoints"
  execute mkdir -p build/launch
  execute git bundle create --quiet build/launch/replay_rl.bundle HEAD
  if [ -n "$changes" ]; then
    # An index of its own takes new files in, and leaves the index of git as it is.
    execute env GIT_INDEX_FILE=build/launch/index git read-tree HEAD
    execute env GIT_INDEX_FILE=build/launch/index git add --all
    execute env GIT_INDEX_FILE=build/launch/index git diff --cached --binary \
      --output=build/launch/replay_rl.patch HEAD
    command+=" && git apply --index ../replay_rl.patch"
    files+=(replay_rl.patch)
  fi
  local file
  for file in "${files[@]}"; do
    copy "build/launch/$file" "$flag_name:$file" all
  done
  command+=" && git describe --always --dirty --abbrev=40"
  on_workers all "$command"
}

install() {
  local code='import sys; sys.exit(sys.version_info < (3, 11) and "error: Python = " + sys.version.split()[0] + ": must be 3.11 or newer; see --python")'
  local command
  command="cd replay_rl && $(quoted "$flag_python" -c "$code")"
  command+=" && PYTHON=$(quoted "$flag_python") bash -c "
  command+=$(quoted "source scripts/environment.sh && install_extras $(quoted "$flag_extras")")
  on_workers all "$command"
}

run_command() {
  [ $# -gt 0 ] || fail '-- COMMAND: must be given'
  on_workers "$flag_worker" "$(quoted "$@")"
}

train() {
  require_flags max-crashes
  require_count max-crashes
  require_training "$@"
  local command argument workdir=''
  for argument in "$@"; do
    case $argument in --workdir=?*) workdir=${argument#--workdir=} ;; esac
  done
  command="$unless_running; cd replay_rl || exit 1; "
  # Without TPUs a run ends, and does not train on the processor.
  command+="JAX_PLATFORMS=tpu,cpu nohup setsid bash scripts/restart.sh"
  command+=" --max-crashes=$flag_max_crashes --pid-file=../replay_rl.pid"
  command+=" $(quoted "--progress-file=$workdir/timing.jsonl")"
  command+=" -- .venv/bin/python -m replay_rl.train $(quoted "${many_hosts[@]}" "$@")"
  command+=" >>../replay_rl.log 2>&1 </dev/null & echo 'started; its log is ~/replay_rl.log'"
  on_workers all "$command"
}

logs() {
  require_count lines
  local follow=''
  [ -z "$flag_follow" ] || follow=' -F'
  on_workers "$flag_worker" "tail -n $flag_lines$follow replay_rl.log"
}

fetch() {
  require_flags workdir out
  require_shared --workdir "$flag_workdir"
  local without=' --exclude=./checkpoints'
  [ -z "$flag_checkpoints" ] || without=''
  # The logs of all workers go through the shared folder to worker 0.
  on_workers all "cd $(quoted "$flag_workdir") && mkdir -p worker_logs && cp ~/replay_rl.log worker_logs/\"\$(hostname)\".log"
  # The status of tar is 1 if a file grew meanwhile, as the files of a running
  # training do.
  on_workers 0 "tar -C $(quoted "$flag_workdir")$without -czf replay_rl_results.tar.gz . || [ \$? -eq 1 ]"
  execute mkdir -p build/launch "$flag_out"
  copy "$flag_name:replay_rl_results.tar.gz" build/launch/replay_rl_results.tar.gz 0
  execute tar -C "$flag_out" -xzf build/launch/replay_rl_results.tar.gz
}

stop() {
  local command
  command="$running || { echo 'nothing runs here'; exit 0; }"
  command+="; kill -TERM \"\$pid\"; while $running; do sleep 1; done"
  command+="; tail -n 1 replay_rl.log"
  on_workers all "$command"
}

delete() {
  local more=()
  [ -z "$flag_yes" ] || more+=(--quiet)
  # --force deletes the request together with its node.
  request delete --force ${more[@]+"${more[@]}"}
}

case $subcommand in
  wait) wait_until_active ;;
  sync) sync_commit ;;
  exec) run_command "$@" ;;
  run) train "$@" ;;
  *) "$subcommand" ;;
esac
