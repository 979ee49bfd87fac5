#!/usr/bin/env bash
# Runs a command, and starts it again after it saved or crashed.
#
# Usage: bash scripts/restart.sh --max-crashes=N [--delay=S] [--pid-file=FILE] -- COMMAND ...
#   --max-crashes  how often to start again after a status other than 0 and 143;
#                  after 143 (a checkpoint is saved) it always starts again
#   --delay        seconds before the next start (10)
#   --pid-file     file with the process id of this script while it runs
# The script passes SIGTERM on to the command, and does not start it again.
# It ends with the command's last status.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

flag_max_crashes='' flag_delay=10 flag_pid_file=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  set_flag "$1" 'max-crashes delay pid-file' ''
  shift
done
[ $# -gt 1 ] || fail '-- COMMAND: must be given'
shift
require_flags max-crashes
require_count max-crashes
require_count delay

note() { printf 'restart.sh %s: %s\n' "$(date -u +%FT%TZ)" "$*"; }

child='' stopped=''
stop() {
  stopped=yes
  [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
}
trap stop TERM INT
if [ -n "$flag_pid_file" ]; then
  echo $$ >"$flag_pid_file"
  trap 'rm -f "$flag_pid_file"' EXIT
fi

crashes=0
while true; do
  status=0
  note "starts: $(quoted "$@")"
  "$@" &
  child=$!
  # SIGTERM may have come before the process id was known.
  [ -z "$stopped" ] || kill -TERM "$child" 2>/dev/null || true
  wait "$child" || status=$?
  # A signal ends the wait while the command still runs.
  while kill -0 "$child" 2>/dev/null; do
    status=0
    wait "$child" || status=$?
  done
  child=''
  if [ -n "$stopped" ]; then
    note "stopped; the command ended with status $status"
    exit "$status"
  fi
  case $status in
    0)
      note 'done'
      exit 0
      ;;
    143) note 'status 143: it saved, and can continue' ;;
    *)
      if [ "$crashes" -ge "$flag_max_crashes" ]; then
        note "status $status after $crashes restarts: gives up"
        exit "$status"
      fi
      crashes=$((crashes + 1))
      note "status $status: crash $crashes of at most $flag_max_crashes, starts again"
      ;;
  esac
  # A sleep in the background lets SIGTERM end the wait.
  sleep "$flag_delay" &
  child=$!
  wait "$child" || true
  child=''
  [ -z "$stopped" ] || exit 143
done
