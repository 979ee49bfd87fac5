# The launchers source this: errors, flags, quoting, dry runs.
# shellcheck shell=bash
# The launchers also run under bash 3.2 (macOS), so there is no newer syntax here.

dry_run=''

# For the processes of a run, whose hosts may be ready minutes apart. The flags
# of the user come later, so that they count.
# shellcheck disable=SC2034  # The launchers use it.
many_hosts=(--distributed --initialization_timeout=300)

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# Prints words so that a shell reads back the same words.
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
  local allowed="$valued${switches:+ $switches}"
  flag=${flag#--}
  case $argument in
    --*) ;;
    *) fail "argument = $argument: must be a flag such as --flag=value; flags of the training come after --" ;;
  esac
  case $flag in
    *[!a-z-]*) fail "argument = $argument: must be one of --${allowed// / --}" ;;
  esac
  case " $allowed " in
    *" $flag "*) ;;
    *) fail "argument = $argument: must be one of --${allowed// / --}" ;;
  esac
  case " $switches " in
    *" $flag "*)
      [ "$argument" = "--$flag" ] || fail "$argument: must have no value"
      printf -v "flag_${flag//-/_}" '%s' yes
      return
      ;;
  esac
  [ "$argument" != "--$flag" ] || fail "--$flag: must have a value, as in --$flag=..."
  printf -v "flag_${flag//-/_}" '%s' "${argument#*=}"
}

# Ends the script unless each of these flags has a value.
require_flags() {
  local flag name missing=''
  for flag in "$@"; do
    name=flag_${flag//-/_}
    [ -n "${!name}" ] || missing+="--$flag "
  done
  [ -z "$missing" ] || fail "${missing% }: must be given"
}

require_count() {
  local name=flag_${1//-/_}
  case ${!name} in
    '' | *[!0-9]*) fail "--$1 = ${!name}: must be a whole number, 0 or more" ;;
  esac
}

# Ends the script unless the training's flags name a config and a folder.
require_training() {
  local argument config='' workdir=''
  for argument in "$@"; do
    case $argument in
      --config=?*) config=yes ;;
      --workdir=?*) workdir=${argument#--workdir=} ;;
    esac
  done
  [ -n "$config" ] || fail '--config: must be given, among the flags of the training'
  [ -n "$workdir" ] || fail '--workdir: must be given, among the flags of the training'
  require_shared --workdir "$workdir"
}

# Ends the script unless the flags of a sweep name its folder.
require_sweep() {
  local argument out=''
  for argument in "$@"; do
    case $argument in
      --out=?*) out=${argument#--out=} ;;
    esac
  done
  [ -n "$out" ] || fail '--out: must be given, among the flags of the sweep'
  require_shared --out "$out"
}

# Ends the script unless all hosts can see the folder under this path.
# Usage: require_shared FLAG FOLDER
require_shared() {
  case $2 in
    /*) ;;
    *) fail "$1 = $2: must be an absolute path on a file system that all hosts share (not gs://, which takes runs of one process)" ;;
  esac
}
