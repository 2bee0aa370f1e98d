"""Faults that users of other systems reported, tried with real processes from the client's side of the router. The names
are those of the table in docs/testing.md; `spare` are reports without a number there."""
import concurrent.futures

import pytest
import stack

FLAGS = ["--served-model-name", "m", "--threads", 1, "--max-num-batched-tokens", 64, "--max-model-len", 640]
BLOCKS = 64


@pytest.fixture(scope="module")
def pair(small_model):
    # Blocks of 16 tokens; a block of this model is 2 layers x 2 x 8 heads x 16 x 16 x 2 bytes.
    pool = BLOCKS * 2 * 2 * 8 * 16 * 16 * 2
    with stack.Stack(small_model, extra=[*FLAGS, "--kv-cache-memory-bytes", pool, "--max-num-seqs", 8,
                                         "--poison-blocks"]) as running:
        assert running.decode[0].blocks()["total"] == BLOCKS
        yield running


@pytest.fixture
def servers(pair):
    yield pair
    pair.standing_checks()


@pytest.fixture(scope="module")
def alone(small_model):
    """One engine without a hand-over: what every answer is compared with."""
    (port,) = stack.free_ports(1)
    process = stack.Process("alone", ["serve", small_model, "--port", port, *FLAGS]).start()
    stack.wait_for("it is ready", lambda: not stack.is_free(port) and
                   stack.request(port, "GET", "/health").status == 200)
    yield port
    process.kill()
    process.wait()


def tokens_of(port, prompt, **more):
    answer = stack.complete(port, prompt, return_token_ids=True, **more)
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]["token_ids"]


def test_B10_several_samples_are_refused_before_anything_is_held(servers):
    """n > 1 is not served yet: 400 that says so at the router and at either instance, and no block is taken."""
    moved = servers.prefill[0].metric("baton_computed_prompt_tokens_total")
    for port in (servers.port, servers.prefill[0].port, servers.decode[0].port):
        for n in (2, 4, 8):
            for more in ({"n": n}, {"best_of": n}):
                answer = stack.complete(port, **more)
                assert answer.status == 400, answer.body
                assert str(n) in answer.json["error"]["message"]
    assert servers.prefill[0].metric("baton_computed_prompt_tokens_total") == moved
    for instance in servers.instances:
        assert instance.whole()


def test_L3_everybody_leaves_four_times_and_one_probe_is_served(servers, alone):
    """Far more requests than the pools hold, all of whose clients go: cleaning runs on time, not on traffic."""
    prompt = [7] * 512
    for _ in range(4):
        clients = [stack.Client(servers.port, {"prompt": prompt, "max_tokens": 64}, i % 2 == 0) for i in range(75)]
        stack.wait_for("the pool of P is full", lambda: servers.prefill[0].blocks()["free"] < BLOCKS // 2)
        for client in clients:
            client.leave()
    took = [instance.wait_at_rest(30) for instance in servers.instances]
    print(f"at rest {max(took):.2f} s after the last client left")
    assert tokens_of(servers.port, prompt) == tokens_of(alone, prompt)


def test_spare_prompts_of_every_length_around_a_boundary(servers, alone):
    """Short ones fine, long ones not; or wrong at a boundary of a block, of a chunk, of the context."""
    for length in (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 499, 500, 501, 634, 635, 636):
        prompt = [33 + (i * 7 + length) % 80 for i in range(length)]
        assert tokens_of(servers.port, prompt) == tokens_of(alone, prompt), length


def test_spare_a_hundred_and_twenty_requests_two_at_a_time(servers, alone):
    """A receive buffer of which nothing is used again is full after about a hundred."""
    prompt = [9] * 200
    expected = tokens_of(alone, prompt)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for tokens in pool.map(lambda _: tokens_of(servers.port, prompt), range(120)):
            assert tokens == expected


@pytest.mark.parametrize("level", ["debug", "info", "off"])
def test_spare_the_first_stream_does_not_hang_on_the_log_level(small_model, level, monkeypatch):
    monkeypatch.setenv("BATON_LOG_LEVEL", level)
    with stack.Stack(small_model, extra=FLAGS) as servers:
        client = stack.Client(servers.port, {"prompt": "The first one.", "max_tokens": 6}).finish(30)
        assert client.complete and len(client.tokens) == 6, f"{client.error} {client.broken!r}"
