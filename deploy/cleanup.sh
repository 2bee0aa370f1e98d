#!/usr/bin/env bash
# Ends what serve_pd.sh and run_sweep.sh started on this host, and nothing else. --help tells the rest.
set -euo pipefail
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HERE/common.sh"

help() {
  cat <<'EOF'
Ends what serve_pd.sh and run_sweep.sh started on this host with the same RUN_DIR, and nothing else:

  ./cleanup.sh server   on each server's host: prefill and decode
  ./cleanup.sh proxy    on the driver's: proxy, and a sweep with its routers, also one in the background

Without RUN_DIR it is the folder of this user on this host, as serve_pd.sh --help tells.

A process is known by its id, its start time and the boot, never by its name: others' servers live on, and a process that got
the id of one that ended is left alone. What runs may finish (the server's --drain-timeout, 30 s), a second signal follows
after STOP_TIMEOUT seconds (40), then a kill; a sweep's routers have as long. Logs stay in RUN_DIR.

Exit codes: 0 nothing of ours runs any more; 1 a process could not be ended; 2 wrong use.
EOF
}

main() {
  local names name failed=0
  case ${1:-} in
    -h | --help) help; exit 0 ;;
    server) names=(decode prefill) ;;
    proxy) names=(sweep proxy) ;;
    '') wrong_use 'say what to end: proxy or server' ;;
    *) wrong_use "known are proxy and server, and this is '$1'" ;;
  esac
  [ $# -eq 1 ] || wrong_use "one word is taken, and here are $#: $*"
  : "${STOP_TIMEOUT:=40}"
  need_number STOP_TIMEOUT 0 86400
  need_run_dir
  for name in "${names[@]}"; do
    if ! is_running "$name"; then
      forget "$name"
      say "$name: not running, says RUN_DIR $RUN_DIR"
    elif stop_remembered "$name"; then
      say "$name: process $PID has ended ($WHAT)"
    else
      trouble "$name: could not be ended, is it another user's? Process $PID ($WHAT)${CHILDREN[*]:+, or what it started: ${!CHILDREN[*]}}"
      failed=1
    fi
  done
  exit "$failed"
}

main "$@"
