# shellcheck shell=bash
# What the scripts of this folder share; sourced, never run. HERE is this folder.
#
# A process that they start is remembered in RUN_DIR/NAME.pid: process id, start time, boot id and where it can be asked.
# A process id alone may be somebody else's tomorrow; with its start time (clock ticks since boot) and the boot id it is one
# process. Nothing here looks for processes by name.

say() { printf '%s: %s\n' "${0##*/}" "$*"; }
trouble() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
give_up() { trouble "$1"; exit "${2:-1}"; }
wrong_use() {
  trouble "$*"
  trouble "\`${0##*/} --help\` tells more"
  exit 2
}

# Never a folder that others could have made before us: what its pid files name is sent signals. Of this host alone, as hosts
# may share a HOME: there another's process would look like one that has ended.
need_run_dir() {
  if [ -z "${RUN_DIR:-}" ]; then
    [ -n "${XDG_STATE_HOME:-}${HOME:-}" ] || wrong_use "RUN_DIR is not set, and neither is HOME: name a folder of your own"
    RUN_DIR=${XDG_STATE_HOME:-$HOME/.local/state}/baton/$(uname -n)
  fi
  [[ $RUN_DIR == /* ]] || RUN_DIR=$PWD/$RUN_DIR
  [ ! -e "$RUN_DIR" ] || { [ -d "$RUN_DIR" ] && [ -r "$RUN_DIR" ] && [ -w "$RUN_DIR" ] && [ -x "$RUN_DIR" ]; } ||
    wrong_use "RUN_DIR is '$RUN_DIR', which is no folder that this user may read and write"
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

# It goes into URLs and into a JSON text as it is.
need_plain() { # NAME
  [[ ${!1} =~ ^[A-Za-z0-9._:%-]+$ ]] || wrong_use "$1 has characters that no address or name has: '${!1}'"
}

need_address() { # NAME WHAT
  need_set "$1" "$2"
  need_plain "$1"
  [[ ! ${!1} =~ ^[^:]*:[^:]*$ ]] || wrong_use "$1 is an address without a port, and is '${!1}'"
  [ "$1" = PROXY_IP ] || [[ ! ${!1} =~ ^(0\.0\.0\.0|::|\[::\])$ ]] ||
    wrong_use "$1 is where others reach this host, and '${!1}' is any address of it"
}

# In decimal from then on, whatever zeros it began with.
need_number() { # NAME LEAST MOST
  local value=${!1}
  if ! [[ $value =~ ^[0-9]{1,9}$ ]] || ((10#$value < $2 || 10#$value > $3)); then
    wrong_use "$1 must be a number from $2 to $3, and is '$value'"
  fi
  printf -v "$1" %d "$((10#$value))"
}

# The program: BATON, a path or a name in PATH, else this checkout's, else the installed one.
find_baton() {
  if [ -z "${BATON:-}" ]; then
    BATON=$HERE/../build/release/src/apps/baton
    [ -x "$BATON" ] || BATON=$(command -v baton) || give_up "no baton: run \`make build\`, or name the program in BATON" 3
  fi
  local name=$BATON
  [[ $BATON == */* ]] || BATON=$(type -P "$name") || give_up "BATON names $name, which is no program in PATH" 3
  if [ ! -f "$BATON" ] || [ ! -x "$BATON" ]; then give_up "BATON names $BATON, which is no program" 3; fi
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
  printf '%s\n' "$2" "$(start_time "$2")" "$(boot_id)" "$3" >"$file.new" && mv "$file.new" "$file"
}

# Whether it runs, and that it does from now on, are one step: of two calls at once the second finds the first one's process.
# Held from claim to release; closed in what is started in between.
claim() { # NAME
  mkdir -p "$RUN_DIR" || wrong_use "RUN_DIR is '$RUN_DIR', which cannot be made"
  exec {CLAIM}>"$RUN_DIR/$1.lock"
  flock -w 10 "$CLAIM" || give_up "$1 is being started or ended by another call ($RUN_DIR/$1.lock is held)"
}
release() { exec {CLAIM}>&-; }

# Unless the file is that of a process that runs: somebody may have started the next one meanwhile.
forget() { # NAME
  [ -f "$RUN_DIR/$1.pid" ] || return 0
  claim "$1"
  is_running "$1" || rm -f "$RUN_DIR/$1.pid"
  release
}

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

# What a process started, by id with its start time: a sweep's routers outlive it by their drain.
declare -A CHILDREN

note_children() { # PID
  local pids pid start
  read -r -d '' -a pids < <(cat /proc/"$1"/task/*/children 2>/dev/null) || true
  for pid in "${pids[@]}"; do
    start=$(start_time "$pid")
    [ -z "$start" ] || CHILDREN[$pid]=$start
  done
}

living_children() {
  local pid
  for pid in "${!CHILDREN[@]}"; do
    [ "$(start_time "$pid")" != "${CHILDREN[$pid]}" ] || printf '%s ' "$pid"
  done
}

# The very process that was found running at first, and no other that may have taken its name since.
is_still_running() { is_running "$1" && [ "$PID" = "$2" ]; } # NAME PID

# Ends the process that was remembered, as its drain allows; a second signal after STOP_TIMEOUT, which it obeys within two
# seconds, then a kill. Then what it started: that ends by itself, or is killed after STOP_TIMEOUT. False if anything lives on.
stop_remembered() { # NAME
  local step pid
  is_running "$1" || { forget "$1"; return 0; }
  pid=$PID
  CHILDREN=()
  for step in "TERM $STOP_TIMEOUT" 'TERM 5' 'KILL 5'; do
    is_still_running "$1" "$pid" || break
    note_children "$pid"
    kill -s "${step% *}" "$pid" 2>/dev/null || true
    wait_gone "${step#* }" is_still_running "$1" "$pid" && break
  done
  PID=$pid
  ! is_still_running "$1" "$pid" || return 1
  PID=$pid
  forget "$1"
  stop_children
}

has_children() { [ -n "$(living_children)" ]; }

stop_children() {
  wait_gone "$STOP_TIMEOUT" has_children && return
  # shellcheck disable=SC2046 # one word each
  kill -s KILL $(living_children) 2>/dev/null || true
  wait_gone 5 has_children
}

# False if the command is still true after so many seconds.
wait_gone() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  while "$@"; do
    [ "$1" != is_still_running ] || note_children "$3"
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
}
