# shellcheck shell=bash
# What the scripts of this folder share; sourced, never run.
#
# A process that they start is remembered in RUN_DIR/NAME.pid: process id, start time, boot id and where it can be asked.
# A process id alone may be somebody else's tomorrow; with its start time (clock ticks since boot) and the boot id it is one
# process. Nothing here looks for processes by name.

set -euo pipefail

RUN_DIR=${RUN_DIR:-${XDG_STATE_HOME:-${HOME:-/tmp}/.local/state}/baton}

say() { printf '%s: %s\n' "${0##*/}" "$*"; }
trouble() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
give_up() { trouble "$1"; exit "${2:-1}"; }
wrong_use() {
  trouble "$*"
  trouble "\`${0##*/} --help\` tells more"
  exit 2
}

# The variable must be set to one of the words.
need_word() { # NAME WORD...
  local name=$1 value=${!1:-} word
  shift
  for word in "$@"; do [ "$value" = "$word" ] && return; done
  wrong_use "$name must be one of: $*; and is '${value}'"
}

need_set() { # NAME WHAT
  [ -n "${!1:-}" ] || wrong_use "$1 is not set: $2"
}

need_number() { # NAME LEAST MOST
  local value=${!1}
  if ! [[ $value =~ ^[0-9]{1,9}$ ]] || ((10#$value < $2 || 10#$value > $3)); then
    wrong_use "$1 must be a number from $2 to $3, and is '$value'"
  fi
}

# The program: BATON, else this checkout's, else the installed one.
find_baton() {
  local here
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  if [ -z "${BATON:-}" ]; then
    BATON=$here/../build/release/src/apps/baton
    [ -x "$BATON" ] || BATON=$(command -v baton) || give_up "no baton: run \`make build\`, or name the program in BATON" 3
  fi
  [ -x "$BATON" ] || give_up "BATON names $BATON, which is no program" 3
}

url_of() { # HOST PORT
  if [[ $1 == *:* ]]; then printf 'http://[%s]:%s' "$1" "$2"; else printf 'http://%s:%s' "$1" "$2"; fi
}

# Field 22 of /proc/PID/stat; nothing if there is none, or only its corpse. The name in field 2 may hold anything.
start_time() { # PID
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
  read -r -a stat <<<"${stat##*) }"
  [ "${stat[0]}" = Z ] || printf '%s' "${stat[19]}"
}

boot_id() { cat /proc/sys/kernel/random/boot_id; }

remember() { # NAME PID WHAT
  local file=$RUN_DIR/$1.pid
  printf '%s\n' "$2" "$(start_time "$2")" "$(boot_id)" "$3" >"$file.new"
  mv "$file.new" "$file"
}

forget() { rm -f "$RUN_DIR/$1.pid"; } # NAME

# True while the very process that was remembered runs; then PID and WHAT are its.
is_running() { # NAME
  local file=$RUN_DIR/$1.pid lines
  [ -f "$file" ] || return 1
  mapfile -t lines <"$file"
  [ ${#lines[@]} -ge 4 ] && [[ ${lines[0]} =~ ^[0-9]+$ ]] && [ -n "${lines[1]}" ] || return 1
  [ "${lines[2]}" = "$(boot_id)" ] && [ "${lines[1]}" = "$(start_time "${lines[0]}")" ] || return 1
  # shellcheck disable=SC2034 # WHAT is the caller's
  PID=${lines[0]} WHAT=${lines[3]}
}

# The status that GET /health answers; nothing if nobody does.
health() { # HOST PORT
  # shellcheck disable=SC2016 # expanded by the inner shell
  timeout 5 bash -c '
    exec 3<>"/dev/tcp/$1/$2" &&
      printf "GET /health HTTP/1.1\r\nHost: baton\r\nConnection: close\r\n\r\n" >&3 && read -r _ status _ <&3 &&
      printf %s "$status"' health "$1" "$2" 2>/dev/null || true
}

# Ends the process that was remembered, as its drain allows; a second signal after STOP_TIMEOUT, which it obeys within two
# seconds, then a kill. False if it lives on.
stop_remembered() { # NAME
  local step
  for step in "TERM $STOP_TIMEOUT" 'TERM 5' 'KILL 5'; do
    is_running "$1" || break
    kill -s "${step% *}" "$PID" 2>/dev/null || true
    wait_gone "$1" "${step#* }" && break
  done
  is_running "$1" && return 1
  forget "$1"
}

wait_gone() { # NAME SECONDS
  local end=$((SECONDS + $2))
  while is_running "$1"; do
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
}
