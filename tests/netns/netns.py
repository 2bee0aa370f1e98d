#!/usr/bin/env python3
"""Prefill and decode in two network namespaces that only a veth pair joins, as two hosts would be.

  conformance  the fabric's conformance suite and fence trials, writers and receivers in different namespaces
  exactness    prefill in one, decode and router in the other, over libfabric and over "auto": the tokens of every
               answer are those of one process
  link         the link is cut and healed under load: every request ends within its bound, with the right tokens or an
               error that names its cause; then all blocks are free and the next request is answered

Needs root. Where namespaces cannot be made it says so and exits with 77.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import stack  # noqa: E402

SKIPPED = 77
PREFILL, DECODE = "10.99.71.1", "10.99.71.2"
PEER_TIMEOUT = 1.0
FLAGS = ["--served-model-name", "m", "--threads", 1, "--max-num-seqs", 4, "--peer-timeout", PEER_TIMEOUT,
         "--lease", 3, "--transfer-timeout", 8, "--poison-blocks"]
# A cut-off request: the peer time-out, the router's own, a recompute; real processes on a busy machine.
BOUND = 40.0


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, text=True)


class Namespaces:
    """Two of them, joined by one link; gone afterwards, with everything in them."""

    def __init__(self):
        self.prefill, self.decode = (f"baton-{side}-{os.getpid()}" for side in ("p", "d"))

    def __enter__(self):
        try:
            for name in (self.prefill, self.decode):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip("link", "add", "fabric", "netns", self.prefill, "type", "veth",
               "peer", "name", "fabric", "netns", self.decode)
            for name, address in ((self.prefill, PREFILL), (self.decode, DECODE)):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "fabric")
                ip("-n", name, "link", "set", "fabric", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            raise PermissionError(getattr(error, "stderr", None) or str(error)) from None
        return self

    def __exit__(self, *_):
        for name in (self.prefill, self.decode):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def set_link(name, up):
    ip("-n", name, "link", "set", "fabric", "up" if up else "down")


def conformance(namespaces, args):
    """Runs in the test program itself: each of its processes enters a namespace."""
    program = stack.beside_binary("fabric_conformance_test")
    env = {**os.environ, "BATON_TEST_NAMESPACES": f"{namespaces.prefill}={PREFILL},{namespaces.decode}={DECODE}",
           "BATON_FENCE_ROUNDS": str(args.fence_rounds)}
    done = subprocess.run([str(program), "--gtest_brief=1", "--gtest_filter=*BetweenNamespaces*:*LibfabricTest*"],
                          env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"conformance between namespaces\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}")
    passed = [line for line in done.stdout.splitlines() if "PASSED" in line]
    print(f"conformance: {' '.join(passed)}", flush=True)


class Prefill(stack.Instance):
    host = PREFILL

    def __init__(self, namespace, model, extra):
        super().__init__("prefill-0", model, 8100, "kv_producer", 8101, ["--host", PREFILL, *extra],
                         {"kv_ip": PREFILL})
        self.prefix = ["ip", "netns", "exec", namespace]


class Pair:
    """P in its namespace; D and the router in the one that this script runs in."""

    def __init__(self, namespace, model, fabric, policy="fail"):
        extra = [*FLAGS, "--fabric", fabric, "--insecure"]  # the link is ours alone
        self.prefill = Prefill(namespace, model, extra)
        self.decode = stack.Instance("decode-0", model, 8200, "kv_consumer", 8201,
                                     [*extra, "--fabric-address", "fabric"], {"kv_load_failure_policy": policy})
        self.router = stack.Process("router", ["route", "--port", 8000, "--prefill", f"http://{PREFILL}:8100",
                                               "--decode", f"http://{stack.HOST}:8200",
                                               "--peer-timeout", PEER_TIMEOUT, "--connect-timeout", 2,
                                               "--request-timeout", BOUND / 2])

    def __enter__(self):
        for process in (self.prefill, self.decode, self.router):
            process.start()
        self.prefill.wait_ready()
        self.decode.wait_ready()
        stack.wait_for("the router is ready", self.answers, 30)
        return self

    def __exit__(self, *_):
        for process in (self.router, self.decode, self.prefill):
            process.kill()
            process.wait()

    @staticmethod
    def answers():
        try:
            return stack.request(8000, "GET", "/health", timeout=5).status == 200
        except OSError:
            return False

    def fabric_of(self, transfer):
        """What the two records of a hand-over name."""
        path = f"/debug/transfers?id={transfer}"
        sides = [(8100, PREFILL), (8200, stack.HOST)]
        find = lambda: [r for port, host in sides  # noqa: E731
                        for r in stack.request(port, "GET", path, host=host).json["transfers"]]
        stack.wait_for("both records", lambda: len(find()) == 2, 10)
        return {record["fabric"] for record in find()}


def prompts(count, seed, words_max=60):
    rng = random.Random(seed)
    for _ in range(count):
        words = " ".join(rng.choice(["relay", "hand", "stride", "leg", "track"]) for _ in range(rng.randint(3, words_max)))
        yield {"model": "m", "prompt": words, "max_tokens": rng.randint(2, 12)}


def ask(port, bodies, limit):
    clients = [stack.Client(port, body, timeout=limit) for body in bodies]
    return [client.finish(limit) for client in clients]


def reference(model, bodies):
    """The answers of one process that does both halves itself."""
    single = stack.Instance("single", model, 8300, "kv_both", 8301, FLAGS)
    single.start()
    try:
        single.wait_ready()
        return [client.tokens for client in ask(8300, bodies, 60)]
    finally:
        single.kill()
        single.wait()


def exactness(namespace, model):
    bodies = list(prompts(12, 1))
    wanted = reference(model, bodies)
    for fabric in ("libfabric", "auto"):
        with Pair(namespace, model, fabric) as pair:
            for got, tokens in zip(ask(8000, bodies, 60), wanted):
                assert got.complete and got.tokens == tokens, f"{fabric}: {got.error or got.broken or got.tokens}"
                used = pair.fabric_of(got.headers["x-baton-transfer-id"])
                assert used == {"libfabric"}, f"--fabric {fabric} between namespaces was carried by {used}"
            pair.prefill.wait_at_rest()
            pair.decode.wait_at_rest()
        print(f"exactness: {len(bodies)} answers over --fabric {fabric} equal one process, carried by libfabric",
              flush=True)


def link(namespace, model, rounds):
    """The link goes down at a random moment for a time that is shorter or longer than the peer time-out."""
    rng = random.Random(7)
    bodies = list(prompts(24, 2, 300))
    wanted = reference(model, bodies)
    right = 0
    causes = collections.Counter()
    slowest = 0.0
    with Pair(namespace, model, "libfabric", "recompute") as pair:
        for number in range(rounds):
            clients = [stack.Client(8000, body, timeout=BOUND) for body in bodies]
            began = time.monotonic()
            time.sleep(rng.uniform(0, 0.8))  # the fault's own moment; nothing waits for it
            set_link(namespace, False)
            time.sleep(rng.choice([0.2, 0.6, 2.5]))
            set_link(namespace, True)
            for client, tokens in zip(clients, wanted):
                client.finish(BOUND)
                slowest = max(slowest, client.ended_at - began)
                if client.complete:
                    assert client.tokens == tokens, f"round {number}: wrong tokens"
                    right += 1
                else:
                    assert client.error, f"round {number}: broken off without a word: {client.broken}"
                    causes[str((client.error.get("baton") or {}).get("cause") or client.error.get("type"))] += 1
            pair.prefill.wait_at_rest(BOUND)
            pair.decode.wait_at_rest(BOUND)
            healed = lambda: (c := stack.Client(8000, bodies[0], timeout=BOUND).finish(BOUND)).complete and (  # noqa: E731
                c.tokens == wanted[0])
            stack.wait_for(f"round {number}: a right answer after the link healed", healed, BOUND)
    print(f"link: {rounds} cuts, {right} right answers, {causes.total()} named errors {dict(causes)}, slowest end {slowest:.1f} s", flush=True)
    return {"cuts": rounds, "right": right, "named_errors": dict(causes), "slowest_s": round(slowest, 2)}


def inside(args):
    """In decode's namespace, where 127.0.0.1 is decode's and the router's."""
    with tempfile.TemporaryDirectory() as folder:
        model = stack.make_small_model(pathlib.Path(folder) / "small.gguf")
        if "exactness" in args.parts:
            exactness(args.inside, model)
        if "link" in args.parts:
            # Heavy enough that a cut meets requests at every stage.
            model = stack.make_small_model(pathlib.Path(folder) / "slow.gguf", "--layers", 8,
                                           "--embedding-size", 256, "--feed-forward-size", 768)
            report = link(args.inside, model, args.rounds)
            if args.json:
                args.json.parent.mkdir(parents=True, exist_ok=True)
                args.json.write_text(json.dumps(report, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["conformance", "exactness", "link"],
                        choices=["conformance", "exactness", "link"])
    parser.add_argument("--rounds", type=int, default=4, help="cuts of the link")
    parser.add_argument("--fence-rounds", type=int, default=10, help="of each fence trial")
    parser.add_argument("--json", type=pathlib.Path, help="where the counts of `link` go")
    parser.add_argument("--inside", metavar="NAMESPACE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return inside(args)
    try:
        with Namespaces() as namespaces:
            if "conformance" in args.parts:
                conformance(namespaces, args)
            to_json = ["--json", str(args.json)] if args.json else []
            parts = [part for part in args.parts if part != "conformance"]
            if parts:
                subprocess.run(["ip", "netns", "exec", namespaces.decode, sys.executable, __file__, "--inside",
                                namespaces.prefill, "--rounds", str(args.rounds), *to_json, "--parts", *parts], check=True)
    except PermissionError as error:
        print(f"netns: SKIPPED, NOTHING WAS TRIED: network namespaces cannot be made here: {error}", file=sys.stderr)
        return SKIPPED
    except subprocess.CalledProcessError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
