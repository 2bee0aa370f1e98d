#!/usr/bin/env python3
"""Real prefill, decode and router processes under load, hurt at random moments, round after round.

Each round asks for a dozen answers through two routers, lets some clients leave, and kills, stops, restarts or drains
instances meanwhile. Then: every request has ended within its bound, with the tokens that one instance alone gives or
with an error that says why; all blocks are free; health and the next answer agree; memory and descriptors stay flat.

A round is a function of (seed, number):  soak.py --seed S --first-round N --rounds 1  does that one again.
"""
import argparse
import collections
import contextlib
import heapq
import http.client
import pathlib
import random
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
import faults  # noqa: E402
import load  # noqa: E402
import report as reports  # noqa: E402
import stack  # noqa: E402
from faults import FACTOR, REST, SCHEDULING  # noqa: E402
from watch import Watch  # noqa: E402

POOL_BYTES = 8 << 20
FLAGS = ["--served-model-name", "soak", "--max-num-seqs", 4, "--max-num-batched-tokens", 64, "--threads", 1,
         "--max-model-len", 768, "--kv-cache-memory-bytes", POOL_BYTES, "--peer-timeout", faults.PEER_TIMEOUT,
         "--lease", 3, "--transfer-timeout", 10, "--drain-timeout", faults.DRAIN, "--enable-prefix-caching"]
MODEL = ["--layers", 8, "--embedding-size", 256, "--feed-forward-size", 768]


class World:
    """Two prefill, two decode instances, two routers. The first of each is a veteran: never ended, only stopped."""

    def __init__(self, model, fabric):
        extra = [*FLAGS, "--poison-blocks", "--fabric", fabric]
        self.stack = stack.Stack(model, 2, 2, extra, ["--peer-timeout", faults.PEER_TIMEOUT])
        self.stack.decode[1] = self._recomputing(self.stack.decode[1], model, extra)
        self.prefill, self.decode = self.stack.prefill, self.stack.decode
        for instance in self.prefill:  # while this file exists, its writes do not move
            instance.hold = model.parent / f"hold-{instance.name}"
            instance.env = {"BATON_FAULT": f"hold_writes:{instance.hold}"}
        self.instances = self.stack.instances
        self.mortals = [self.prefill[1], self.decode[1]]
        self.mortal_router = self._second_router()
        self.stack.router.port = self.stack.port
        self.routers = [self.stack.router, self.mortal_router]

    @staticmethod
    def _recomputing(instance, model, extra):
        return stack.Instance(instance.name, model, instance.port, instance.role, instance.kv_port, extra,
                              {"kv_load_failure_policy": "recompute"})

    def _second_router(self):
        arguments = list(self.stack.router_arguments)
        (port,) = stack.free_ports(1)
        arguments[arguments.index("--port") + 1] = port
        router = stack.Process("router-1", arguments)
        router.port = port
        return router

    @property
    def processes(self):
        return [*self.instances, *self.routers]

    def __enter__(self):
        self.stack.__enter__()
        self.mortal_router.start()
        self.wait_serving()
        return self

    def __exit__(self, *error):
        if self.mortal_router.popen is not None:
            self.mortal_router.kill()
            self.mortal_router.wait()
        self.stack.__exit__(*error)

    def wait_serving(self):
        for instance in self.instances:
            instance.wait_ready()
        for router in self.routers:
            stack.wait_for(f"{router.name} knows all instances and rests", lambda r=router: self._all_up(r), 30)

    def _all_up(self, router):
        with contextlib.suppress(OSError, http.client.HTTPException):
            samples = stack.metric_samples(router.port)
            running = sum(value for name, _, value in samples if name == "baton_router_instance_running")
            return running == 0 and stack.has_as_they_are(router.port, self.instances)
        return False

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.output[-3000:]}" for p in self.processes)


class Round:
    """The plan of one round, and what came of it."""

    def __init__(self, world, seed, number, bodies, expected):
        self.rng = random.Random(f"{seed}/{number}")
        self.world, self.number = world, number
        rng, span = self.rng, self.rng.uniform(0.1, 1.0)
        self.faults = faults.choose(rng, world)
        self.moments = [(rng.uniform(0, span), fault) for fault in self.faults]
        self.asked = []
        for i in range(rng.randint(8, 16)):
            which = rng.randrange(len(bodies))
            start = rng.uniform(0, span)
            leave = start + rng.uniform(0, 0.5) if rng.random() < 0.2 else None
            self.asked.append(load.Asked(i, rng.choice(world.routers), bodies[which], expected[which],
                                         rng.random() < 0.5, start, leave))
        self.begun, self.healed = {}, {}
        self.ends, self.problems = collections.Counter(), []
        self.to_error = self.to_rest = self.share = 0.0

    def __str__(self):
        return "; ".join(f"at {at:.2f} s {fault}" for at, fault in self.moments) or "nothing but clients that leave"

    def run(self):
        self._play()
        self._join()
        self._rest()
        return self

    def _play(self):
        """Does each thing at its moment."""
        plan = []
        for at, fault in self.moments:
            plan += [(at, self._begin, fault), (at + fault.hold, self._heal, fault)]
        for asked in self.asked:
            plan.append((asked.start, lambda a: a.begin(time.monotonic()), asked))
            if asked.leave is not None:
                plan.append((asked.leave, lambda a: a.go_away(), asked))
        queue = [(at, n, what, whom) for n, (at, what, whom) in enumerate(plan)]
        heapq.heapify(queue)
        zero = time.monotonic()
        while queue:
            at, _, what, whom = heapq.heappop(queue)
            time.sleep(max(0.0, zero + at - time.monotonic()))
            what(whom)

    def _begin(self, fault):
        self.begun[fault] = time.monotonic()
        fault.begin()

    def _heal(self, fault):
        fault.heal()
        self.healed[fault] = time.monotonic()

    @property
    def bound(self):
        """Seconds within which whoever is hurt has an error."""
        return max((fault.bound for fault in self.faults), default=0.0)

    @property
    def allowed(self):
        return faults.allowed(self.bound)

    def _join(self):
        router_killed = any(fault.router_killed for fault in self.faults)
        hurt = min(self.begun.values(), default=0.0)
        for asked in self.asked:
            if asked.client is not None:
                asked.client.finish(self.allowed)
            end, problem = asked.end(router_killed)
            self.ends[end] += 1
            if problem:
                self.problems.append(f"request {asked.number} ({'stream' if asked.stream else 'plain'}, through "
                                     f"{asked.router.name}): {end}: {problem}")
            elif end.startswith("error") and not self.faults:
                self.problems.append(f"request {asked.number}: {end} in a round without a fault: {asked.client.error}")
            if end.startswith("error") and asked.client is not None:
                self._error_came(asked, hurt)

    def _error_came(self, asked, hurt):
        took = asked.client.ended_at - max(asked.began, hurt)
        self.to_error = max(self.to_error, took)
        self.share = max(self.share, took / self.allowed)
        if took > self.allowed:
            self.problems.append(f"request {asked.number} had its error after {took:.1f} s, allowed are {FACTOR:g} x "
                                 f"{self.bound:g} s + {SCHEDULING:g} s")

    def _rest(self):
        begin = time.monotonic()
        for instance in self.world.instances:
            instance.wait_ready()
            instance.wait_at_rest(FACTOR * REST)
        self.to_rest = time.monotonic() - begin
        self.world.wait_serving()
        for router in self.world.routers:
            answer = self.asked[0]
            client = stack.Client(router.port, answer.body, False).finish()
            if "instance_silent" in str(client.error):  # of PEER_TIMEOUT, which a stall of this machine can last
                client = stack.Client(router.port, answer.body, False).finish()
            if not client.complete or client.tokens != answer.expected:
                self.problems.append(f"the next request through {router.name}: {client.status} {client.error} "
                                     f"{client.broken!r} {client.tokens}, right are {answer.expected}")
        for instance in self.world.instances:
            instance.wait_at_rest(FACTOR * REST)


class Report:
    def __init__(self, options):
        # An instance maps its own pool and those of two peers.
        self.options, self.watch, self.begin = options, Watch(3 * POOL_BYTES / 2**20 + 1), time.monotonic()
        self.rounds, self.requests, self.ends = 0, 0, collections.Counter()
        self.faults, self.worst_share = {}, 0.0
        self.handovers = collections.Counter()
        self.problems = []

    def add(self, done):
        self.rounds += 1
        self.requests += sum(done.ends.values())
        self.ends += done.ends
        self.worst_share = max(self.worst_share, done.share)
        for kind, bound in {fault.kind: fault.bound for fault in done.faults}.items() or [("none", 0.0)]:
            self._add_fault(kind, bound, done)
        self.problems += [f"round {done.number} ({done}): {p}" for p in done.problems]

    def _add_fault(self, kind, bound, done):
        """Faults may come together: a round's worst times count for each kind that it had."""
        row = self.faults.setdefault(kind, {"count": 0, "bound_s": bound, "worst_error_s": 0.0, "worst_rest_s": 0.0})
        row["count"] += sum(fault.kind == kind for fault in done.faults) or 1
        row["worst_error_s"] = round(max(row["worst_error_s"], done.to_error), 3)
        row["worst_rest_s"] = round(max(row["worst_rest_s"], done.to_rest), 3)

    def note_handovers(self, world):
        """Of the veterans, whose counters cover all rounds."""
        for name, labels, value in world.decode[0].samples():
            if name == "baton_handovers_total":
                self.handovers[labels["outcome"]] = int(value)

    def write(self):
        seconds = time.monotonic() - self.begin
        text = {"seed": self.options.seed, "fabric": self.options.fabric, "rounds": self.rounds,
                "rounds_wanted": self.options.rounds, "seconds": round(seconds, 1), "requests": self.requests,
                "ends": dict(self.ends.most_common()), "faults": dict(sorted(self.faults.items())),
                "handovers_of_decode_0": dict(self.handovers), "processes": self.watch.report(),
                "allowed": {"factor": FACTOR, "scheduling_s": SCHEDULING, "worst_share": round(self.worst_share, 3)},
                "problems": self.problems}
        reports.write(self.options.json, self.options.fabric, text)

    def progress(self, done):
        passed = time.monotonic() - self.begin
        left = passed / self.rounds * (self.options.rounds - self.rounds)
        print(f"soak: [{self.rounds}/{self.options.rounds}, {left:.0f} s left] round {done.number}: {done}: "
              f"{', '.join(f'{n} {end}' for end, n in done.ends.most_common())}", flush=True)

    def summary(self):
        yield (f"soak: {self.rounds} rounds on {self.options.fabric}, seed {self.options.seed}: {self.requests} requests, "
               f"{', '.join(f'{n} {end}' for end, n in self.ends.most_common())}")
        for kind, row in sorted(self.faults.items()):
            yield (f"soak: {row['count']:5} x {kind:12} worst error after {row['worst_error_s']:.2f} s "
                   f"(bound {row['bound_s']:g}), at rest {row['worst_rest_s']:.2f} s after that")
        yield (f"soak: the latest error took {self.worst_share:.0%} of what is allowed: {FACTOR:g} x its bound + "
               f"{SCHEDULING:g} s for scheduling")
        for name, row in sorted(self.watch.report().items()):
            yield (f"soak: {name:10} {row['samples']:4} samples, private memory {row['private_mib_first']} -> "
                   f"{row['private_mib_last']} MiB, descriptors {row['descriptors_first']} -> {row['descriptors_last']}")
        yield f"soak: report in {self.options.json}, with the other parts' in {reports.ALL} beside it"


def rounds(options, report, world, bodies, expected):
    for number in range(options.first_round, options.first_round + options.rounds):
        done = Round(world, options.seed, number, bodies, expected)
        try:
            report.add(done.run())
        except AssertionError as error:
            report.problems.append(f"round {number} ({done}): {error}")
        if report.problems:
            return
        for process in world.processes:
            report.watch.sample(process)
        report.progress(done)
    report.note_handovers(world)
    report.problems += report.watch.complaints()


def soak(options):
    report = Report(options)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-soak-"))
    try:
        model = stack.make_small_model(folder / "soak.gguf", *MODEL)
        expected = load.expected_answers(model, FLAGS)
        with World(model, options.fabric) as world:
            rounds(options, report, world, load.bodies(), expected)
            if report.problems:
                print(world.logs())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        report.write()
    print(*report.summary(), sep="\n")
    for problem in report.problems:
        print(f"soak: FAILED: {problem}\nsoak: again with --seed {options.seed} --first-round N --rounds 1")
    return 1 if report.problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first-round", type=int, default=0)
    parser.add_argument("--fabric", default="shm", choices=["shm", "libfabric"])
    parser.add_argument("--json", type=reports.path, help=f"{reports.HELP}; default: build/soak/report-FABRIC.json")
    options = parser.parse_args()
    options.json = options.json or stack.ROOT / f"build/soak/report-{options.fabric}.json"
    sys.exit(soak(options))


if __name__ == "__main__":
    main()
