#!/usr/bin/env python3
"""clang-tidy over a list of files, as many at once as there are cores, with progress and a cache of clean results.

A file is looked at again when its preprocessed text or .clang-tidy changed.  usage: run_clang_tidy.py BUILD_DIR LIST
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys


def preprocessed_hash(entry, config):
    command = [a for a in shlex.split(entry["command"]) if a not in ("-c",)]
    if "ccache" in command[0]:
        command = command[1:]
    if "-o" in command:
        at = command.index("-o")
        del command[at:at + 2]
    out = subprocess.run(command + ["-E", "-P"], cwd=entry["directory"], capture_output=True)
    return hashlib.sha256(config + out.stdout).hexdigest() if out.returncode == 0 else None


def check(path, build, entry, config, cache):
    key = preprocessed_hash(entry, config) if entry else None
    mark = cache / key if key else None
    if mark and mark.exists():
        return path, 0, ""
    run = subprocess.run(["clang-tidy-19", "--quiet", "-p", str(build), path], capture_output=True, text=True)
    if run.returncode == 0 and mark:
        mark.touch()
    return path, run.returncode, run.stdout


def main():
    build, listing = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    files = listing.read_text().split()
    config = pathlib.Path(".clang-tidy").read_bytes()
    entries = {os.path.relpath(e["file"]): e for e in json.loads((build / "compile_commands.json").read_text())}
    cache = build / "clean"
    cache.mkdir(exist_ok=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(check, f, build, entries.get(f), config, cache) for f in files]
        for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            path, code, text = job.result()
            failed += code != 0
            print(f"tidy: [{done}/{len(files)}] {path}{'' if code == 0 else ' FAILED'}", flush=True)
            if code != 0:
                print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
