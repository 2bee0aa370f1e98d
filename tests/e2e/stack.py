"""Real processes for the end-to-end tests and the demo: prefill, decode and router servers on loopback.

Standard library only. Nothing here waits by sleeping: it waits for a condition, within a limit.
"""
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HOST = "127.0.0.1"


PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
LIVE = []  # stacks and processes of the running test, for the logs of a failure


def die_with_parent():
    """In the child, before exec: a test run that is killed leaves no servers behind."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def baton_binary():
    return pathlib.Path(os.environ.get("BATON_BINARY", ROOT / "build/release/src/apps/baton"))


def beside_binary(name):
    """A tool of the same build."""
    build = baton_binary().resolve().parent.parent.parent
    found = sorted(build.glob(f"**/{name}"))
    if not found:
        raise AssertionError(f"no {name} in {build}")
    return found[0]


def real_model():
    return pathlib.Path(os.environ.get("BATON_MODELS", ROOT / "build/models")) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def make_small_model(path, *arguments):
    subprocess.run([str(beside_binary("baton-make-gguf")), "random", str(path), *map(str, arguments)],
                   check=True, capture_output=True)
    return path


def outgoing_ports():
    """[least, most] of what the kernel gives to outgoing connections and to those who ask for any port."""
    try:
        least, most = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        return int(least), int(most)
    except OSError:
        return 32768, 60999


class Ports:
    """Ports that are this process's alone until it ends: suites run at once, and their servers bind late and bind again.

    The port that begins a stretch is the lock on it: it stays bound, and no other process can bind it. All lie outside the
    range that the kernel takes ports from itself.
    """

    FIRST, STRETCH = 10000, 200

    def __init__(self):
        self.lock, self.ports, self.given = None, None, 0

    def take_stretch(self):
        least, most = outgoing_ports()
        for begin in range(self.FIRST, 65536 - self.STRETCH, self.STRETCH):
            if begin <= most and begin + self.STRETCH > least:
                continue
            lock = socket.socket()
            try:
                lock.bind((HOST, begin))
            except OSError:
                lock.close()
                continue
            self.lock, self.ports = lock, range(begin + 1, begin + self.STRETCH)
            return
        raise AssertionError(f"every stretch of {self.STRETCH} ports from {self.FIRST} on is another process's, or among those "
                             f"of outgoing connections, {least} to {most} (net.ipv4.ip_local_port_range)")

    def take(self):
        """The next in turn: one that was given before comes again as late as can be."""
        if self.ports is None:
            self.take_stretch()
        for _ in self.ports:
            port = self.ports[self.given % len(self.ports)]
            self.given += 1
            if is_free(port):
                return port
        raise AssertionError(f"no port of {self.ports} is free")


PORTS = Ports()


def free_ports(count):
    """Ports that nobody listens on, and that no other process or outgoing connection takes before the caller does."""
    ports = [PORTS.take() for _ in range(count)]
    if len(set(ports)) < count:
        raise AssertionError(f"{count} free ports were asked for, and there are {len(set(ports))}")
    return ports


def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
            return True
        except OSError:
            return False


def wait_for(what, condition, limit=30.0):
    """Returns the condition's first true value; fails with `what` once `limit` seconds have passed."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:g} s: {what}")
        time.sleep(0.01)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


def request(port, method, path, body=None, headers=None, timeout=60.0, host=HOST):
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        payload = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        connection.request(method, path, payload, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def metric_samples(port, host=HOST):
    """Lines of /metrics: [(name, {label: value}, value)]."""
    found = []
    for line in request(port, "GET", "/metrics", timeout=10, host=host).body.decode().splitlines():
        if line and not line.startswith("#"):
            name = re.split("[{ ]", line)[0]
            found.append((name, dict(re.findall(r'(\w+)="([^"]*)"', line)), float(line.rsplit(" ", 1)[1])))
    return found


class Stream:
    """One streaming request. Iterate over events: parsed JSON, each with the time it came; `[DONE]` ends it."""

    def __init__(self, port, path, body, timeout=120.0, headers=None):
        self.connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
        self.connection.request("POST", path, json.dumps({**body, "stream": True}),
                                {"Content-Type": "application/json", **(headers or {})})
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.headers = {k.lower(): v for k, v in self.response.getheaders()}
        self.done = False

    def __iter__(self):
        for data in events_of(self.response):
            if data == "[DONE]":
                self.done = True
                return
            yield json.loads(data)

    def close(self):
        with contextlib.suppress(OSError):
            if self.connection.sock:
                self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class Client(threading.Thread):
    """One request in the background, streaming or plain, that notes what came and when it ended."""

    def __init__(self, port, body, stream=True, path="/v1/completions", timeout=120.0):
        super().__init__(daemon=True)
        self.path, self.stream = path, stream
        self.body = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, **body, "stream": stream}
        self.connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
        self.status, self.headers, self.tokens, self.text = 0, {}, [], ""
        self.error = None     # the body's or event's error object
        self.broken = None    # the connection ended in the middle of the answer
        self.complete = False  # the whole answer came
        self.ended_at = None
        self.connection.connect()
        self.start()

    def run(self):
        try:
            self.connection.request("POST", self.path, json.dumps(self.body), {"Content-Type": "application/json"})
            response = self.connection.getresponse()
            self.headers = {k.lower(): v for k, v in response.getheaders()}
            self.status = response.status
            if self.status == 200 and self.stream:
                self._events(response)
            else:
                body = json.loads(response.read())
                self.error = body.get("error")
                for choice in body.get("choices", []):
                    self._choice(choice)
                self.complete = self.error is None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.broken = error
        finally:
            self.ended_at = time.monotonic()

    def _choice(self, choice):
        self.tokens += choice.get("token_ids") or []
        chat = choice.get("delta") or choice.get("message") or {}
        self.text += choice.get("text") or chat.get("content") or ""

    def _events(self, response):
        for data in events_of(response):
            if data == "[DONE]":
                self.complete = True
                return
            event = json.loads(data)
            if "error" in event:
                self.error = event["error"]
            for choice in event.get("choices", []):
                self._choice(choice)
        if self.error is None:
            self.broken = ConnectionError("the stream ended without [DONE]")

    def leave(self):
        """The client goes away: its socket is closed whatever the answer's state."""
        with contextlib.suppress(OSError, AttributeError):
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.join(30)
        self.connection.close()

    def finish(self, limit=60.0):
        self.join(limit)
        if self.is_alive():
            raise AssertionError(f"no end of the answer within {limit:g} s (status {self.status}, "
                                 f"{len(self.tokens)} tokens)")
        self.connection.close()
        return self


def unexplained(client):
    """What the error of a failed hand-over does not say, as text; empty if it names its cause, the transfer and both
    engines."""
    baton = client.error.get("baton") or {}
    missing = [key for key in ("cause", "prefill", "decode") if not baton.get(key)]
    transfer = baton.get("transfer_id", "")
    if len(transfer) != 32 or transfer != client.headers.get("x-baton-transfer-id", transfer):
        missing.append(f"transfer_id (the header says {client.headers.get('x-baton-transfer-id')})")
    return f"the error does not name {', '.join(missing)}" if missing else ""


def events_of(response):
    """The data of each server-sent event."""
    data = []
    while line := response.readline():
        line = line.decode().rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            yield "\n".join(data)
            data = []


class Process:
    """One `baton` process, its output kept for the failure message."""

    prefix = []  # what runs the binary: a network namespace's `ip netns exec NAME`

    def __init__(self, name, arguments, env=None):
        self.name, self.arguments, self.env = name, [str(a) for a in arguments], env or {}
        self.popen, self.lines, self.reader = None, [], None

    def start(self):
        self.lines = []
        self.popen = subprocess.Popen(
            [*self.prefix, str(baton_binary()), *self.arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **self.env}, errors="replace", preexec_fn=die_with_parent)
        LIVE.append(self)
        self.reader = threading.Thread(target=self._read, args=(self.popen,), daemon=True)
        self.reader.start()
        return self

    def _read(self, popen):
        for line in popen.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self):
        return "\n".join(self.lines)

    def running(self):
        return self.popen is not None and self.popen.poll() is None

    def wait_says(self, words, limit=30.0):
        """Its lines come through a pipe and a thread of ours: later than what they tell of, and than an answer of HTTP."""
        wait_for(f"{self.name} says {words!r}", lambda: words in self.output, limit)

    def kill(self, sig=signal.SIGKILL):
        if self.running():
            self.popen.send_signal(sig)

    def wait(self, limit=30.0):
        try:
            code = self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {limit:g} s\n{self.output}") from None
        self.reader.join(5)
        if self in LIVE:
            LIVE.remove(self)
        return code

    def stop(self, limit=30.0):
        self.kill(signal.SIGTERM)
        return self.wait(limit)


CONNECTORS = {"push": "BatonConnector", "pull": "BatonPullConnector"}


class Instance(Process):
    """`baton serve` in one role."""

    host = HOST

    def __init__(self, name, model, port, role, kv_port, extra=(), config=None, env=None):
        self.port, self.role, self.kv_port = port, role, kv_port
        transfer = {"kv_connector": "BatonConnector", "kv_role": role, "engine_id": name, "kv_port": kv_port,
                    **(config or {})}
        # Every prompt is computed and crosses whole, unless `extra` says otherwise: tests count what moves.
        arguments = ["serve", model, "--port", port, "--kv-transfer-config", json.dumps(transfer),
                     "--no-enable-prefix-caching", *extra]
        super().__init__(name, arguments, env)

    def ready(self):
        if not self.running():
            raise AssertionError(f"{self.name} ended while it started\n{self.output}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return request(self.port, "GET", "/health", timeout=5, host=self.host).status == 200
        return False

    def wait_ready(self, limit=60.0):
        wait_for(f"{self.name} is ready", self.ready, limit)
        return self

    def about(self):
        return request(self.port, "GET", "/baton/instance", timeout=10, host=self.host).json

    def blocks(self):
        return self.about()["blocks"]

    def samples(self):
        return metric_samples(self.port, self.host)

    def metric(self, name, **labels):
        """The sum of a metric's samples that have these labels; a name that is not there fails."""
        values = [v for n, have, v in self.samples() if n == name and labels.items() <= have.items()]
        if not values:
            raise AssertionError(f"{self.name} has no metric {name} {labels or ''}")
        return sum(values)

    def whole(self):
        """Every block is free: nothing used, nothing quarantined."""
        blocks = self.blocks()
        return blocks["free"] == blocks["total"] and blocks["used"] == 0 and blocks["quarantined"] == 0

    def wait_whole(self, limit=30.0):
        wait_for(f"all blocks of {self.name} are free", self.whole, limit)

    def at_rest(self):
        """What is not at rest, as text; empty once nothing is under way and nothing is held."""
        about, samples = self.about(), self.samples()
        blocks, requests = about["blocks"], about["requests"]
        held = {name: sum(v for n, _, v in samples if n == name) for name in (
            "baton_transfers_open", "baton_leases_held", "baton_requests_waiting_for_remote_kv")}
        wrong = [f"{name} {value:g}" for name, value in held.items() if value]
        wrong += [f"requests {name} {requests[name]}" for name in ("running", "waiting") if requests[name]]
        if blocks["free"] != blocks["total"] or blocks["used"] or blocks["quarantined"]:
            wrong.append(f"blocks {blocks}")
        if blocks["free"] + blocks["used"] + blocks["quarantined"] != blocks["total"]:
            wrong.append(f"blocks do not add up: {blocks}")
        return "; ".join(wrong)

    def wait_at_rest(self, limit=30.0):
        """Waits for the condition; returns how many seconds it took."""
        begin = time.monotonic()
        while wrong := self.at_rest():
            if time.monotonic() - begin > limit:
                raise AssertionError(f"{self.name} not at rest within {limit:g} s: {wrong}")
            time.sleep(0.01)
        return time.monotonic() - begin


def complete(port, prompt="A short question.", timeout=60.0, **more):
    """A plain greedy completion; returns the Answer."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}
    return request(port, "POST", "/v1/completions", body, timeout=timeout)


def has_as_they_are(router_port, instances):
    """The router may not have heard yet that one of them died and another process is in its place."""
    listed = request(router_port, "GET", "/baton/upstreams", timeout=5).json["upstreams"]
    up = {(one["url"], one["incarnation"]) for one in listed if one["up"]}
    return all((f"http://{HOST}:{i.port}", i.about()["incarnation"]) in up for i in instances)


class Stack:
    """One or more P, one or more D and a router; all push or all pull, which the router finds out."""

    def __init__(self, model, prefills=1, decodes=1, extra=(), router_extra=(), prefill_env=None, decode_env=None,
                 prefill_extra=(), decode_extra=(), mode="push", config=()):
        self.mode = mode
        config = {"kv_connector": CONNECTORS[mode], **dict(config)}
        ports = free_ports(2 * (prefills + decodes) + 1)
        self.prefill = [Instance(f"prefill-{i}", model, ports.pop(), "kv_producer", ports.pop(),
                                 [*extra, *prefill_extra], config, prefill_env) for i in range(prefills)]
        self.decode = [Instance(f"decode-{i}", model, ports.pop(), "kv_consumer", ports.pop(),
                                [*extra, *decode_extra], config, decode_env) for i in range(decodes)]
        self.port = ports.pop()
        self.router_arguments = ["route", "--port", self.port,
                                 "--prefill", *[f"http://{HOST}:{p.port}" for p in self.prefill],
                                 "--decode", *[f"http://{HOST}:{d.port}" for d in self.decode], *router_extra]
        self.router = Process("router", self.router_arguments)

    @property
    def instances(self):
        return [*self.prefill, *self.decode]

    def router_ready(self):
        """The router has all that run: it is healthy as soon as it has one of each stage."""
        if not self.router.running():
            raise AssertionError(f"the router ended while it started\n{self.router.output}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            healthy = request(self.port, "GET", "/health", timeout=5).status == 200
            return healthy and has_as_they_are(self.port, [i for i in self.instances if i.running()])
        return False

    def wait_router_ready(self, limit=30.0):
        wait_for("the router is ready", self.router_ready, limit)

    def __enter__(self):
        try:
            for process in self.instances:
                process.start()
            self.router.start()
            for process in self.instances:
                process.wait_ready()
            self.wait_router_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, error, trace):
        for process in [self.router, *self.instances]:
            if process.popen is not None:
                process.kill(signal.SIGCONT)
                process.kill(signal.SIGKILL)
                process.wait()

    def wait_whole(self, limit=30.0):
        """All blocks are free on every instance that lives."""
        for instance in self.instances:
            if instance.running():
                instance.wait_whole(limit)

    def standing_checks(self, limit=30.0):
        """What must hold after every test: nothing under way, nothing held, and the next request is answered."""
        for instance in self.instances:
            instance.wait_at_rest(limit)
            assert request(instance.port, "GET", "/health").status == 200, f"{instance.name} is not healthy"
        assert request(self.port, "GET", "/health").status == 200, "the router is not healthy"
        moved = self.prefill[0].metric("baton_handovers_total", side="prefill", outcome="done")
        answer = complete(self.port)
        assert answer.status == 200, f"the following request: {answer.status} {answer.body!r}\n{self.logs()}"
        for instance in self.instances:
            instance.wait_at_rest(limit)
        if len(self.prefill) == len(self.decode) == 1:
            after = self.prefill[0].metric("baton_handovers_total", side="prefill", outcome="done")
            assert after == moved + 1, "the following request was answered without a hand-over"

    def bytes_moved(self):
        """(written by all P, received by all D)."""
        return (sum(p.metric("baton_bytes_written_total") for p in self.prefill),
                sum(d.metric("baton_bytes_received_total") for d in self.decode))

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.output[-3000:]}" for p in [self.router, *self.instances])
