"""Pull with real processes: exact answers, and what dies, stops and leaves at every point, as in test_kill.

Here P is done before D is chosen, and D reads: a hold file keeps D's reads from the fabric (BATON_FAULT=hold_reads). What
a killed or stopped process may cost has the bounds of test_kill.
"""
import contextlib
import json
import signal
import subprocess
import time

import pytest
import stack
from test_kill import (BLOCKS, CLIENT, FACTOR, FLAGS, LONG, PROMPT, SILENT, SURVIVOR, decoding,  # noqa: F401
                       flags_with_patience, hold, kill_an_instance, kill_the_router, names_the_cause, prefilling, ready, restart, say, servers,
                       slow_model, stop, test_restarts_under_load_leave_nothing, test_thirty_clients_leave_at_once, writing)

LEASE = 2  # seconds


@pytest.fixture(scope="module", params=["threaded", "engine"])
def stacks(request, slow_model, hold):  # noqa: F811
    with stack.Stack(slow_model, mode="pull", extra=[*FLAGS, "--lease", LEASE], prefill_extra=["--max-model-len", 4096],
                     decode_extra=["--max-model-len", BLOCKS * 16, "--pull-loop", request.param],
                     decode_env={"BATON_FAULT": f"hold_reads:{hold}"},
                     router_extra=["--peer-timeout", 30]) as running:
        yield running


# ---------------------------------------------------------------------------------------------------------------------
# Exactness.

@pytest.mark.parametrize("first_token", ["prefill", "decode"])
@pytest.mark.parametrize("loop", ["threaded", "engine"])
def test_answers_equal_those_of_one_process(small_model, loop, first_token):
    asks = [{"prompt": list(range(5, 5 + n)), "max_tokens": 12, "return_token_ids": True, "seed": n,
             "temperature": 0 if n % 2 else 0.8} for n in (1, 15, 16, 17, 64, 100, 333)]
    with stack.Stack(small_model, mode="pull", extra=["--threads", 1, "--max-num-batched-tokens", 64],
                     decode_extra=["--pull-loop", loop], router_extra=["--first-token", first_token]) as running:
        right = [stack.complete(running.prefill[0].port, **ask).json["choices"][0]["token_ids"] for ask in asks]
        clients = [stack.Client(running.port, {"temperature": 0, **ask}, i % 2 == 0) for i, ask in enumerate(asks)]
        for client, tokens in zip(clients, right):
            client.finish()
            assert client.complete and client.tokens == tokens, f"{client.error} {client.broken!r}"
        running.wait_whole()
        computed = running.decode[0].metric("baton_computed_prompt_tokens_total")
        assert computed == (0 if first_token == "prefill" else len(asks)), "D computed a prompt"
        lent, read = running.bytes_moved()
        assert read > 0 and lent in (0, read)
        if (loop, first_token) == ("threaded", "decode"):
            the_doctor_is_let_in(running)


def the_doctor_is_let_in(running):
    """P's word on a transfer that it never had may come before the doctor looks whether it is connected."""
    for _ in range(2):
        done = subprocess.run([str(stack.baton_binary()), "doctor", "--json", f"http://{stack.HOST}:{running.prefill[0].port}",
                               f"http://{stack.HOST}:{running.decode[0].port}"], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, [check for check in json.loads(done.stdout)["checks"] if check["verdict"] == "fail"]


# ---------------------------------------------------------------------------------------------------------------------
# Deaths.

PHASES = [ready, writing, decoding]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda f: f.__name__)
def test_kill_of_an_instance(servers, hold, phase, side, stream):  # noqa: F811
    kill_an_instance(servers, hold, phase, side, stream)


def test_kill_of_p_before_d_is_chosen(servers, hold):  # noqa: F811
    with prefilling(servers, hold, True) as client:
        begin = time.monotonic()
        servers.prefill[0].kill()
        client.finish()
        say("P killed while it computes: the client has its error", client.ended_at - begin, CLIENT)
        assert client.status in (502, 503), client.status
        assert servers.prefill[0].name in client.error["message"] and client.error["baton"]["cause"], client.error
        assert "no decode instance chosen yet" in client.error["message"], client.error
    assert servers.decode[0].about()["requests"] == {"running": 0, "waiting": 0}
    servers.prefill[0].wait()


@pytest.mark.parametrize("phase", PHASES, ids=lambda f: f.__name__)
def test_kill_of_the_router(servers, hold, phase):  # noqa: F811
    kill_the_router(servers, hold, phase)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("phase", [prefilling, *PHASES], ids=lambda f: f.__name__)
def test_the_client_leaves(servers, hold, phase, stream):  # noqa: F811
    with phase(servers, hold, stream) as client:
        client.leave()
        assert not client.complete
        if phase is not ready:  # whose other request goes on
            servers.prefill[0].wait_at_rest(SURVIVOR * FACTOR)
    begin = time.monotonic()
    for instance in servers.instances:
        instance.wait_at_rest(SURVIVOR * FACTOR)
    say(f"{phase.__name__}, client left: blocks are back", time.monotonic() - begin, SURVIVOR)


# ---------------------------------------------------------------------------------------------------------------------
# Stops.

def test_a_stopped_p_is_not_waited_for(servers, hold):  # noqa: F811
    """D may read a stopped P's memory; what it read counts only once P has said that it held still."""
    prefill, decode = servers.prefill[0], servers.decode[0]
    with writing(servers, hold, False) as client:
        stop(prefill)
        begin = time.monotonic()
        hold.unlink()
        client.finish()
        names_the_cause(client, servers)
        say("P stopped: the client has its error", client.ended_at - begin, SILENT)
        decode.wait_at_rest(SURVIVOR * FACTOR)
    prefill.kill(signal.SIGCONT)
    prefill.wait_at_rest(SILENT * FACTOR)


def test_a_d_that_wakes_after_the_lease_discards_what_it_reads(servers, hold):  # noqa: F811
    """P has given the blocks to somebody else meanwhile: an answer made of them would be a wrong one."""
    prefill, decode = servers.prefill[0], servers.decode[0]
    failed = decode.metric("baton_handovers_total", side="decode", outcome="failed")
    with writing(servers, hold, False) as client:
        stop(decode)
        prefill.wait_at_rest((LEASE + SILENT) * FACTOR)  # it has freed them
        assert stack.complete(prefill.port, [3] * (BLOCKS * 12)).status == 200  # and they are overwritten
        hold.unlink()
        decode.kill(signal.SIGCONT)
        client.finish()
        assert not client.complete and not client.tokens, "an answer from blocks that were not held"
        names_the_cause(client, servers)
    assert decode.metric("baton_handovers_total", side="decode", outcome="failed") == failed + 1
    decode.wait_at_rest()


def test_a_d_that_misses_only_its_lease_is_told_so(slow_model, hold):  # noqa: F811
    """The connection lives and nobody counts as silent: the lease alone ends, and P's answer to the last byte says it [I5]."""
    with stack.Stack(slow_model, mode="pull", extra=[*flags_with_patience(60), "--lease", LEASE], prefill_extra=["--max-model-len", 4096],
                     decode_extra=["--max-model-len", BLOCKS * 16], decode_env={"BATON_FAULT": f"hold_reads:{hold}"},
                     router_extra=["--peer-timeout", 60]) as running:
        prefill, decode = running.prefill[0], running.decode[0]
        with writing(running, hold, False) as client:
            stop(decode)
            stack.wait_for("the lease has ended", lambda: prefill.metric("baton_leases_expired_total") == 1)
            hold.unlink()
            decode.kill(signal.SIGCONT)
            client.finish()
            assert not client.complete and not client.tokens, "an answer from blocks that were not held"
            assert client.error["baton"]["cause"] == "lease_expired", client.error
        decode.wait_at_rest()


@pytest.mark.parametrize("phase", [writing, decoding], ids=lambda f: f.__name__)
def test_a_stopped_router_delays_answers_and_changes_none(servers, hold, phase):  # noqa: F811
    """What P and D have between them goes on without it; its own sleep is nobody else's silence."""
    right = stack.complete(servers.prefill[0].port, PROMPT, max_tokens=100, return_token_ids=True).json["choices"][0]["token_ids"]
    with phase(servers, hold, True, 100) as client:
        stop(servers.router)
        hold.unlink(missing_ok=True)
        for instance in servers.instances:
            instance.wait_at_rest()
        servers.router.kill(signal.SIGCONT)
        client.finish()
        assert client.complete and client.tokens == right, f"{client.error} {client.broken!r}"


# ---------------------------------------------------------------------------------------------------------------------
# P's blocks wait at the router: D has as many requests as it has slots. Which loop reads makes no difference to that.

PATIENT_LEASE = 8  # seconds; the router waits for a slot half as long


@pytest.fixture(scope="module")
def crowded_stacks(slow_model):  # noqa: F811
    with stack.Stack(slow_model, mode="pull", extra=[*FLAGS, "--lease", PATIENT_LEASE, "--max-model-len", 4096],
                     router_extra=["--decode-slots", 1]) as running:
        yield running


@pytest.fixture
def crowded(crowded_stacks):
    crowded_stacks.standing_checks()
    yield crowded_stacks
    crowded_stacks.router.kill(signal.SIGCONT)
    restart(crowded_stacks)
    crowded_stacks.standing_checks()


@contextlib.contextmanager
def placing(servers):
    """P holds the blocks of the second request, which waits at the router: D has the first, and one slot."""
    runs = stack.Client(servers.port, {"prompt": PROMPT, "max_tokens": LONG})
    stack.wait_for("D decodes", lambda: len(runs.tokens) > 3)
    servers.prefill[0].wait_at_rest()
    waits = stack.Client(servers.port, {"prompt": [9] * 100, "max_tokens": 8}, False)
    try:
        stack.wait_for("P holds finished blocks", lambda: servers.prefill[0].metric("baton_leases_held") == 1)
        assert servers.decode[0].about()["requests"] == {"running": 1, "waiting": 0}, "D has the second request"
        yield runs, waits
    finally:
        runs.leave()
        waits.leave()


def nobody_was_chosen(client, cause):
    error = client.error
    assert error and error["baton"]["cause"] == cause, f"{error} {client.broken!r}"
    assert "prefill-0" in error["message"] and "no decode instance chosen yet" in error["message"], error


def test_kill_of_p_whose_blocks_wait_at_the_router(crowded):
    with placing(crowded) as (runs, waits):
        crowded.prefill[0].kill()
        nobody_was_chosen(waits.finish(), "instance_died")
        runs.finish()
        assert runs.complete and len(runs.tokens) == LONG, f"{runs.error} {runs.broken!r}"
    crowded.prefill[0].wait()


def test_kill_of_the_only_d_while_blocks_wait_at_the_router(crowded):
    with placing(crowded) as (runs, waits):
        crowded.decode[0].kill()
        nobody_was_chosen(waits.finish(), "no_decode_instance")
        assert runs.finish().error["baton"]["cause"] == "instance_died", runs.error
        crowded.prefill[0].wait_at_rest(SURVIVOR * FACTOR)
    crowded.decode[0].wait()


def test_kill_of_the_router_at_which_blocks_wait(crowded):
    with placing(crowded) as (runs, waits):
        crowded.router.kill()
        assert waits.finish().broken and runs.finish().broken
        for instance in crowded.instances:
            instance.wait_at_rest(SURVIVOR * FACTOR)
    crowded.router.wait()


def test_the_client_whose_blocks_wait_at_the_router_leaves(crowded):
    with placing(crowded) as (runs, waits):
        waits.leave()
        crowded.prefill[0].wait_at_rest(SURVIVOR * FACTOR)
        runs.finish()
        assert runs.complete, f"{runs.error} {runs.broken!r}"


def test_blocks_that_wait_at_a_stopped_router_come_back_by_the_lease(crowded):
    """Nothing tells P of it: no connection ends. Awake again, the router blames nobody for the time that it slept."""
    prefill = crowded.prefill[0]
    right = stack.complete(prefill.port, PROMPT, max_tokens=LONG, return_token_ids=True).json["choices"][0]["token_ids"]
    with placing(crowded) as (runs, waits):
        stop(crowded.router)
        prefill.wait_at_rest((PATIENT_LEASE + SURVIVOR) * FACTOR)
        assert prefill.metric("baton_leases_expired_total") == 1
        crowded.router.kill(signal.SIGCONT)
        runs.finish()
        assert runs.complete and runs.tokens == right, f"{runs.error} {runs.broken!r}"
        waits.finish()  # P's last word, or D's, which may be asked before the router has read P's
        assert waits.error["baton"]["cause"] and "prefill-0" in waits.error["message"], waits.error
        assert "no answer for" not in crowded.router.output, crowded.router.output


# ---------------------------------------------------------------------------------------------------------------------
# Unlike modes.

@pytest.fixture(scope="module")
def mixed(small_model):
    """A P that pushes and a D that pulls."""
    ports = stack.free_ports(5)
    flags = ["--served-model-name", "m", "--threads", 1, "--peer-timeout", 1]
    prefill = stack.Instance("prefill-0", small_model, ports[0], "kv_producer", ports[1], flags)
    decode = stack.Instance("decode-0", small_model, ports[2], "kv_consumer", ports[3], flags,
                            config={"kv_connector": "NixlConnector"})
    router = stack.Process("router", ["route", "--port", ports[4], "--prefill", f"http://{stack.HOST}:{ports[0]}",
                                      "--decode", f"http://{stack.HOST}:{ports[2]}"])
    for process in (prefill, decode, router):
        process.start()
    prefill.wait_ready()
    decode.wait_ready()
    yield prefill, decode, ports[4]
    for process in (router, prefill, decode):
        process.kill()
        process.wait()


def both_serve(prefill, decode):
    for instance in (prefill, decode):
        assert stack.complete(instance.port).status == 200, f"{instance.name} does not serve any more"
        instance.wait_at_rest()


def test_a_router_over_unlike_modes_is_not_ready_and_says_who_says_what(mixed):
    prefill, decode, port = mixed

    def health():
        with contextlib.suppress(OSError):
            return stack.request(port, "GET", "/health")
    answer = stack.wait_for("both are heard of", lambda: (a := health()) and b"unlike modes" in a.body and a)
    text = answer.json["error"]["message"]
    assert answer.status == 503
    for word in (f":{prefill.port} (prefill-0) says push", f":{decode.port} (decode-0) says pull", "kv_connector"):
        assert word in text, text
    refused = stack.complete(port)
    assert refused.status == 503 and refused.json["error"]["baton"]["cause"] == "mode_mismatch", refused.body
    both_serve(prefill, decode)


def test_a_pulling_d_is_refused_by_a_pushing_p_when_they_connect(mixed):
    prefill, decode, _ = mixed
    about = prefill.about()
    params = {"do_remote_prefill": True, "transfer_id": "0" * 31 + "1", "remote_engine_id": "prefill-0",
              "remote_host": stack.HOST, "remote_port": about["handover_port"], "transfer_mode": "pull",
              "remote_block_ids": [[0]], "remote_num_tokens": 5}
    answer = stack.complete(decode.port, [5, 6, 7, 8, 9], kv_transfer_params=params)
    error = answer.json["error"]
    assert answer.status == 502 and error["baton"]["cause"] == "refused", error
    assert "mode" in error["message"] and "push" in error["message"] and "pull" in error["message"], error
    stack.wait_for("P counts the refusal", lambda: prefill.metric("baton_refused_peers_total") >= 1)
    prefill.wait_says("cause=refused_peer field=mode ours=push theirs=pull")
    both_serve(prefill, decode)


def test_the_doctor_names_unlike_modes_and_what_to_change(mixed):
    prefill, decode, _ = mixed
    done = subprocess.run([str(stack.baton_binary()), "doctor", "--json", f"http://{stack.HOST}:{prefill.port}",
                           f"http://{stack.HOST}:{decode.port}"], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    failed = {check["name"]: check for check in json.loads(done.stdout)["checks"] if check["verdict"] == "fail"}
    assert failed["mode"]["found"] == "prefill push, decode pull"
    assert "kv_connector" in failed["mode"]["remedy"]
    assert "mode" in failed["handshake"]["found"], failed
    both_serve(prefill, decode)


# An announcement is checked by D before it is used, whoever brings it.
ANNOUNCEMENTS = {
    "no blocks": ({"remote_block_ids": []}, 400, ["remote_block_ids", "pull"]),
    "another mode": ({"transfer_mode": "push"}, 400, ["transfer_mode", "push", "pull"]),
    "too few": ({"remote_block_ids": [[]]}, 400, ["remote_block_ids", "0", "1"]),
    "too many": ({"remote_block_ids": [[0, 1]]}, 400, ["remote_block_ids", "2", "1"]),
    "two groups": ({"remote_block_ids": [[0], [0]]}, 400, ["remote_block_ids", "2 cache groups"]),
    "no list": ({"remote_block_ids": "all"}, 400, ["remote_block_ids", "all"]),
    "a negative id": ({"remote_block_ids": [[-1]]}, 400, ["remote_block_ids", "-1"]),
    "another prompt's": ({"remote_num_tokens": 9}, 400, ["[0, 9)", "5"]),
    "no tokens": ({"remote_num_tokens": None}, 400, ["remote_num_tokens", "missing"]),
    "a first token of another model": ({"remote_first_token": 2_000_000_000}, 400, ["remote_first_token", "2000000000"]),
    "an id over the pool": ({"remote_block_ids": [[4_000_000_000]]}, 502, ["4000000000"]),
    "a transfer that P never had": ({}, 502, ["0000000000000000000000000000000a"]),
}


@pytest.mark.parametrize("name", ANNOUNCEMENTS)
def test_a_wrong_announcement_is_refused(servers, name):  # noqa: F811
    change, status, words = ANNOUNCEMENTS[name]
    about = servers.prefill[0].about()
    params = {"do_remote_prefill": True, "transfer_id": "0" * 31 + "a", "remote_engine_id": about["engine_id"],
              "remote_host": stack.HOST, "remote_port": about["handover_port"], "transfer_mode": "pull",
              "remote_block_ids": [[0]], "remote_num_tokens": 5, **change}
    answer = stack.complete(servers.decode[0].port, [5, 6, 7, 8, 9], kv_transfer_params=params)
    assert answer.status == status, answer.body
    missing = [word for word in words if word not in answer.json["error"]["message"]]
    assert not missing, f"{missing} not in {answer.body}"
