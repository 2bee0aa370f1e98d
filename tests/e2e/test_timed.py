"""The timed backend: a published experiment's shape on this machine, and nothing that hides that it is emulated."""
import json
import random
import subprocess

import pytest
import stack

PROFILE = "qwen3-32b-tp8-h200"
SCALE = 32
TOKEN_BYTES = 64 * 2 * 256 // SCALE  # 64 layers, K and V, one head of 128 x 2 bytes
BLOCK = 16


def prompt(tokens, seed):
    return [random.Random(seed * 7919 + i).randrange(512) for i in range(tokens)]


def timed_stack(*extra):
    """Pools of 64 MiB; an emulated link that even a busy machine keeps up with."""
    flags = ["--backend", "timed", "--kv-cache-memory-bytes", 64 << 20, "--link-rate", 2e8, *extra]
    return stack.Stack(PROFILE, extra=flags, router_extra=["--first-token", "decode"])


@pytest.fixture(scope="module", params=["baton", "published", "published-merged"])
def pair(request):
    with timed_stack("--transfer-style", request.param) as running:
        running.style = request.param
        yield running
        running.standing_checks()


@pytest.mark.parametrize("tokens", [1, 1000, 2048])
def test_every_byte_of_the_prompt_crosses_and_is_checked(pair, tokens):
    p, d = pair.prefill[0], pair.decode[0]
    written, received = pair.bytes_moved()
    checked = d.metric("baton_emulated_checked_bytes_total")
    answer = stack.complete(pair.port, prompt(tokens, tokens), max_tokens=5)
    assert answer.status == 200, answer.body
    p.wait_at_rest()
    d.wait_at_rest()
    moved = -(-tokens // BLOCK) * BLOCK * TOKEN_BYTES
    assert tuple(now - before for now, before in zip(pair.bytes_moved(), (written, received))) == (moved, moved)
    # All but the last token, which D computes again.
    assert d.metric("baton_emulated_checked_bytes_total") - checked == (tokens - 1) * TOKEN_BYTES
    assert d.metric("baton_emulated_kv_faults_total") == 0
    usage = answer.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (tokens, 5)


def test_the_link_counts_the_bytes_and_only_the_published_styles_pay_for_posts(pair):
    p = pair.prefill[0]
    stack.complete(pair.port, prompt(512, 1), max_tokens=2)
    p.wait_at_rest()
    written, writes = p.metric("baton_bytes_written_total"), p.metric("baton_writes_posted_total")
    assert p.metric("baton_link_busy_seconds_total") == pytest.approx(written / 2e8, rel=0.01)
    paid = 0 if pair.style == "baton" else writes * 2.4e-6
    assert p.metric("baton_link_posting_seconds_total") == pytest.approx(paid, rel=0.01)
    merged = p.metric("baton_runs_merged_total")
    assert merged == 0 if pair.style == "published" else merged > 0


def test_every_output_says_emulated(pair):
    for instance in pair.instances:
        health = stack.request(instance.port, "GET", "/health").json
        assert health["emulated"]["profile"] == PROFILE
        assert health["emulated"]["kv_bytes_scale"] == SCALE
        assert health["emulated"]["transfer_style"] == pair.style
        model = stack.request(instance.port, "GET", "/v1/models").json["data"][0]
        assert model["id"] == PROFILE and model["emulated"].startswith("emulated: profile")
        assert instance.about()["emulated"].startswith("emulated: profile")
        assert instance.metric("baton_emulation_info", emulated="true", profile=PROFILE) == 1
        instance.wait_says(f"emulated: profile {PROFILE}")
    assert stack.request(pair.port, "GET", "/health").json["emulated"].startswith("emulated: profile")
    assert stack.request(pair.port, "GET", "/v1/models").json["data"][0]["emulated"].startswith("emulated: profile")
    answer = stack.complete(pair.port, "some text", max_tokens=3).json
    assert answer["system_fingerprint"].startswith(f"emulated: profile {PROFILE}")
    log = stack.request(pair.prefill[0].port, "GET", "/debug/transfers").json
    assert all(record["emulated"].startswith("emulated: ") for record in log["transfers"])
    chunks = list(stack.Stream(pair.port, "/v1/completions", {"prompt": "some text", "max_tokens": 3}))
    assert all("emulated" in chunk["system_fingerprint"] for chunk in chunks)


def test_text_and_chats_are_answered_alike_each_time(pair):
    texts = {stack.complete(pair.port, "grüße", max_tokens=20).json["choices"][0]["text"] for _ in range(2)}
    assert len(texts) == 1 and len(texts.pop()) == 20
    chat = stack.request(pair.port, "POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": 7})
    assert chat.status == 200 and len(chat.json["choices"][0]["message"]["content"]) == 7


def test_a_broken_byte_fails_the_request_and_names_its_block():
    with stack.Stack(PROFILE, extra=["--backend", "timed", "--kv-cache-memory-bytes", 64 << 20],
                     router_extra=["--first-token", "decode"], prefill_env={"BATON_FAULT": "flip_byte:1"}) as broken:
        answer = stack.complete(broken.port, prompt(100, 3))
        assert answer.status == 502 and answer.json["error"]["baton"]["cause"] == "corrupt", answer.body
        assert "KV of block" in answer.json["error"]["message"] and "expected 0x" in answer.json["error"]["message"]
        assert broken.decode[0].metric("baton_emulated_kv_faults_total") == 1
        broken.standing_checks()


def doctor(*ports):
    """The exit code, and the checks by name."""
    run = subprocess.run([str(stack.baton_binary()), "doctor", *(f"http://{stack.HOST}:{port}" for port in ports), "--json"],
                         capture_output=True, text=True, timeout=60, check=False)
    return run.returncode, {check["name"]: check for check in json.loads(run.stdout)["checks"]}


def test_unlike_scales_do_not_meet():
    with timed_stack() as pair:
        code, checks = doctor(pair.prefill[0].port, pair.decode[0].port)
        assert code == 0 and checks["handshake"]["verdict"] == "ok", checks["handshake"]
        port, kv_port = stack.free_ports(2)
        other = stack.Instance("prefill-other", PROFILE, port, "kv_producer", kv_port,
                               ["--backend", "timed", "--kv-bytes-scale", 16, "--kv-cache-memory-bytes", 64 << 20])
        try:
            other.start().wait_ready()
            answer = stack.request(pair.decode[0].port, "POST", "/v1/completions", {
                "prompt": prompt(50, 4), "max_tokens": 3, "kv_transfer_params": {
                    "do_remote_prefill": True, "transfer_id": "0" * 31 + "1", "remote_engine_id": "prefill-other",
                    "remote_host": stack.HOST, "remote_port": other.about()["handover_port"],
                    "remote_incarnation": other.about()["incarnation"]}})
            assert answer.status >= 400
            assert "kv-bytes-scale-16" in json.dumps(answer.json) and "kv-bytes-scale-32" in json.dumps(answer.json)
            code, checks = doctor(port, pair.decode[0].port)
            assert code == 1 and "kv-bytes-scale-16" in checks["weights"]["found"], checks["weights"]
        finally:
            other.kill()
            other.wait()
