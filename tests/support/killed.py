"""Kill a program at every step of its writing, and see that it goes on: run by tests in a process of its own.

    python killed.py FOLDER points FIRST STRIDE    kill at call FIRST, FIRST + STRIDE, ... of those that change files
    python killed.py FOLDER times COUNT SEED       kill at COUNT random moments of a run

Each attempt is a fork of this process, which has loaded everything and computed nothing. Prints one JSON object: how
many attempts were killed, and what was wrong.
"""

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import train
from minidl import nn
from minidl.app.run_folder import RunFolder
from minidl.checkpoint import durable, read_checkpoint
from minidl.data import Digits
from minidl.errors import UserError

STEPS = 12
# Everything that a checkpoint has to remember: Adam's moments and count, statistics, dropout's seeds, two epochs of 9
# steps, a rate that changes with every step; and a budget in which tensors have to leave.
TRAINING = ["--model", "killed:network", "--data", "digits", "--image-size", "8", "--batch", "150",
            "--steps", str(STEPS), "--optimizer", "adam", "--schedule", "cosine", "--warmup-steps", "3",
            "--clip-grad", "0.5", "--seed", "5", "--device", "cpu:virtual", "--policy", "recompute",
            "--memory-budget", "700KiB", "--host-memory", "8MiB"]
CRASHED = 3
CHANGES = ("write", "fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


def network(num_classes=10, in_channels=1):
    """Convolution, batch norm and dropout for images of 8x8 pixels."""
    return nn.Sequential(nn.Conv2d(in_channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 16, num_classes))


class DyingOs:
    """The os module for ``durable``, which ends the process at its n-th change of a file: half way through a write,
    and before anything else."""

    def __init__(self, at):
        self._left = at

    def __getattr__(self, name):
        function = getattr(os, name)
        if name not in CHANGES:
            return function

        def call(*arguments):
            self._left -= 1
            if self._left:
                return function(*arguments)
            if name == "write":
                os.write(arguments[0], arguments[1][:len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return call


def attempt(train, arguments, *, at=0, after=None):
    """Run train.py in a fork; returns the signal that ended it, or minus its exit code."""
    child = os.fork()
    if not child:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            if at:
                durable.os = DyingOs(at)
            code = CRASHED
            try:
                code = train.main(arguments)
            finally:
                os._exit(code)  # whatever happens, this is not the process that goes on below
    if after is not None:
        timer = threading.Timer(after, os.kill, (child, signal.SIGKILL))
        timer.start()
    _, status = os.waitpid(child, 0)
    if after is not None:
        timer.cancel()
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def main(folder, kind, first, second):
    sys.modules["killed"] = sys.modules["__main__"]  # the name by which TRAINING knows it
    Digits(8)  # loads what reads them, which takes longer than the training
    importlib.import_module("minidl.kernels.cpu")
    importlib.import_module("safetensors.numpy")
    run, reference, resumed = folder / "run", folder / "reference", folder / "resumed"
    began = time.perf_counter()
    assert attempt(train, [*TRAINING, "--save", str(reference)]) == 0
    seconds = time.perf_counter() - began
    random.seed(second)
    wrong, kills, at = [], 0, first if kind == "points" else 1
    while True:
        shutil.rmtree(run, ignore_errors=True)
        arguments = [*TRAINING, "--run", str(run), "--checkpoint-every", "4", "--keep", "1"]
        ended = attempt(train, arguments, at=at if kind == "points" else 0,
                        after=random.uniform(0, seconds) if kind == "times" else None)
        what = f"{kind} {at}"
        if ended not in (0, signal.SIGKILL):
            wrong.append(f"{what}: ended with {ended}")
        kills += ended == signal.SIGKILL
        wrong += [f"{what}: {problem}" for problem in problems(run)]
        if kind == "points" and ended == 0:
            break  # there were no more points
        if attempt(train, [*arguments, "--resume", "auto", "--save", str(resumed)]) != 0:
            wrong.append(f"{what}: could not go on")
        elif reference.read_bytes() != resumed.read_bytes():
            wrong.append(f"{what}: other parameters")
        resumed.unlink(missing_ok=True)
        rows = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        if rows != list(range(1, STEPS + 1)):
            wrong.append(f"{what}: the rows are those of steps {rows}")
        if kind == "times" and kills == first:
            break
        at += second if kind == "points" else 1
    print(json.dumps({"kills": kills, "wrong": wrong}))


def problems(run):
    """What must not be: a checkpoint with a name that is not whole, or none at all after the first."""
    store = RunFolder(run, keep=1).store
    try:
        steps = [read_checkpoint(store.path(step)).step for step in store.steps()]
    except UserError as error:
        return [str(error)]
    done = len((run / "metrics.jsonl").read_text().splitlines()) if (run / "metrics.jsonl").exists() else 0
    return [f"after {done} steps there is no checkpoint"] if done > 4 and not steps else []


if __name__ == "__main__":
    name, kind, first, second = sys.argv[1:]
    main(Path(name), kind, int(first), int(second))
