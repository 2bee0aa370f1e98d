"""What is done to the servers in a round: each fault begins at one moment of the load and is healed at a later one."""
import signal

# Seconds within which who is hurt by a fault must have its error: docs/protocol.md, "What everybody knows, and when".
PEER_TIMEOUT = 1.0  # --peer-timeout of all servers of the soak
DIED, SILENT = 2.0, PEER_TIMEOUT + 1.0
DRAIN = 10.0        # --drain-timeout

# What is asserted: FACTOR x the bound + SCHEDULING. The report has the worst share of it that was used.
FACTOR = 2.0       # each timer of a bound may fire late once
SCHEDULING = 10.0  # seconds: ten processes on two cores; who waits its turn behind others is hurt when it gets there
REST = 5.0         # to give everything back: the lease of a prompt whose decode instance is gone


def allowed(bound):
    """Seconds after which whoever is hurt by a fault with this bound is late."""
    return FACTOR * bound + SCHEDULING


class Fault:
    kind, bound = "none", 0.0
    router_killed = False

    def __init__(self, victim, hold):
        self.victim, self.hold = victim, hold  # seconds from begin() to heal()

    def __str__(self):
        return f"{self.kind} {self.victim.name} for {self.hold:.2f} s"

    def begin(self):
        raise NotImplementedError

    def heal(self):
        raise NotImplementedError


class Kill(Fault):
    """kill -9, then a start on the same ports."""
    kind, bound = "kill", DIED

    def begin(self):
        self.victim.kill()
        self.victim.wait()

    def heal(self):
        self.victim.start()


class Restart(Kill):
    """The new incarnation is there before anybody missed the old one."""
    kind = "restart"

    def __init__(self, victim, hold):
        super().__init__(victim, 0.0)


class KillRouter(Kill):
    kind, bound, router_killed = "kill router", DIED, True


class Stop(Fault):
    """SIGSTOP, then SIGCONT: longer or shorter than the others' patience."""
    kind, bound = "stop", SILENT

    def begin(self):
        self.victim.kill(signal.SIGSTOP)

    def heal(self):
        self.victim.kill(signal.SIGCONT)


class Slow(Fault):
    """A prefill instance's writes are posted and do not move: whatever else happens finds them under way."""
    kind = "slow link"

    def begin(self):
        self.victim.hold.touch()

    def heal(self):
        self.victim.hold.unlink()


class Drain(Fault):
    """SIGTERM: what runs may end, then the process exits by itself, and is started again."""
    kind, bound = "drain", DRAIN

    def begin(self):
        self.victim.kill(signal.SIGTERM)

    def heal(self):
        code = self.victim.wait(DRAIN * 3)
        assert code == 0, f"{self.victim.name} left with {code}\n{self.victim.output}"
        self.victim.start()


def choose(rng, world):
    """Up to three faults at a time, no victim twice; now and then none, and only clients leave."""
    found = []
    for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3])):
        fault = one(rng, world)
        if all(fault.victim is not other.victim for other in found):
            found.append(fault)
    return found


def one(rng, world):
    # Veterans are never ended, so that whatever they leak adds up over all rounds.
    kind = rng.choice([Kill, Kill, Kill, Restart, Stop, Stop, Stop, Drain, KillRouter, Slow, Slow, Slow])
    hold = rng.choice([rng.uniform(0.05, 0.8), rng.uniform(PEER_TIMEOUT, 2.5 * PEER_TIMEOUT)])
    if kind is KillRouter:
        return KillRouter(world.mortal_router, hold)
    if kind is Slow:
        return Slow(rng.choice(world.prefill), hold)
    if kind is Stop:
        return Stop(rng.choice(world.instances), hold)
    return kind(rng.choice(world.mortals), hold)
