"""Real processes for the end-to-end tests and the demo: prefill, decode and router servers on loopback.

Standard library only. Nothing here waits by sleeping: it waits for a condition, within a limit.
"""
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HOST = "127.0.0.1"


def baton_binary():
    return pathlib.Path(os.environ.get("BATON_BINARY", ROOT / "build/release/src/apps/baton"))


def free_ports(count):
    """Ports nobody listens on now. All are held open until all are known, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind((HOST, 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


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


def request(port, method, path, body=None, headers=None, timeout=60.0):
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        payload = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        connection.request(method, path, payload, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


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
        data = []
        while True:
            line = self.response.readline()
            if not line:
                return
            line = line.decode().rstrip("\r\n")
            if line.startswith("data:"):
                data.append(line[5:].strip())
            elif not line and data:
                text, data = "\n".join(data), []
                if text == "[DONE]":
                    self.done = True
                    return
                yield json.loads(text)

    def close(self):
        with contextlib.suppress(OSError):
            if self.connection.sock:
                self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class Process:
    """One `baton` process, its output kept for the failure message."""

    def __init__(self, name, arguments, env=None):
        self.name, self.arguments, self.env = name, [str(a) for a in arguments], env or {}
        self.popen, self.lines, self.reader = None, [], None

    def start(self):
        self.lines = []
        self.popen = subprocess.Popen(
            [str(baton_binary()), *self.arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **self.env}, errors="replace")
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

    def kill(self, sig=signal.SIGKILL):
        if self.running():
            self.popen.send_signal(sig)

    def wait(self, limit=30.0):
        try:
            code = self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {limit:g} s\n{self.output}") from None
        self.reader.join(5)
        return code

    def stop(self, limit=30.0):
        self.kill(signal.SIGTERM)
        return self.wait(limit)


class Instance(Process):
    """`baton serve` in one role."""

    def __init__(self, name, model, port, role, kv_port, extra=(), config=None, env=None):
        self.port, self.role, self.kv_port = port, role, kv_port
        transfer = {"kv_connector": "BatonConnector", "kv_role": role, "engine_id": name, "kv_port": kv_port,
                    **(config or {})}
        arguments = ["serve", model, "--port", port, "--kv-transfer-config", json.dumps(transfer), *extra]
        super().__init__(name, arguments, env)

    def ready(self):
        if not self.running():
            raise AssertionError(f"{self.name} ended while it started\n{self.output}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return request(self.port, "GET", "/health", timeout=5).status == 200
        return False

    def wait_ready(self, limit=60.0):
        wait_for(f"{self.name} is ready", self.ready, limit)
        return self

    def about(self):
        return request(self.port, "GET", "/baton/instance", timeout=10).json

    def blocks(self):
        return self.about()["blocks"]

    def metrics(self):
        """Name (labels dropped, values of one name added up) -> value."""
        values = {}
        for line in request(self.port, "GET", "/metrics", timeout=10).body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
                values[name] = values.get(name, 0.0) + value
        return values

    def whole(self):
        """Every block is free: nothing used, nothing quarantined."""
        blocks = self.blocks()
        return blocks["free"] == blocks["total"] and blocks["used"] == 0 and blocks["quarantined"] == 0

    def wait_whole(self, limit=30.0):
        wait_for(f"all blocks of {self.name} are free", self.whole, limit)


class Stack:
    """One or more P, one or more D and a router."""

    def __init__(self, model, prefills=1, decodes=1, extra=(), router_extra=(), prefill_env=None, decode_env=None,
                 prefill_extra=(), decode_extra=()):
        ports = free_ports(2 * (prefills + decodes) + 1)
        self.prefill = [Instance(f"prefill-{i}", model, ports.pop(), "kv_producer", ports.pop(),
                                 [*extra, *prefill_extra], env=prefill_env) for i in range(prefills)]
        self.decode = [Instance(f"decode-{i}", model, ports.pop(), "kv_consumer", ports.pop(),
                                [*extra, *decode_extra], env=decode_env) for i in range(decodes)]
        self.port = ports.pop()
        self.router_arguments = ["route", "--port", self.port,
                                 "--prefill", *[f"http://{HOST}:{p.port}" for p in self.prefill],
                                 "--decode", *[f"http://{HOST}:{d.port}" for d in self.decode], *router_extra]
        self.router = Process("router", self.router_arguments)

    @property
    def instances(self):
        return [*self.prefill, *self.decode]

    def router_ready(self):
        if not self.router.running():
            raise AssertionError(f"the router ended while it started\n{self.router.output}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return request(self.port, "GET", "/health", timeout=5).status == 200
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
        """The standing check after every test: all blocks are free on every instance that lives."""
        for instance in self.instances:
            if instance.running():
                instance.wait_whole(limit)

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.output[-3000:]}" for p in [self.router, *self.instances])
