"""What processes hold, round after round: memory and descriptors, and whether they stay flat.

A series belongs to one process: a restart begins a new one. Whether it is flat is asked of a straight line through its
last two thirds, so that neither the first allocations nor a single busy round decide. Shared memory is the process's
own pool and those of the peers it is connected to now: it comes and goes with them, and is held against a fixed bound.
"""
import os
import statistics

SAMPLES_MIN = 12           # shorter lives say nothing
MEMORY_RISE_MIB = 4.0      # private memory: of the line over the samples it is drawn through
DESCRIPTORS_RISE = 12.0  # idle connections come and go


def memory_mib(pid):
    """(resident in all, private, shared)."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in f if line.startswith(("VmRSS", "Rss"))}
    return tuple(kib[name] / 1024 for name in ("VmRSS", "RssAnon", "RssShmem"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def rise(series):
    """How much a straight line through the last two thirds of the series goes up from end to end."""
    tail = series[len(series) // 3:]
    return statistics.linear_regression(range(len(tail)), tail).slope * (len(tail) - 1)


class Watch:
    """One sample a round of each living process, taken at rest. `shared_max_mib`: its pool and its peers' pools."""

    def __init__(self, shared_max_mib):
        self.shared_max_mib = shared_max_mib
        self.memory, self.files = {}, {}

    def sample(self, process):
        key = (process.name, process.popen.pid)
        self.memory.setdefault(key, []).append(memory_mib(process.popen.pid))
        self.files.setdefault(key, []).append(descriptors(process.popen.pid))

    def complaints(self):
        """One sentence for each process that does not stay flat."""
        for (name, pid), samples in self.memory.items():
            who = f"{name} (pid {pid})"
            yield from self._rising(f"private memory of {who}", [m[1] for m in samples], MEMORY_RISE_MIB)
            yield from self._rising(f"descriptors of {who}", self.files[name, pid], DESCRIPTORS_RISE)
            most = max(m[2] for m in samples)
            if most > self.shared_max_mib:
                yield f"shared memory of {who} reached {most:.1f} MiB, its pools are {self.shared_max_mib:.1f}"

    @staticmethod
    def _rising(what, series, bound):
        if len(series) >= SAMPLES_MIN and rise(series) > bound:
            yield (f"{what} rises by {rise(series):.1f} over the last {len(series) - len(series) // 3} samples, at most "
                   f"{bound:g}: first {series[0]:.1f}, last {series[-1]:.1f}")

    def report(self):
        """Of each name the process that lived longest."""
        found = {}
        for key, samples in sorted(self.memory.items(), key=lambda item: len(item[1])):
            private, files = [m[1] for m in samples], self.files[key]
            found[key[0]] = {
                "samples": len(samples), "rss_mib_first": round(samples[0][0], 1), "rss_mib_last": round(samples[-1][0], 1),
                "private_mib_first": round(private[0], 1), "private_mib_last": round(private[-1], 1),
                "private_mib_rise": round(rise(private), 2) if len(samples) >= SAMPLES_MIN else None,
                "shared_mib_max": round(max(m[2] for m in samples), 1),
                "descriptors_first": files[0], "descriptors_last": files[-1], "descriptors_max": max(files)}
        return found
