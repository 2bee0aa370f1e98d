"""Recorded traces replayed through router, P and D of the timed backend, faster and shorter by factors.

What is looked at: every row becomes one request, at its time and of its lengths by the factors, answered whole, and its
KV crosses whole. How fast it was is not.
"""
import csv
import datetime
import json
import math
import pathlib
import subprocess

import pytest
import stack

DATA = pathlib.Path(__file__).parent / "data"
PROFILE = "qwen3-32b-tp8-h200"
TOKEN_BYTES = 64 * 2 * 256 // 32  # of one rank, divided by the profile's scale
BLOCK = 16


def mooncake_rows():
    path = DATA / "mooncake_conversation_first20.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return path, [(row["timestamp"], row["input_length"], row["output_length"]) for row in rows]


def azure_rows():
    path = DATA / "azure_conv_2023_first20.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    times = [datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]  # six decimals of seven
    return path, [((at - times[0]).total_seconds() * 1e3, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                  for at, row in zip(times, rows)]


@pytest.fixture(scope="module")
def pair():
    flags = ["--backend", "timed", "--kv-cache-memory-bytes", 64 << 20, "--link-rate", 2e8, "--no-enable-prefix-caching"]
    with stack.Stack(PROFILE, extra=flags, router_extra=["--first-token", "decode"]) as running:
        yield running
        running.standing_checks()


@pytest.mark.parametrize("name, rows_of, rate, length", [("mooncake", mooncake_rows, 4, 1 / 32), ("azure", azure_rows, 15, 0.125)])
def test_a_trace_is_replayed_row_by_row(pair, name, rows_of, rate, length):
    path, rows = rows_of()
    done = subprocess.run([str(stack.baton_binary()), "bench", "serve", "--port", str(pair.port), "--dataset-name", name,
                           "--dataset-path", str(path), "--trace-rate-scale", str(rate), "--trace-length-scale", str(length),
                           "--num-prompts", "1000", "--ignore-eos", "--json", "--disable-tqdm"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    requests = result["baton"]["requests"]
    assert len(rows) == 20 and (result["completed"], result["failed"]) == (20, 0)
    assert [r["due_ms"] for r in requests] == pytest.approx([at / rate for at, _, _ in rows], abs=0.001)
    assert [r["input_len"] for r in requests] == [math.ceil(inputs * length) for _, inputs, _ in rows]
    assert [r["output_len"] for r in requests] == [math.ceil(outputs * length) for _, _, outputs in rows]
    assert all(r["arrival_ms"] >= r["due_ms"] for r in requests)
    moved = sum(-(-math.ceil(inputs * length) // BLOCK) * BLOCK * TOKEN_BYTES for _, inputs, _ in rows)
    assert result["baton"]["bytes"] == {"moved": moved, "expected": moved}
    assert result["baton"]["failures"] == {} and result["baton"]["record_troubles"] == []
