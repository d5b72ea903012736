"""Compiles the functions of planning in a process beside the training, so that the first plan need not wait for them.

Numba compiles them once on a machine, which takes half a minute of one core, and keeps them on disk. A training that
will plan starts the process when its runtime is opened, if they are not on disk. The training goes on, loads each
function when it first calls it, and waits only for what the process has not saved yet. The process has a low claim on
processors (nice 10), ends with the training, and waits for a similar process of another training, so that no function
is compiled twice. If the process fails, the training compiles the functions itself.
"""

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace

VARIABLE = "MINIDL_COMPILE_BESIDE"  # of the environment: 0 if no process may be started
NICENESS = 10

_started: subprocess.Popen[bytes] | None = None


def functions() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield each compiled function of planning with arguments of the types of its calls, in the order of use."""
    from minidl.planning.compiled import weighed
    from minidl.planning.packing import greedy, orders, routes, search
    from minidl.planning.packing.valleys import Rectangles
    from minidl.planning.problem import problem
    from minidl.planning.schedule import FREE, NO_NOTES
    from minidl.planning.timing import Room
    from minidl.policies.auto.annealing import Effort, Moves, improve
    from minidl.policies.auto.by_demand import DTR, beginning, dry_run

    facts, room = problem(Trace((), {}), Costs(0.0, 0.0, 0.0)), Room(0, 0, 0.0)
    whole, real = np.zeros(0, np.int64), np.zeros(0)
    yield weighed, (facts, room, whole, whole, NO_NOTES, FREE, 0.0)
    yield improve, (facts, room, FREE, Moves(whole, whole, whole, whole > 0), Effort(0, 0.0, 0), whole, whole)
    yield orders._improve, (whole, whole, whole, whole, whole, 0, whole, np.zeros(0, np.int32), 0, 0, 0)
    yield orders._listed, (whole, whole, whole, whole)
    yield search._search, (Rectangles(*(whole,) * 7), whole, whole, whole, 0, 0, whole, real)
    yield routes._longest, (whole, whole, whole, whole, 0, 0, 0, 0)
    yield greedy._placed, (whole, whole, whole, whole, whole, 0, False)
    yield dry_run, (facts, beginning(facts, DTR, Limits(0, 0)))


def begin() -> None:
    """Start the process that compiles, once; not if all functions are on disk or $MINIDL_COMPILE_BESIDE is 0."""
    global _started
    if _started is not None or os.environ.get(VARIABLE) == "0" or not sys.executable:
        return
    from minidl.outside.numba_cache import expect, on_disk  # imports Numba

    missing = [function for function, arguments in functions() if not on_disk(function, arguments)]
    if not missing:
        return
    code = f"import sys; sys.path[:] = sys.argv[1:]; from {__name__} import main; main()"
    try:
        _started = subprocess.Popen([sys.executable, "-c", code, *sys.path], stdin=subprocess.PIPE,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:  # no memory or no process left: this process compiles
        return
    atexit.register(_end, _started)
    for function in missing:
        expect(function, _started)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def main() -> None:
    """Compile what is not on disk, one function after the other; the main function of the process."""
    from minidl.outside.numba_cache import compile_for, lock_files, on_disk

    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    wanted = list(functions())
    lock_files(wanted[0][0])  # another training's process may be compiling
    for function, arguments in wanted:
        if not on_disk(function, arguments):
            compile_for(function, arguments)


def _end_with_parent() -> None:
    os.read(0, 1)  # from stdin: the parent writes nothing, so this returns when the parent ends
    os._exit(1)
