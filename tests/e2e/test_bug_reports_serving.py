"""Faults that users of other systems reported, tried with real processes at the level of the servers. The numbers are
those of the table in docs/testing.md."""
import json

import pytest
import stack

CONTEXT = 512


@pytest.fixture(scope="module")
def pair(small_model):
    with stack.Stack(small_model, extra=["--served-model-name", "m", "--threads", 1, "--max-num-batched-tokens", 64],
                     prefill_extra=["--max-model-len", CONTEXT], decode_extra=["--max-model-len", CONTEXT // 2]) as running:
        yield running


@pytest.fixture(scope="module")
def alone(small_model):
    """One engine without a hand-over: what every answer is compared with."""
    port = stack.free_ports(1)[0]
    process = stack.Process("alone", ["serve", small_model, "--port", port, "--served-model-name", "m", "--threads", 1,
                                      "--max-model-len", CONTEXT]).start()
    stack.wait_for("it is ready", lambda: not stack.is_free(port) and
                   stack.request(port, "GET", "/health").status == 200)
    yield port
    process.kill()
    process.wait()


@pytest.fixture
def servers(pair):
    yield pair
    pair.standing_checks()


def test_B09_what_decode_refuses_frees_prefill_at_once(servers):
    """P accepts the prompt, D's context is too short for it: the client gets D's 4xx, P waits for no lease (30 s)."""
    prompt = [7] * (CONTEXT // 2 + 10)
    for i in range(50):
        answer = stack.request(servers.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 4, "stream": i % 2 == 0})
        text = answer.body.decode()
        assert answer.status == 400 or (answer.status == 200 and "event: error" in text), text
        assert "maximum context length is 256" in text
        assert "[DONE]" not in text
    took = servers.prefill[0].wait_at_rest(5)
    print(f"P at rest {took * 1000:.0f} ms after the last refusal")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("body", [{"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": 8, "stop": "FIRST"},
                                  {"max_tokens": 8, "ignore_eos": False}], ids=["one", "two", "stop", "eos"])
def test_B24_the_handed_over_token_obeys_the_stop_rules(servers, alone, body, stream):
    base = {"prompt": "Stop rules.", "temperature": 0, "ignore_eos": True, "return_token_ids": True, **body}
    if body.get("stop"):
        first = stack.request(alone, "POST", "/v1/completions", {**base, "stop": None, "max_tokens": 1}).json
        base["stop"] = first["choices"][0]["text"]
        assert base["stop"]
    want = stack.request(alone, "POST", "/v1/completions", base).json
    if stream:
        events = list(stack.Stream(servers.port, "/v1/completions", {**base, "stream_options": {"include_usage": True}}))
        choices = [c for e in events for c in e.get("choices", [])]
        got = {"text": "".join(c["text"] for c in choices), "token_ids": sum((c.get("token_ids") or [] for c in choices), []),
               "finish_reason": [c["finish_reason"] for c in choices if c["finish_reason"]]}
        usage = [e["usage"] for e in events if e.get("usage")][-1]
        assert got["finish_reason"] == [want["choices"][0]["finish_reason"]]
    else:
        answer = stack.request(servers.port, "POST", "/v1/completions", base).json
        got, usage = answer["choices"][0], answer["usage"]
        assert got["finish_reason"] == want["choices"][0]["finish_reason"]
    assert got["text"] == want["choices"][0]["text"]
    assert got["token_ids"] == want["choices"][0]["token_ids"]
    assert usage == want["usage"]


def test_B38_registrations_precede_the_end_of_prefill(servers):
    early = 0
    for i in range(20):
        answer = stack.complete(servers.port, f"{i} " + "word " * 40)
        transfer = answer.headers["X-Baton-Transfer-Id"]
        record = stack.wait_for("P's record", lambda t=transfer: stack.request(
            servers.prefill[0].port, "GET", f"/debug/transfers?id={t}").json["transfers"])[0]
        early += record["times"]["registered"] < record["times"]["pieces_ready"][-1]
    print(f"{early} of 20 registrations came before prefill had finished")
    assert early > 19 * 0.95


BAD_BODIES = [{"prompt": [7] * (CONTEXT + 5)}, {"prompt": "x", "temperature": -1}, {"prompt": "x", "model": "other"},
              {"prompt": ""}, {"prompt": []}, b"{broken", b'{"prompt": "' + b"x" * (20 << 20) + b'"}']


@pytest.mark.parametrize("body", BAD_BODIES, ids=["long", "temperature", "model", "empty", "no_tokens", "json", "20MB"])
def test_B43_a_refusal_is_that_of_one_engine(servers, alone, body):
    def ask(port):
        try:
            return stack.request(port, "POST", "/v1/completions", body)
        except (BrokenPipeError, ConnectionResetError):
            return None  # refused while the body was still on its way
    want, got = ask(alone), ask(servers.port)
    assert (want is None) == (got is None)
    if want is None:
        return
    assert got.status == want.status, f"{got.body!r}\n{want.body!r}"
    assert 400 <= got.status < 500 or want.status == 200
    if body == BAD_BODIES[2]:
        assert "`other` does not exist" in got.json["error"]["message"]  # the router names the stage as well
    elif got.status != 200:
        # Whichever of the two refuses first: both contexts are too short.
        message = got.json["error"]["message"].replace(f"length is {CONTEXT // 2}", f"length is {CONTEXT}")
        assert message == want.json["error"]["message"]
        assert got.json["error"].get("param") == want.json["error"].get("param")
    for instance in servers.instances:
        instance.wait_at_rest(10)


def test_B47_two_of_each_on_one_host_with_default_side_channels(small_model):
    """Nobody names a side-channel port: each takes a free one, and the router tells decode where prefill is."""
    ports = stack.free_ports(5)
    processes = []
    try:
        for i, role in enumerate(["kv_producer", "kv_producer", "kv_consumer", "kv_consumer"]):
            config = json.dumps({"kv_connector": "BatonConnector", "kv_role": role, "engine_id": f"e{i}"})
            processes.append(stack.Process(f"e{i}", ["serve", small_model, "--port", ports[i], "--threads", 1,
                                                     "--kv-transfer-config", config]).start())
        urls = [f"http://{stack.HOST}:{p}" for p in ports]
        processes.append(stack.Process("router", ["route", "--port", ports[4], "--prefill", *urls[:2], "--decode", *urls[2:4]]).start())

        def all_up():
            page = stack.request(ports[4], "GET", "/metrics").body.decode() if not stack.is_free(ports[4]) else ""
            return page.count("baton_router_instance_up{") == 4 and not any(
                line.endswith(" 0") for line in page.splitlines() if line.startswith("baton_router_instance_up{"))
        stack.wait_for("all four are up", all_up, 60)
        channels = {stack.request(p, "GET", "/baton/instance").json["handover_port"] for p in ports[:4]}
        assert len(channels) == 4 and 0 not in channels
        for _ in range(8):
            assert stack.complete(ports[4]).status == 200
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_B47_a_side_channel_port_that_is_taken_stops_the_start_and_is_named(small_model):
    holder = stack.socket.socket()
    holder.bind((stack.HOST, 0))
    holder.listen()
    taken = holder.getsockname()[1]
    process = stack.Instance("late", small_model, stack.free_ports(1)[0], "kv_producer", taken, ["--threads", 1]).start()
    try:
        assert process.wait(30) == 4
        assert str(taken) in process.output.splitlines()[-1], process.output
    finally:
        holder.close()
        process.kill()


def test_B49_a_prompt_that_decode_computes_itself_is_counted_and_warned_about(servers):
    decode = servers.decode[0]
    before = decode.metric("baton_local_prefills_total")
    assert stack.complete(servers.port).status == 200
    assert decode.metric("baton_local_prefills_total") == before, "a hand-over is none"
    assert stack.complete(decode.port).status == 200  # the parameters were lost on the way
    assert decode.metric("baton_local_prefills_total") == before + 1
    decode.wait_says("cause=local_prefill")


def test_B54_prompt_tokens_are_counted_once_and_received_is_not_cached(servers):
    prefill, decode = servers.prefill[0], servers.decode[0]

    def sources(instance):
        return {s: instance.metric("vllm:prompt_tokens_by_source_total", source=s)
                for s in ("local_compute", "local_cache_hit", "external_kv_transfer")}
    before = sources(prefill), sources(decode), decode.metric("vllm:prompt_tokens_total")
    prompt = [5 + i % 90 for i in range(200)]
    for body in ({"stream": False}, {"stream": False}, {"stream": True, "stream_options": {"include_usage": True}}):
        request = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
        if body["stream"]:
            usage = [e["usage"] for e in stack.Stream(servers.port, "/v1/completions", request) if e.get("usage")][-1]
        else:
            usage = stack.request(servers.port, "POST", "/v1/completions", request).json["usage"]
        assert usage["prompt_tokens"] == 200 and usage["completion_tokens"] == 4 and usage["total_tokens"] == 204
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0, "KV that was received is no cache hit"
    for instance in servers.instances:
        instance.wait_at_rest()
    after = sources(prefill), sources(decode), decode.metric("vllm:prompt_tokens_total")
    p = {k: after[0][k] - before[0][k] for k in after[0]}
    d = {k: after[1][k] - before[1][k] for k in after[1]}
    assert p == {"local_compute": 600, "local_cache_hit": 0, "external_kv_transfer": 0}
    assert d == {"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 600}
    assert sum(d.values()) == after[2] - before[2], "the sources add up to the prompts"
