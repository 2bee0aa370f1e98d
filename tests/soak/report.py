"""Where the counts of the soak's parts go: a file for each, and all of them, by name, in one beside it."""
import argparse
import json
import os
import pathlib

ALL = "report.json"
HELP = f"where the counts of this part go; {ALL} beside it has every part's"


def path(text):
    """An option's value."""
    if pathlib.Path(text).name == ALL:
        raise argparse.ArgumentTypeError(f"{ALL} is the file of all parts: give this part another name")
    return pathlib.Path(text)


def write(own, part, counts):
    """The part's own file, and its section of all parts' file, in place of what an earlier run said there."""
    own.parent.mkdir(parents=True, exist_ok=True)
    _replace(own, counts)
    _replace(own.parent / ALL, {**_parts(own.parent / ALL), part: counts})


def _parts(every):
    """What the other parts said. Not a file of parts: as an older release wrote it, or cut off; it says nothing."""
    try:
        found = json.loads(every.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return {part: counts for part, counts in found.items() if isinstance(counts, dict) and "problems" in counts}


def _replace(file, content):
    """Whole or not at all, whoever ends this process meanwhile."""
    half = file.with_name(f".{file.name}.{os.getpid()}")
    half.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(half, file)
