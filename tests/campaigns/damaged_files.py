"""Files of every kind that minidl reads, damaged in every way that comes to mind, and read.

    python -m tests.campaigns.damaged_files --count 10000 --seed 1 [--readers plan,trace]

Each is read, and then to the right values where the format can tell (checksums, plans, which change no bit), or refused
with a UserError of one line that names the file. Nothing else is raised, nothing hangs for more than LONGEST seconds,
no file stays behind, and no memory is taken because a file claims to be large. Exit code 1 if anything else happens.

A process that a reader kills has its number and seed in the last line of its log, LAST in the folder.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import contextmanager, redirect_stdout
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from damage import as_json, as_node, in_bytes
from outside import READERS, Reader

from minidl.errors import UserError

LONGEST = 30  # seconds of one file
LAST = "last"
MOST_GROWN_BYTES = 300 << 20
MOST_MESSAGE_CHARACTERS = 1000
NODES, DOCUMENTS = 0.1, 0.75  # how many files become something else than a file; how many of JSON are changed as JSON


class Hangs(BaseException):
    """A file took too long: no ``except Exception`` may swallow that."""


@contextmanager
def within(seconds: int):
    """Raises Hangs if what is inside takes longer."""
    def ring(*_):
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def names(folder: Path) -> set[str]:
    """Everything below a folder."""
    return {str(Path(base, name).relative_to(folder)) for base, folders, files in os.walk(folder)
            for name in (*folders, *files)}


def damage(path: Path, choose: random.Random) -> str:
    """Spoil one file; returns how."""
    if choose.random() < NODES:
        return as_node(path, choose)
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and choose.random() < DOCUMENTS:
        path.write_bytes(as_json(data, choose))
        return "json"
    path.write_bytes(in_bytes(data, choose))
    return "bytes"


def attempt(reader: Reader, source: Path, copy: Path, choose: random.Random) -> tuple[str, str]:
    """("read" or "refused", nothing), or ("wrong", what was)."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, symlinks=True)
    path = choose.choice(sorted(path for path in copy.rglob("*") if fnmatch(path.name, reader.pattern)
                                and path.is_file()))
    how = reader.damage(path, choose) if reader.damage is not None else damage(path, choose)
    before = names(copy)
    outcome, wrong = "read", ""
    try:
        with within(LONGEST), redirect_stdout(StringIO()):
            reader.use(copy)
    except UserError as error:
        outcome, message = "refused", str(error)
        if "\n" in message or len(message) > MOST_MESSAGE_CHARACTERS:
            wrong = f"a message of {len(message)} characters, {message.count(chr(10)) + 1} lines: {message[:300]!r}"
        elif reader.named and copy.name not in message:
            wrong = f"no file is named in {message!r}"
    except Hangs:
        wrong = f"took more than {LONGEST} seconds"
    except BaseException:
        wrong = traceback.format_exc(limit=-4)
    left = sorted(name for name in names(copy) - before if not any(fnmatch(Path(name).name, made)
                                                                  for made in reader.makes))
    if left and not wrong:
        wrong = f"left behind: {left}"
    return ("wrong", f"{path.name} ({how}): {wrong}") if wrong else (outcome, "")


def campaign(folder: Path, count: int, seed: int, chosen: list[str]) -> dict:
    """Try so many files, the readers in turn; what happened to each, and by how much the memory grew."""
    for name in chosen:
        (folder / name).mkdir(parents=True)
        READERS[name].make(folder / name)
        with redirect_stdout(StringIO()):
            READERS[name].use(folder / name)  # what it needs of memory for what is whole
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: dict[str, Counter] = {name: Counter() for name in chosen}
    wrong = []
    grown = 0
    for number in sorted(range(count), key=lambda number: READERS[chosen[number % len(chosen)]].grows):
        name = chosen[number % len(chosen)]
        (folder / LAST).write_text(f"{name} {number} {seed}")
        outcome, what = attempt(READERS[name], folder / name, folder / "copy", random.Random(f"{seed} {number}"))
        outcomes[name][outcome] += 1
        if what:
            wrong.append(f"{number}, {name}, {what}")
        if not READERS[name].grows:
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024
    if grown > MOST_GROWN_BYTES:
        wrong.append(f"the memory grew by {grown} bytes")
    return {"readers": {name: dict(found) for name, found in outcomes.items()}, "wrong": wrong, "grown_bytes": grown}


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign as the command line says, and print its figures; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.damaged_files")
    parser.add_argument("--count", type=int, default=10_000, help="files, over all readers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--readers", default=",".join(READERS), help=f"of {', '.join(READERS)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(Path(folder), options.count, options.seed, options.readers.split(","))
    if options.json:
        print(json.dumps(found))
    else:
        print("| reader | files | read | refused | anything else |\n|---|---|---|---|---|")
        for name, outcomes in found["readers"].items():
            print(f"| {name} | {sum(outcomes.values())} | {outcomes.get('read', 0)} | {outcomes.get('refused', 0)} | "
                  f"{outcomes.get('wrong', 0)} |")
        print(f"\nthe memory grew by {found['grown_bytes'] >> 20} MiB")
        for line in found["wrong"]:
            print(f"\n{line}")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
