# Sourced by the launchers: errors, flags, quoting, dry runs.
# shellcheck shell=bash
# The launchers run where bash may be 3.2 (macOS), so no newer syntax here.

dry_run=''

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# Prints words as a shell reads them back, whatever they hold.
quoted() {
  local word rest out separator=''
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./:=@%+,-]*)
        rest=$word out=''
        while [[ $rest == *\'* ]]; do
          out+="${rest%%\'*}'\\''"
          rest=${rest#*\'}
        done
        word="'$out$rest'"
        ;;
    esac
    printf '%s%s' "$separator" "$word"
    separator=' '
  done
  printf '\n'
}

# Runs a command, or prints it in a dry run.
execute() {
  if [ -n "$dry_run" ]; then
    quoted "$@"
  else
    "$@"
  fi
}

# Sets flag_<name> from --<name>=<value>, or to yes from --<name>.
# Usage: set_flag ARGUMENT "VALUED FLAGS" "SWITCHES"
set_flag() {
  local argument=$1 valued=$2 switches=$3
  local flag=${argument%%=*}
  local allowed="$valued $switches"
  flag=${flag#--}
  case $argument in
    --*) ;;
    *) fail "unexpected argument: $argument; flags are written --flag=value, and flags of the training come after --" ;;
  esac
  case $flag in
    *[!a-z-]*) fail "unknown flag: $argument" ;;
  esac
  case " $allowed " in
    *" $flag "*) ;;
    *) fail "unknown flag: --$flag; allowed here: --${allowed// / --}" ;;
  esac
  case " $switches " in
    *" $flag "*)
      [ "$argument" = "--$flag" ] || fail "--$flag takes no value"
      printf -v "flag_${flag//-/_}" '%s' yes
      return
      ;;
  esac
  [ "$argument" != "--$flag" ] || fail "--$flag needs a value: --$flag=..."
  printf -v "flag_${flag//-/_}" '%s' "${argument#*=}"
}

# Ends unless every flag named has a value.
require_flags() {
  local flag name missing=''
  for flag in "$@"; do
    name=flag_${flag//-/_}
    [ -n "${!name}" ] || missing+=" --$flag"
  done
  [ -z "$missing" ] || fail "must be given:$missing"
}

require_count() {
  local name=flag_${1//-/_}
  case ${!name} in
    '' | *[!0-9]*) fail "--$1=${!name}: must be a whole number, 0 or more" ;;
  esac
}

# Ends unless the training's flags name a config and a folder.
require_training() {
  local argument config='' workdir=''
  for argument in "$@"; do
    case $argument in
      --config=?*) config=yes ;;
      --workdir=?*) workdir=${argument#--workdir=} ;;
    esac
  done
  [ -n "$config" ] || fail 'must be given: --config=FILE, among the flags of the training'
  [ -n "$workdir" ] || fail 'must be given: --workdir=DIR, among the flags of the training'
  require_shared "$workdir"
}

# Ends unless a folder can be the same one on every host.
require_shared() {
  case $1 in
    /*) ;;
    *) fail "--workdir=$1: must be an absolute path on a file system that all hosts share (not gs://, which has no locks)" ;;
  esac
}
