#!/usr/bin/env bash
# Starts one part of a prefill/decode pair on this host, and returns once it is ready. --help tells the rest.
set -euo pipefail
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HERE/common.sh"

help() {
  cat <<'EOF'
Starts one part of a pair on this host, and returns once its /health is 200.

  on the prefill host:  ROLE=prefill MODE=push PREFILL_IP=10.0.0.1 DECODE_IP=10.0.0.2 KV_PSK_FILE=pool.psk ./serve_pd.sh
  on the decode host:   ROLE=decode  MODE=push PREFILL_IP=10.0.0.1 DECODE_IP=10.0.0.2 KV_PSK_FILE=pool.psk ./serve_pd.sh
  on a third, or any:   ROLE=proxy             PREFILL_IP=10.0.0.1 DECODE_IP=10.0.0.2 ./serve_pd.sh

The mode is the only difference between two experiments: MODE=push is kv_connector NixlPushConnector, MODE=pull is
NixlConnector, on both hosts. Neither keeps prefixes: the modes are asked with the same prompts, and each has to compute and
move every one of them whole. The published modes by name: MODE=pull PULL_LOOP=engine TRANSFER_STYLE=published is
engine-loop-pull, MODE=push TRANSFER_STYLE=published is published-push. `run_sweep.sh` needs no proxy of its own, `cleanup.sh server|proxy` ends what this started.

usage: VARIABLES ./serve_pd.sh [--dry-run | --foreground] [FLAGS of `baton serve`, or of `baton route` for ROLE=proxy]
  --dry-run     print the command line, start nothing
  --foreground  become the server (for systemd and containers); else it runs on in the background, its log in RUN_DIR

variables (default):
  ROLE                        prefill, decode or proxy
  MODE                        push or pull; proxy: auto is what the servers say (auto)
  PREFILL_IP, DECODE_IP       addresses at which the hosts reach each other; also what the servers listen on
  PREFILL_PORT, DECODE_PORT   HTTP (8100, 8200)
  PREFILL_SIDE_CHANNEL_PORT, DECODE_SIDE_CHANNEL_PORT
                              control channel, TCP (5600; decode on prefill's address: 5601)
  PREFILL_KV_HOST             where prefill's control channel listens, if that is another address (PREFILL_IP)
  PREFILL_TP_SIZE, PREFILL_PP_SIZE
                              an instance is one process, a profile one rank of its model: only 1 is known (1)
  PREFILL_ENGINE_ID, DECODE_ENGINE_ID            (prefill-engine-001, decode-engine-001)
  KV_PSK_FILE                 the pool's key, the same file on both hosts: (umask 077; echo "pool-1:$(openssl rand -hex 32)" >FILE)
  INSECURE=1                  or say that the network between them is yours alone; without either the server refuses
  FABRIC                      libfabric, shm or auto (libfabric)
  FABRIC_PROVIDER             tcp; efa and verbs;ofi_rxm have never been run (tcp)
  BACKEND                     timed: emulated compute of PROFILE; cpu: the model in MODEL (timed)
  PROFILE                     (qwen3-32b-tp8-h200)
  MODEL                       of cpu: a GGUF file, or smollm2
  SERVED_MODEL_NAME           the same on both (Qwen)
  PULL_LOOP                   of MODE=pull: threaded, or engine as the published pull connector posts (threaded)
  TRANSFER_STYLE              of timed: baton, published or published-merged (baton)
  MAX_NUM_SEQS                requests at once (8)
  MAX_MODEL_LEN               context in tokens (the profile's or model's)
  PROXY_IP, PROXY_PORT        where the proxy listens (127.0.0.1, 8000)
  FIRST_TOKEN                 of the proxy: decode, as published, or prefill (decode)
  READY_TIMEOUT               seconds until /health must be 200 (300); what is not is ended
  STOP_TIMEOUT                seconds that it may take for that, before a second signal (40)
  RUN_DIR                     pid files, locks and logs of this host alone; a second pair on it needs its own
                              ($XDG_STATE_HOME/baton/HOST or ~/.local/state/baton/HOST)
  BATON                       the program, by path or by its name in PATH (this checkout's, else the installed one)

Exit codes: 0 ready; 1 it ended, was not ready in time, or runs already; 2 a variable or flag is wrong;
3 weights or program missing; 4 a port is in use or cannot be listened on.
EOF
}

defaults() {
  : "${PREFILL_PORT:=8100}" "${DECODE_PORT:=8200}" "${PROXY_IP:=127.0.0.1}" "${PROXY_PORT:=8000}"
  : "${PREFILL_KV_HOST:=${PREFILL_IP:-}}" "${PREFILL_TP_SIZE:=1}" "${PREFILL_PP_SIZE:=1}"
  : "${PREFILL_ENGINE_ID:=prefill-engine-001}" "${DECODE_ENGINE_ID:=decode-engine-001}"
  : "${PREFILL_SIDE_CHANNEL_PORT:=5600}" "${FABRIC:=libfabric}" "${FABRIC_PROVIDER:=tcp}"
  : "${BACKEND:=timed}" "${PROFILE:=qwen3-32b-tp8-h200}" "${SERVED_MODEL_NAME:=Qwen}" "${MAX_NUM_SEQS:=8}"
  : "${FIRST_TOKEN:=decode}" "${READY_TIMEOUT:=300}" "${STOP_TIMEOUT:=40}"
  if [ -z "${DECODE_SIDE_CHANNEL_PORT:-}" ]; then
    DECODE_SIDE_CHANNEL_PORT=5600
    [ "${PREFILL_IP:-}" = "${DECODE_IP:-}" ] && DECODE_SIDE_CHANNEL_PORT=5601
  fi
  [ "${ROLE:-}" = proxy ] && : "${MODE:=auto}"
  return 0
}

check() {
  need_word ROLE prefill decode proxy
  if [ "$ROLE" = proxy ]; then need_word MODE push pull auto; else need_word MODE push pull; fi
  need_address PREFILL_IP "the prefill host's address, as decode reaches it"
  need_address DECODE_IP "the decode host's address, as the proxy reaches it"
  need_address PREFILL_KV_HOST "the address of prefill's control channel"
  need_address PROXY_IP "where the proxy listens"
  need_plain PREFILL_ENGINE_ID
  need_plain DECODE_ENGINE_ID
  need_word PREFILL_TP_SIZE 1
  need_word PREFILL_PP_SIZE 1
  need_word FABRIC libfabric shm auto
  need_word BACKEND timed cpu
  if [ -n "${PULL_LOOP:-}" ]; then
    need_word PULL_LOOP threaded engine
    [ "$MODE" != push ] || wrong_use "PULL_LOOP is of MODE=pull, and MODE is 'push'"
  fi
  if [ -n "${TRANSFER_STYLE:-}" ]; then
    need_word TRANSFER_STYLE baton published published-merged
    [ "$BACKEND" = timed ] || wrong_use "TRANSFER_STYLE is of BACKEND=timed, and BACKEND is '$BACKEND'"
  fi
  [ "$BACKEND" = timed ] || [ "$ROLE" = proxy ] || need_set MODEL "BACKEND=cpu needs a GGUF file, or smollm2"
  local name
  for name in PREFILL_PORT DECODE_PORT PROXY_PORT PREFILL_SIDE_CHANNEL_PORT DECODE_SIDE_CHANNEL_PORT; do
    need_number "$name" 1 65535
  done
  need_number READY_TIMEOUT 1 86400
  need_number STOP_TIMEOUT 0 86400
}

kv_transfer_config() { # ROLE RANK ENGINE_ID IP PORT
  local connector=NixlConnector backends='"LIBFABRIC"'
  [ "$MODE" = push ] && connector=NixlPushConnector
  case $FABRIC in shm) backends='"SHM"' ;; auto) backends='"SHM","LIBFABRIC"' ;; esac
  printf '{"kv_connector":"%s","kv_buffer_device":"cpu","kv_role":"%s","engine_id":"%s","kv_rank":%d,' \
    "$connector" "$1" "$3" "$2"
  printf '"kv_parallel_size":2,"kv_ip":"%s","kv_port":%d,"kv_connector_extra_config":{"backends":[%s]}}' \
    "$4" "$5" "$backends"
}

# COMMAND: what is run; HOST and PORT: where it is asked whether it is ready.
instance_command() {
  COMMAND=("$BATON" serve)
  [ "$BACKEND" = cpu ] && COMMAND+=("$MODEL")
  COMMAND+=(--served-model-name "$SERVED_MODEL_NAME" --max-num-seqs "$MAX_NUM_SEQS" --host "$HOST" --port "$PORT")
  [ -n "${MAX_MODEL_LEN:-}" ] && COMMAND+=(--max-model-len "$MAX_MODEL_LEN")
  [ "$BACKEND" = timed ] && COMMAND+=(--backend timed --profile "$PROFILE")
  [ -n "${TRANSFER_STYLE:-}" ] && COMMAND+=(--transfer-style "$TRANSFER_STYLE")
  [ -n "${PULL_LOOP:-}" ] && COMMAND+=(--pull-loop "$PULL_LOOP")
  # A P that remembers the prompts of the mode before would compute nothing, and a D would fetch less than the whole.
  COMMAND+=(--no-enable-prefix-caching)
  COMMAND+=(--fabric-provider "$FABRIC_PROVIDER")
  [ -n "${KV_PSK_FILE:-}" ] && COMMAND+=(--kv-psk-file "$KV_PSK_FILE")
  [ "${INSECURE:-}" = 1 ] && COMMAND+=(--insecure)
  return 0
}

make_command() {
  case $ROLE in
    prefill)
      HOST=$PREFILL_IP PORT=$PREFILL_PORT
      instance_command
      COMMAND+=(--kv-transfer-config
        "$(kv_transfer_config kv_producer 0 "$PREFILL_ENGINE_ID" "$PREFILL_KV_HOST" "$PREFILL_SIDE_CHANNEL_PORT")")
      ;;
    decode)
      HOST=$DECODE_IP PORT=$DECODE_PORT
      instance_command
      COMMAND+=(--kv-transfer-config
        "$(kv_transfer_config kv_consumer 1 "$DECODE_ENGINE_ID" "$DECODE_IP" "$DECODE_SIDE_CHANNEL_PORT")"
        --kv-allowed-peers "$PREFILL_KV_HOST")
      ;;
    proxy)
      HOST=$PROXY_IP PORT=$PROXY_PORT
      COMMAND=("$BATON" route --prefill "$(url_of "$PREFILL_IP" "$PREFILL_PORT")"
        --decode "$(url_of "$DECODE_IP" "$DECODE_PORT")" --mode "$MODE" --first-token "$FIRST_TOKEN"
        --host "$HOST" --port "$PORT")
      ;;
  esac
  COMMAND+=("${MORE[@]}")
}

# The exit code of a server that ended while it started is this script's, too.
ended_early() { # LOG
  local code=0
  wait "$STARTED" || code=$?
  forget "$ROLE"
  tail -n 5 "$1" >&2
  if grep -q 'can be reached by other hosts' "$1"; then
    trouble "set KV_PSK_FILE to the pool's key, or INSECURE=1 where the network is yours alone"
  fi
  give_up "$ROLE ended while it started (exit code $code); its log is $1" "$((code == 0 ? 1 : code))"
}

start() {
  local log=$RUN_DIR/$ROLE.log end
  LISTENS=$RUN_DIR/$ROLE.listens
  trap 'rm -f "$LISTENS"' EXIT
  # A session of its own: the end of this terminal is not the server's. It says when it listens: until then another
  # program's /health may be what answers on that port.
  setsid "${COMMAND[@]}" --announce-fd 9 </dev/null >"$log" 2>&1 9>"$LISTENS" {CLAIM}>&- &
  STARTED=$!
  if ! remember "$ROLE" "$STARTED" "$(url_of "$HOST" "$PORT")"; then
    kill -s KILL "$STARTED"
    give_up "$ROLE was ended: what is to end it later cannot be written to $RUN_DIR"
  fi
  release
  trap 'stop_remembered "$ROLE" || true; exit 1' INT TERM
  end=$((SECONDS + READY_TIMEOUT))
  until [ -s "$LISTENS" ] && [ "$(health "$HOST" "$PORT")" = 200 ]; do
    is_running "$ROLE" || ended_early "$log"
    if ((SECONDS >= end)); then
      tail -n 3 "$log" >&2
      stop_remembered "$ROLE" || true
      give_up "$ROLE was not ready within READY_TIMEOUT=$READY_TIMEOUT s, and was ended; its log is $log"
    fi
    sleep 0.1
  done
  is_running "$ROLE" || ended_early "$log"
  say "$ROLE is ready at $(url_of "$HOST" "$PORT") (MODE=$MODE, process $PID, log $log)"
}

main() {
  local dry_run='' foreground='' word
  MORE=()
  for word in "$@"; do
    case $word in
      -h | --help) help; exit 0 ;;
      --dry-run) dry_run=1 ;;
      --foreground) foreground=1 ;;
      *) MORE+=("$word") ;;
    esac
  done
  defaults
  check
  need_run_dir
  find_baton
  make_command
  if [ -n "$dry_run" ]; then
    printf '%q ' "${COMMAND[@]}"
    printf '\n'
    exit 0
  fi
  claim "$ROLE"
  if is_running "$ROLE"; then
    give_up "$ROLE runs already: process $PID at $WHAT; \`./cleanup.sh $([ "$ROLE" = proxy ] && echo proxy || echo server)\` ends it, another beside it needs a RUN_DIR of its own"
  fi
  if [ -n "$foreground" ]; then
    remember "$ROLE" $$ "$(url_of "$HOST" "$PORT")"
    release
    exec "${COMMAND[@]}"
  fi
  start
}

main "$@"
