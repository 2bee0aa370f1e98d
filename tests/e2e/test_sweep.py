"""The small sweep as `make sweep-small` runs it: every mode over a 2 x 2 x 2 grid, emulated, and what is drawn of it.

What the points say of speed is not looked at here: on two busy cores most are void, and say so. Bytes are: every prompt's
KV crossed, whole, in every mode that has a hand-over, whatever else makes its point void.
"""
import json
import os
import pathlib
import subprocess
import xml.etree.ElementTree

import pytest
import stack
from test_plot import drawn, opened

MODES = ["local", "engine-loop-pull", "engine-loop-pull-merged", "threaded-pull", "published-push", "published-push-merged", "push"]
QPS, INPUTS, OUTPUTS = (2, 8), (1024, 4096), (8, 16)
POINTS = len(MODES) * len(QPS) * len(INPUTS) * len(OUTPUTS)


def baton(*words):
    done = subprocess.run([str(stack.baton_binary()), *map(str, words)], capture_output=True, text=True, timeout=400,
                          env={k: v for k, v in os.environ.items() if k not in ("QPS_LIST", "INPUT_LENS", "OUTPUT_LENS")})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "results"
    said = baton("sweep", "--qps-list", " ".join(map(str, QPS)), "--input-lens", " ".join(map(str, INPUTS)), "--output-lens",
                 " ".join(map(str, OUTPUTS)), "--point-seconds", 0.5, "--min-prompts", 2, "--num-warmups", 1, "--allow-void", "--results-dir", folder)
    assert f"{POINTS} points, " in said
    return folder


def test_every_point_has_a_result_and_its_bytes(results):
    files = sorted(results.glob("*.json"))
    assert len(files) == POINTS
    for path in files:
        result = json.loads(path.read_text())
        baton_key = result["baton"]
        assert result["completed"] + result["failed"] == result["num_prompts"] and result["completed"] > 0, path.name
        assert "emulated" in baton_key["label"] and baton_key["profile"] == "qwen3-32b-tp8-h200"
        assert result["failed"] == 0, (path.name, baton_key["void"])
        if baton_key["mode"] != "local":
            assert baton_key["bytes"]["moved"] == baton_key["bytes"]["expected"] > 0, path.name
        assert path.with_suffix(".log").is_file()


def busy_share_of(work):
    """Of all cores while `work` ran, by this test's own count."""
    def ticks():
        fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]
    total, idle = ticks()
    work()
    after, idle_after = ticks()
    return 1 - (idle_after - idle) / (after - total)


def test_a_lightly_loaded_point_counts_and_is_not_saturated(tmp_path):
    """Above, 2 to 4 requests a point and busy cores: `saturated` is unknown and most are void. A rule that voids or marks
    everything would pass there, and one that knows nothing, too."""
    def sweep():
        baton("sweep", "--modes", "push", "--qps-list", "5", "--input-lens", "512", "--output-lens", "4", "--point-seconds", 1.6,
              "--prefill", "cached", "--num-warmups", 1, "--results-dir", tmp_path, "--allow-void")

    for _ in range(2):  # a void point is run again
        busy = busy_share_of(sweep)
        baton_key = json.loads((tmp_path / "push_qps5_in512_out4_iter1.json").read_text())["baton"]
        if baton_key["void"] is None:
            break
    if busy > 0.85 and baton_key["void"] is not None:
        return  # others had the cores all the time, and the point says that it does not count
    assert baton_key["void"] is None, (busy, baton_key["void"])
    assert baton_key["saturated"] is False, baton_key["arrivals"]
    assert baton_key["arrivals"]["open_at_last_arrival"] <= 7 and baton_key["arrivals"]["quickest_ms"] > 0


def test_a_result_says_which_build_profile_and_hosts_made_it(results):
    build = baton("--version").split("build ")[1].strip(" )\n")
    for path in results.glob("*_qps2_in1024_out8_iter1.json"):
        baton_key = json.loads(path.read_text())["baton"]
        environment = baton_key["environment"]
        assert (environment["versions"]["bench_build"], environment["versions"]["server_build"]) == (build, build)
        assert len(baton_key["profile_hash"]) == 16
        sides = [instance["side"] for instance in environment["instances"]]
        assert sides == (["local"] if baton_key["mode"] == "local" else ["prefill", "decode"])
        for instance in environment["instances"]:
            assert {key: instance[key] for key in ("host", "kernel", "cpu", "cores")} == environment["driver"]
            assert instance["build"] == build and instance["libfabric"]


def test_a_second_call_finds_what_counts_done(results):
    counted = sum(json.loads(path.read_text())["baton"]["void"] is None for path in results.glob("*.json"))
    said = baton("sweep", "--qps-list", " ".join(map(str, QPS)), "--input-lens", " ".join(map(str, INPUTS)), "--output-lens",
                 " ".join(map(str, OUTPUTS)), "--point-seconds", 0.5, "--min-prompts", 2, "--num-warmups", 1, "--dry-run", "--results-dir", results)
    assert f"{POINTS} points, {counted} of them finished already" in said


def test_both_figures_and_a_page_that_draws_every_result(results, tmp_path):
    out = tmp_path / "figures"
    baton("plot", "--results-dir", results, "--metric", "ttft,tpot", "--out", out)
    for name in ("ttft_mean", "tpot_mean"):
        assert (out / f"{name}.png").stat().st_size > 0
        svg = xml.etree.ElementTree.parse(out / f"{name}.svg").getroot()
        assert any("emulated" in (e.text or "") for e in svg.iter()), name
    document, console = opened(out / "plot.html", tmp_path)
    assert console == []
    assert drawn(document) == list(range(POINTS))
    assert document.body()["data-drawn"] == str(POINTS)
