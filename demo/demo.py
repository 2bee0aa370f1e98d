#!/usr/bin/env python3
"""The demo: a real model answers through prefill, decode and router, and everything that crossed is checked.

Starts `baton up`, streams one chat answer through the router, sends eight prompts of different length at once, and
compares every answer, token for token, with one process that does both halves itself. Exit code 0 only if all of the
verdicts printed at the end hold; build/demo/report.json has the same.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import sys
import textwrap
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
import stack  # noqa: E402

PATIENCE = 600  # seconds; the router itself gives a request up after as many
CHAT = [{"role": "user", "content": "What is the capital of France, and what is it known for?"}]

PASSAGE = """The relay is decided in the exchange. The runner who comes in has spent a whole leg getting up to speed, and
the runner who goes out has to be at that speed when the baton arrives. If she waits with her hand at her side until he
stands beside her, both of them stop. So she starts early, holds a hand out behind her without looking, and he puts the
baton into it in full stride. Nobody asks for it, nobody looks back, and nobody lets go before the other holds it. """

TOPICS = ["a lighthouse", "the tide", "an old map", "a night train", "bread", "a violin", "snow", "the number seven"]


def prompts(short=False):
    """Eight completions whose prompts grow from a few words to about two thousand tokens; odd ones are sampled."""
    for i, topic in enumerate(TOPICS):
        text = PASSAGE.replace("\n", " ") * (0 if i == 0 else 2 ** (i - 1) if i < 5 else 2 + 4 * (i - 3))
        text = text[:200 * i] if short else text
        body = {"prompt": f"{text}Now a short story about {topic}. Once", "max_tokens": 24 + 4 * i,
                "return_token_ids": True}
        body |= {"temperature": 0.8, "top_p": 0.95, "seed": 1000 + i} if i % 2 else {"temperature": 0}
        yield body


def collect(port, path, body, on_text=None):
    """One streamed answer: its tokens, text and transfer id."""
    try:
        return read_answer(stack.Stream(port, path, body, timeout=PATIENCE), on_text)
    except TimeoutError:
        raise AssertionError(f"{path}: not a word of the answer for {PATIENCE} s: is the machine busy?") from None


def read_answer(stream, on_text):
    if stream.status != 200:
        raise AssertionError(f"status {stream.status}: {stream.response.read().decode(errors='replace')}")
    tokens, text, usage = [], "", None
    for event in stream:
        if "error" in event:
            raise AssertionError(f"the answer broke off: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            tokens += choice.get("token_ids") or []
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            text += piece
            if on_text and piece:
                on_text(piece)
    if not stream.done:
        raise AssertionError("the stream ended without [DONE]")
    stream.close()
    return {"tokens": tokens, "text": text, "usage": usage, "transfer_id": stream.headers.get("x-baton-transfer-id")}


def all_at_once(port, bodies):
    """The answers in the order of the bodies; counts on the open line as they end."""
    ended = 0

    def one(body):
        nonlocal ended
        answer = collect(port, "/v1/completions", body)
        with lock:
            ended += 1
            print(f" {ended}", end="", flush=True)
        return answer

    lock = threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, bodies))
    print()
    return answers


def record(port, transfer_id):
    """One side's record of a hand-over. P's comes with its last completion, which may be long after D's answer."""
    find = lambda: stack.request(port, "GET", f"/debug/transfers?id={transfer_id}").json["transfers"]  # noqa: E731
    try:
        return stack.wait_for("a record", find, PATIENCE)[-1]
    except AssertionError:
        return None


def timeline(transfer_id, prefill, decode):
    """Both sides' points on one line, milliseconds after the registration: CLOCK_MONOTONIC is one clock for a host."""
    p, d = prefill["times"], decode["times"]
    begin = d["registered"]
    mover = prefill if p["first_write"] else decode  # push: P writes; pull: D reads
    points = {"registered": begin, "ready": p["ready"], "first_write": mover["times"]["first_write"], "last_byte": d["last_byte"],
              "decode_told": d["told"], "first_token": p["first_token"] or d["first_token"],
              "second_token": d["second_token"]}
    return {"transfer_id": transfer_id, "prompt_tokens": decode["prompt_tokens"], "bytes": prefill["bytes"],
            "writes": mover["writes"], "begin_ns": begin, "told_ns": d["told"],
            "ms": {name: round((at - begin) / 1e6, 3) if at else None for name, at in points.items()}}


def max_overlap(lines):
    """Most hand-overs under way at one moment, each from its registration until D was told."""
    edges = sorted([(line["begin_ns"], 1) for line in lines] + [(line["told_ns"], -1) for line in lines])
    now = most = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


PUSH_LEGEND = """
Where each hand-over spent its time, in milliseconds after decode (D) registered its blocks with
prefill (P). Ready: P has computed the first piece of the prompt. First write to last byte: the KV
cache crosses, piece by piece. Decode told: D may start. The first token is P's own and does not
wait for the hand-over.
"""
PULL_LEGEND = """
Where each hand-over spent its time, in milliseconds after decode (D) registered its blocks; what was
before that is negative. Ready: P had computed the first piece of the prompt. First read to last byte:
D reads the KV cache. Decode told: P has confirmed that it held still; D may start. The first token is
P's own: it came before D was chosen.
"""


def print_timelines(lines, mode):
    names = ["registered", "ready", "first_write", "last_byte", "decode_told", "first_token", "second_token"]
    print(PULL_LEGEND if mode == "pull" else PUSH_LEGEND)
    titles = {"first_write": "first_read", "writes": "reads"} if mode == "pull" else {}
    heads = [("", "transfer", -8), ("prompt", "tokens", 8), ("", "MiB", 7), ("", titles.get("writes", "writes"), 8),
             ("", "registered", 12)]
    heads += [(*(["", *titles.get(name, name).split("_")][-2:]), 9) for name in names[1:]]
    for row in (0, 1):
        print("  " + "".join(f"{head[row]:{'<' if head[2] < 0 else '>'}{abs(head[2])}}" for head in heads))
    for line in lines:
        ms = ["-" if line["ms"][name] is None else f"{line['ms'][name]:.2f}" for name in names]
        print(f"  {line['transfer_id'][:8]}{line['prompt_tokens']:>8}{line['bytes'] / 2**20:>7.2f}{line['writes']:>8}"
              f"{ms[0]:>12}" + "".join(f" {text:>8}" for text in ms[1:]))


def disaggregated(args):
    """Runs the prompts through `baton up`; returns the answers, both sides' records and what leaked."""
    router, prefill, decode = stack.free_ports(3)
    up = stack.Process("up", ["up", args.model, "--mode", args.mode, "--fabric", args.fabric, "--port", router, "--prefill-port", prefill, "--decode-port", decode,
                              "--verify-blocks", "--poison-blocks", "--no-enable-prefix-caching", *(["--pull-loop", args.pull_loop] if args.pull_loop else []),
                              *args.serve_flags])
    up.start()
    try:
        stack.wait_for("prefill, decode and router are ready", lambda: ready(up, router), 120)
        sides = {"prefill": stack.Instance("prefill", args.model, prefill, "kv_producer", 0),
                 "decode": stack.Instance("decode", args.model, decode, "kv_consumer", 0)}
        before = {name: side.blocks() for name, side in sides.items()}
        print("\nA chat answer, streamed from the router as it comes:\n")
        print(f"  > {CHAT[0]['content']}\n  ", end="", flush=True)
        chat_body = {"messages": CHAT, "max_tokens": 64, "temperature": 0, "return_token_ids": True}
        answers = [collect(router, "/v1/chat/completions", chat_body, lambda t: print(t, end="", flush=True))]
        print("\n\nEight prompts of different length at once; answered:", end="", flush=True)
        answers += all_at_once(router, prompts(args.short))
        for name, side in sides.items():
            try:
                side.wait_whole(PATIENCE)
            except AssertionError as error:
                print(f"  {error}")
        after = {name: side.blocks() for name, side in sides.items()}
        records = [(record(prefill, a["transfer_id"]), record(decode, a["transfer_id"])) for a in answers]
        leaked = sum(before[name]["free"] - after[name]["free"] for name in sides)
        return answers, records, leaked
    except BaseException:
        print(textwrap.indent(up.output[-4000:], "  up: "), file=sys.stderr)
        raise
    finally:
        up.stop()


def ready(up, port):
    if not up.running():
        raise AssertionError(f"`baton up` ended while it started\n{up.output}")
    try:
        return stack.request(port, "GET", "/health", timeout=5).status == 200
    except OSError:
        return False


def one_process(args):
    """The same prompts in one process that does both halves itself."""
    port, kv_port = stack.free_ports(2)
    single = stack.Instance("single", args.model, port, "kv_both", kv_port, args.serve_flags)
    single.start()
    try:
        single.wait_ready(120)
        print("The same prompts in one process (kv_role kv_both); answered:", end="", flush=True)
        chat_body = {"messages": CHAT, "max_tokens": 64, "temperature": 0, "return_token_ids": True}
        return [collect(port, "/v1/chat/completions", chat_body), *all_at_once(port, prompts(args.short))]
    finally:
        single.stop()


def judge(answers, reference, records, leaked, fabric, mode):
    """The report, and the verdicts that decide the exit code."""
    complete = all(p and d for p, d in records)
    lines = [timeline(a["transfer_id"], p, d) for a, (p, d) in zip(answers, records) if p and d]
    total = lambda side, field: sum(r[side][field] for r in records if r[side])  # noqa: E731
    report = {
        # As both sides' records name it: what carried the bytes, not what was asked for.
        "fabric": "+".join(sorted({r["fabric"] or "unknown" for pair in records for r in pair if r})) or "unknown",
        "requests": len(answers),
        "answers_equal": sum(a["tokens"] == b["tokens"] and a["text"] == b["text"] and len(a["tokens"]) > 0
                             for a, b in zip(answers, reference)),
        "bytes_planned": total(1, "bytes_planned"),  # by D, from its own geometry; written is P's count
        "bytes_written": total(0, "bytes"),
        "blocks_handed_over": total(0, "blocks"),
        "blocks_verified": total(1, "blocks_verified"),
        "decode_prompt_tokens": [d["computed_prompt_tokens"] for _, d in records if d],
        "max_overlap": max_overlap(lines),
        "blocks_leaked": leaked,
        "timelines": lines,
    }
    verdicts = {
        "every request has a record on both sides": complete,
        f"bytes {'lent and read' if mode == 'pull' else 'written'} equal the planned bytes": report["bytes_written"] == report["bytes_planned"] > 0,
        "both sides name the fabric that was asked for":
            report["fabric"] == fabric or (fabric == "auto" and report["fabric"] in ("shm", "libfabric")),
        "every block handed over hashed the same on both sides":
            report["blocks_verified"] == report["blocks_handed_over"] > 0,
        "D computed at most one prompt token a request": max(report["decode_prompt_tokens"], default=2) <= 1,
        "hand-overs overlapped": report["max_overlap"] >= 2,
        "every answer equals one process, token for token": report["answers_equal"] == report["requests"],
        "all blocks are free on both sides": leaked == 0,
    }
    if mode == "pull":  # a hand-over is D's reads alone there, too short to meet another one
        del verdicts["hand-overs overlapped"]
    return report, verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baton", type=pathlib.Path, default=ROOT / "build/release/src/apps/baton")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--short", action="store_true", help="shorter prompts, for a small model and its short context")
    parser.add_argument("--fabric", default="auto", help="auto, shm or libfabric (make demo FABRIC=...)")
    parser.add_argument("--mode", default="push", choices=["push", "pull"], help="who moves the KV cache (make demo MODE=...)")
    parser.add_argument("--pull-loop", help="of the decode server: threaded or engine")
    parser.add_argument("--report", type=pathlib.Path, default=ROOT / "build/demo/report.json")
    parser.add_argument("--serve-flag", dest="serve_flags", action="append", default=[], metavar="FLAG",
                        help="passed to every server, e.g. --serve-flag=--max-model-len=4096")
    args = parser.parse_args()
    os.environ["BATON_BINARY"] = str(args.baton.resolve())
    begin = time.monotonic()

    try:
        answers, records, leaked = disaggregated(args)
        reference = one_process(args)
    except (AssertionError, OSError) as error:
        print(f"\ndemo: FAILED: {error}")
        write(args.report, {"answers_equal": 0, "requests": 0, "error": str(error)})
        return 1
    report, verdicts = judge(answers, reference, records, leaked, args.fabric, args.mode)
    print_timelines(report["timelines"], args.mode)
    width = min(shutil.get_terminal_size().columns, 100)
    print("\n" + "-" * width)
    for verdict, holds in verdicts.items():
        print(f"  {'yes' if holds else 'NO ':4} {verdict}")
    print(f"\n  {report['requests']} requests, {report['blocks_handed_over']} blocks, "
          f"{report['bytes_written'] / 2**20:.1f} MiB {args.mode}ed over {report['fabric']}, "
          f"up to {report['max_overlap']} hand-overs at once, {time.monotonic() - begin:.0f} s")
    write(args.report, report)
    good = all(verdicts.values())
    print(f"\ndemo: {'passed' if good else 'FAILED'}; report: {os.path.relpath(args.report)}")
    return 0 if good else 1


def write(path, report):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
