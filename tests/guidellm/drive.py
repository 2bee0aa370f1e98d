#!/usr/bin/env python3
"""guidellm, a load generator of others, drives the router: prefill, decode and router on loopback, push and pull.

Prompts come from a file, so that no tokenizer is fetched, and the hub is switched off: nothing here asks the network. Its own
report must say that every request was answered with the tokens that were asked for, and the servers' records that each
of them was handed over.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import stack  # noqa: E402

REQUESTS, STREAMS, TOKENS = 12, 4, 8
FLAGS = ["--served-model-name", "m", "--threads", 1, "--max-num-seqs", 4, "--verify-blocks"]
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def write_prompts(path):
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as out:
        for _ in range(REQUESTS):
            words = " ".join(rng.choice(["relay", "hand", "stride", "leg", "track"]) for _ in range(rng.randint(5, 60)))
            out.write(json.dumps({"prompt": words, "output_tokens_count": TOKENS}) + "\n")


def run_guidellm(program, port, endpoint, folder):
    report = folder / f"{endpoint.strip('/').replace('/', '-')}.json"
    prompts = folder / "prompts.jsonl"
    write_prompts(prompts)
    command = [str(program), "run",
               "--backend", json.dumps({"kind": "openai_http", "target": f"http://{stack.HOST}:{port}", "http2": False,
                                        "request_format": endpoint}),
               "--profile", json.dumps({"kind": "concurrent", "streams": [STREAMS]}),
               "--constraint", json.dumps({"kind": "max_requests", "count": REQUESTS}),
               "--data", json.dumps({"kind": "json_file", "path": str(prompts)}),
               "--output", json.dumps({"kind": "json", "path": str(report)}), "--disable-console"]
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(folder / "hub")}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"guidellm ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return json.loads(report.read_text(encoding="utf-8"))


def drive(program, mode, model, folder):
    folder.mkdir()
    with stack.Stack(model, extra=FLAGS, mode=mode) as running:
        for endpoint in ("/v1/completions", "/v1/chat/completions"):
            before = handed_over(running)
            check_report(run_guidellm(program, running.port, endpoint, folder), endpoint)
            crossed = handed_over(running) - before
            assert crossed >= REQUESTS, f"{mode} {endpoint}: {crossed} hand-overs for {REQUESTS} requests"
            print(f"guidellm: {mode}, {endpoint}: {REQUESTS} requests, {STREAMS} at once, all answered, {crossed:g} hand-overs",
                  flush=True)
        for instance in running.instances:
            instance.wait_at_rest()


def handed_over(running):
    return sum(d.metric("baton_handovers_total", outcome="done") for d in running.decode)


def check_report(report, endpoint):
    (run,) = report["benchmarks"]
    totals = run["metrics"]["request_totals"]
    assert totals == {"successful": REQUESTS, "incomplete": 0, "errored": 0, "total": REQUESTS}, (
        f"{endpoint}: {totals}\n{[r.get('info', {}).get('error') for r in run['requests']['errored'] or []]}")
    for request in run["requests"]["successful"]:
        assert request["output_tokens"] == TOKENS, (endpoint, request["output_tokens"])
        assert request["prompt_tokens"] > 0, endpoint
    for name in ("time_to_first_token_ms", "inter_token_latency_ms"):
        assert run["metrics"][name]["successful"]["mean"] > 0, (endpoint, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guidellm", type=pathlib.Path, required=True, help="its program")
    parser.add_argument("--modes", nargs="+", default=["push", "pull"], choices=["push", "pull"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = stack.make_small_model(folder / "small.gguf", "--context-length", 2048)
        for mode in args.modes:
            drive(args.guidellm.resolve(), mode, model, folder / mode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
