"""The demo passes, and fails when a write is broken on purpose; `baton up` starts and ends cleanly whatever ends it."""
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import stack

FLAGS = ["--max-model-len=2048", "--max-num-seqs=8"]


def demo(model, report, fault=None, fabric="auto", more=()):
    """(exit code, output, report) of the demo with a small model."""
    environment = {**os.environ, **({"BATON_FAULT": fault} if fault else {})}
    done = subprocess.run(
        [sys.executable, str(stack.ROOT / "demo/demo.py"), "--baton", str(stack.baton_binary()), "--model", str(model),
         "--short", "--fabric", fabric, "--report", str(report), *[f"--serve-flag={flag}" for flag in FLAGS], *more],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, env=environment,
        preexec_fn=stack.die_with_parent)
    return done.returncode, done.stdout, json.loads(report.read_text())


@pytest.mark.parametrize(("fabric", "carrier"), [("auto", "shm"), ("libfabric", "libfabric")])
def test_the_demo_passes(small_model, tmp_path, fabric, carrier):
    code, output, report = demo(small_model, tmp_path / "report.json", fabric=fabric)
    assert code == 0, output
    assert report["fabric"] == carrier
    assert report["requests"] == report["answers_equal"] == 9
    assert report["bytes_written"] == report["bytes_planned"] > 0
    assert report["blocks_verified"] == report["blocks_handed_over"] > 0
    assert len(report["decode_prompt_tokens"]) == 9 and max(report["decode_prompt_tokens"]) <= 1
    assert report["max_overlap"] >= 2 and report["blocks_leaked"] == 0
    for line in report["timelines"]:
        at = line["ms"]
        assert at["ready"] <= at["first_write"] <= at["last_byte"] <= at["decode_told"] <= at["second_token"], line
        assert at["registered"] == 0 and at["first_token"] is not None, line


@pytest.mark.parametrize("loop", ["threaded", "engine"])
@pytest.mark.parametrize(("fabric", "carrier"), [("auto", "shm"), ("libfabric", "libfabric")])
def test_the_demo_passes_in_pull(small_model, tmp_path, fabric, carrier, loop):
    """Token for token, whoever prepares the reads."""
    code, output, report = demo(small_model, tmp_path / "report.json", fabric=fabric,
                                more=["--mode", "pull", "--pull-loop", loop])
    assert code == 0, output
    assert report["fabric"] == carrier
    assert report["requests"] == report["answers_equal"] == 9
    assert report["bytes_written"] == report["bytes_planned"] > 0
    assert max(report["decode_prompt_tokens"]) <= 1 and report["blocks_leaked"] == 0
    for line in report["timelines"]:
        at = line["ms"]
        # P's agent may take note of its blocks after D, which was told of them, has begun; never after it confirmed.
        assert at["ready"] <= at["decode_told"], line
        assert at["registered"] == 0 <= at["first_write"] <= at["last_byte"] <= at["decode_told"] <= at["second_token"], line


@pytest.mark.parametrize("fault", ["flip_byte:3", "drop_write:2"])
def test_a_deliberately_broken_write_fails_the_demo(small_model, tmp_path, fault):
    code, output, report = demo(small_model, tmp_path / "report.json", fault)
    assert code != 0, output
    assert "demo: FAILED" in output
    assert "hash" in output or "corrupt" in output, f"the verdict is not named:\n{output}"
    assert report.get("error") or report["answers_equal"] < 9 or report["blocks_verified"] < report["blocks_handed_over"]


# ---------------------------------------------------------------------------------------------------------------------

def children_of(pid):
    """Process ids whose parent is pid."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Up:
    def __init__(self, model):
        self.port, self.prefill, self.decode = stack.free_ports(3)
        self.process = stack.Process("up", ["up", model, "--port", self.port, "--prefill-port", self.prefill,
                                            "--decode-port", self.decode, *FLAGS])
        self.process.start()
        stack.wait_for("up is ready", self.ready, 60)
        self.children = children_of(self.process.popen.pid)

    def ready(self):
        if not self.process.running():
            raise AssertionError(f"up ended while it started\n{self.process.output}")
        try:
            return stack.request(self.port, "GET", "/health", timeout=5).status == 200
        except OSError:
            return False

    def child(self, command):
        """The child whose command line has this word."""
        for pid in self.children:
            if command in pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                return pid
        raise AssertionError(f"no child with {command} among {self.children}")

    def check_gone(self):
        """No process is left and every port is free again."""
        stack.wait_for("all children are gone", lambda: not any(map(lives, self.children)), 10)
        for port in (self.port, self.prefill, self.decode):
            stack.wait_for(f"port {port} is free", lambda p=port: stack.is_free(p), 10)


@pytest.fixture
def up(small_model):
    running = Up(small_model)
    yield running
    running.process.kill()
    running.process.wait()
    running.check_gone()


def test_up_prints_a_curl_line_that_works(up):
    assert stack.complete(up.port).status == 200
    curl = stack.wait_for("the curl line", lambda: [line for line in up.process.lines if line.startswith("curl ")])[0]
    assert f"http://{stack.HOST}:{up.port}/v1/chat/completions" in curl
    url, body = curl.split()[2], curl[curl.index(" -d '") + 5:curl.rindex("'")]
    answer = stack.request(up.port, "POST", url.split(str(up.port), 1)[1], body.encode())
    assert answer.status == 200 and answer.body.rstrip().endswith(b"data: [DONE]"), answer.body[-300:]
    assert len(up.children) == 3


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_up_stops_cleanly(up, sig):
    assert stack.complete(up.port).status == 200
    up.process.kill(sig)
    assert up.process.wait(20) == 0, up.process.output
    up.check_gone()


def test_up_stops_while_it_answers(up):
    client = stack.Client(up.port, {"prompt": "x", "max_tokens": 1500})
    stack.wait_for("tokens", lambda: client.tokens or client.error)
    up.process.kill(signal.SIGTERM)
    assert up.process.wait(60) == 0, up.process.output  # it lets the answer end, for 30 s at most
    client.finish()
    assert client.complete or client.error or client.broken
    up.check_gone()


@pytest.mark.parametrize("who", ["prefill", "decode", "router"])
def test_up_ends_with_its_reason_when_a_child_dies(up, who):
    port = {"prefill": up.prefill, "decode": up.decode, "router": up.port}[who]
    os.kill(up.child(str(port) if who != "router" else "route"), signal.SIGKILL)
    code = up.process.wait(20)
    assert code not in (0, None), up.process.output
    assert who in up.process.output and "9" in up.process.output, up.process.output
    up.check_gone()


def test_children_do_not_outlive_up(up):
    up.process.kill(signal.SIGKILL)
    up.process.wait()
    up.check_gone()


def test_up_that_is_stopped_while_it_starts_leaves_nothing(small_model):
    port, prefill, decode = stack.free_ports(3)
    process = stack.Process("up", ["up", small_model, "--port", port, "--prefill-port", prefill, "--decode-port",
                                   decode, *FLAGS]).start()
    stack.wait_for("a child", lambda: children_of(process.popen.pid) or not process.running())
    children = children_of(process.popen.pid)
    process.kill(signal.SIGTERM)
    process.wait(20)
    stack.wait_for("all children are gone", lambda: not any(map(lives, children)), 10)
