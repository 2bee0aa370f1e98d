"""`baton bench serve` and `baton sweep` against real servers of a small random model.

No figure is asserted, only what figures must fit together whatever the machine does.
"""
import json
import os
import subprocess

import pytest

import stack

SWEEP = ["--backend", "cpu", "--modes", "local,push", "--qps-list", "8", "--input-lens", "40", "--output-lens", "6",
         "--point-seconds", "1", "--serve-flag=--threads", "--serve-flag=1", "--disable-tqdm",
         "--goodput", "ttft:60000", "tpot:7000.5"]
PARTS = ["register_wait", "match", "wire", "detect", "first_step"]


def baton(*arguments, env=None):
    return subprocess.run([str(stack.baton_binary()), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})}, check=False)


@pytest.fixture(scope="module")
def swept(small_model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("results")
    done = baton("sweep", "--model", small_model, "--results-dir", directory, *SWEEP)
    assert done.stderr == "", done.stdout + done.stderr  # a point may be void on a busy machine: that is no error
    return directory


def read(directory, mode):
    return json.loads((directory / f"{mode}_qps8_in40_out6_iter1.json").read_text())


@pytest.mark.parametrize("mode", ["local", "push"])
def test_a_result_is_read_by_the_articles_keys(swept, mode):
    result = read(swept, mode)
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for what in ("mean", "median", "p50", "p90", "p99"):
            assert result[f"{what}_{metric}_ms"] > 0, (what, metric)
    assert result["completed"] == result["num_prompts"] == 8 and result["failed"] == 0
    assert result["total_input_tokens"] == 8 * 40
    assert result["total_output_tokens"] == 8 * 6
    assert (swept / f"{mode}_qps8_in40_out6_iter1.log").stat().st_size > 0


def test_every_mode_got_the_same_requests(swept):
    local, push = read(swept, "local"), read(swept, "push")
    assert local["baton"]["seed"] == push["baton"]["seed"]
    assert [r["due_ms"] for r in local["baton"]["requests"]] == [r["due_ms"] for r in push["baton"]["requests"]]


def test_a_push_says_how_its_hand_overs_went(swept):
    baton_key = read(swept, "push")["baton"]
    assert baton_key["bytes"]["moved"] == baton_key["bytes"]["expected"] > 0
    assert baton_key["record_troubles"] == []
    assert baton_key["first_token"] == "decode" and baton_key["emulated"] is False and baton_key["label"] == ""
    assert set(PARTS) < set(baton_key["handover_ms"])
    assert sum(baton_key["handover_ms"][part]["mean"] for part in PARTS) <= 1.01 * (
        baton_key["handover_ms"]["total"]["mean"] + baton_key["handover_ms"]["match"]["mean"])
    assert baton_key["block_hold_ms"]["mean"] > 0
    # One host, one clock: these follow each other from the client's sending to its first token, and leave nothing out.
    chain = ["front_end", "prefill_queue", "prefill", "total", "first_token"]
    assert sum(baton_key["handover_ms"][part]["mean"] for part in chain) == pytest.approx(read(swept, "push")["mean_ttft_ms"], rel=0.001)
    assert baton_key["handover_ms"]["decode_front_end"]["mean"] > 0
    assert 1 <= baton_key["slots"]["max"] <= 8
    assert "--no-enable-prefix-caching" in baton_key["environment"]["flags"]["decode"]
    for request in baton_key["requests"]:
        assert {"client", "router", "prefill", "decode"} == {span["side"] for span in request["spans"]}


def test_goodput_is_measured_and_drawn_with_its_slo(swept, tmp_path):
    """Bounds that every answer keeps, so that goodput is the throughput; how one that is broken counts, src/bench tests."""
    for mode in ("local", "push"):
        result = read(swept, mode)
        assert result["request_goodput"] == result["baton"]["goodput"]["requests_per_s"] == result["request_throughput"] > 0
        assert result["baton"]["goodput"]["slo"] == {"ttft": 60000, "tpot": 7000.5}
        assert result["baton"]["settings"]["goodput"] == ["ttft:60000", "tpot:7000.5"]
    done = baton("plot", "--results-dir", swept, "--metric", "goodput", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    figure = (tmp_path / "goodput.svg").read_text(encoding="utf-8")
    assert "Goodput: requests that met the SLO" in figure and "SLO ttft 60000 ms, tpot 7000.5 ms" in figure and figure.count('class="result') == 2
    assert (tmp_path / "goodput.png").stat().st_size > 0


def test_local_knows_nothing_of_hand_overs_and_says_null(swept):
    baton_key = read(swept, "local")["baton"]
    assert baton_key["handover_ms"] == {}
    assert baton_key["bytes"] == {"moved": None, "expected": None}
    assert baton_key["slots"]["max"] is None and baton_key["block_hold_ms"]["mean"] is None


def test_a_sweep_goes_on_where_it_was_stopped(swept, small_model):
    kept, again = swept / "local_qps8_in40_out6_iter1.json", swept / "push_qps8_in40_out6_iter1.json"
    for path in (kept, again):  # whatever this machine made of them
        result = json.loads(path.read_text())
        result["baton"]["void"] = None
        path.write_text(json.dumps(result))
    before = kept.stat().st_mtime_ns
    again.write_text(again.read_text()[:100])
    done = baton("sweep", "--model", small_model, "--results-dir", swept, *SWEEP)
    assert "2 points, 1 of them finished already" in done.stdout
    assert kept.stat().st_mtime_ns == before
    assert json.loads(again.read_text())["completed"] == 8


def test_a_sweep_with_other_settings_refuses_to_mix(swept, small_model):
    done = baton("sweep", "--model", small_model, "--results-dir", swept, *SWEEP, "--seed", "9")
    assert done.returncode == 2
    assert "local_qps8_in40_out6_iter1.json: it was made with seed" in done.stderr


def test_servers_that_do_not_start_are_named_with_what_they_said(tmp_path):
    done = baton("sweep", "--model", tmp_path / "missing.gguf", "--results-dir", tmp_path / "r", *SWEEP)
    assert done.returncode == 1
    assert "local exited with code 3" in done.stderr and "missing.gguf" in done.stderr


def test_the_grid_is_taken_from_the_articles_variables():
    done = baton("sweep", "--dry-run", "--modes", "push",
                 env={"QPS_LIST": "1 2", "INPUT_LENS": "1024 4096", "OUTPUT_LENS": "128"})
    assert done.returncode == 0, done.stderr
    names = [line for line in done.stdout.splitlines() if line.startswith("push_")]
    assert names == [f"push_qps{q}_in{i}_out128_iter1" for i in (1024, 4096) for q in (1, 2)]


def test_an_unknown_flag_is_refused_with_the_nearest():
    done = baton("bench", "serve", "--random-inputlen", "5")
    assert done.returncode == 2
    assert "--random-inputlen" in done.stderr and "--random-input-len" in done.stderr


def test_bench_serve_writes_json_and_counts_what_fails(small_model):
    port = stack.free_ports(1)[0]
    server = stack.Process("alone", ["serve", small_model, "--port", port, "--threads", "1"]).start()
    try:
        done = baton("bench", "serve", "--port", port, "--num-prompts", 4, "--random-input-len", 20,
                     "--random-output-len", 4, "--request-rate", 50, "--ignore-eos", "--json", "--disable-tqdm")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["completed"] == 4 and result["baton"]["failures"] == {}
        done = baton("bench", "serve", "--port", port, "--num-prompts", 3, "--random-input-len", 100000,
                     "--json", "--disable-tqdm")
        assert done.returncode == 1
        result = json.loads(done.stdout)
        assert result["failed"] == 3 and result["baton"]["failures"] == {"http_400": 3}
        assert result["mean_ttft_ms"] is None and result["baton"]["void"].startswith("3 of 3 requests failed; the first: http_400: ")
    finally:
        server.stop()
