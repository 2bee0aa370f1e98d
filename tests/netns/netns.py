#!/usr/bin/env python3
"""Prefill and decode in two network namespaces that only a veth pair joins, as two hosts would be.

  conformance  the fabric's conformance suite and fence trials, writers and receivers in different namespaces
  exactness    prefill in one, decode and router in the other, over libfabric and over "auto": the tokens of every
               answer, greedy or drawn with a seed, of prompts that cross whole or in pieces, are those of one process
  link         the link is cut and healed under load: every request ends within the soak's bound, with the right tokens
               or an error that names its cause; then all blocks are free and the next request is answered; memory and
               descriptors stay flat

Needs root. Where namespaces cannot be made it says so and exits with 77.
"""
import argparse
import collections
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent / "soak")]
import faults  # noqa: E402
import load  # noqa: E402
import report as reports  # noqa: E402
import stack  # noqa: E402
from watch import Watch  # noqa: E402

SKIPPED = 77
PREFILL, DECODE = "10.99.71.1", "10.99.71.2"
PEER_TIMEOUT = faults.PEER_TIMEOUT
FLAGS = ["--served-model-name", "m", "--threads", 1, "--max-num-seqs", 4, "--peer-timeout", PEER_TIMEOUT,
         "--lease", 3, "--transfer-timeout", 8, "--poison-blocks"]
# What a cut link does to a request is over within a peer time-out of it: P, D and router each hear nothing from the other side
# for that long, and whatever is asked of P after that finds nobody to dial within it (docs/protocol.md, "Bounds").
ALLOWED = faults.allowed(faults.SILENT)
# The router's own end of a request must not be what keeps it within the bound.
REQUEST_TIMEOUT = 4 * ALLOWED
CUTS = (2.5, 0.6, 0.2)  # seconds, in turn: longer and shorter than the peer time-out
POOL_BYTES = 8 << 20
# Of `link`: a pool that a round fills, and uses again and again.
POOL = ["--kv-cache-memory-bytes", POOL_BYTES, "--max-model-len", 768]


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
                ip("netns", "exec", name, "true")  # some containers may make them and not enter them
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

    def __init__(self, namespace, model, fabric, policy="fail", extra=(), prefill_extra=()):
        extra = [*FLAGS, *extra, "--fabric", fabric, "--insecure"]  # the link is ours alone
        self.namespace = namespace
        self.prefill = Prefill(namespace, model, [*extra, *prefill_extra])
        self.decode = stack.Instance("decode-0", model, 8200, "kv_consumer", 8201,
                                     [*extra, "--fabric-address", "fabric"], {"kv_load_failure_policy": policy})
        self.router = stack.Process("router", ["route", "--port", 8000, "--prefill", f"http://{PREFILL}:8100",
                                               "--decode", f"http://{stack.HOST}:8200",
                                               "--peer-timeout", PEER_TIMEOUT, "--connect-timeout", 2,
                                               "--request-timeout", REQUEST_TIMEOUT])

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

    @property
    def processes(self):
        return self.prefill, self.decode, self.router

    def logs(self):
        return "\n".join(f"--- {process.name}\n{process.output[-3000:]}" for process in self.processes)

    def records(self, transfer):
        """P's and D's of a hand-over."""
        path = f"/debug/transfers?id={transfer}"
        sides = [(8100, PREFILL), (8200, stack.HOST)]
        find = lambda: [r for port, host in sides  # noqa: E731
                        for r in stack.request(port, "GET", path, host=host).json["transfers"]]
        stack.wait_for("both records", lambda: len(find()) == 2, 10)
        return find()


def prompts(count, seed, words_max=60):
    rng = random.Random(seed)
    for _ in range(count):
        words = " ".join(rng.choice(["relay", "hand", "stride", "leg", "track"]) for _ in range(rng.randint(3, words_max)))
        yield {"model": "m", "prompt": words, "max_tokens": rng.randint(2, 12)}


def ask(port, bodies, limit):
    clients = [stack.Client(port, body, timeout=limit) for body in bodies]
    return [client.finish(limit) for client in clients]


def sampled(bodies, seed):
    """The same prompts, their answers drawn: of the same numbers on one engine and on two."""
    return [{**body, "temperature": 0.8, "seed": seed + number} for number, body in enumerate(bodies)]


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
    bodies += sampled(bodies[:8], 100)
    wanted = reference(model, bodies)
    for fabric, tokens_a_step in (("libfabric", None), ("auto", None), ("libfabric", 32)):
        cut_up = ["--max-num-batched-tokens", tokens_a_step] if tokens_a_step else []
        most = 1
        with Pair(namespace, model, fabric, prefill_extra=cut_up) as pair:
            for got, tokens in zip(ask(8000, bodies, 60), wanted):
                assert got.complete and got.tokens == tokens, f"{fabric}: {got.error or got.broken or got.tokens}"
                records = pair.records(got.headers["x-baton-transfer-id"])
                used = {record["fabric"] for record in records}
                assert used == {"libfabric"}, f"--fabric {fabric} between namespaces was carried by {used}"
                most = max(most, *(len(record["times"].get("pieces_ready", [])) for record in records))
            pair.prefill.wait_at_rest()
            pair.decode.wait_at_rest()
        assert not cut_up or most > 2, f"{' '.join(map(str, cut_up))}: no prompt crossed in more than {most} pieces"
        print(f"exactness: {len(bodies)} answers over --fabric {fabric}, prompts in up to {most} pieces, equal one process, "
              "carried by libfabric", flush=True)


class Link:
    """The counts of `link`, round after round."""

    def __init__(self, rounds):
        self.rounds, self.cuts, self.begin = rounds, 0, time.monotonic()
        self.right, self.causes = 0, collections.Counter()
        self.slowest = self.to_rest = 0.0
        self.handovers = {}
        self.watch = Watch(3 * POOL_BYTES / 2**20 + 1)  # as the soak's
        self.problems = []

    def note(self, client, tokens, hurt):
        """`hurt`: when the link was cut, or the request began."""
        took = client.ended_at - hurt
        self.slowest = max(self.slowest, took)
        problem = ""
        if client.complete:
            self.right += 1
            problem = "" if client.tokens == tokens else f"wrong tokens {client.tokens}, right are {tokens}"
        elif client.error is None:
            problem = f"broken off without a word: status {client.status}, {client.broken!r}"
        else:
            end, problem = load.error_of(client)
            self.causes[end.removeprefix("error: ")] += 1
        if not problem and took > ALLOWED:
            problem = (f"ended {took:.1f} s after the cut, allowed are {faults.FACTOR:g} x {faults.SILENT:g} s + "
                       f"{faults.SCHEDULING:g} s: {client.error or 'with the right answer'}")
        if problem:
            self.problems.append(f"cut {self.cuts}: {problem}")

    def note_handovers(self, policy, decode):
        self.handovers[policy] = {labels["outcome"]: int(value) for name, labels, value in decode.samples()
                                  if name == "baton_handovers_total"}

    def counts(self):
        return {"fabric": "libfabric", "cuts": self.cuts, "cuts_wanted": self.rounds,
                "seconds": round(time.monotonic() - self.begin, 1), "requests": self.right + self.causes.total(),
                "right": self.right, "named_errors": dict(self.causes), "slowest_s": round(self.slowest, 2),
                "worst_rest_s": round(self.to_rest, 2), "handovers_of_decode_0": self.handovers,
                "processes": self.watch.report(),
                "allowed": {"factor": faults.FACTOR, "bound_s": faults.SILENT, "scheduling_s": faults.SCHEDULING,
                            "worst_share": round(self.slowest / ALLOWED, 3)},
                "problems": self.problems}

    def summary(self):
        yield (f"link: {self.cuts} cuts, {self.right} right answers, {self.causes.total()} named errors {dict(self.causes)}, "
               f"slowest end {self.slowest:.1f} s after its cut, allowed are {ALLOWED:g} s; at rest {self.to_rest:.1f} s after that")
        for policy, outcomes in self.handovers.items():
            yield f"link: hand-overs of the D that is to {policy}: {', '.join(f'{n} {end}' for end, n in outcomes.items())}"
        for name, row in sorted(self.watch.report().items()):
            yield (f"link: {name:10} {row['samples']:4} samples, private memory {row['private_mib_first']} -> "
                   f"{row['private_mib_last']} MiB, descriptors {row['descriptors_first']} -> {row['descriptors_last']}")
        for problem in self.problems:
            yield f"link: FAILED: {problem}"


def cut(rng, pair, bodies, wanted, found, seconds):
    """One round: the link goes down at a random moment."""
    clients = [stack.Client(8000, body, timeout=2 * ALLOWED) for body in bodies]
    time.sleep(rng.uniform(0, 0.8))  # the fault's own moment; nothing waits for it
    hurt = time.monotonic()
    set_link(pair.namespace, False)
    time.sleep(seconds)
    set_link(pair.namespace, True)
    for client, tokens in zip(clients, wanted):
        client.finish(2 * ALLOWED)
        found.note(client, tokens, hurt)
    begin = time.monotonic()
    for instance in (pair.prefill, pair.decode):
        instance.wait_ready(faults.FACTOR * faults.REST)  # the hosts have to find each other again before we can ask P
        instance.wait_at_rest(faults.FACTOR * faults.REST)
    found.to_rest = max(found.to_rest, time.monotonic() - begin)
    healed = lambda: (c := stack.Client(8000, bodies[0], timeout=ALLOWED).finish(ALLOWED)).complete and (  # noqa: E731
        c.tokens == wanted[0])
    stack.wait_for("a right answer after the link healed", healed, ALLOWED)
    for instance in (pair.prefill, pair.decode):
        instance.wait_at_rest(faults.FACTOR * faults.REST)


def cut_again_and_again(rng, pair, bodies, wanted, found, cuts):
    for number in range(cuts):
        try:
            cut(rng, pair, bodies, wanted, found, CUTS[number % len(CUTS)])
        except (AssertionError, OSError) as error:
            found.problems.append(f"cut {found.cuts}: {error}")
        found.cuts += 1
        if found.problems:
            return
        for process in pair.processes:
            found.watch.sample(process)


def link(namespace, model, rounds, own):
    rng = random.Random(7)
    # Some seconds of work for both sides, which a cut meets at every stage; far less than ALLOWED, so that it is the cut
    # that is measured and not a queue.
    bodies = list(prompts(12, 2, 100))
    bodies = bodies[:8] + sampled(bodies[8:], 200)
    wanted = reference(model, bodies)
    found = Link(rounds)
    try:
        # A D that computes what was lost, then one that fails it: the one's answers are right, the other's errors say why.
        for policy, cuts in (("recompute", rounds - rounds // 2), ("fail", rounds // 2)):
            if cuts and not found.problems:
                with Pair(namespace, model, "libfabric", policy, POOL) as pair:
                    cut_again_and_again(rng, pair, bodies, wanted, found, cuts)
                    if found.problems:
                        print(pair.logs())
                    else:
                        found.note_handovers(policy, pair.decode)
        found.problems += found.watch.complaints()
    except AssertionError as error:
        found.problems.append(str(error))
    print(*found.summary(), sep="\n", flush=True)
    if own:
        reports.write(own, "link", found.counts())
    return not found.problems


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
            if not link(args.inside, model, args.rounds, args.json):
                return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["conformance", "exactness", "link"],
                        choices=["conformance", "exactness", "link"])
    parser.add_argument("--rounds", type=int, default=4, help="cuts of the link")
    parser.add_argument("--fence-rounds", type=int, default=10, help="of each fence trial")
    parser.add_argument("--json", type=reports.path, help=f"of `link`: {reports.HELP}")
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
