"""The scripts of deploy/ on loopback, and the published server command lines as they stand.

Between two hosts they are tried by tests/netns/deploy.py.
"""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess

import pytest
import stack

DEPLOY = stack.ROOT / "deploy"

# The article's lines, word for word: P and D differ in port, role, engine, rank and the prefix cache; push and pull in
# `kv_connector` alone.
PUBLISHED = """vllm serve Qwen/Qwen3-32B --served-model-name Qwen --dtype bfloat16 \\
  --tensor-parallel-size 8 --max-model-len 32768 --max-num-seqs 8 --port 8100 \\
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_buffer_device":"cuda",
    "kv_role":"kv_producer","engine_id":"prefill-engine-001","kv_rank":0,
    "kv_parallel_size":2,"kv_connector_extra_config":{"backends":["LIBFABRIC"]}}'"""
PUSH = ("NixlConnector", "NixlPushConnector")
DECODE = (("--port 8100", "--port 8200 --no-enable-prefix-caching"), ("kv_producer", "kv_consumer"),
          ("prefill-engine-001", "decode-engine-001"), ('"kv_rank":0', '"kv_rank":1'))
LINES = [pytest.param(side, mode, id=f"{side}-{mode}") for side in ("prefill", "decode") for mode in ("pull", "push")]


def published(side, mode):
    line = PUBLISHED.replace(*PUSH) if mode == "push" else PUBLISHED
    for old, new in DECODE if side == "decode" else ():
        assert old in line
        line = line.replace(old, new)
    words = shlex.split(line.replace("\\\n", " "))
    assert words[:2] == ["vllm", "serve"]
    return words[1:]


@pytest.mark.parametrize("side, mode", LINES)
def test_a_published_line_is_refused_with_every_reason_and_what_to_do(side, mode):
    done = subprocess.run([str(stack.baton_binary()), *published(side, mode)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "baton serve: --tensor-parallel-size 8 is not offered: this engine computes in one process on the CPU; known is 1: "
        "leave the flag out",
        "baton serve: --kv-transfer-config: kv_buffer_device cuda: this engine computes on the CPU and keeps KV in host "
        "memory; known is cpu: say that, or leave the key out",
        "baton serve: model Qwen/Qwen3-32B is no file: MODEL is a GGUF file or the name smollm2, names of model hubs are not "
        "fetched; tools/setup brings smollm2's weights"]


@pytest.mark.parametrize("side, mode", LINES)
def test_without_what_this_machine_lacks_it_is_accepted_and_the_connector_alone_makes_the_mode(side, mode, tmp_path):
    """The three named things are changed as the message says, and the ports are ours; the rest stays."""
    words = published(side, mode)
    model = stack.make_small_model(tmp_path / "small.gguf", "--context-length", 32768)
    words[words.index("Qwen/Qwen3-32B")] = str(model)
    at = words.index("--tensor-parallel-size")
    del words[at:at + 2]
    words = [word.replace('"cuda"', '"cpu"') for word in words]
    port = stack.free_ports(1)[0]
    words[words.index("--port") + 1] = str(port)
    server = stack.Process(side, words).start()
    try:
        def ready():
            assert server.running(), server.output
            with contextlib.suppress(OSError):
                return stack.request(port, "GET", "/health", timeout=5).status == 200
        stack.wait_for(f"{side} is ready", ready, 60)
        about = stack.request(port, "GET", "/baton/instance").json
        assert about["mode"] == mode
        assert about["role"] == {"prefill": "kv_producer", "decode": "kv_consumer"}[side]
        assert about["engine_id"] == f"{side}-engine-001"
        assert (about["models"], about["max_model_len"], about["max_num_seqs"]) == (["Qwen"], 32768, 8)
        assert (about["fabric"], about["kv"]["dtype"]) == ("libfabric", "bfloat16")
        assert server.stop() == 0
    finally:
        server.kill()
        server.wait()


def test_the_connector_is_all_that_push_and_pull_differ_in():
    for side in ("prefill", "decode"):
        pull, push = (" ".join(published(side, mode)) for mode in ("pull", "push"))
        assert pull != push and pull.replace(*PUSH) == push


# ---------------------------------------------------------------------------------------------------------------------

class Host:
    """The scripts with variables of their own, on free ports of loopback."""

    def __init__(self, folder):
        self.folder = folder
        ports = stack.free_ports(5)
        names = ("PREFILL_PORT", "DECODE_PORT", "PROXY_PORT", "PREFILL_SIDE_CHANNEL_PORT", "DECODE_SIDE_CHANNEL_PORT")
        self.ports = dict(zip(names, map(str, ports)))
        self.variables = {"PATH": os.environ["PATH"], "BATON": str(stack.baton_binary()), "RUN_DIR": str(folder),
                          "BATON_PROFILES": str(stack.ROOT / "profiles"), "PREFILL_IP": stack.HOST, "DECODE_IP": stack.HOST,
                          "READY_TIMEOUT": "60", "STOP_TIMEOUT": "20", **self.ports}

    def run(self, script, *arguments, **variables):
        environment = {name: value for name, value in {**self.variables, **variables}.items() if value is not None}
        return subprocess.run([str(DEPLOY / script), *arguments], env=environment, cwd=self.folder, capture_output=True,
                              text=True, timeout=120)

    def must(self, script, *arguments, **variables):
        done = self.run(script, *arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def started(self, name):
        return int((self.folder / f"{name}.pid").read_text().split()[0])


@pytest.fixture
def host(tmp_path):
    here = Host(tmp_path)
    yield here
    for what in ("proxy", "server"):
        here.run("cleanup.sh", what, STOP_TIMEOUT="1")


@pytest.fixture
def bystander(small_model):
    """Somebody else's server."""
    port = stack.free_ports(1)[0]
    process = stack.Process("bystander", ["serve", small_model, "--port", port]).start()
    yield process
    process.kill()
    process.wait()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


WRONG = {
    "no role": ("serve_pd.sh", [], {"MODE": "push"}, ["ROLE must be one of: prefill decode proxy", "''"]),
    "no mode": ("serve_pd.sh", [], {"ROLE": "prefill"}, ["MODE must be one of: push pull", "''"]),
    "another mode": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "shove"}, ["push pull", "'shove'"]),
    "no address": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "PREFILL_IP": None}, ["PREFILL_IP is not set"]),
    "not a port": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "DECODE_PORT": "84o0"}, ["DECODE_PORT", "'84o0'"]),
    "a port too high": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "DECODE_PORT": "70000"}, ["65535", "'70000'"]),
    "a quote in a name": ("serve_pd.sh", [], {"ROLE": "prefill", "MODE": "push", "PREFILL_ENGINE_ID": 'a"b'},
                          ["PREFILL_ENGINE_ID", 'a"b']),
    "an address with a port": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "PREFILL_KV_HOST": "10.0.0.1:5600"},
                               ["PREFILL_KV_HOST", "'10.0.0.1:5600'"]),
    "any address": ("serve_pd.sh", [], {"ROLE": "prefill", "MODE": "push", "PREFILL_KV_HOST": "0.0.0.0"}, ["PREFILL_KV_HOST", "'0.0.0.0'"]),
    "ranks": ("serve_pd.sh", [], {"ROLE": "prefill", "MODE": "push", "PREFILL_TP_SIZE": "8"}, ["PREFILL_TP_SIZE", ": 1;", "'8'"]),
    "a sweep of a URL": ("run_sweep.sh", [], {"MODE": "push", "PREFILL_IP": "http://10.0.0.1"}, ["PREFILL_IP", "'http://10.0.0.1'"]),
    "a folder that is none": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "RUN_DIR": "/proc/version"}, ["RUN_DIR", "/proc/version"]),
    "a folder that cannot be": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "RUN_DIR": "/proc/x"}, ["RUN_DIR", "/proc/x"]),
    "nothing could be known": ("cleanup.sh", ["server"], {"RUN_DIR": "/proc/version"}, ["RUN_DIR", "/proc/version"]),
    "no model": ("serve_pd.sh", [], {"ROLE": "prefill", "MODE": "push", "BACKEND": "cpu"}, ["MODEL is not set", "GGUF"]),
    "a loop of push": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "PULL_LOOP": "engine"}, ["PULL_LOOP", "MODE is 'push'"]),
    "an unknown loop": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "pull", "PULL_LOOP": "fast"}, ["threaded engine", "'fast'"]),
    "a style of real compute": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "BACKEND": "cpu", "MODEL": "m", "TRANSFER_STYLE": "baton"},
                                ["TRANSFER_STYLE", "BACKEND is 'cpu'"]),
    "a flag that serve does not have": ("serve_pd.sh", ["--max-num-seq", "4"], {"ROLE": "prefill", "MODE": "push"},
                                        ["--max-num-seqs", "exit code 2"]),
    "another host without a key": ("serve_pd.sh", [], {"ROLE": "prefill", "MODE": "push", "PREFILL_KV_HOST": "10.0.0.1"},
                                   ["KV_PSK_FILE", "INSECURE=1"]),
    "a time with a unit": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "STOP_TIMEOUT": "40s"}, ["STOP_TIMEOUT", "'40s'"]),
    "no folder of one's own": ("serve_pd.sh", [], {"ROLE": "decode", "MODE": "push", "RUN_DIR": None}, ["RUN_DIR is not set", "HOME"]),
    "nowhere to look": ("cleanup.sh", ["server"], {"RUN_DIR": None}, ["RUN_DIR is not set", "HOME"]),
    "a sweep without a mode": ("run_sweep.sh", [], {}, ["MODE must be one of: push pull"]),
    "nothing to clean": ("cleanup.sh", [], {}, ["proxy or server"]),
    "something else to clean": ("cleanup.sh", ["all"], {}, ["'all'"]),
    "two things to clean": ("cleanup.sh", ["proxy", "server"], {}, ["proxy server"]),
}


@pytest.mark.parametrize("script, arguments, variables, words", WRONG.values(), ids=WRONG)
def test_wrong_use_is_refused_with_the_name_and_the_value(host, script, arguments, variables, words):
    done = host.run(script, *arguments, **variables)
    assert done.returncode == 2, (done.returncode, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr
    assert list(host.folder.glob("*.pid")) == [], "nothing is left to end"


@pytest.mark.parametrize("script", ["serve_pd.sh", "run_sweep.sh", "cleanup.sh"])
def test_help_teaches_every_variable_and_exit_code(host, script):
    said = host.must(script, "--help")
    assert "Exit codes: 0 " in said
    text = (DEPLOY / script).read_text()
    read = set(re.findall(r'\$\{([A-Z][A-Z_]+):[=-]', text) + re.findall(r"need_(?:set|word|number) ([A-Z][A-Z_]+)", text))
    missing = sorted(variable for variable in read - {"VLLM_SRC"} if variable not in said)
    assert read and not missing, missing


def test_dry_run_starts_nothing_and_the_mode_changes_the_connector_alone(host):
    push, pull = (host.must("serve_pd.sh", "--dry-run", ROLE="decode", MODE=mode) for mode in ("push", "pull"))
    assert "NixlPushConnector" in push and push.replace(*reversed(PUSH)) == pull
    transfer = json.loads(shlex.split(push)[shlex.split(push).index("--kv-transfer-config") + 1])
    assert transfer["kv_role"] == "kv_consumer" and transfer["kv_connector_extra_config"] == {"backends": ["LIBFABRIC"]}
    assert "--no-enable-prefix-caching" in push and "--kv-allowed-peers 127.0.0.1" in push
    assert list(host.folder.iterdir()) == []


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_neither_side_keeps_prefixes_and_the_published_ways_have_their_flags(host, role):
    words = shlex.split(host.must("serve_pd.sh", "--dry-run", ROLE=role, MODE="pull", PULL_LOOP="engine", TRANSFER_STYLE="published"))
    assert "--no-enable-prefix-caching" in words
    assert words[words.index("--pull-loop") + 1] == "engine" and words[words.index("--transfer-style") + 1] == "published"
    assert "--pull-loop" not in host.must("serve_pd.sh", "--dry-run", ROLE=role, MODE="pull")


def test_the_control_channel_of_prefill_may_have_an_address_of_its_own(host):
    dry = {role: shlex.split(host.must("serve_pd.sh", "--dry-run", ROLE=role, MODE="push", PREFILL_KV_HOST="10.9.9.9"))
           for role in ("prefill", "decode")}
    config = {role: json.loads(words[words.index("--kv-transfer-config") + 1]) for role, words in dry.items()}
    assert (config["prefill"]["kv_ip"], config["decode"]["kv_ip"]) == ("10.9.9.9", stack.HOST)
    assert dry["decode"][dry["decode"].index("--kv-allowed-peers") + 1] == "10.9.9.9"
    assert dry["prefill"][dry["prefill"].index("--host") + 1] == stack.HOST


@pytest.mark.parametrize("script, arguments", [("serve_pd.sh", ["--threads", "1", "--dry-run"]), ("run_sweep.sh", ["--allow-void", "--dry-run"]),
                                               ("cleanup.sh", ["server"])])
def test_a_script_may_be_a_link_called_from_anywhere(host, script, arguments):
    """A CDPATH makes `cd` talk, and one beside the link there is no common.sh."""
    program = host.folder / "build/release/src/apps/baton"
    for folder in (program.parent, host.folder / "linked"):
        folder.mkdir(parents=True)
    shutil.copytree(DEPLOY, host.folder / "deploy")
    program.symlink_to(stack.baton_binary().resolve())
    (host.folder / "linked" / script).symlink_to(f"../deploy/{script}")
    variables = {**host.variables, "ROLE": "prefill", "MODE": "push", "CDPATH": ".:/", "RUN_DIR": "run"}
    del variables["BATON"]
    done = subprocess.run([f"linked/{script}", *arguments], env=variables, cwd=host.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "not running" in done.stdout and str(host.folder / "run") in done.stdout if script == "cleanup.sh" else "push" in done.stdout.lower()
    assert not (host.folder / "run").exists(), "a flag in between was --dry-run"


def test_without_run_dir_each_host_of_a_shared_home_has_its_own_folder(host):
    said = host.must("cleanup.sh", "server", RUN_DIR=None, HOME=str(host.folder))
    assert f"{host.folder}/.local/state/baton/{os.uname().nodename}" in said, said


def test_a_dry_run_of_a_sweep_waits_for_nobody_and_leaves_nothing(host):
    said = host.must("run_sweep.sh", "--dry-run", MODE="push", QPS_LIST="1 2", INPUT_LENS="1024", OUTPUT_LENS="128", READY_TIMEOUT="86400",
                     FIRST_TOKEN="prefill")
    assert "push_qps1_in1024_out128_iter1" in said and "push_qps2_in1024_out128_iter1" in said
    assert "--first-token prefill" in said
    assert "is it started, and its port open?" in said and f"--prefill http://{stack.HOST}:{host.ports['PREFILL_PORT']}" in said
    assert list(host.folder.iterdir()) == []


def test_a_number_may_begin_with_zeros_and_the_program_may_be_a_name_in_path(host):
    """Neither is octal to the shell's printf, nor a file beside the caller."""
    folder = host.folder / "bin"
    folder.mkdir()
    (folder / "baton-here").symlink_to(stack.baton_binary())
    said = host.must("serve_pd.sh", "--dry-run", ROLE="decode", MODE="push", BATON="baton-here", DECODE_PORT="08200",
                     DECODE_SIDE_CHANNEL_PORT="0010", PATH=f"{folder}:{os.environ['PATH']}")
    words = shlex.split(said)
    assert words[0] == str(folder / "baton-here") and words[words.index("--port") + 1] == "8200", words
    assert json.loads(words[words.index("--kv-transfer-config") + 1])["kv_port"] == 10
    absent = host.run("serve_pd.sh", "--dry-run", ROLE="decode", MODE="push", BATON="baton-nowhere")
    assert absent.returncode == 3 and "baton-nowhere" in absent.stderr, absent.stderr


def test_of_many_calls_at_once_one_starts_and_the_others_name_it(host):
    """A `baton` that never answers keeps the starter waiting. Nobody notes a process before all have begun to look for one."""
    bin_folder, marks = host.folder / "bin", host.folder / "marks"
    for folder in (bin_folder, marks):
        folder.mkdir()
    count = 8
    for name, script in {"silent": "exec sleep 600", "mkdir": f': >"{marks}/$$"; exec /bin/mkdir "$@"',
                         "cat": f'while [ $(ls {marks} | wc -l) -lt {count} ]; do sleep 0.05; done; exec /bin/cat "$@"'}.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_folder / name).chmod(0o755)
    environment = {**host.variables, "ROLE": "prefill", "MODE": "push", "BATON": "silent", "READY_TIMEOUT": "600",
                   "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    calls = [subprocess.Popen([str(DEPLOY / "serve_pd.sh")], env=environment, cwd=host.folder, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        def ended():
            return [call for call in calls if call.poll() is not None]
        stack.wait_for("all others have given up", lambda: len(ended()) == count - 1, 60)
        (starter,) = [call for call in calls if call.poll() is None]
        pid = host.started("prefill")
        for call in ended():
            assert call.returncode == 1 and f"process {pid} at" in call.stderr.read()
        host.must("cleanup.sh", "server", STOP_TIMEOUT="5")
        assert starter.wait(30) != 0 and not alive(pid)
        assert not (host.folder / "prefill.pid").exists()
    finally:
        for call in calls:
            if call.poll() is None:
                call.terminate()  # its trap ends what it started
            call.wait()


def test_a_pair_and_a_proxy_are_started_asked_and_ended_and_nothing_else(host, small_model, bystander):
    real = {"BACKEND": "cpu", "MODEL": str(small_model), "MODE": "push"}
    host.must("serve_pd.sh", "--threads", "1", ROLE="prefill", **real)
    host.must("serve_pd.sh", "--threads", "1", ROLE="decode", **real)
    host.must("serve_pd.sh", ROLE="proxy")
    pids = {name: host.started(name) for name in ("prefill", "decode", "proxy")}
    assert all(map(alive, pids.values()))
    answer = stack.complete(int(host.ports["PROXY_PORT"]), model="Qwen")
    assert answer.status == 200, answer.body
    unknown = stack.complete(int(host.ports["PROXY_PORT"]), model="Qwen3")
    assert unknown.status == 404 and b"does not exist" in unknown.body
    other = host.run("run_sweep.sh", MODE="push", SERVED_MODEL_NAME="Qwen3", MAX_NUM_SEQS="9")
    assert other.returncode == 2 and not (host.folder / "results").exists(), other.stderr
    for side in ("prefill", "decode"):
        assert f"--served-model-name Qwen3, and {side} says Qwen\n" in other.stderr, other.stderr
        assert f"--max-num-seqs 9, and {side} says 8\n" in other.stderr, other.stderr
    # Nobody says that this pair computes, and in which mode the proxy is: the servers do.
    host.must("run_sweep.sh", "--allow-void", "--min-prompts", "3", "--disable-tqdm", MODE="push", QPS_LIST="8", INPUT_LENS="32",
              OUTPUT_LENS="4", POINT_SECONDS="1", ROUTER_URL=f"http://{stack.HOST}:{host.ports['PROXY_PORT']}")
    result = json.loads((host.folder / "results" / "push_qps8_in32_out4_iter1.json").read_text())
    assert result["completed"] == result["num_prompts"] == 8 and result["failed"] == 0
    settings = result["baton"]["settings"]
    assert settings["backend"] == "cpu" and settings["profile"] is None and settings["first_token"] is None
    decode = settings["servers"]["decode"]
    assert (decode["threads"], decode["prefix_caching"], decode["transfer_style"], decode["kv_bytes_scale"]) == (1, False, "baton", None)
    assert result["baton"]["variant"] == "1 thread an instance" and result["baton"]["kv_pool"]["decode"]["blocks"] > 0
    assert not result["baton"]["emulated"] and result["baton"]["bytes"]["moved"] == result["baton"]["bytes"]["expected"] > 0
    # The router alone is named: it lists them, and they are asked as well.
    alone = subprocess.run([str(stack.baton_binary()), "sweep", "--modes", "push", "--qps-list", "8", "--input-lens", "32", "--output-lens", "4",
                            "--point-seconds", "1", "--allow-void", "--disable-tqdm", "--results-dir", str(host.folder / "alone"),
                            "--router-url", f"http://{stack.HOST}:{host.ports['PROXY_PORT']}"], capture_output=True, text=True, timeout=120)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert "emulated" not in alone.stdout
    behind = json.loads((host.folder / "alone" / "push_qps8_in32_out4_iter1.json").read_text())["baton"]
    assert not behind["emulated"] and behind["profile"] is None and behind["prefill"] == "computed"
    assert behind["settings"]["servers"] == settings["servers"] and behind["bytes"]["moved"] == behind["bytes"]["expected"] > 0
    again = host.run("serve_pd.sh", ROLE="decode", **real)
    assert again.returncode == 1 and str(pids["decode"]) in again.stderr, again.stderr
    assert str(pids["proxy"]) in host.must("cleanup.sh", "proxy")
    assert not alive(pids["proxy"]) and alive(pids["prefill"]) and alive(pids["decode"])
    host.must("cleanup.sh", "server")
    assert not any(map(alive, pids.values())) and bystander.running()
    assert "not running" in host.must("cleanup.sh", "server"), "a second call finds nothing, and that is no error"


def test_a_file_of_a_process_that_ended_is_nobody_elses_death(host, bystander):
    """The id of a process that ended is given to others: the start time, or the boot, is not theirs."""
    pid = bystander.popen.pid
    boot = open("/proc/sys/kernel/random/boot_id", encoding="utf-8").read().strip()
    start = open(f"/proc/{pid}/stat", encoding="utf-8").read().rsplit(")", 1)[1].split()[19]
    for lines in ((pid, int(start) - 1, boot, "x"), (pid, start, "another boot", "x"), (pid, "", boot, "x"), (pid,), ("-1", start, boot, "x"),
                  ()):
        (host.folder / "prefill.pid").write_text("".join(f"{line}\n" for line in lines))
        assert "prefill: not running" in host.must("cleanup.sh", "server"), lines
        assert bystander.running(), lines
        assert not (host.folder / "prefill.pid").exists()


def test_a_server_that_stands_still_is_killed_at_last(host):
    host.must("serve_pd.sh", ROLE="prefill", MODE="push")
    pid = host.started("prefill")
    os.kill(pid, signal.SIGSTOP)
    host.must("cleanup.sh", "server", STOP_TIMEOUT="0")
    assert not alive(pid)


def routers_of(pid):
    """Its children that run `baton route`; the script has others before it becomes the sweep."""
    found = []
    with contextlib.suppress(OSError):  # they come and go
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/cmdline", encoding="utf-8") as words:
                    found += [int(child)] if "route" in words.read().split("\0") else []
    return found


def pair_and_sweep(host, mode):
    """Both servers, and a sweep of one point in the background."""
    for role in ("prefill", "decode"):
        host.must("serve_pd.sh", ROLE=role, MODE=mode)
    return subprocess.Popen([str(DEPLOY / "run_sweep.sh"), "--disable-tqdm"], cwd=host.folder, stdout=subprocess.DEVNULL,
                            stderr=subprocess.STDOUT, env={**host.variables, "MODE": mode, "QPS_LIST": "1",
                                                           "INPUT_LENS": "256", "OUTPUT_LENS": "4"})


def test_cleanup_ends_a_sweep_in_the_background_with_its_router_and_no_server(host):
    sweep = pair_and_sweep(host, "pull")
    try:
        routers = stack.wait_for("the sweep's router", lambda: routers_of(sweep.pid), 60)
        again = host.run("run_sweep.sh", MODE="pull")
        assert again.returncode == 1 and f"process {sweep.pid}" in again.stderr, again.stderr
        said = host.must("cleanup.sh", "proxy")
        assert not any(map(alive, routers)), "the sweep's router still runs"
        assert f"process {sweep.pid} has ended" in said and "results" in said, said
        assert sweep.wait(30) != 0
        assert alive(host.started("prefill")) and alive(host.started("decode"))
    finally:
        sweep.kill()
        sweep.wait()


def port_of(pid):
    """Where it listens; 0 until it does."""
    with contextlib.suppress(OSError):
        sockets = {os.readlink(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
        for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return int(fields[1].split(":")[1], 16)
    return 0


def test_a_sweeps_router_that_still_serves_somebody_is_ended_as_well(host):
    """It would drain behind the sweep, which is gone at once."""
    sweep = pair_and_sweep(host, "push")
    try:
        (router,) = stack.wait_for("the sweep's router", lambda: routers_of(sweep.pid), 60)
        port = stack.wait_for("it listens", lambda: port_of(router), 60)
        stack.wait_for("it is ready", lambda: stack.request(port, "GET", "/health").status == 200, 60)
        os.kill(host.started("decode"), signal.SIGSTOP)
        client = stack.Client(port, {"prompt": "a", "max_tokens": 4})
        stack.wait_for("it is routed", lambda: sum(
            value for name, _, value in stack.metric_samples(port) if name == "baton_router_requests_running") > 0)
        host.must("cleanup.sh", "proxy", STOP_TIMEOUT="0")
        assert not alive(router), "the sweep's router still runs"
        client.leave()
    finally:
        sweep.kill()
        sweep.wait()


def test_a_port_in_use_is_named_and_has_its_exit_code(host):
    host.must("serve_pd.sh", ROLE="prefill", MODE="push")
    done = host.run("serve_pd.sh", ROLE="decode", MODE="push", DECODE_PORT=host.ports["PREFILL_PORT"])
    assert done.returncode == 4 and host.ports["PREFILL_PORT"] in done.stderr, (done.returncode, done.stderr)
    assert not (host.folder / "decode.pid").exists() and alive(host.started("prefill"))


def test_what_is_not_ready_in_time_is_ended_and_named(host):
    done = host.run("serve_pd.sh", ROLE="proxy", READY_TIMEOUT="1")  # nobody is there to be routed to
    assert done.returncode == 1 and "READY_TIMEOUT=1" in done.stderr, done.stderr
    assert sorted(path.name for path in host.folder.iterdir()) == ["proxy.lock", "proxy.log"]
    done = host.run("run_sweep.sh", MODE="push", READY_TIMEOUT="1")
    assert done.returncode == 1 and "prefill at http" in done.stderr and "does not answer" in done.stderr, done.stderr
