"""A training that is ended by signals at random moments, killed or out of disk at every write, or has two writers.

    python -m tests.campaigns.kills signals [--count N] [--seed S] [--only KILL]
    python -m tests.campaigns.kills points [--first N] [--stride N]
    python -m tests.campaigns.kills disk [--first N] [--stride N]
    python -m tests.campaigns.kills writers [--count N] [--seed S]

Each attempt is a fork of this process, which has loaded everything and, but for the signals, has trained once, so that
the kernels are loaded, too. It must end with 0, 2, 130 or
143 (or be killed by what was sent to it) and at most one line on stderr beside progress; nothing hidden may be left
behind but by SIGKILL, and no checkpoint that is not whole; and the run goes on from there to the bytes of one that was
never disturbed.
"""

import argparse
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import killed
from killed import STEPS, TRAINING
from watched_os import dies_at, full_from, watch

import train
from minidl.checkpoint import read_checkpoint
from minidl.cli.app.run_folder import RunFolder
from minidl.data import Digits
from minidl.errors import UserError
from tests.campaigns.progress import PROGRESS

os.environ["NUMBA_THREADING_LAYER"] = "workqueue"  # whose threads a fork makes anew; Numba has not been loaded yet
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
KILLED = 128 + signal.SIGKILL
CRASHED = 3


def fork(arguments, err, *, before=None):
    """Run train.py in a fork of this process, as a program that has just started; returns its process.

    before  is shown each change of a file (see ``watched_os``)
    """
    child = os.fork()
    if child:
        return child
    code = CRASHED
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        if before is not None:
            watch(before)
        code = train.main([*map(str, arguments)])
    finally:
        os._exit(code)  # whatever happens, this is not the process that goes on below


def ended(child):
    """The exit code, as a shell reports it."""
    _, status = os.waitpid(child, 0)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def told(err):
    """The lines on stderr, without those of progress."""
    lines = [line.rpartition("\r")[2] for line in err.read_text(errors="replace").split("\n")]
    return [line for line in lines if line.strip() and not PROGRESS.search(line)]


def hidden(folder):
    """What begins with a dot, anywhere below."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


class Place:
    """A folder with the parameters of a run that was never disturbed, and how to go on with one that was."""

    def __init__(self, folder):
        self.folder = folder
        self.err = folder / "err"
        began = time.perf_counter()
        assert ended(fork([*TRAINING, "--save-weights", folder / "reference"], self.err)) == 0, self.err.read_text()
        self.seconds = time.perf_counter() - began
        self.arguments = [*TRAINING, "--run-dir", folder / "run", "--checkpoint-every", "4", "--keep-checkpoints", "1"]

    def unsound(self):
        """What must not be in the run folder, whenever its run has ended."""
        run = self.folder / "run"
        store = RunFolder(run, keep=1).store
        try:
            steps = [read_checkpoint(store.path(step)).step for step in store.steps()]
        except UserError as error:
            return [str(error)]
        rows = (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").exists() else 0
        return [f"after {rows} steps there is no checkpoint"] if rows > 4 and not steps else []

    def wrong_after(self):
        """Go on to the end; what is wrong with it, and with where it began. The run folder is gone afterwards."""
        folder, resumed = self.folder, self.folder / "resumed"
        unsound = self.unsound()
        code = ended(fork([*self.arguments, "--resume", "auto", "--trust", "--save-weights", resumed], self.err))
        found = unsound + ([] if code == 0 else [f"going on ended with {code}: {told(self.err)}"])
        if not code:
            if resumed.read_bytes() != (folder / "reference").read_bytes():
                found.append("other parameters")
            rows = [json.loads(line)["step"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
            if rows != list(range(1, STEPS + 1)):
                found.append(f"the rows are those of steps {rows}")
            found += [f"{name} was left behind" for name in hidden(folder)]
        resumed.unlink(missing_ok=True)
        shutil.rmtree(folder / "run", ignore_errors=True)
        return found


def signals(place, options):
    """Each of SIGNALS in turn, at random moments; (exit codes, what was wrong)"""
    rng, codes, wrong = random.Random(options.seed), Counter(), []
    chosen = [options.only] if options.only else list(SIGNALS)
    for number in range(options.count):
        name = chosen[number % len(chosen)]
        child = fork(place.arguments, place.err)
        timer = threading.Timer(rng.uniform(0, place.seconds), os.kill, (child, SIGNALS[name]))
        timer.start()
        code = ended(child)
        timer.cancel()
        codes[f"{name} {code}"] += 1
        found = [] if code in (0, 128 + SIGNALS[name]) else [f"exit code {code}"]
        lines = told(place.err)
        if len(lines) > 1 or any("unforeseen" in line for line in lines):
            found.append(f"stderr {lines}")
        if name != "KILL":
            found += [f"{left} was left behind" for left in hidden(place.folder)]
        wrong += [f"{number} {name}: {problem}" for problem in found + place.wrong_after()]
    return codes, wrong


def points(place, options):
    """Killed at change ``first``, ``first + stride``, ... of a file (counted from 1), until there is none; as
    ``signals``."""
    codes, wrong, at = Counter(), [], options.first
    while True:
        code = ended(fork(place.arguments, place.err, before=dies_at(at)))
        codes[str(code)] += 1
        found = [] if code in (0, KILLED) else [f"exit code {code}, stderr {told(place.err)}"]
        wrong += [f"killed at {at}: {problem}" for problem in found + place.wrong_after()]
        if code == 0:
            return codes, wrong
        at += options.stride


def disk(place, options):
    """A disk that is full from change ``first``, ``first + stride``, ... on, until none is; as ``signals``."""
    codes, wrong, at = Counter(), [], options.first
    while True:
        words = [*place.arguments, "--save-weights", place.folder / "saved"]
        code = ended(fork(words, place.err, before=full_from(at)))
        codes[str(code)] += 1
        lines = told(place.err)
        found = [] if code in (0, 2) else [f"exit code {code}"]
        if len(lines) != (code == 2) or any("No space left" not in line for line in lines):
            found.append(f"stderr {lines}")
        saved = (place.folder / "saved").read_bytes() if (place.folder / "saved").exists() else None
        if saved != (place.folder / "reference").read_bytes() and (saved is not None or code == 0):
            found.append("the parameters are not there, or not whole")
        (place.folder / "saved").unlink(missing_ok=True)
        found += [f"{left} was left behind" for left in hidden(place.folder)]
        wrong += [f"full at {at}: {problem}" for problem in found + place.wrong_after()]
        if code == 0:
            return codes, wrong
        at += options.stride


def writers(place, options):
    """Two that begin at nearly the same moment in the same new folder; as ``signals``."""
    rng, codes, wrong = random.Random(options.seed), Counter(), []
    for number in range(options.count):
        errs = [place.folder / name for name in ("err", "err2")]
        children = []
        for err in errs:
            children.append(fork(place.arguments, err))
            time.sleep(rng.choice([0, 0, rng.uniform(0, place.seconds)]))
        found = sorted(map(ended, children))
        codes[str(found)] += 1
        lines = [line for err in errs for line in told(err)]
        if found != [0, 2] or len(lines) != 1 or not any(
                text in lines[0] for text in ("another run is writing in it", "there is a run in it already")):
            wrong.append(f"{number}: {found} {lines}")
        errs[1].unlink()
        wrong += [f"{number}: {problem}" for problem in place.wrong_after()]
    return codes, wrong


KINDS = {"signals": signals, "points": points, "disk": disk, "writers": writers}


def campaign(options):
    """One of KINDS in a folder of its own; returns the exit codes, and a line for each that ended wrongly."""
    sys.modules["killed"] = killed
    Digits(8)  # loads what reads them, which takes longer than the training
    import minidl.kernels.cpu  # noqa: F401 - likewise
    if options.kind != "signals":  # which are to come while kernels are loaded, too
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert train.main(TRAINING) == 0
    with tempfile.TemporaryDirectory() as name:
        return KINDS[options.kind](Place(Path(name)), options)


def main():
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.kills")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=SIGNALS)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1)
    began = time.perf_counter()
    codes, wrong = campaign(parser.parse_args())
    print("\n".join(wrong))
    print(json.dumps({"attempts": sum(codes.values()), "codes": codes, "wrong": len(wrong),
                      "seconds": round(time.perf_counter() - began)}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
