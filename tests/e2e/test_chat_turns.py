"""Bidirectional pull with real processes: D keeps the KV of its answer, P reads it back for the next turn of the chat and
computes only what is new. Whatever became of what was kept, the answer is that of one engine without a hand-over.
"""
import secrets

import pytest
import stack

BLOCK = 16
PATH = "/v1/chat/completions"
# Chats here are short: whatever was kept is read, however little.
CONFIG = {"kv_role": "kv_both", "kv_connector_extra_config": {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 0}}
SYSTEM = {"role": "system", "content": "You answer in short plain sentences, and you name what you are not sure of."}
QUESTIONS = ["What is the capital of France, and what is it known for?", "Which river runs through it?", "And where does that river end?"]
LEASE = 600  # seconds: nothing lapses by itself


def start(model, lease, *more):
    return stack.Stack(model, decodes=2, mode="pull", config=CONFIG, extra=["--threads", 1, "--lease", lease, *more])


@pytest.fixture(scope="module")
def servers(real_model):
    with start(real_model, LEASE) as running:
        yield running


def body(messages, **more):
    return {"messages": messages, "max_tokens": 24, "temperature": 0, "return_token_ids": True, **more}


def ask(port, messages, stream=False):
    """The tokens and the text of an answer."""
    client = stack.Client(port, body(messages, ignore_eos=False), stream, PATH).finish()
    assert client.complete, f"{client.status} {client.error} {client.broken!r}"
    return client.tokens, client.text


def alone(servers, messages):
    """As one engine answers it: P itself, which is asked for the whole. Its tokens, and those of the prompt."""
    answer = stack.request(servers.prefill[0].port, "POST", PATH, body(messages)).json
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens"]


class Counted:
    """What the instances count while the block runs."""

    def __init__(self, servers):
        self.servers = servers

    def read(self):
        p = self.servers.prefill[0]
        return {"computed": p.metric("baton_computed_prompt_tokens_total"),
                "prefix": p.metric("baton_prefix_tokens_read_total"),
                "failed": p.metric("baton_prefix_reads_failed_total"),
                "bytes_to_p": p.metric("baton_bytes_received_total"),
                **{d.name: d.metric("baton_bytes_received_total") for d in self.servers.decode if d.running()}}

    def __enter__(self):
        self.before = self.read()
        return self

    def __exit__(self, *_):
        after = self.read()
        for name, value in after.items():
            setattr(self, name.replace("-", "_"), value - self.before[name])
        self.bytes_to_d = {name: after[name] - self.before[name] for name in after if name.startswith("decode-")}


def blocks(tokens):
    return -(-tokens // BLOCK)


def take_turns(servers, stream):
    messages, kept, a_block, last_keeper = [SYSTEM], 0, None, None
    idle = {d: d.metric("baton_kept_blocks") for d in servers.decode}  # of chats that ended before
    for question in QUESTIONS:
        messages = [*messages, {"role": "user", "content": f"{question} ({'stream' if stream else 'plain'})"}]
        right, prompt = alone(servers, messages)
        with Counted(servers) as turn:
            tokens, text = ask(servers.port, messages, stream)
        assert tokens == right
        assert turn.computed == prompt - kept and turn.prefix == kept and turn.failed == 0
        a_block = a_block or sum(turn.bytes_to_d.values()) / blocks(prompt)
        assert turn.bytes_to_p == kept / BLOCK * a_block, "P read something else than the kept blocks"
        assert sum(turn.bytes_to_d.values()) == blocks(prompt) * a_block
        if last_keeper:  # what is read is free; and the other D had this turn
            stack.wait_for("what was read is free", lambda d=last_keeper: d.metric("baton_kept_blocks") == idle[d])
            assert turn.bytes_to_d[last_keeper.name] == 0
        last_keeper = next(d for d in servers.decode if turn.bytes_to_d[d.name])
        # The last token is never computed.
        kept = (prompt + len(tokens) - 1) // BLOCK * BLOCK
        expected = idle[last_keeper] + kept / BLOCK
        stack.wait_for("the answer is kept", lambda d=last_keeper, n=expected: d.metric("baton_kept_blocks") == n)
        messages = [*messages, {"role": "assistant", "content": text}]
    for instance in [*servers.prefill, *servers.decode]:  # they and the router know the same keys
        assert instance.metric("baton_unknown_kv_transfer_params_total") == 0


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.long)], ids=["stream", "plain"])
def test_a_turn_computes_only_what_is_new(servers, stream):
    take_turns(servers, stream)


@pytest.mark.long
def test_between_hosts_a_turn_computes_only_what_is_new(real_model):
    """Each of the instances reads from each other: the fabric of different hosts does it, too."""
    with start(real_model, LEASE, "--fabric", "libfabric") as servers:
        assert {instance.about()["fabric"] for instance in servers.instances} == {"libfabric"}
        take_turns(servers, True)


@pytest.mark.long
def test_an_edited_answer_is_read_as_far_as_it_is_the_same(servers):
    messages = [SYSTEM, {"role": "user", "content": "Name three rivers of Europe."}]
    _, prompt = alone(servers, messages)
    ask(servers.port, messages)
    edited = [*messages, {"role": "assistant", "content": "I would rather not."}, {"role": "user", "content": "Why?"}]
    right, second = alone(servers, edited)
    with Counted(servers) as turn:
        tokens, _ = ask(servers.port, edited)
    assert tokens == right
    assert 0 < turn.prefix <= blocks(prompt) * BLOCK and turn.computed == second - turn.prefix


@pytest.mark.long
def test_with_prefix_caches_only_what_the_other_lacks_moves(real_model):
    with start(real_model, LEASE, "--enable-prefix-caching") as servers:
        messages, kept, known, answers = [SYSTEM], 0, 0, []  # known: tokens whose KV P has itself
        for question in QUESTIONS:
            messages = [*messages, {"role": "user", "content": question}]
            with Counted(servers) as turn:
                tokens, text = ask(servers.port, messages)
            answers.append((list(messages), tokens))
            assert turn.prefix == max(0, kept - known) and turn.failed == 0
            prompt = turn.computed + turn.prefix + known
            kept = (prompt + len(tokens) - 1) // BLOCK * BLOCK
            known = prompt // BLOCK * BLOCK
            messages = [*messages, {"role": "assistant", "content": text}]
        for asked, tokens in answers:
            assert tokens == alone(servers, asked)[0]


# ---------------------------------------------------------------------------------------------------------------------
# What was kept is gone.

def by_hand(p, d, messages, kept=None):
    """Both legs without a router, which would not name a keeper that it knows to be gone: D's answer."""
    params = {"do_remote_decode": True, "transfer_id": secrets.token_hex(16), **({"kept": kept} if kept else {})}
    prefill = stack.Stream(p.port, PATH, body(messages, kv_transfer_params=params))
    assert prefill.status == 200, prefill.response.read()
    event = next(iter(prefill))
    params = {**event["kv_transfer_params"], "remote_first_token": event["first_token"]["id"], "keep_blocks": True}
    answer = stack.request(d.port, "POST", PATH, body(messages, kv_transfer_params=params))
    assert answer.status == 200, answer.body
    for _ in prefill:
        pass
    return answer.json


def second_turn(servers, messages, first, d, kept):
    """The second turn by hand, with a D that has nothing of the first; what was counted, and the prompt's tokens."""
    messages = [*messages, first["choices"][0]["message"], {"role": "user", "content": QUESTIONS[1]}]
    right, prompt = alone(servers, messages)
    with Counted(servers) as turn:
        answer = by_hand(servers.prefill[0], d, messages, kept)
    assert answer["choices"][0]["token_ids"] == right
    return turn, prompt


FIRST = [SYSTEM, {"role": "user", "content": QUESTIONS[0]}]


@pytest.mark.long
def test_a_keeper_that_may_not_be_connected_to(small_model):
    """Another host that --kv-allowed-peers does not name: the prompt is computed, though nothing else wakes the engine."""
    with start(small_model, LEASE) as servers:
        p, (d, other) = servers.prefill[0], servers.decode
        first = by_hand(p, d, FIRST)
        turn, prompt = second_turn(servers, FIRST, first, other, {**first["kv_transfer_params"], "remote_host": "192.0.2.1"})
        assert (turn.computed, turn.prefix, turn.failed) == (prompt, 0, 1)


def test_a_lease_that_lapsed_between_the_turns(small_model):
    with start(small_model, 1) as servers:
        p, (d, other) = servers.prefill[0], servers.decode
        first = by_hand(p, d, FIRST)
        stack.wait_for("the lease lapses", lambda: d.metric("baton_kept_blocks") == 0)
        turn, prompt = second_turn(servers, FIRST, first, other, first["kv_transfer_params"])
        assert (turn.computed, turn.prefix, turn.failed) == (prompt, 0, 1)


def test_kept_blocks_are_read_once(servers):
    p, (d, other) = servers.prefill[0], servers.decode
    first = by_hand(p, d, FIRST)
    for reads in (True, False):
        turn, prompt = second_turn(servers, FIRST, first, other, first["kv_transfer_params"])
        assert (turn.failed, turn.prefix > 0) == (not reads, reads)
        assert turn.computed == prompt - turn.prefix


@pytest.mark.parametrize("way", ["router", "by hand"])
def test_the_keeper_dies_between_the_turns(small_model, way):
    with start(small_model, LEASE) as servers:
        p, (d, other) = servers.prefill[0], servers.decode
        if way == "by hand":
            first = by_hand(p, d, FIRST)
            d.kill()
            d.wait()  # or it is asked for its counters while it dies
            turn, prompt = second_turn(servers, FIRST, first, other, first["kv_transfer_params"])
            assert turn.failed == 1
        else:
            _, text = ask(servers.port, FIRST)
            keeper = next(d for d in servers.decode if d.metric("baton_kept_blocks"))
            keeper.kill()
            keeper.wait()
            messages = [*FIRST, {"role": "assistant", "content": text}, {"role": "user", "content": QUESTIONS[1]}]
            right, prompt = alone(servers, messages)
            with Counted(servers) as turn:
                tokens, _ = ask(servers.port, messages)
            assert tokens == right
        assert (turn.computed, turn.prefix) == (prompt, 0)
