"""What a decode instance makes of a hand-over that fails, for every cause that can be provoked with real processes.

kv_load_failure_policy `fail`: an error that names the cause, the transfer and both engines, in a plain answer and in a
stream. `recompute`: the tokens of one engine, and only time is lost. Requests go to the instances as a router would send
them, so that each cause is the test's choice.
"""
import json
import secrets
import signal
import threading

import pytest
import stack
from test_kill import hold  # noqa: F401

PROMPT = list(range(5, 105))
ASK = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
FLAGS = ["--served-model-name", "m", "--threads", 1, "--peer-timeout", 3]


class World:
    """One P; one D of each policy; and the answer that is right."""

    def __init__(self, model, hold):
        ports = stack.free_ports(6)
        self.hold = hold
        self.prefill = stack.Instance("prefill-0", model, ports[0], "kv_producer", ports[1], FLAGS,
                                      env={"BATON_FAULT": f"hold_writes:{hold}"})
        self.decode = {policy: stack.Instance(f"decode-{policy}", model, ports[2 + 2 * i], "kv_consumer", ports[3 + 2 * i],
                                              FLAGS, config={"kv_load_failure_policy": policy})
                       for i, policy in enumerate(["fail", "recompute"])}
        self.model = model

    @property
    def instances(self):
        return [self.prefill, *self.decode.values()]

    def params(self, transfer, **more):
        about = self.prefill.about()
        return {"do_remote_prefill": True, "transfer_id": transfer, "remote_engine_id": about["engine_id"],
                "remote_host": about["handover_host"], "remote_port": about["handover_port"],
                "remote_incarnation": about["incarnation"], "first_token": "decode", **more}

    def decode_request(self, policy, stream, params):
        return stack.Client(self.decode[policy].port, {**ASK, "kv_transfer_params": params}, stream)

    def prefill_request(self, transfer):
        return stack.Stream(self.prefill.port, "/v1/completions", {**ASK, "kv_transfer_params": {
            "do_remote_decode": True, "transfer_id": transfer, "first_token": "decode"}})


@pytest.fixture(scope="module")
def world(small_model, hold):  # noqa: F811
    made = World(small_model, hold)
    for instance in made.instances:
        instance.start()
    for instance in made.instances:
        instance.wait_ready()
    made.right = stack.request(made.decode["fail"].port, "POST", "/v1/completions", ASK).json["choices"][0]["token_ids"]
    yield made
    for instance in made.instances:
        instance.kill(signal.SIGCONT)
        instance.kill()
        instance.wait()


def registered(world, policy):
    stack.wait_for("D has registered", lambda: world.decode[policy].metric("baton_transfers_open", side="decode") >= 1)


# Each makes one cause happen to a request at D, and returns its client.

def peer_unreachable(world, policy, stream, transfer):
    return world.decode_request(policy, stream, world.params(transfer, remote_port=stack.free_ports(1)[0]))


def refused(world, policy, stream, transfer):
    return world.decode_request(policy, stream, world.params(transfer, remote_engine_id="somebody-else"))


def peer_restarted(world, policy, stream, transfer):
    return world.decode_request(policy, stream, world.params(transfer, remote_incarnation="00000000000000aa"))


def deadline(world, policy, stream, transfer):
    """Nobody tells P of this transfer; the request's own time-out counts, not the flag's 60 s."""
    return world.decode_request(policy, stream, world.params(transfer, transfer_timeout_ms=300))


def peer_died(world, policy, stream, transfer):
    client = world.decode_request(policy, stream, world.params(transfer))
    registered(world, policy)
    world.prefill.kill()
    world.prefill.wait()  # D may know of it before it can be reaped
    return client


def peer_silent(world, policy, stream, transfer):
    client = world.decode_request(policy, stream, world.params(transfer))
    registered(world, policy)
    world.prefill.kill(signal.SIGSTOP)
    return client


def cancelled_by_peer(world, policy, stream, transfer):
    world.hold.touch()
    written = world.prefill.metric("baton_writes_posted_total")
    at_prefill = world.prefill_request(transfer)
    client = world.decode_request(policy, stream, world.params(transfer))
    stack.wait_for("P writes", lambda: world.prefill.metric("baton_writes_posted_total") > written)
    aborted = world.prefill.metric("vllm:request_success_total", finished_reason="abort")
    at_prefill.close()
    stack.wait_for("P has dropped it", lambda: world.prefill.metric(
        "vllm:request_success_total", finished_reason="abort") > aborted)
    return client


def shutdown(world, policy, stream, transfer):
    world.hold.touch()
    at_prefill = world.prefill_request(transfer)
    client = world.decode_request(policy, stream, world.params(transfer))
    registered(world, policy)
    threading.Thread(target=lambda: list(at_prefill), daemon=True).start()
    world.prefill.kill(signal.SIGTERM)
    stack.wait_for("P drains", lambda: stack.request(world.prefill.port, "GET", "/health").status == 503)
    world.prefill.kill(signal.SIGTERM)
    return client


CAUSES = {f.__name__: f for f in (peer_unreachable, refused, peer_restarted, deadline, peer_died, peer_silent,
                                  cancelled_by_peer, shutdown)}


def settle(world):
    """P is there again, and nothing is left anywhere."""
    world.hold.unlink(missing_ok=True)
    world.prefill.kill(signal.SIGCONT)
    if world.prefill.popen.poll() is not None or not world.prefill.running():
        world.prefill.wait()
        world.prefill.start().wait_ready()
    for instance in world.instances:
        instance.wait_at_rest()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("cause", CAUSES)
def test_a_failed_hand_over(world, cause, policy, stream):
    transfer = secrets.token_hex(16)
    decode = world.decode[policy]
    recomputed = decode.metric("baton_kv_load_recomputed_total")
    client = CAUSES[cause](world, policy, stream, transfer)
    client.finish(30)
    if cause == "shutdown":
        world.prefill.wait(10)
    told = {cause} | ({"peer_died"} if cause == "shutdown" else set())  # its last words may be lost with it
    line = stack.wait_for("D has said why", lambda: [x for x in decode.output.splitlines() if "failure cause=" in x and transfer in x])[-1]
    assert any(f"cause={c} " in line for c in told), line
    record = stack.request(decode.port, "GET", f"/debug/transfers?id={transfer}").json["transfers"][-1]
    assert record["cause"] in told and record["outcome"] != "done", record
    if policy == "fail":
        assert not client.complete and client.tokens == []
        assert client.status in (502, 503, 504), client.status
        baton = client.error["baton"]
        assert baton["cause"] in told and baton["transfer_id"] == transfer
        assert baton["decode"] == decode.name
        assert baton["prefill"] == ("somebody-else" if cause == "refused" else world.prefill.name)
        for word in (transfer, baton["cause"], decode.name):
            assert word in client.error["message"], client.error
    else:
        assert client.complete, f"{client.status} {client.error} {client.broken!r}"
        assert client.tokens == world.right
        assert decode.metric("baton_kv_load_recomputed_total") == recomputed + 1
        assert "then=computed_here" in line
    settle(world)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_blocks_that_arrive_corrupt(small_model, policy):
    with stack.Stack(small_model, extra=[*FLAGS, "--verify-blocks"], prefill_env={"BATON_FAULT": "flip_byte:2"}) as servers:
        servers.decode[0].kill()
        servers.decode[0].wait()
        at = servers.decode[0].arguments.index("--kv-transfer-config") + 1
        config = json.loads(servers.decode[0].arguments[at])
        servers.decode[0].arguments[at] = json.dumps({**config, "kv_load_failure_policy": policy})
        servers.decode[0].start().wait_ready()
        servers.wait_router_ready()
        right = stack.request(servers.decode[0].port, "POST", "/v1/completions", ASK).json["choices"][0]["token_ids"]
        answer = stack.request(servers.port, "POST", "/v1/completions", ASK)
        if policy == "recompute":
            assert answer.status == 200 and answer.json["choices"][0]["token_ids"] == right
        else:
            assert answer.status == 502, answer.body
            assert answer.json["error"]["baton"]["cause"] == "corrupt", answer.body
        assert stack.request(servers.port, "POST", "/v1/completions", ASK).json["choices"][0]["token_ids"] == right
