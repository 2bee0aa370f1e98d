"""Bad input, one table for each kind: what is refused has its message and its status or exit code, and the servers serve on."""
import contextlib
import http.client
import json
import random
import socket
import struct
import subprocess

import pytest
import stack

MAX_LEN = 512
FLAGS = ["--served-model-name", "small", "--max-model-len", MAX_LEN, "--max-num-seqs", 4]


@pytest.fixture(scope="module")
def servers(small_model):
    with stack.Stack(small_model, extra=FLAGS) as running:
        yield running


# ---------------------------------------------------------------------------------------------------------------------
# Requests. (body, status, words of the message). A dict is sent as JSON on top of a good request.

GOOD = {"model": "small", "prompt": "a b c", "max_tokens": 2, "temperature": 0}
GOOD_CHAT = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}

COMPLETIONS = {
    "not JSON": (b"{\"prompt\": ", 400, []),
    "empty body": (b"", 400, []),
    "JSON of another kind": (b"[1, 2]", 400, ["object"]),
    "invalid UTF-8": (b"{\"prompt\": \"\xff\xfe\"}", 400, []),
    "nested without end": (b"{\"prompt\": " + b"[" * 100000, 400, []),
    "unknown model": ({"model": "gpt-nothing"}, 404, ["gpt-nothing", "does not exist"]),
    "model of the wrong type": ({"model": 7}, 400, ["model", "7"]),
    "no prompt": ({"prompt": None}, 400, ["prompt"]),
    "empty prompt": ({"prompt": ""}, 400, ["prompt", "empty"]),
    "prompt of the wrong type": ({"prompt": {"a": 1}}, 400, ["prompt"]),
    "two prompts": ({"prompt": ["a", "b"]}, 400, ["prompt", "2"]),
    "token out of the vocabulary": ({"prompt": [1, 2_000_000_000]}, 400, ["2000000000"]),
    "negative token": ({"prompt": [1, -1]}, 400, ["prompt", "-1"]),
    "over-long prompt": ({"prompt": [5] * (MAX_LEN + 1)}, 400, [str(MAX_LEN), str(MAX_LEN + 1)]),
    "prompt that leaves no room": ({"prompt": [5] * MAX_LEN}, 400, [str(MAX_LEN)]),
    "over-long text": ({"prompt": "word " * 200000}, 400, [str(MAX_LEN)]),
    "prompt and max_tokens too long": ({"max_tokens": MAX_LEN}, 400, [str(MAX_LEN)]),
    "negative max_tokens": ({"max_tokens": -1}, 400, ["max_tokens", "-1"]),
    "max_tokens of zero": ({"max_tokens": 0}, 400, ["max_tokens", "0"]),
    "max_tokens of the wrong type": ({"max_tokens": "many"}, 400, ["max_tokens", "many"]),
    "fractional max_tokens": ({"max_tokens": 1.5}, 400, ["max_tokens", "1.5"]),
    "huge max_tokens": ({"max_tokens": 10**30}, 400, ["max_tokens"]),
    "n > 1": ({"n": 2}, 400, ["n must be 1", "2"]),
    "best_of > 1": ({"best_of": 3}, 400, ["best_of", "3"]),
    "negative temperature": ({"temperature": -1}, 400, ["temperature", "-1"]),
    "top_p over 1": ({"top_p": 2}, 400, ["top_p", "2"]),
    "stream of the wrong type": ({"stream": "yes"}, 400, ["stream", "yes"]),
    "stream_options without stream": ({"stream": False, "stream_options": {"include_usage": True}}, 400, ["stream_options"]),
    "stop of the wrong type": ({"stop": 5}, 400, ["stop", "5"]),
    "seed of the wrong type": ({"seed": "x"}, 400, ["seed", "x"]),
    "logprobs": ({"logprobs": 5}, 400, ["logprobs", "5"]),
    "echo": ({"echo": True}, 400, ["echo"]),
}
CHAT = {
    "no messages": ({"messages": None}, 400, ["messages"]),
    "empty messages": ({"messages": []}, 400, ["messages", "empty"]),
    "messages of the wrong type": ({"messages": "hello"}, 400, ["messages"]),
    "unknown role": ({"messages": [{"role": "king", "content": "x"}]}, 400, ["role", "king"]),
    "message without content": ({"messages": [{"role": "user"}]}, 400, ["content"]),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, ["text"]),
    "tools": ({"tools": [{"type": "function"}]}, 400, ["tools"]),
    "response_format": ({"response_format": {"type": "json_object"}}, 400, ["response_format", "json_object"]),
    "negative max_completion_tokens": ({"max_completion_tokens": -3}, 400, ["max_completion_tokens", "-3"]),
}
TABLE = ([("/v1/completions", GOOD, name, *row) for name, row in COMPLETIONS.items()] +
         [("/v1/chat/completions", GOOD_CHAT, name, *row) for name, row in CHAT.items()])


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("door", ["router", "decode", "prefill"])
def test_bad_requests_are_refused_with_a_reason_and_the_servers_serve_on(servers, door, stream):
    port = {"router": servers.port, "decode": servers.decode[0].port, "prefill": servers.prefill[0].port}[door]
    wrong = []
    for path, good, name, body, status, words in TABLE:
        if isinstance(body, dict):
            body = {**good, **({"stream": True} if stream else {}), **body}
        elif stream:
            continue
        answer = stack.request(port, "POST", path, body, timeout=20)
        try:
            message = answer.json["error"]["message"]
        except (ValueError, KeyError, TypeError):
            wrong.append(f"{name}: {answer.status}, no error in {answer.body[:200]!r}")
            continue
        missing = [word for word in words if word not in message]
        if answer.status != status or missing or not message:
            wrong.append(f"{name}: {answer.status} {message!r}, missing {missing}")
    assert not wrong, "\n".join(wrong)
    servers.standing_checks()


@pytest.mark.parametrize("door", ["router", "decode", "prefill"])
def test_unknown_paths_and_methods(servers, door):
    port = {"router": servers.port, "decode": servers.decode[0].port, "prefill": servers.prefill[0].port}[door]
    for method, path, status in [("GET", "/v1/completions", 405), ("POST", "/health", 405), ("GET", "/nothing", 404),
                                 ("POST", "/v1/embeddings", 404), ("DELETE", "/v1/models", 405)]:
        answer = stack.request(port, method, path)
        assert answer.status == status and answer.json["error"]["message"], f"{method} {path}: {answer.status}"


# ---------------------------------------------------------------------------------------------------------------------
# Bytes.

def garbage():
    """Byte strings that are no HTTP and no control message, or only begin like one."""
    chance = random.Random(5)
    yield b""
    yield b"\0"
    yield b"\xff" * 64
    yield b"\0" * 100000
    yield b"GET / HTTP/1.1\r\n"
    yield b"GET / HTTP/9.9\r\n\r\n"
    yield b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"
    yield b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}"
    yield b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n"
    yield b"\r\n" * 5000
    yield b"A" * 300000
    yield struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF) * 8
    yield struct.pack(">II", 0x7FFFFFFF, 1) + b"x" * 1000
    for size in (1, 7, 64, 1000, 65536):
        yield chance.randbytes(size)


def throw(port, payload, linger=False):
    with contextlib.suppress(OSError), socket.create_connection((stack.HOST, port), timeout=5) as s:
        s.sendall(payload)
        if linger:
            s.shutdown(socket.SHUT_WR)
            s.settimeout(5)
            while s.recv(65536):
                pass


@pytest.mark.parametrize("linger", [False, True], ids=["gone at once", "waits for the answer"])
def test_random_bytes_on_every_port_end_nothing(servers, linger):
    ports = [servers.port] + [port for i in servers.instances for port in (i.port, i.kv_port)]
    before = {i.name: i.about()["incarnation"] for i in servers.instances}
    for payload in garbage():
        for port in ports:
            throw(port, payload, linger)
    servers.standing_checks()
    assert {i.name: i.about()["incarnation"] for i in servers.instances} == before, "an instance restarted"


def test_garbage_on_the_control_port_is_counted(servers):
    for instance in servers.instances:
        before = instance.metric("baton_refused_messages_total")
        throw(instance.kv_port, b"\xff" * 4096, linger=True)
        stack.wait_for(f"{instance.name} counts a refused message",
                       lambda: instance.metric("baton_refused_messages_total") > before)


def test_a_silent_connection_to_the_control_port_delays_nobody(servers):
    with contextlib.ExitStack() as held:
        for instance in servers.instances:
            for payload in (b"", b"\0", b"B"):
                s = held.enter_context(socket.create_connection((stack.HOST, instance.kv_port), timeout=5))
                s.sendall(payload)
        servers.standing_checks()


def test_a_truncated_request_does_not_hold_its_connection(servers):
    body = json.dumps(GOOD).encode()
    for port in (servers.port, servers.decode[0].port):
        throw(port, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" %
              (len(body) + 10, body), linger=True)
    servers.standing_checks()


# ---------------------------------------------------------------------------------------------------------------------
# Peers that are down or do not fit.

def error_of(answer):
    return answer.json["error"]


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_peer_that_is_down_is_named(servers, side):
    """Down is a connection refused: the client hears at once, and the other side is at rest again."""
    victim = servers.prefill[0] if side == "prefill" else servers.decode[0]
    survivor = servers.decode[0] if side == "prefill" else servers.prefill[0]
    victim.kill()
    victim.wait()
    try:
        for _ in range(3):
            answer = stack.complete(servers.port, timeout=20)
            assert answer.status in (502, 503), f"{answer.status}: {answer.body}"
            message = error_of(answer)["message"]
            assert side in message or str(victim.port) in message, message
        assert stack.request(servers.port, "GET", "/health").status == 503, "healthy without a whole pair"
        survivor.wait_at_rest(10)
    finally:
        victim.start().wait_ready()
        servers.wait_router_ready()
    servers.standing_checks()


def mismatched(small_model, tmp_path, field):
    """Flags or model of a D that does not fit the P of FLAGS, and both values that the refusal must name."""
    if field == "block_size":
        return small_model, [*FLAGS, "--block-size", 32], ["block", "16", "32"]
    other = stack.make_small_model(tmp_path / "other.gguf", "--seed", "7")
    return other, FLAGS, ["model"]


@pytest.mark.parametrize("field", ["block_size", "model"])
def test_unlike_instances_are_refused_at_the_handshake_by_field_and_values(servers, small_model, tmp_path, field):
    model, flags, words = mismatched(small_model, tmp_path, field)
    port, kv_port, router_port = stack.free_ports(3)
    other = stack.Instance("unlike", model, port, "kv_consumer", kv_port, flags)
    arguments = ["route", "--port", router_port, "--prefill", f"http://{stack.HOST}:{servers.prefill[0].port}",
                 "--decode", f"http://{stack.HOST}:{port}"]
    router = stack.Process("router of the unlike pair", arguments)
    refused = servers.prefill[0].metric("baton_refused_peers_total") + 0
    try:
        other.start().wait_ready()
        if field == "model":
            words = [*words, servers.prefill[0].about()["weights"], other.about()["weights"]]
        router.start()
        for _ in range(2):
            stack.wait_for("the router has heard of both", lambda: healthy(router_port))
            answer = stack.complete(router_port, timeout=20)
            assert answer.status in (400, 502, 503), f"{answer.status}: {answer.body}"
            missing = [word for word in words if word not in error_of(answer)["message"]]
            assert not missing, f"{missing} not in {error_of(answer)['message']}"
        other.wait_at_rest(10)
        assert other.metric("baton_refused_peers_total") > 0 or \
            servers.prefill[0].metric("baton_refused_peers_total") > refused, "no side counted the refusal"
    finally:
        for process in (router, other):
            if process.popen:
                process.kill()
                process.wait()
    servers.standing_checks()


def healthy(port):
    with contextlib.suppress(OSError, http.client.HTTPException):
        return stack.request(port, "GET", "/health", timeout=5).status == 200
    return False


def test_a_registration_for_another_peer_is_refused(servers):
    """D is sent to a control port where another engine, or nobody, answers; a plain request of R's form."""
    decode, prefill = servers.decode[0], servers.prefill[0].about()
    transfer = {"do_remote_prefill": True, "transfer_id": "00000000000000000000000000000abc",
                "remote_engine_id": "somebody-else", "remote_host": stack.HOST, "remote_port": prefill["handover_port"]}
    nobody = stack.free_ports(1)[0]
    for change, words in [({}, ["somebody-else"]), ({"remote_port": nobody}, [str(nobody)])]:
        body = {**GOOD, "kv_transfer_params": {**transfer, **change}}
        answer = stack.request(decode.port, "POST", "/v1/completions", body, timeout=30)
        assert answer.status == 502, f"{answer.status}: {answer.body}"
        missing = [word for word in words if word not in error_of(answer)["message"]]
        assert not missing, f"{missing} not in {error_of(answer)['message']}"
        assert error_of(answer)["baton"]["transfer_id"] == transfer["transfer_id"]
    servers.standing_checks()


# ---------------------------------------------------------------------------------------------------------------------
# Command lines: (arguments, exit code, words of the output).

def serve(model, *more, config=None):
    transfer = [] if config is None else ["--kv-transfer-config", json.dumps(config)]
    return ["serve", model, *more, *transfer]


def push(**more):
    return {"kv_connector": "BatonConnector", "kv_role": "kv_producer", "engine_id": "p", "kv_port": 1, **more}


def published(connector, **change):
    return json.dumps({"kv_connector": connector, "kv_buffer_device": "cuda", "kv_role": "kv_producer",
                       "engine_id": "prefill-engine-001", "kv_rank": 0, "kv_parallel_size": 2,
                       "kv_connector_extra_config": {"backends": ["LIBFABRIC"]}, **change})


def command_lines(small, truncated, random_file, taken):
    """name -> (arguments, exit code, words)."""
    return {
        "no command": ([], USAGE, []),
        "unknown command": (["sevre"], USAGE, ["sevre"]),
        "unknown flag": (serve(small, "--max-modle-len", 5), USAGE, ["--max-modle-len"]),
        "vLLM's flag that is not offered": (serve(small, "--gpu-memory-utilization", 0.9), USAGE,
                                            ["--gpu-memory-utilization", "--kv-cache-memory-bytes"]),
        "vLLM's short flag": (serve(small, "-tp", 8), USAGE, ["-tp 8", "--tensor-parallel-size"]),
        "vLLM's flag with a value behind =": (serve(small, "--pipeline-parallel-size=2"), USAGE,
                                              ["--pipeline-parallel-size=2", "one process"]),
        "vLLM's configuration key by key": (serve(small, "--kv-transfer-config.kv_role", "kv_both"), USAGE,
                                            ["--kv-transfer-config.kv_role", "one JSON object"]),
        "a flag twice": (serve(small, "--port", 0, "--port", 1), USAGE, ["--port is given 2 times"]),
        "flag without its value": (serve(small, "--port"), USAGE, ["--port"]),
        "value of the wrong type": (serve(small, "--port", "eighty"), USAGE, ["--port", "eighty"]),
        "port out of range": (serve(small, "--port", 70000), USAGE, ["port", "70000"]),
        "negative number": (serve(small, "--max-num-seqs", -1), USAGE, ["--max-num-seqs", "-1"]),
        "no request at once": (serve(small, "--max-num-seqs", 0), USAGE, ["--max-num-seqs", "at least 1", "is 0"]),
        "more than 64 bits": (serve(small, "--kv-cache-memory-bytes", 10**20), USAGE, ["--kv-cache-memory-bytes", str(10**20)]),
        "block size of zero": (serve(small, "--block-size", 0), USAGE, ["block-size", "0"]),
        "unknown dtype": (serve(small, "--dtype", "int3"), USAGE, ["dtype", "int3"]),
        "no model": (["serve"], USAGE, ["MODEL"]),
        "missing weights": (serve("/nowhere/model.gguf"), MODEL, ["/nowhere/model.gguf"]),
        "unknown model name": (serve("gpt-nothing"), MODEL, ["gpt-nothing"]),
        "truncated weights": (serve(truncated), MODEL, []),
        "weights that are none": (serve(random_file), MODEL, ["GGUF"]),
        "context over the model's": (serve(small, "--max-model-len", 10**9), USAGE, ["max", "1000000000"]),
        "port in use": (serve(small, "--port", taken), LISTEN, [str(taken), "in use"]),
        "control port in use": (serve(small, "--port", 0, config=push(kv_port=taken)), LISTEN, [str(taken), "in use"]),
        "configuration that is no JSON": (serve(small, "--kv-transfer-config", "{kv"), USAGE, ["kv-transfer-config"]),
        "configuration of the wrong kind": (serve(small, "--kv-transfer-config", "[]"), USAGE, ["kv-transfer-config"]),
        "unknown configuration key": (serve(small, config=push(kv_roll="x")), USAGE, ["kv_roll"]),
        "unknown extra key": (serve(small, config=push(kv_connector_extra_config={"lees": 1})), USAGE, ["lees"]),
        "unknown connector": (serve(small, config=push(kv_connector="MooncakeConnector")), USAGE,
                              ["kv_connector", "MooncakeConnector"]),
        "no connector": (serve(small, config={"kv_role": "kv_both"}), USAGE, ["kv_connector"]),
        "unknown role": (serve(small, config=push(kv_role="kv_king")), USAGE, ["kv_role", "kv_king"]),
        "engine id of the wrong type": (serve(small, config=push(engine_id=7)), USAGE, ["engine_id", "7"]),
        "a loop of pull in push": (serve(small, "--pull-loop", "engine", config=push()), USAGE,
                                   ["--pull-loop", "BatonPullConnector"]),
        "an unknown loop of pull": (serve(small, "--pull-loop", "both", config=push(kv_connector="NixlConnector")), USAGE,
                                    ["--pull-loop", "both"]),
        "tensor parallelism": (serve(small, "--tensor-parallel-size", 8), USAGE, ["tensor-parallel-size", "8"]),
        "buffers on a GPU": (serve(small, config=push(kv_buffer_device="cuda")), USAGE, ["kv_buffer_device", "cuda"]),
        "route without instances": (["route"], USAGE, ["--prefill"]),
        "route with a bad address": (["route", "--prefill", "ftp://x", "--decode", "http://127.0.0.1:1"], USAGE,
                                     ["ftp://x"]),
        "route with an unknown first token": (["route", "--prefill", "http://127.0.0.1:1", "--decode",
                                               "http://127.0.0.1:2", "--first-token", "both"], USAGE,
                                              ["first-token", "both"]),
        "route with an unknown mode": (["route", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2",
                                        "--mode", "shove"], USAGE, ["--mode", "shove"]),
        "router's port in use": (["route", "--port", taken, "--prefill", "http://127.0.0.1:1", "--decode",
                                  "http://127.0.0.1:2"], LISTEN, [str(taken), "in use"]),
        "up with a port in use": (["up", small, "--port", taken], LISTEN, [str(taken), "in use"]),
        "up with missing weights": (["up", "/nowhere/model.gguf"], MODEL, ["/nowhere/model.gguf"]),
        "up with an unknown flag": (["up", small, "--quick"], USAGE, ["--quick"]),
        "a hand-over of nothing": (serve(small, "--kv-transfer-config", ""), USAGE, ["--kv-transfer-config", "empty"]),
        "more threads than can be": (serve(small, "--threads", 100000), USAGE, ["--threads", "100000"]),
        "a fabric address that is none": (serve(small, "--fabric", "libfabric", "--fabric-address", "999.1.1.1",
                                                config=push()), USAGE, ["fabric address", "999.1.1.1"]),
        "sweep into a file": (["sweep", "--results-dir", random_file], USAGE, ["--results-dir", str(random_file)]),
        "sweep without an end": (["sweep", "--dry-run", "--iterations", 100000], USAGE, ["--iterations", "100000"]),
        "sweep of too many requests": (["sweep", "--dry-run", "--qps-list", 100000], USAGE, ["--qps-list", "3000002"]),
        "bench with too many requests": (["bench", "serve", "--num-prompts", 4000000000], USAGE,
                                         ["--num-prompts", "4000000000"]),
        "bench with too long prompts": (["bench", "serve", "--random-input-len", 4000000000], USAGE,
                                        ["--random-input-len", "4000000000"]),
    }


USAGE, MODEL, LISTEN = 2, 3, 4  # exit codes; `baton --help` lists them


def run(arguments, timeout=30):
    try:
        done = subprocess.run([str(stack.baton_binary()), *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=timeout,
                              preexec_fn=stack.die_with_parent)
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")


def test_command_lines_that_cannot_work_say_why(servers, small_model, tmp_path):
    truncated, random_file = tmp_path / "truncated.gguf", tmp_path / "random.gguf"
    whole = small_model.read_bytes()
    truncated.write_bytes(whole[:len(whole) * 2 // 3])
    random_file.write_bytes(random.Random(1).randbytes(4096))
    wrong = []
    table = command_lines(small_model, truncated, random_file, servers.decode[0].port)
    for name, (arguments, expected, words) in table.items():
        code, output = run(arguments)
        missing = [word for word in words if word not in output]
        if code != expected or missing or not output.strip():
            wrong.append(f"{name}: exit code {code}, expected {expected}; missing {missing}\n    {output.strip()[-400:]}")
    assert not wrong, f"{len(wrong)} of {len(table)}:\n" + "\n".join(wrong)
    servers.standing_checks()


@pytest.mark.parametrize(("connector", "mode"), [("BatonConnector", "push"), ("BatonPushConnector", "push"),
                                                 ("NixlPushConnector", "push"), ("BatonPullConnector", "pull"),
                                                 ("NixlConnector", "pull")])
def test_the_published_command_line_serves_here_once_the_hardware_is_left_out(small_model, connector, mode):
    """The article's flags with TP 1 and host buffers, D's --no-enable-prefix-caching included."""
    port, kv_port = stack.free_ports(2)
    config = json.loads(published(connector, kv_buffer_device="cpu", kv_port=kv_port, kv_connector_extra_config={}))
    flags = ["--served-model-name", "Qwen", "--dtype", "bfloat16", "--tensor-parallel-size", 1, "--max-model-len", 256,
             "--max-num-seqs", 8, "--no-enable-prefix-caching"]
    instance = stack.Instance("published", small_model, port, "kv_producer", kv_port, flags, config=config)
    try:
        instance.start().wait_ready()
        about = instance.about()
        assert about["engine_id"] == "prefill-engine-001" and about["mode"] == mode and about["models"] == ["Qwen"]
    finally:
        instance.stop()
