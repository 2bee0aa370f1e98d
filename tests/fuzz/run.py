#!/usr/bin/env python3
"""Runs libFuzzer programs for a while, as many at once as there are cores.

Inputs are those of seeds.py and tests/fuzz/corpus/; what is found new goes to build/fuzz/, and a crash leaves its input
there and its name in the message.  --keep puts what reaches new code into tests/fuzz/corpus/, within its budget.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
import seeds  # noqa: E402

CORPUS_BYTES, CORPUS_FILES = 20 << 10, 60  # of one fuzzer, in the tree
INPUT_MAX = {"control": 4096, "json": 4096, "gguf": 4096, "tokenizer": 1024}
LIMITS = ["-rss_limit_mb=2048", "-malloc_limit_mb=512", "-timeout=20", "-print_final_stats=1", "-verbosity=1"]


def folders(name, out):
    made = out / name
    for part in ("seeds", "found", "failed"):
        (made / part).mkdir(parents=True, exist_ok=True)
    seeds.write(name, made / "seeds")
    return made


def inputs(name, made):
    kept = HERE / "corpus" / name
    return [made / "seeds", *([kept] if kept.is_dir() else [])]


def fuzz(name, options):
    made = folders(name, options.out)
    command = [options.build / "tests/fuzz" / f"{name}_fuzz", *LIMITS, f"-max_len={INPUT_MAX[name]}",
               f"-max_total_time={options.seconds}", f"-artifact_prefix={made / 'failed'}/", made / "found", *inputs(name, made)]
    environment = {**os.environ, "BATON_LOG_LEVEL": "off", "ASAN_OPTIONS": "allow_addr2line=1"}
    begin = time.monotonic()
    run = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True,
                         errors="replace")
    (made / "log").write_text(run.stdout, encoding="utf-8")
    return name, run.returncode, run.stdout, time.monotonic() - begin


def figure(pattern, text):
    found = re.findall(pattern, text)
    return found[-1] if found else "?"


def say(name, code, text, seconds):
    inputs_run, reached = figure(r"number_of_executed_units: (\d+)", text), figure(r"cov: (\d+)", text)
    print(f"fuzz: {name:10} {inputs_run} inputs in {seconds:.0f} s, {reached} places reached, "
          f"{'clean' if code == 0 else 'FAILED'}", flush=True)
    if code != 0:
        print("\n".join(text.splitlines()[-60:]))
        print(f"fuzz: again with  {name}_fuzz", figure(r"Test unit written to (\S+)", text))


def keep(name, options):
    """The smallest set that reaches what all inputs reach, as far as it fits the budget."""
    made = folders(name, options.out)
    chosen = made / "chosen"
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir()
    command = [options.build / "tests/fuzz" / f"{name}_fuzz", "-set_cover_merge=1", chosen, made / "found", *inputs(name, made)]
    subprocess.run([str(c) for c in command], check=True, capture_output=True, env={**os.environ, "BATON_LOG_LEVEL": "off"})
    known = {path.read_bytes() for path in (made / "seeds").iterdir()}
    kept = HERE / "corpus" / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    used = count = 0
    # Of a smallest set each input matters; the longest reach deepest.
    for path in sorted(chosen.iterdir(), key=lambda p: -p.stat().st_size):
        size = path.stat().st_size
        if path.read_bytes() not in known and used + size <= CORPUS_BYTES and count < CORPUS_FILES:
            used, count = used + size, count + 1
            shutil.copy(path, kept / path.name[:12])
    print(f"fuzz: {name}: {len(list(kept.iterdir()))} inputs kept")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=sorted(seeds.ALL), help=f"of {', '.join(sorted(seeds.ALL))}; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="of each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/asan")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--keep", action="store_true", help="afterwards, choose the corpus that the tree keeps")
    options = parser.parse_args()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for job in concurrent.futures.as_completed([pool.submit(fuzz, name, options) for name in options.names]):
            say(*job.result())
            failed += job.result()[1] != 0
    if options.keep and not failed:
        for name in options.names:
            keep(name, options)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
