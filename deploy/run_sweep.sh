#!/usr/bin/env bash
# The published experiment against a running pair. --help tells the rest.
set -euo pipefail
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HERE/common.sh"

help() {
  cat <<'EOF'
Puts the published experiment's grid on a running pair, one mode at a time:

  MODE=push PREFILL_IP=10.0.0.1 DECODE_IP=10.0.0.2 ./run_sweep.sh
  ./cleanup.sh server on both hosts, serve_pd.sh with MODE=pull on both, then the same with MODE=pull
  baton plot --results-dir results --metric ttft,tpot

Waits until both answer 200 at /health, starts the router of the mode itself (or takes ROUTER_URL), and writes
RESULTS_DIR/<mode>_qps<q>_in<i>_out<o>_iter<n>.json and .log. Stopped and called again it goes on where it was.

What the servers say of themselves is asked, so that none of this has to be set. If it is, and they say otherwise, it is
refused with both values: MODE, PREFILL_TP_SIZE, PREFILL_PP_SIZE, PREFILL_ENGINE_ID, PREFILL_KV_HOST,
PREFILL_SIDE_CHANNEL_PORT, BACKEND (timed or cpu), PROFILE, SERVED_MODEL_NAME, MAX_NUM_SEQS.

usage: VARIABLES ./run_sweep.sh [--dry-run] [FLAGS of `baton sweep`]
  --dry-run     say what would be run, and how long it takes; waits for nobody and leaves nothing behind

variables (default):
  MODE                        push or pull: that of the servers, and the first word of the results' names; or the name of a
                              published way (engine-loop-pull, threaded-pull, published-push, and with -merged), which the
                              servers must be started as
  PREFILL_IP, DECODE_IP       as given to serve_pd.sh
  PREFILL_PORT, DECODE_PORT   (8100, 8200)
  QPS_LIST                    requests a second ("1 2 4 8")
  INPUT_LENS, OUTPUT_LENS     tokens; the same for both modes ("1024 2048 4096 8192 16384", "128")
  ITERATIONS                  of the whole grid (1)
  POINT_SECONDS               arrivals of a point take so long (30)
  RESULTS_DIR                 (results)
  FIRST_TOKEN                 of the router that is started here: decode, as published, or prefill (decode)
  ROUTER_URL                  a running proxy, as serve_pd.sh starts it
  READY_TIMEOUT               seconds until both must be ready (300)
  RUN_DIR, BATON              as for serve_pd.sh

Exit codes: 0 every point counts; 1 a point is void or could not be run, or a server is not ready; 2 a variable or flag is
wrong, or the servers say otherwise; 3 program missing.
EOF
}

wait_ready() { # SIDE HOST PORT
  local end=$((SECONDS + READY_TIMEOUT)) status
  while status=$(health "$2" "$3") && [ "$status" != 200 ]; do
    ((SECONDS < end)) || give_up "$1 at $(url_of "$2" "$3") is not ready within READY_TIMEOUT=$READY_TIMEOUT s: /health $(
      [ -n "$status" ] && echo "answers $status" || echo 'does not answer; is it started, and its port open?')"
    sleep 0.1
  done
}

main() {
  local dry_run=() more=() word
  for word in "$@"; do
    case $word in
      -h | --help) help; exit 0 ;;
      --dry-run) dry_run=(--dry-run) ;;
      *) more+=("$word") ;;
    esac
  done
  : "${PREFILL_PORT:=8100}" "${DECODE_PORT:=8200}" "${RESULTS_DIR:=results}" "${READY_TIMEOUT:=300}"
  need_word MODE push pull engine-loop-pull engine-loop-pull-merged threaded-pull published-push published-push-merged
  need_address PREFILL_IP "the prefill host's address"
  need_address DECODE_IP "the decode host's address"
  need_number PREFILL_PORT 1 65535
  need_number DECODE_PORT 1 65535
  need_number READY_TIMEOUT 1 86400
  need_run_dir
  find_baton
  [ -z "${VLLM_SRC:-}" ] || say "VLLM_SRC is not needed: the router is part of baton"

  if [ ${#dry_run[@]} -eq 0 ]; then
    wait_ready prefill "$PREFILL_IP" "$PREFILL_PORT"
    wait_ready decode "$DECODE_IP" "$DECODE_PORT"
  fi
  local command=("$BATON" sweep --modes "$MODE" --results-dir "$RESULTS_DIR"
    --prefill-url "$(url_of "$PREFILL_IP" "$PREFILL_PORT")" --decode-url "$(url_of "$DECODE_IP" "$DECODE_PORT")")
  [ -n "${ROUTER_URL:-}" ] && command+=(--router-url "$ROUTER_URL")
  [ -n "${POINT_SECONDS:-}" ] && command+=(--point-seconds "$POINT_SECONDS")
  [ -n "${BACKEND:-}" ] && command+=(--backend "$BACKEND")
  [ -n "${PROFILE:-}" ] && command+=(--profile "$PROFILE")
  [ -n "${SERVED_MODEL_NAME:-}" ] && command+=(--served-model-name "$SERVED_MODEL_NAME")
  [ -n "${MAX_NUM_SEQS:-}" ] && command+=(--max-num-seqs "$MAX_NUM_SEQS")
  [ -n "${FIRST_TOKEN:-}" ] && command+=(--first-token "$FIRST_TOKEN")
  command+=("${dry_run[@]}" "${more[@]}")
  if [ ${#dry_run[@]} -gt 0 ]; then exec "${command[@]}"; fi

  # QPS_LIST, INPUT_LENS, OUTPUT_LENS, ITERATIONS and PREFILL_... are read by `baton sweep` itself. It becomes this process,
  # and its routers end with it: `cleanup.sh proxy` ends a sweep that runs in the background.
  claim sweep
  if is_running sweep; then give_up "a sweep runs already: process $PID, into $WHAT; another at once needs a RUN_DIR of its own"; fi
  remember sweep $$ "$RESULTS_DIR"
  release
  exec "${command[@]}"
}

main "$@"
