#!/usr/bin/env python3
"""The scripts of deploy/ between two network namespaces, each with a RUN_DIR of its own, as two hosts would use them.

Prefill in one, decode and the driver in the other, over libfabric, with a pre-shared key. In push and in pull mode a tiny
sweep of the emulated pair gives results with the published names and whole bytes; values that the servers contradict
are refused; both modes' results, which their servers described, stand in one pair of figures; cleanup.sh ends exactly what the scripts started, and a `baton serve` of somebody else lives on.

Needs root. Where namespaces cannot be made it says so and exits with 77.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import netns

stack = netns.stack
DEPLOY = stack.ROOT / "deploy"
PROFILE = "qwen3-32b-tp8-h200"
BYSTANDER = 8300
# On busy cores an emulated point is void, and says so: the way is tried here, and the bytes, not the times.
GRID = {"QPS_LIST": "4", "INPUT_LENS": "256 512", "OUTPUT_LENS": "4", "POINT_SECONDS": "1"}


def in_namespace(namespace, *command, **more):
    return subprocess.run(["ip", "netns", "exec", namespace, *map(str, command)], capture_output=True, text=True,
                          timeout=240, **more)


class Host:
    """A namespace with the scripts' variables as its user would set them."""

    def __init__(self, namespace, folder, name):
        self.namespace = namespace
        self.folder = folder / name
        self.folder.mkdir()
        self.key = folder / "pool.psk"

    def run(self, script, *arguments, **variables):
        environment = {"PATH": os.environ["PATH"], "BATON": str(stack.baton_binary()), "RUN_DIR": str(self.folder),
                       "BATON_PROFILES": str(stack.ROOT / "profiles"), "PREFILL_IP": netns.PREFILL,
                       "DECODE_IP": netns.DECODE, "KV_PSK_FILE": str(self.key), "READY_TIMEOUT": "60",
                       "STOP_TIMEOUT": "20", **variables}
        return in_namespace(self.namespace, DEPLOY / script, *arguments, env=environment, cwd=self.folder)

    def must(self, script, *arguments, **variables):
        done = self.run(script, *arguments, **variables)
        assert done.returncode == 0, f"{script} {arguments} {variables}: {done.returncode}\n{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def must_refuse(self, words, script, *arguments, **variables):
        done = self.run(script, *arguments, **variables)
        assert done.returncode == 2, f"{script} {variables}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        for word in words:
            assert word in done.stderr, f"{script} {variables} does not say '{word}':\n{done.stderr}"

    def processes(self):
        return {int(pid) for pid in subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True,
                                                   check=True).stdout.split()}

    def logs(self):
        return "".join(f"--- {path}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))


class Bystander(stack.Process):
    """Somebody else's instance, of the same program, on decode's host."""

    def __init__(self, namespace):
        super().__init__("bystander", ["serve", "--backend", "timed", "--profile", stack.ROOT / "profiles" / f"{PROFILE}.json",
                                       "--host", netns.DECODE, "--port", BYSTANDER])
        self.prefix = ["ip", "netns", "exec", namespace]
        self.namespace = namespace

    def healthy(self):
        asked = f"import urllib.request as u; print(u.urlopen('http://{netns.DECODE}:{BYSTANDER}/health', timeout=5).status)"
        return in_namespace(self.namespace, sys.executable, "-c", asked).stdout.strip() == "200"


def check_results(folder, mode):
    names = sorted(path.name for path in folder.glob(f"{mode}_*"))
    points = [f"{mode}_qps4_in{length}_out4_iter1" for length in (256, 512)]
    assert names == sorted(point + suffix for point in points for suffix in (".json", ".log")), names
    for point in points:
        result = json.loads((folder / f"{point}.json").read_text())
        told = result["baton"]
        assert result["completed"] == result["num_prompts"] > 0 and result["failed"] == 0, (point, result["failed"])
        assert told["mode"] == mode and told["profile"] == PROFILE and "emulated" in told["label"], point
        assert told["bytes"]["moved"] == told["bytes"]["expected"] > 0, (point, told["bytes"])
        for key in ("mean_ttft_ms", "median_tpot_ms"):  # what the article's plotting script reads
            assert result[key] > 0, (point, key)
    return len(points)


def one_mode(mode, other, prefill, decode, results):
    for host, role in ((prefill, "prefill"), (decode, "decode")):
        said = host.must("serve_pd.sh", ROLE=role, MODE=mode)
        assert f"{role} is ready" in said, said
    again = prefill.run("serve_pd.sh", ROLE="prefill", MODE=mode)
    assert again.returncode == 1 and "runs already" in again.stderr, again.stderr
    sweep = {"MODE": mode, "RESULTS_DIR": str(results), **GRID}
    for variables, words in (({"MODE": other}, [f"mode {other}", f"prefill says {mode}", f"decode says {mode}"]),
                             ({"PREFILL_TP_SIZE": "8"}, ["--prefill-tp-size 8", "says 1"]),
                             ({"PREFILL_ENGINE_ID": "prefill-7"}, ["prefill-7", "prefill-engine-001"]),
                             ({"BACKEND": "cpu"}, ["--backend cpu", "emulated"])):
        decode.must_refuse(words, "run_sweep.sh", **{**sweep, **variables})
    told = {"PREFILL_TP_SIZE": "1", "PREFILL_PP_SIZE": "1", "PREFILL_KV_HOST": netns.PREFILL,
            "PREFILL_SIDE_CHANNEL_PORT": "5600", "PREFILL_ENGINE_ID": "prefill-engine-001"}
    decode.must("run_sweep.sh", "--allow-void", "--min-prompts", "3", "--disable-tqdm", **sweep, **told)
    return check_results(results, mode)


def plotted(results, folder):
    """`baton plot` refuses modes whose servers differed in anything but the mode: push and pull here did not."""
    done = subprocess.run([stack.baton_binary(), "plot", "--results-dir", results, "--metric", "ttft,tpot", "--out", folder],
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"plot: {done.returncode}\n{done.stdout}{done.stderr}"
    for name in ("ttft_mean", "tpot_mean"):
        for suffix in (".svg", ".png"):
            assert (folder / f"{name}{suffix}").stat().st_size > 0, name
    figure = (folder / "ttft_mean.svg").read_text(encoding="utf-8")
    for words in ("push", "pull", "emulated"):
        assert words in figure, f"the figure does not say '{words}'"


def over_libfabric(decode):
    """What the records of the last hand-overs name."""
    asked = (f"import json, urllib.request as u; print(sorted({{r['fabric'] for r in json.load(u.urlopen("
             f"'http://{netns.DECODE}:8200/debug/transfers', timeout=5))['transfers']}}))")
    said = in_namespace(decode.namespace, sys.executable, "-c", asked).stdout.strip()
    assert said == "['libfabric']", said


def through_the_proxy(decode, results):
    """A proxy of its own, which the sweep is told of; then cleanup.sh proxy ends it, and no server."""
    servers = decode.processes()
    decode.must("serve_pd.sh", ROLE="proxy")
    proxy = decode.processes() - servers
    assert len(proxy) == 1, proxy
    decode.must("run_sweep.sh", "--allow-void", "--min-prompts", "3", "--disable-tqdm", MODE="push",
                RESULTS_DIR=str(results), ROUTER_URL="http://127.0.0.1:8000", **GRID)
    check_results(results, "push")
    said = decode.must("cleanup.sh", "proxy")
    assert f"process {proxy.pop()} has ended" in said, said
    assert decode.processes() == servers, "the servers are not the proxy's to end"


def tried(namespaces, folder):
    (folder / "pool.psk").write_text(f"pool-1:{os.urandom(32).hex()}\n")
    (folder / "pool.psk").chmod(0o600)
    prefill, decode = Host(namespaces.prefill, folder, "p"), Host(namespaces.decode, folder, "d")
    bystander = Bystander(namespaces.decode).start()
    stack.wait_for("the bystander is ready", bystander.healthy, 60)
    # A file that a host's earlier boot left behind names a process that got its id since.
    (decode.folder / "decode.pid").write_text(f"{bystander.popen.pid}\n1\nanother-boot\nhttp://x\n")
    said = decode.must("cleanup.sh", "server")
    assert "decode: not running" in said and bystander.healthy(), said
    points = 0
    try:
        for mode, other in (("push", "pull"), ("pull", "push")):
            results = folder / "results"
            points += one_mode(mode, other, prefill, decode, results)
            over_libfabric(decode)
            if mode == "push":
                through_the_proxy(decode, folder / "proxied")
            for host, left in ((prefill, set()), (decode, {bystander.popen.pid})):
                started = host.processes() - left
                assert len(started) == 1, f"{host.namespace}: {started}"
                said = host.must("cleanup.sh", "server")
                assert f"process {started.pop()} has ended" in said, said
                assert host.processes() == left, f"cleanup.sh server left or ended another: {host.processes()}, not {left}"
            assert bystander.running() and bystander.healthy(), "the bystander is gone"
        plotted(results, folder / "figures")
    except BaseException:
        print(prefill.logs() + decode.logs(), file=sys.stderr)
        raise
    finally:
        for host in (prefill, decode):
            host.run("cleanup.sh", "proxy", STOP_TIMEOUT="1")
            host.run("cleanup.sh", "server", STOP_TIMEOUT="1")
        bystander.kill()
        bystander.wait()
    print(f"deploy: {points} points between two namespaces, push and pull, in one pair of figures; all that was started has ended, the bystander has not")


def main():
    try:
        with netns.Namespaces() as namespaces, tempfile.TemporaryDirectory() as folder:
            tried(namespaces, pathlib.Path(folder))
    except PermissionError as error:
        print(f"deploy: SKIPPED, NOTHING WAS TRIED: network namespaces cannot be made here: {error}", file=sys.stderr)
        return netns.SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
