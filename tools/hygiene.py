#!/usr/bin/env python3
"""Rules of the house that a compiler does not see. Exit 0: all kept; 1: each breach on a line.

Rooms: a room includes only the rooms that docs/architecture.md allows it. Purity: the hand-over's state machines read
no clock, start no thread, open no socket. Text: no marks of unfinished work, no tabs, lines of at most 100 columns.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The public headers are the agent's contract. The first set is vocabulary that every room shares.
VOCABULARY = {"baton/result.h", "baton/ids.h", "baton/geometry.h", "baton/event.h", "baton/pool.h", "baton/peer.h"}
MAY_INCLUDE = {
    "base": set(),
    "layout": {"base"},
    "wire": {"base", "layout"},
    "handover": {"base", "layout", "wire", "baton"},
    "fabric": {"base"},
    "sim": {"base", "layout", "wire", "handover", "fabric", "baton"},
    "agent": {"base", "layout", "wire", "handover", "fabric", "baton"},
    "model": {"base"},
    "engine": {"base", "model", "baton"},
    "http": {"base"},
    "serving": {"base", "http", "handover", "engine", "model", "baton"},
    "bench": {"base", "http", "serving", "baton"},
    "apps": {"base", "sim", "serving", "bench", "engine", "model", "http", "baton"},
}
# Beside the table: what a room's headers need of another for one named reason.
EXCEPTIONS = {
    ("handover", "fabric/fabric.h"),       # the types of the port (capabilities, writes); no call of it
    ("fabric", "baton/metrics.h"),         # of the paced link; the agent's users read it
    ("serving", "handover/legs.h"),
    ("serving", "wire/frame.h"),           # the range of protocol versions, for the doctor
}
TEST_ONLY = {"fabric", "agent", "handover", "layout", "wire", "engine", "model", "base", "http", "serving", "bench", "baton"}

BANNED_IN_HANDOVER = re.compile(
    r"steady_clock::now|system_clock|\bnow\(\)|std::thread|std::mutex|random_device|getrandom|\bsocket\(|\bepoll|sleep_for")
BANNED_EVERYWHERE = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|-march=native")


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [pathlib.Path(p) for p in out.splitlines() if (ROOT / p).is_file()]


def room_of(path):
    return path.parts[1] if path.parts[0] == "src" and len(path.parts) > 2 else None


def is_test(path):
    return path.stem.endswith(("_test", "_bench", "_fuzz")) or "testing" in path.parts


def include_breaches(path, text):
    room = room_of(path)
    if room not in MAY_INCLUDE:
        return
    for number, name in ((i, m) for i, line in enumerate(text.splitlines(), 1)
                         for m in re.findall(r'^\s*#include "([^"]+)"', line)):
        target = name.split("/")[0]
        if target == room or "/" not in name or name in VOCABULARY or (room, name) in EXCEPTIONS:
            continue
        if target not in MAY_INCLUDE and target != "baton":
            continue
        if target in MAY_INCLUDE[room] or (is_test(path) and target in TEST_ONLY):
            continue
        yield f"{path}:{number}: room {room} may not include {name}"


def text_breaches(path, text):
    source = path.suffix in {".h", ".cc", ".py", ".fbs"} or path.name == "CMakeLists.txt"
    for number, line in enumerate(text.splitlines(), 1):
        if path.name != "hygiene.py" and source and BANNED_EVERYWHERE.search(line):
            yield f"{path}:{number}: unfinished work or a banned flag: {line.strip()[:80]}"
        if path.suffix in {".h", ".cc"} and len(line) > 100:
            yield f"{path}:{number}: {len(line)} columns, at most 100"
        if source and "\t" in line:
            yield f"{path}:{number}: a tab"
        if (room_of(path) == "handover" and not is_test(path)
                and BANNED_IN_HANDOVER.search(line.split("//")[0])):
            yield f"{path}:{number}: handover/ is told time and chance, it does not take them: {line.strip()[:80]}"


# What a test runner would run: `TEST(Suite, name)` and its kin, `def test_name`. A name in a comment is no test.
TRIAL = re.compile(r"^\s*(?:TEST\w*\(\s*\w+\s*,\s*|def )(\w+)\b", re.MULTILINE)


def trial_breaches(text, sources):
    """docs/testing.md names the trial of each public report; every one must exist."""
    trials = {name for source in sources for name in TRIAL.findall(source)}
    named = set(re.findall(r"`((?:test_)?\w*[a-z]\w*)`", text[text.index("## Reports about other systems"):text.index("## Golden files")]))
    for name in sorted(named - trials):
        yield f"docs/testing.md: no test is called {name}"
    for name in sorted({t for t in trials if re.match(r"(?:test_)?B\d\d[a-d]?_", t)} - named):
        yield f"docs/testing.md: the table of reports does not name {name}"


# "program Suite.Test": how the tables of bounds name the test that tries a row in another program.
NAMED_TEST = re.compile(r'"(\w+_test) (\w+\.\w+)"')
SUITE_TEST = re.compile(r"^\s*TEST\w*\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
TEST_PROGRAM = re.compile(r"\bbaton_test\(\s*(\w+)\s+SOURCES((?:\s+\S+\.cc)+)")


def tests_of_programs(texts):
    """{program: its "Suite.Test"s}, of {path: text} with the CMakeLists.txt of rooms and the sources that they list."""
    programs = {}
    for path, text in texts.items():
        for program, listed in TEST_PROGRAM.findall(text) if path.name == "CMakeLists.txt" else ():
            sources = [texts.get(path.parent / name, "") for name in listed.split()]
            programs[program] = {f"{suite}.{name}" for source in sources for suite, name in SUITE_TEST.findall(source)}
    return programs


def named_test_breaches(path, text, programs):
    for number, line in enumerate(text.splitlines(), 1):
        for program, name in NAMED_TEST.findall(line):
            if program not in programs:
                yield f"{path}:{number}: no test program is called {program}"
            elif name not in programs[program]:
                yield f"{path}:{number}: {program} has no test {name}"


def main():
    breaches = []
    tests = {p: (ROOT / p).read_text(encoding="utf-8") for p in tracked()
             if p.stem.endswith("_test") or p.stem.startswith("test_") or p.name == "CMakeLists.txt"}
    programs = tests_of_programs(tests)
    breaches += trial_breaches((ROOT / "docs/testing.md").read_text(encoding="utf-8"), tests.values())
    for path in tracked():
        if path.suffix not in {".h", ".cc", ".py", ".fbs", ".txt", ".md", ".cmake"}:
            continue
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        breaches += include_breaches(path, text)
        breaches += text_breaches(path, text)
        if path.suffix == ".cc":
            breaches += named_test_breaches(path, text, programs)
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
