"""Result files as a sweep writes them, made up: for tests of what reads them."""
import json

MODES = ["local", "engine-loop-pull", "engine-loop-pull-merged", "threaded-pull", "published-push", "published-push-merged", "push"]
PHASES = ["queue", "register_wait", "match", "post", "wire", "detect", "first_step"]

# ms of TTFT at 1 req/s and 1k tokens, and how the mode's hand-over grows with load times length. Shapes like the
# article's, so that a picture made of these files looks like the real thing; no test reads meaning into them.
COST = {"local": (50, 0.000), "engine-loop-pull": (60, 0.0095), "engine-loop-pull-merged": (60, 0.006),
        "threaded-pull": (58, 0.004), "published-push": (57, 0.0024), "published-push-merged": (56, 0.0016),
        "push": (54, 0.0008), "pull": (60, 0.0095)}


def spread(mean):
    return {"mean": mean, "p50": mean * 0.95, "p90": mean * 1.4, "p99": mean * 1.9}


def vllm(metric, mean):
    return {f"mean_{metric}_ms": mean, f"median_{metric}_ms": mean * 0.95, f"std_{metric}_ms": mean * 0.2,
            f"p50_{metric}_ms": mean * 0.95, f"p90_{metric}_ms": mean * 1.4, f"p99_{metric}_ms": mean * 1.9}


def request(i, ttft, tpot, output_len):
    arrival = 125.0 * i
    parts = {"queue": 0.1, "register_wait": 0.05, "match": 0.02, "post": 0.15, "wire": 0.12, "detect": 0.02, "first_step": 0.04}
    spans, at = [{"side": "client", "name": "request", "start_ms": arrival, "end_ms": arrival + ttft + tpot * output_len if i else None},
                 {"side": "router", "name": "queue", "start_ms": arrival, "end_ms": arrival + 0.1 * ttft},
                 {"side": "prefill", "name": "prefill", "start_ms": arrival + 0.1 * ttft, "end_ms": arrival + 0.6 * ttft}], 0.6
    for name in PHASES[1:]:
        side = "prefill" if name in ("match", "post", "wire") else "decode"
        spans.append({"side": side, "name": name, "start_ms": arrival + at * ttft, "end_ms": arrival + (at + parts[name]) * ttft})
        at += parts[name]
    spans.append({"side": "decode", "name": "decode", "start_ms": arrival + at * ttft, "end_ms": arrival + at * ttft + tpot * output_len})
    return {"id": f"req-{i}", "arrival_ms": arrival, "ttft_ms": ttft, "tpot_ms": tpot, "e2el_ms": ttft + tpot * output_len,
            "second_token_ms": ttft + tpot, "error": None, "spans": spans}


def result(mode="push", qps=8, input_len=16384, output_len=128, iteration=1, requests=6):
    """One file's content; a caller changes what it wants unlike."""
    base, slope = COST[mode]
    wobble = 1 + 0.04 * ((iteration * 7 + len(mode)) % 3 - 1)
    hand = slope * input_len * qps * wobble
    ttft = (base + 0.024 * input_len + hand) * wobble
    tpot = 5.6 + (0.18 * hand ** 0.5 if mode != "local" else 0) + 0.00002 * input_len
    moved = 0 if mode == "local" else input_len * 4096
    top = {"date": "20261014-120000", "endpoint_type": "openai", "backend": "openai", "label": None, "model_id": "Qwen", "tokenizer_id": "Qwen",
           "num_prompts": requests, "request_rate": qps, "burstiness": 1.0, "max_concurrency": None, "duration": 20.0,
           "completed": requests, "failed": 0, "total_input_tokens": requests * input_len, "total_output_tokens": requests * output_len,
           "request_throughput": qps * 0.98, "request_goodput": None, "output_throughput": qps * output_len * 0.98,
           "total_token_throughput": qps * (output_len + input_len)}
    for metric, mean in [("ttft", ttft), ("tpot", tpot), ("itl", tpot), ("e2el", ttft + tpot * output_len)]:
        top.update(vllm(metric, mean))
    top["baton"] = {
        "schema": 1, "mode": mode, "qps": qps, "input_len": input_len, "output_len": output_len, "iteration": iteration, "seed": 7 + iteration,
        "first_token": "decode", "prefill": "computed", "emulated": True, "profile": "qwen3-32b-tp8-h200", "scale": 64,
        "label": "emulated: qwen3-32b-tp8-h200, bytes / 64", "void": None,
        "second_token_ms": {**spread(ttft + tpot), "median": ttft + tpot, "std": 3.0},
        "goodput": {"slo": {"ttft": 1000, "tpot": 12}, "requests_per_s": qps * min(1.0, 700 / ttft)},
        "block_hold_ms": spread(8 + hand), "bytes": {"moved": moved, "expected": moved}, "writes": 640, "runs": 12,
        "slots": {"max": 8, "mean": 3.5, "p99": 8}, "link": {"rate_bytes_per_s": None, "busy_share": 0.31},
        "compute": {"prefill_busy_share": 0.7, "decode_busy_share": 0.6}, "machine": {"cpu_busy_share": 0.5},
        "failures": {}, "environment": {"driver": {"host": "h", "kernel": "6.1", "cpu": "c", "cores": 2},
                                        "servers": "on the driver's host", "fabric": "shm", "provider": None,
                                        "versions": {"baton": "0.1.0"}, "flags": {"prefill": ["--fabric", "shm"]}},
        "requests": [request(i, ttft * (1 + 0.1 * i), tpot, output_len) for i in range(requests)]}
    if mode != "local":
        shares = [0.2, 0.1, 0.05, 0.35, 0.2, 0.05, 0.05]
        top["baton"]["handover_ms"] = {name: spread((4 + hand) * share) for name, share in zip(PHASES, shares)}
        total = (4 + hand) * sum(shares[1:])
        front_end, prefill_queue, prefill = 0.1 * ttft, 1.0, 0.1 * ttft
        top["baton"]["handover_ms"].update({
            "front_end": spread(front_end), "decode_front_end": spread(0.5 * front_end), "prefill_queue": spread(prefill_queue),
            "prefill": spread(prefill), "total": spread(total),
            "first_token": spread(ttft - front_end - prefill_queue - prefill - total)})
    return top


def name_of(content):
    baton = content["baton"]
    return f"{baton['mode']}_qps{baton['qps']}_in{baton['input_len']}_out{baton['output_len']}_iter{baton['iteration']}.json"


def write(folder, content, name=None):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or name_of(content))
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_grid(folder, modes=("engine-loop-pull", "push"), rates=(1, 8), inputs=(1024, 16384), outputs=(128,), iterations=(1,)):
    """How many were written."""
    n = 0
    for mode in modes:
        for qps in rates:
            for input_len in inputs:
                for output_len in outputs:
                    for iteration in iterations:
                        write(folder, result(mode, qps, input_len, output_len, iteration))
                        n += 1
    return n
