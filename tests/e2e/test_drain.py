"""SIGTERM: no new requests, what has started ends, exit 0. A second SIGTERM ends at once. Instances leave and join."""
import os
import signal
import subprocess
import time

import pytest
import stack
from test_kill import (BLOCKS, CLIENT, FACTOR, FLAGS, LONG, PROMPT, decoding, flags_with_patience, hold,  # noqa: F401
                       names_the_cause, registered, restart, servers, slow_model, writing)

HURRY = 2.0  # a second signal: the process has ended


@pytest.fixture(scope="module")
def stacks(slow_model, hold):  # noqa: F811
    """Those of test_kill with patience: what is held here ends well."""
    with stack.Stack(slow_model, extra=flags_with_patience(60), prefill_extra=["--max-model-len", 4096],
                     decode_extra=["--max-model-len", BLOCKS * 16],
                     prefill_env={"BATON_FAULT": f"hold_writes:{hold}"}) as running:
        yield running


def refuses(port, word):
    """New requests and health get 503 with a reason; the process still answers."""
    for method, path, body in [("GET", "/health", None), ("POST", "/v1/completions", {"prompt": "x"})]:
        answer = stack.request(port, method, path, body)
        if answer.status != 503:
            return False
        assert word in answer.json["error"]["message"], answer.body
        assert answer.headers.get("Retry-After"), answer.headers
    return True


def stop_and_wait(process, port):
    process.kill(signal.SIGTERM)
    stack.wait_for(f"{process.name} refuses new requests", lambda: refuses(port, "stopping"), 10)


@pytest.mark.parametrize("victim", ["prefill", "decode", "router"])
def test_sigterm_under_load_loses_no_request_that_had_started(servers, hold, victim):
    prefill, decode = servers.prefill[0], servers.decode[0]
    before = {i: i.metric("vllm:prompt_tokens_total") for i in (prefill, decode)}
    hold.touch()  # the first KV cache stands still until the victim has refused something: none has ended by then
    prompts = [[7 + i] * 120 for i in range(6)]
    clients = [stack.Client(servers.port, {"prompt": prompt, "max_tokens": 24}, i % 2 == 0) for i, prompt in enumerate(prompts)]
    process, port = {"prefill": (prefill, prefill.port), "decode": (decode, decode.port),
                     "router": (servers.router, servers.port)}[victim]
    stack.wait_for("both instances have all six", lambda: all(
        i.metric("vllm:prompt_tokens_total") - before[i] == sum(map(len, prompts)) for i in (prefill, decode)))
    stop_and_wait(process, port)
    hold.unlink()
    for client in clients:
        client.finish(120)
        assert client.complete, f"lost: {client.status} {client.error} {client.broken!r}"
        assert len(client.tokens) == 24
    assert process.wait(60) == 0
    survivors = [i for i in servers.instances if i is not process]
    for instance in survivors:
        instance.wait_at_rest()


def test_a_prefill_instance_hands_over_what_it_has_before_it_ends(servers, hold):
    prefill = servers.prefill[0]
    with writing(servers, hold, True, 12) as client:
        stop_and_wait(prefill, prefill.port)
        time.sleep(0.3)
        assert prefill.running(), "it ended with a hand-over under way"
    client.finish()
    assert client.complete and len(client.tokens) == 12, f"{client.error} {client.broken!r}"
    assert prefill.wait() == 0
    servers.decode[0].wait_at_rest()


def test_finished_blocks_that_nobody_takes_end_with_their_lease(slow_model):
    port, kv_port = stack.free_ports(2)
    prefill = stack.Instance("prefill-0", slow_model, port, "kv_producer", kv_port, [*FLAGS, "--lease", 4]).start()
    try:
        prefill.wait_ready()
        answer = stack.request(port, "POST", "/v1/completions",
                               {"prompt": PROMPT, "kv_transfer_params": {"do_remote_decode": True}})
        assert answer.status == 200 and answer.json["kv_transfer_params"]["do_remote_prefill"]
        stack.wait_for("the lease is held", lambda: prefill.metric("baton_leases_held") == 1)
        prefill.kill(signal.SIGTERM)
        assert prefill.wait(20) == 0
        assert "lease_expired" in prefill.output, prefill.output
    finally:
        prefill.kill()


@pytest.mark.parametrize("victim", ["prefill", "decode", "router"])
def test_a_second_sigterm_ends_at_once(servers, hold, victim):
    process, port = {"prefill": (servers.prefill[0], servers.prefill[0].port),
                     "decode": (servers.decode[0], servers.decode[0].port),
                     "router": (servers.router, servers.port)}[victim]
    with writing(servers, hold, False) as client:
        stop_and_wait(process, port)
        begin = time.monotonic()
        process.kill(signal.SIGTERM)
        code = process.wait(HURRY * FACTOR)
        print(f"{victim}: ended {1000 * (time.monotonic() - begin):.0f} ms after the second signal")
        client.finish()
        assert code == 0
        assert not client.complete
        if victim != "router" or client.error:
            names_the_cause(client, servers)
    hold.unlink(missing_ok=True)
    for instance in servers.instances:
        if instance.running():
            instance.wait_at_rest(60)


def test_the_time_to_drain_is_bounded(slow_model, hold):  # noqa: F811
    with stack.Stack(slow_model, extra=[*flags_with_patience(60), "--drain-timeout", 1],
                     prefill_env={"BATON_FAULT": f"hold_writes:{hold}"}) as servers:
        with writing(servers, hold, True) as client:
            servers.prefill[0].kill(signal.SIGTERM)
            assert servers.prefill[0].wait(10) == 0
            client.finish()
            names_the_cause(client, servers)


def test_an_instance_may_start_late_leave_and_come_back(small_model):
    """The router is first; both instances come later, one leaves in good order, one dies, both are used again."""
    with_ports = stack.Stack(small_model, extra=["--served-model-name", "m"])
    prefill, decode, router = with_ports.prefill[0], with_ports.decode[0], with_ports.router
    try:
        router.start()
        stack.wait_for("the router answers", lambda: stack.is_free(with_ports.port) is False)
        missing = stack.wait_for("503", lambda: stack.complete(with_ports.port))
        assert missing.status == 503 and "no prefill instance" in missing.json["error"]["message"], missing.body
        assert missing.json["error"]["baton"]["cause"] == "no_prefill_instance", missing.body
        assert " warning " not in router.output and " error " not in router.output, router.output
        prefill.start().wait_ready()
        stack.wait_for("P is used", lambda: "no decode" in
                       stack.complete(with_ports.port).json["error"]["message"])
        decode.start().wait_ready()
        with_ports.wait_router_ready()
        assert stack.complete(with_ports.port).status == 200
        for instance, how in [(decode, signal.SIGTERM), (prefill, signal.SIGKILL), (decode, signal.SIGKILL)]:
            instance.kill(how)
            instance.wait()
            stack.wait_for("its absence is known", lambda: stack.complete(with_ports.port).status == 503)
            instance.start().wait_ready()
            with_ports.wait_router_ready()
            assert stack.complete(with_ports.port).status == 200
        with_ports.standing_checks()
    finally:
        with_ports.__exit__(None, None, None)


def start_up(small_model, *flags):
    ports = stack.free_ports(3)
    up = stack.Process("up", ["up", small_model, "--port", ports[0], "--prefill-port", ports[1], "--decode-port",
                              ports[2], "--threads", 1, *flags]).start()
    return up, ports


def test_up_stops_in_order_and_hurries_when_asked_again(slow_model):
    up, ports = start_up(slow_model)
    try:
        stack.wait_for("all are ready", lambda: "Ctrl-C stops" in up.output, 60)
        client = stack.Client(ports[0], {"prompt": PROMPT, "max_tokens": 10 * LONG})
        stack.wait_for("it streams", lambda: client.tokens)
        up.kill(signal.SIGTERM)
        stack.wait_for("it drains", lambda: refuses(ports[0], "stopping"), 10)
        begin = time.monotonic()
        up.kill(signal.SIGTERM)
        assert up.wait(3 * HURRY * FACTOR) == 0
        print(f"up: ended {1000 * (time.monotonic() - begin):.0f} ms after the second signal")
        client.finish()
        assert not client.complete
        assert all(stack.is_free(port) for port in ports), "a child is left"
    finally:
        up.kill()


def test_up_says_last_why_it_could_not_start(small_model):
    """B47: a port that is taken is named, nothing is left half started, and the cause is not buried."""
    holder = stack.socket.socket()
    holder.bind((stack.HOST, 0))
    holder.listen()
    ports = stack.free_ports(2)
    up = stack.Process("up", ["up", small_model, "--port", holder.getsockname()[1], "--prefill-port", ports[0],
                              "--decode-port", ports[1], "--threads", 1]).start()
    try:
        assert up.wait(60) == 4
        last = up.output.splitlines()[-1]
        assert "router" in last and "code 4" in last, up.output
        assert str(holder.getsockname()[1]) in up.output
        assert all(stack.is_free(port) for port in ports)
    finally:
        up.kill()
        holder.close()
