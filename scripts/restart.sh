#!/usr/bin/env bash
# Runs a command, and starts it again after it saved or crashed.
#
# Usage: bash scripts/restart.sh --max-crashes=N --progress-file=FILE [--delay=S] [--pid-file=FILE] -- COMMAND ...
#   --max-crashes    how often in a row to start again after a crash, a status
#                    other than 0 and 143, without progress in between; after 143
#                    (a checkpoint is saved) it always starts again
#   --progress-file  the timing.jsonl of the work folder, to which the training
#                    adds a line with each iteration; progress is a line more
#                    than ever before. A crash before the first line of all
#                    starts (a wrong config, a package that is missing) would
#                    come again, so there is no other start after it
#   --delay          seconds before the next start (10)
#   --pid-file       file with the process id of this script while it runs
# The script passes SIGTERM on to the command, and does not start it again.
# It ends with the command's last status.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

flag_max_crashes='' flag_progress_file='' flag_delay=10 flag_pid_file=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  set_flag "$1" 'max-crashes progress-file delay pid-file' ''
  shift
done
[ $# -gt 1 ] || fail '-- COMMAND: must be given'
shift
require_flags max-crashes progress-file
require_count max-crashes
require_count delay

note() { printf 'restart.sh %s: %s\n' "$(date -u +%FT%TZ)" "$*"; }

child='' stopped=''
stop() {
  stopped=yes
  [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
}
trap stop TERM INT
before=$(mktemp)  # What the progress file held when the command started.
trap 'rm -f "$before" ${flag_pid_file:+"$flag_pid_file"}' EXIT
[ -z "$flag_pid_file" ] || echo $$ >"$flag_pid_file"

progress() {
  if [ -f "$flag_progress_file" ]; then cat "$flag_progress_file"; fi
}

# Whether the command has added a line. A run that continues first cuts off the
# lines after its checkpoint, and adds them again.
has_iterated() {
  ! progress | cmp -s - <(head -c "$(progress | wc -c)" "$before")
}

crashes=0 iterated='' most=$(progress | wc -l)
while true; do
  status=0
  progress >"$before"
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
  ! has_iterated || iterated=yes
  done_now=$(progress | wc -l)
  if [ "$done_now" -gt "$most" ]; then
    most=$done_now crashes=0
  fi
  case $status in
    0)
      note 'done'
      exit 0
      ;;
    143) note 'status 143: it saved, and can continue' ;;
    *)
      if [ -z "$iterated" ]; then
        note "status $status before the first iteration: it would come again; gives up"
        exit "$status"
      fi
      if [ "$crashes" -ge "$flag_max_crashes" ]; then
        note "status $status after $crashes restarts without progress: gives up"
        exit "$status"
      fi
      crashes=$((crashes + 1))
      note "status $status with $done_now iterations done: crash $crashes of at most $flag_max_crashes without progress, starts again"
      ;;
  esac
  # A sleep in the background lets SIGTERM end the wait.
  sleep "$flag_delay" &
  child=$!
  wait "$child" || true
  child=''
  [ -z "$stopped" ] || exit 143
done
