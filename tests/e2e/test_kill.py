"""Real processes die, stop and lose their clients at every point of a hand-over.

A phase is reached by conditions alone: a request that occupies the only place of P or D, and a file that holds P's writes
back (BATON_FAULT=hold_writes). Bounds are those of docs/protocol.md times FACTOR; what was measured is printed.
"""
import contextlib
import pathlib
import signal
import time

import pytest
import stack

FACTOR = 5           # a busy machine of two cores
SURVIVOR = 1.0       # a peer's process died, or the router: the survivor's engine knows and frees
CLIENT = 2.0         # ... and the client has its error
PEER_TIMEOUT = 2.0   # --peer-timeout of these servers, seconds. What is held in mid-write is given up as late, too
SILENT = PEER_TIMEOUT + 1.0
ROUTER_SILENT = 6.0  # the router's own --peer-timeout, 5 s by default, + 1 s
RESEND = 2.0         # longest distance between two tries of a message whose answer is missing
PROMPT = "word " * 40  # a token a byte
LONG = 300           # tokens of an answer that does not end by itself during a test
BLOCKS = 32          # of D, 16 tokens each: two prompts of more than half of that do not fit

FLAGS = ["--served-model-name", "slow", "--max-num-seqs", 1, "--max-num-batched-tokens", 64,
         "--peer-timeout", PEER_TIMEOUT, "--threads", 1]


def flags_with_patience(seconds):
    """What is held in mid-write is not given up before, however busy the machine is."""
    at = FLAGS.index("--peer-timeout")
    return [*FLAGS[:at], "--peer-timeout", seconds, *FLAGS[at + 2:]]


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory):
    """Large enough that an answer of LONG tokens outlasts a test, small enough to load at once."""
    path = tmp_path_factory.mktemp("model") / "slow.gguf"
    return stack.make_small_model(path, "--layers", 12, "--embedding-size", 384, "--feed-forward-size", 1024,
                                  "--context-length", 8192)


@pytest.fixture(scope="module")
def hold(tmp_path_factory):
    """While this file exists, no write (pull: no read) that is posted reaches the fabric."""
    return tmp_path_factory.mktemp("hold") / "hold"


@pytest.fixture(scope="module")
def stacks(slow_model, hold):
    with stack.Stack(slow_model, extra=FLAGS, prefill_extra=["--max-model-len", 4096],
                     decode_extra=["--max-model-len", BLOCKS * 16],
                     prefill_env={"BATON_FAULT": f"hold_writes:{hold}"}) as running:
        assert running.decode[0].blocks()["total"] == BLOCKS
        yield running


@pytest.fixture
def servers(stacks, hold):
    """The servers at rest, before and after; whoever died is started again on the same ports."""
    stacks.standing_checks()
    yield stacks
    hold.unlink(missing_ok=True)
    for process in [*stacks.instances, stacks.router]:
        process.kill(signal.SIGCONT)
    restart(stacks)
    stacks.standing_checks()


def restart(servers):
    for instance in servers.instances:
        if not instance.running():
            instance.start()
    if not servers.router.running():
        servers.router.start()
    for instance in servers.instances:
        instance.wait_ready()
    servers.wait_router_ready()


def say(what, seconds, bound):
    print(f"{what}: {seconds * 1000:.0f} ms, bound {bound * 1000:.0f} ms, asserted {bound * FACTOR * 1000:.0f} ms")
    assert seconds <= bound * FACTOR, f"{what} took {seconds:.2f} s, the bound is {bound:g} s (x{FACTOR})"


# ---------------------------------------------------------------------------------------------------------------------
# Phases. Each yields the client of a request that is in the phase, and keeps it there.

@contextlib.contextmanager
def registered(servers, hold, stream, tokens=LONG):
    """D has registered its blocks, P has not begun to compute: another request holds P's only place."""
    prefill, decode = servers.prefill[0], servers.decode[0]
    blocker = stack.Client(prefill.port, {"prompt": PROMPT, "max_tokens": 3000})
    try:
        stack.wait_for("the blocker runs", lambda: blocker.tokens or blocker.error or blocker.broken)
        assert blocker.tokens, f"the blocker does not run: {blocker.error or blocker.broken}"
        client = stack.Client(servers.port, {"prompt": PROMPT, "max_tokens": tokens}, stream)
        stack.wait_for("D has registered", lambda: decode.metric("baton_transfers_open", side="decode") == 1
                       and decode.blocks()["used"] > 0)
        stack.wait_for("the request waits at P", lambda: prefill.about()["requests"]["waiting"] == 1)
        yield client
    finally:
        blocker.leave()


@contextlib.contextmanager
def decode_is_full(decode):
    """Most of D's blocks are those of requests that it computes itself, one after the other. (A hand-over whose writes or
    reads are held does not last: what does not move is given up.)"""
    prompt = [7] * (BLOCKS * 8 + 20)
    before = decode.metric("vllm:prompt_tokens_total")
    blockers = [stack.Client(decode.port, {"prompt": prompt, "max_tokens": BLOCKS * 16 - len(prompt)}) for _ in range(12)]
    try:
        stack.wait_for("D has all of them",
                       lambda: decode.metric("vllm:prompt_tokens_total") == before + len(blockers) * len(prompt))
        yield
    finally:
        for blocker in blockers:
            blocker.leave()


@contextlib.contextmanager
def ready(servers, hold, stream, tokens=LONG):
    """P holds finished blocks under a lease, D has not registered: it is full."""
    prefill, decode = servers.prefill[0], servers.decode[0]
    prompt = [9] * (BLOCKS * 8)
    with decode_is_full(decode):
        accepted = decode.metric("vllm:prompt_tokens_total")
        client = stack.Client(servers.port, {"prompt": prompt, "max_tokens": min(tokens, BLOCKS * 8)}, stream)
        stack.wait_for("P holds finished blocks", lambda: prefill.metric("baton_leases_held") == 1)
        stack.wait_for("D has the request", lambda: decode.metric("vllm:prompt_tokens_total") == accepted + len(prompt))
        assert decode.about()["requests"]["waiting"] >= 1 and decode.metric("baton_transfers_open", side="decode") <= 1
        yield client


@contextlib.contextmanager
def prefilling(servers, hold, stream, tokens=LONG):
    """P computes a long prompt; in push D has the request as well."""
    prefill, decode = servers.prefill[0], servers.decode[0]
    before = prefill.metric("baton_computed_prompt_tokens_total")
    accepted = decode.metric("vllm:prompt_tokens_total")
    hold.touch()
    client = stack.Client(servers.port, {"prompt": [7] * (BLOCKS * 15), "max_tokens": 16}, stream)
    try:
        stack.wait_for("P computes", lambda: prefill.metric("baton_computed_prompt_tokens_total") > before)
        if servers.mode == "push":
            stack.wait_for("D has the request", lambda: decode.metric("vllm:prompt_tokens_total") > accepted)
        yield client
    finally:
        hold.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(servers, hold, stream, tokens=LONG, prompt=PROMPT):
    """The KV cache is on its way: P has posted writes (push), or D has posted reads (pull), and none of them is done."""
    mover, posted = ((servers.prefill[0], "baton_writes_posted_total") if servers.mode == "push"
                     else (servers.decode[0], "baton_reads_posted_total"))
    before = mover.metric(posted)
    hold.touch()
    try:
        client = stack.Client(servers.port, {"prompt": prompt, "max_tokens": tokens}, stream)
        stack.wait_for("the KV cache is moved", lambda: mover.metric(posted) > before)
        yield client
    finally:
        hold.unlink(missing_ok=True)


@contextlib.contextmanager
def decoding(servers, hold, stream, tokens=LONG):
    decode = servers.decode[0]
    before = decode.metric("vllm:generation_tokens_total")
    client = stack.Client(servers.port, {"prompt": PROMPT, "max_tokens": tokens}, stream)
    stack.wait_for("D decodes", lambda: decode.metric("vllm:generation_tokens_total") >= before + 3)
    yield client


PHASES = [registered, ready, writing, decoding]


# ---------------------------------------------------------------------------------------------------------------------
# kill -9 of an instance.

def names_the_cause(client, servers):
    """The client's error says which transfer, which engines, and why."""
    error = client.error
    assert error, f"no error: status {client.status}, complete {client.complete}, {client.broken!r}"
    assert client.status in (200, 502, 503, 504), client.status
    baton = error.get("baton") or {}
    text = f"{error}\n{servers.logs()}"
    assert baton.get("cause"), f"no cause in {text}"
    assert len(baton.get("transfer_id", "")) == 32, f"no transfer id in {text}"
    assert baton["transfer_id"] == client.headers.get("x-baton-transfer-id"), f"another transfer in {text}"
    assert servers.prefill[0].name in baton.get("prefill", ""), f"P is not named in {text}"
    assert servers.decode[0].name in baton.get("decode", ""), f"D is not named in {text}"
    assert baton["cause"] in error["message"] or error["message"], text


def kill_an_instance(servers, hold, phase, side, stream):
    victim = servers.prefill[0] if side == "prefill" else servers.decode[0]
    survivor = servers.decode[0] if side == "prefill" else servers.prefill[0]
    answered = phase is decoding and side == "prefill"  # P's part is over
    with phase(servers, hold, stream, 60 if answered else LONG) as client:
        if answered:  # D may decode before P has said its last word
            victim.wait_at_rest()
        begin = time.monotonic()
        victim.kill()
        client.finish()
        told = client.ended_at - begin
    hold.unlink(missing_ok=True)
    if answered:
        assert client.complete and len(client.tokens) == 60, f"{client.error} {client.broken!r}"
    else:
        names_the_cause(client, servers)
        assert not client.complete
        say(f"{phase.__name__}, {side} killed: the client has its error", told, CLIENT)
    survivor.wait_at_rest(60)
    if phase is not decoding:
        # A blocker of the phase was the survivor's own work and ended just now, with the phase.
        say(f"{phase.__name__}, {side} killed: the survivor is at rest", time.monotonic() - begin, SURVIVOR + CLIENT)
    victim.wait()
    restart(servers)
    answer = stack.complete(servers.port)
    assert answer.status == 200, f"the next request: {answer.status} {answer.body!r}\n{servers.logs()}"
    right = stack.complete(servers.prefill[0].port).json["choices"][0]["text"]
    assert answer.json["choices"][0]["text"] == right, "the next answer is not that of one process"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda f: f.__name__)
def test_kill_of_an_instance(servers, hold, phase, side, stream):
    kill_an_instance(servers, hold, phase, side, stream)


def kill_the_router(servers, hold, phase):
    with phase(servers, hold, True) as client:
        begin = time.monotonic()
        servers.router.kill()
        client.finish()
        assert client.broken and not client.complete, "the answer ended as if it were whole"
        if phase in (writing, decoding):
            for instance in servers.instances:
                stack.wait_for(f"{instance.name} has dropped the request",
                               lambda i=instance: not any(i.about()["requests"].values()), SURVIVOR * FACTOR)
            say(f"{phase.__name__}, router killed: P and D dropped the request", time.monotonic() - begin, SURVIVOR)
    begin = time.monotonic()
    for instance in servers.instances:
        instance.wait_at_rest(SURVIVOR * FACTOR)
    say(f"{phase.__name__}, router killed: blocks are back", time.monotonic() - begin, SURVIVOR)


@pytest.mark.parametrize("phase", PHASES, ids=lambda f: f.__name__)
def test_kill_of_the_router(servers, hold, phase):
    kill_the_router(servers, hold, phase)


# ---------------------------------------------------------------------------------------------------------------------
# The client goes.

@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("phase", [registered, ready, prefilling, writing, decoding], ids=lambda f: f.__name__)
def test_the_client_leaves(servers, hold, phase, stream):
    aborted = [i.metric("vllm:request_success_total", finished_reason="abort") for i in servers.instances]
    with phase(servers, hold, stream) as client:
        begin = time.monotonic()
        client.leave()
        assert not client.complete
        # Where D is full its queue is that of others.
        left = servers.prefill if phase is ready else servers.instances
        stack.wait_for("both legs have ended", lambda: all(i.about()["requests"]["waiting"] == 0 for i in left),
                       SURVIVOR * FACTOR)
        if phase is ready:
            stack.wait_for("P has freed its blocks", lambda: servers.prefill[0].metric("baton_leases_held") == 0,
                           SURVIVOR * FACTOR)
        say(f"{phase.__name__}, client left: nothing waits", time.monotonic() - begin, SURVIVOR)
        if phase is writing:
            # A write that is posted may still land: D keeps those blocks away from everybody.
            stack.wait_for("D quarantines the blocks", lambda: servers.decode[0].blocks()["quarantined"] > 0, 10)
    begin = time.monotonic()
    for instance in servers.instances:
        instance.wait_at_rest(SURVIVOR * FACTOR)
    say(f"{phase.__name__}, client left: blocks are back", time.monotonic() - begin, SURVIVOR)
    after = [i.metric("vllm:request_success_total", finished_reason="abort") for i in servers.instances]
    assert after[1] > aborted[1] or phase is registered, "D did not abort the request"


def test_thirty_clients_leave_at_once(servers, hold):
    """Each at another moment of its request; nothing is left, and nobody else's answer changes."""
    expected = stack.complete(servers.port, PROMPT, max_tokens=8).json["choices"][0]["text"]
    clients = [stack.Client(servers.port, {"prompt": f"{i} {PROMPT}", "max_tokens": 20}, i % 2 == 0) for i in range(30)]
    stays = stack.Client(servers.port, {"prompt": PROMPT, "max_tokens": 8}, False)
    for client in clients:
        client.leave()
    stays.finish()
    assert stays.complete and stays.text == expected
    for instance in servers.instances:
        instance.wait_at_rest(SURVIVOR * FACTOR)


# ---------------------------------------------------------------------------------------------------------------------
# P stops without a word.

def stop(process):
    """SIGSTOP takes effect thread by thread: on a busy machine some run on for a while."""
    process.kill(signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{process.popen.pid}/task")
    stack.wait_for(f"{process.name} is stopped", lambda: all(
        (task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T" for task in tasks.iterdir()))


@pytest.mark.parametrize("end", ["wakes", "dies"])
def test_a_stopped_writer_keeps_its_blocks_in_quarantine_until_it(servers, hold, end):
    prefill, decode = servers.prefill[0], servers.decode[0]
    with writing(servers, hold, False) as client:
        stop(prefill)
        begin = time.monotonic()
        client.finish()
        names_the_cause(client, servers)
        say("P stopped: the client has its error", client.ended_at - begin, SILENT)
        quarantined = decode.blocks()["quarantined"]
        assert quarantined > 0, "blocks that a stopped writer may still write were given back"
        # Time alone frees nothing: three more time-outs pass, seen on D's own clock of pings.
        deadline = time.monotonic() + 3 * PEER_TIMEOUT
        while time.monotonic() < deadline:
            assert decode.blocks()["quarantined"] == quarantined, "time alone freed quarantined blocks"
            time.sleep(0.05)
        assert stack.request(decode.port, "GET", "/health").status == 200
    hold.unlink(missing_ok=True)
    begin = time.monotonic()
    if end == "wakes":
        prefill.kill(signal.SIGCONT)
    else:
        prefill.kill(signal.SIGKILL)
        prefill.wait()
    decode.wait_at_rest(60)
    say(f"P {end}: D's blocks are back", time.monotonic() - begin, RESEND if end == "wakes" else SURVIVOR)


def test_a_stopped_decode_instance_does_not_hold_p_for_ever(servers, hold):
    """D stops while P holds finished blocks: P frees by the peer's time-out, or by the router's where D's claim had come
    before P knew of the request, and D, awake again, serves."""
    prefill, decode = servers.prefill[0], servers.decode[0]
    with ready(servers, hold, True) as client:
        stop(decode)
        begin = time.monotonic()
        prefill.wait_at_rest(ROUTER_SILENT * FACTOR)
        say("D stopped: P is at rest", time.monotonic() - begin, ROUTER_SILENT)
        client.leave()
        decode.kill(signal.SIGCONT)
    decode.wait_at_rest(SURVIVOR * FACTOR)


# ---------------------------------------------------------------------------------------------------------------------
# Again and again.

def test_restarts_under_load_leave_nothing(servers, hold):
    """P and D die by turns while requests come; every request ends, as an answer or as an error."""
    expected = stack.complete(servers.port, PROMPT, max_tokens=8).json["choices"][0]["text"]
    ended = answered = 0
    for victim in [*servers.instances, *servers.instances]:
        clients = [stack.Client(servers.port, {"prompt": PROMPT, "max_tokens": 8}, i % 2 == 0) for i in range(6)]
        victim.kill()
        victim.wait()
        for client in clients:
            client.finish()
            assert client.complete or client.error, f"neither answer nor error: {client.broken!r}"
            assert not client.complete or client.text == expected, "a wrong answer"
            ended, answered = ended + 1, answered + client.complete
        restart(servers)
        assert stack.complete(servers.port).status == 200
    print(f"{ended} requests ended, {answered} of them answered")


def test_the_incarnation_changes_with_a_restart_and_the_name_does_not(servers):
    decode = servers.decode[0]
    before = decode.about()
    decode.kill()
    decode.wait()
    restart(servers)
    after = decode.about()
    assert after["engine_id"] == before["engine_id"] and after["incarnation"] != before["incarnation"]
