#!/usr/bin/env python3
"""Runs the benchmark programs, prints one table, writes BUILD/../bench/report.json.

Each program prints JSON lines {name, value, unit, reference?, note?}; what a figure must reach stands in BUDGETS alone.
A ratio is value / reference, both measured in the same run. Absolute times depend on the machine and are only printed.
Exit code: 0 when all programs ran (missed budgets are reported, not hidden), 1 when one did not.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name -> (what is compared: "value" or "ratio", "<=" or ">=", bound). From the budgets in docs/performance.md.
BUDGETS = {
    "submit_us_1": ("value", "<=", 10.0),
    "submit_us_10000": ("value", "<=", 10.0),
    "ready_to_first_write_us_p50": ("value", "<=", 100.0),
    "ready_to_first_write_us_p99": ("value", "<=", 100.0),   # less the machine's own gap, the reference
    "landed_to_told_us_p50": ("value", "<=", 100.0),
    "landed_to_told_us_p99": ("value", "<=", 100.0),
    "handover_bandwidth": ("ratio", ">=", 0.95),
    "handover_bandwidth_16k_shuffled": ("ratio", ">=", 0.90),
    "shm_bandwidth": ("ratio", ">=", 0.95),
    "shm_bandwidth_16k_shuffled": ("ratio", ">=", 0.90),
    "libfabric_bandwidth_256k": ("ratio", ">=", 0.95),
    "libfabric_bandwidth_1m": ("ratio", ">=", 0.95),
    "libfabric_handover_16k_us": ("ratio", "<=", 1.0),
    "per_block_us_contiguous": ("value", "<=", 0.5),
    "per_block_us_fragmented": ("value", "<=", 0.5),
    "allocations_per_block": ("value", "<=", 0.0),
    "prefill_1k": ("ratio", ">=", 1.0),
    "decode_8": ("ratio", ">=", 0.7),
}
GAP_NAMES = {"ready_to_first_write_us_p99", "landed_to_told_us_p99"}


THREADS = len(os.sched_getaffinity(0))
MODEL = pathlib.Path(os.environ.get("BATON_MODELS", ROOT / "build/models")) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def programs(build):
    yield "hand-over", [build / "bench/agent_bench"]
    yield "same-host fabric", [build / "bench/fabric_bench"]
    yield "fabric between hosts", [build / "bench/libfabric_bench"]
    yield "model", [build / "bench/model_bench", MODEL, "--threads", THREADS]


def lines_of(command, folder=ROOT, limit=900):
    """The JSON lines that a program prints; None (and its words on stderr) if it fails or takes too long."""
    try:
        run = subprocess.run([str(c) for c in command], cwd=folder, capture_output=True, text=True, timeout=limit)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return None
    if run.returncode != 0:
        sys.stderr.write(run.stdout[-2000:] + run.stderr[-2000:])
        return None
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def install_llama_cpp(folder):
    """The packages of tools/deps/npm.txt, without their GPU libraries and install scripts; True if they are there."""
    if (folder / "node_modules/node-llama-cpp").is_dir():
        return True
    npm = shutil.which("npm")
    if not npm:
        return False
    listed = (line.split("#")[0].strip() for line in (ROOT / "tools/deps/npm.txt").read_text().splitlines())
    folder.mkdir(parents=True, exist_ok=True)
    run = subprocess.run([npm, "install", "--prefix", str(folder), "--omit=optional", "--ignore-scripts", "--no-audit",
                          "--no-fund", *filter(None, listed)], capture_output=True, text=True)
    return run.returncode == 0


def llama_cpp(folder):
    """Prefill and decode rates of llama.cpp on the same file and threads, or None with the reason."""
    node = shutil.which("node")
    if not node:
        return None, "no node"
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip().lstrip("v")
    if int(version.split(".")[0] or 0) < 20:
        return None, f"node {version}, 20 is needed"
    if not install_llama_cpp(folder):
        return None, "npm could not install tools/deps/npm.txt"
    rows = lines_of([node, ROOT / "tools/bench_llama_cpp.mjs", MODEL, THREADS], folder, 180)
    return ({r["name"]: r["value"] for r in rows}, "") if rows else (None, "llama.cpp did not run to its end")


def judge(row):
    name, reference = row["name"], row.get("reference")
    row.setdefault("reference", None)
    row["ratio"] = round(row["value"] / reference, 4) if reference else None
    rule = BUDGETS.get(name)
    row["budget"] = f"{rule[0]} {rule[1]} {rule[2]:g}" if rule else None
    row["met"] = None
    if rule:
        measured = row["value"] if rule[0] == "value" else row["ratio"]
        if name in GAP_NAMES and reference:
            measured = row["value"] - reference
            row["budget"] += " above the machine's own gap"
        if measured is not None:
            row["met"] = measured <= rule[2] if rule[1] == "<=" else measured >= rule[2]
    return row


def show(row):
    ratio = f"{row['ratio']:.2f}" if row["ratio"] is not None else "-"
    reference = f"{row['reference']:.3g}" if row["reference"] is not None else "-"
    met = {True: "met", False: "MISSED", None: ""}[row["met"]]
    print(f"  {row['name']:32} {row['value']:>12.4g} {row['unit']:10} {reference:>10} {ratio:>7}  "
          f"{row['budget'] or '':34} {met}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--json", action="store_true", help="print the report instead of the table")
    args = parser.parse_args()
    out = args.build.resolve().parent / "bench"
    out.mkdir(parents=True, exist_ok=True)
    say = (lambda *a: print(*a, file=sys.stderr, flush=True)) if args.json else (lambda *a: print(*a, flush=True))

    report, failed = [], False
    if not args.json:
        print(f"  {'name':32} {'value':>12} {'unit':10} {'reference':>10} {'ratio':>7}  budget")
    for title, command in programs(args.build.resolve()):
        say(f"bench: {title} ...")
        rows = lines_of(command)
        if rows is None:
            failed = True
            say(f"bench: {title} did not run")
            continue
        if title == "model":
            say("bench: llama.cpp on the same file and threads ...")
            peer, why = llama_cpp(out.parent / "llama-cpp")
            for row in rows:
                row["reference"] = peer.get(row["name"]) if peer else None
                if not peer:
                    row["note"] = f"llama.cpp not measured: {why}"
        for row in map(judge, rows):
            report.append(row)
            if not args.json:
                show(row)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    if args.json:
        print(json.dumps(report))
    else:
        missed = [r["name"] for r in report if r["met"] is False]
        print(f"bench: {len(report)} figures, {len(missed)} budgets missed{': ' + ', '.join(missed) if missed else ''}")
        print(f"bench: {out / 'report.json'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
