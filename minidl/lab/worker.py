"""The process that runs cells: reads each as a line of JSON from standard input, and writes its row to standard output.

The common part of cells is made once: modules, the trace, its step with unlimited memory, the bound of a budget. Each
cell then runs in a process of its own, a fork of this one, so that a limit or a crash ends that cell alone. When
standard input ends, the parent is gone, and the running cell is ended. Windows has no forks: cells run here, unlimited,
and a crash ends this process, which is started again for the next cell.
"""

import json
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from io import FileIO
from time import monotonic, process_time
from typing import Any

from minidl.cli.command import with_place
from minidl.errors import UserError
from minidl.lab import cell as cells
from minidl.lab.cell import Machine
from minidl.lab.grid import CellLimits
from minidl.lab.kept import Cell
from minidl.lab.row import CellResult
from minidl.lab.sources import load, named, read_file
from minidl.lab.training_step import Setting
from minidl.outside.reading import is_file, parse_json
from minidl.plan.trace import Trace

INPUT, OUTPUT, ERRORS = range(3)  # descriptors


@dataclass(frozen=True)
class ProcessEnd:
    """The end of a child process: its exit status as ``waitpid`` returns it, and its processor seconds.
    said: what it wrote to its pipe, ``work``'s result or the text of its exception; "" if it was killed.
    late: True if it was killed because its time was up."""

    said: str
    status: int
    cpu_s: float
    late: bool


def limit_memory(nbytes: int | None) -> None:
    """Limit this process to ``nbytes`` bytes of address space where the system can do so; None changes nothing."""
    if nbytes is not None:
        with suppress(ImportError, ValueError):
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def cell_of(said: dict[str, Any]) -> Cell:
    """Return the cell that a line of input describes. said: the line's JSON object."""
    machine = dict(said["machine"])
    machine["link"] = None if machine["link"] is None else tuple(machine["link"])
    return Cell(**{**said, "machine": Machine(**machine)})


@lru_cache(maxsize=2)
def trace_of(file: str, source: str, profile: str, fused: bool, ranks: int) -> Trace:
    """Return the trace that cells share: from ``file`` if it exists, else made from ``source``.
    Raises UserError like ``sources.load``."""
    return read_file(file) if file and is_file(file) else load(
        source, profile, fused=fused, setting=Setting(ranks=ranks))


def prepared(cell: Cell) -> tuple[CellResult, Callable[[], CellResult]]:
    """Do the preparation that this cell shares with others; return its row without results, and a function to run it.
    Raises UserError if the trace cannot be made, or for an unknown machine."""
    trace = trace_of(cell.file, cell.source, cell.machine.profile, cell.fused, cell.machine.ranks)
    budget = cell.machine.described().memory_bytes if cell.budget is None else cell.budget
    network = None
    if cell.machine.ranks > 1:
        network = cells.RankedNetwork(*named(cell.source), cell.fused)
    row = cells.blank(cell.source, trace, cell.machine, cell.policy, budget, network)
    if cell.instants:
        cells.bound_seconds(trace, cell.machine, row.budget_bytes, cell.instants)
    return row, lambda: cells.run(cell.source, trace, cell.machine, cell.policy, budget, steps=cell.steps,
                                  instants=cell.instants, network=network)


def carried_out(cell: Cell, limits: CellLimits) -> CellResult:
    """Run a cell in a fork of this process, within limits; return its row, with a failure as its ``status``.
    Without ``os.fork`` it runs in this process, and limits are refused."""
    try:
        blank, work = prepared(cell)
    except UserError as error:
        return cell.failed(f"cannot: {error}")
    if not hasattr(os, "fork"):
        if limits != CellLimits():
            reason = "cannot: limits of time and memory need os.fork, which this system does not have"
            return replace(blank, status=reason)
        return CellResult.of(parse_json(_row(blank, work)))
    ended = forked(lambda: _row(blank, work), limits)
    return replace(_outcome(blank, ended, limits), cpu_s=ended.cpu_s)


def _outcome(blank: CellResult, ended: ProcessEnd, limits: CellLimits) -> CellResult:
    if ended.late:
        return replace(blank, status=f"time: more than {limits.seconds:g} s")
    if ended.status == 0 and ended.said:
        return CellResult.of(parse_json(ended.said))
    code = os.waitstatus_to_exitcode(ended.status)
    why = f"of signal {-code}" if code < 0 else ended.said or "nothing said"
    # Where memory is limited, that is what ends a process: not all libraries raise MemoryError.
    return replace(blank, status=f"{'died' if limits.memory_bytes is None else 'memory'}: {why}")


def _row(blank: CellResult, work: Callable[[], CellResult]) -> str:
    try:
        row = work()
    except UserError as error:
        row = replace(blank, status=f"cannot: {error}")
    return json.dumps(row.values())


def forked(work: Callable[[], str], limits: CellLimits) -> ProcessEnd:
    """Run ``work`` in a fork of this process, within limits; return its output, or its exception as text."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        _child(work, limits, writing)
    os.close(writing)
    try:
        said, late = _heard(reading, process, limits.seconds)
    finally:
        os.close(reading)
    _, status, used = os.wait4(process, 0)
    return ProcessEnd(said, status, used.ru_utime + used.ru_stime, late)


def _heard(reading: int, process: int, seconds: float | None) -> tuple[str, bool]:
    """Return (all that process number ``process`` writes to the pipe ``reading``, False); seconds: its time limit.
    After that time the process is killed: ("", True); if the input of this process ends, too: ("", False)."""
    end = None if seconds is None else monotonic() + seconds
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reading, INPUT], [], [], None if end is None else max(0.0, end - monotonic()))
        if reading not in ready:  # one cell is asked for at a time: if the input is ready, it has ended
            os.kill(process, signal.SIGKILL)
            return "", not ready
        parts.append(os.read(reading, 1 << 16))
        if not parts[-1]:
            return b"".join(parts).decode(), False


def _child(work: Callable[[], str], limits: CellLimits, writing: int) -> None:
    """In the fork: run ``work``, write its result or its exception to the descriptor ``writing``, and exit."""
    code = 1
    try:
        limit_memory(limits.memory_bytes)
        try:
            said = work()
            code = 0
        except (Exception, SystemExit) as error:  # a policy may be the user's, and may end the process
            said = with_place(error)
        rest = said.encode()
        while rest:
            rest = rest[os.write(writing, rest):]
    finally:
        os._exit(code)


def load_planners() -> None:
    """Load the modules and compiled code that most policies need in this process, so that its forks have them."""
    with suppress(UserError):
        cells.run("lenet:1", load("lenet:1", "sim:p100"), Machine(), "tflms", 0.5, steps=3)


def main() -> None:
    """Run the cells on standard input, and print a row for each, until the input ends."""
    asking = FileIO(INPUT, closefd=False)  # without a buffer: ``select`` sees what has not been read
    answers = os.fdopen(os.dup(OUTPUT), "w")
    os.dup2(ERRORS, OUTPUT)  # what a policy or a network prints is no row
    counted = 0.0
    for number, line in enumerate(asking):
        if number == 1:  # for a single cell it would be loaded in vain
            load_planners()
        asked = parse_json(line.decode())
        row = carried_out(cell_of(asked["cell"]), CellLimits(asked["seconds"], asked["memory_bytes"]))
        own_s = process_time() - counted
        counted += own_s
        print(json.dumps(replace(row, cpu_s=(row.cpu_s or 0.0) + own_s).values()), file=answers, flush=True)


if __name__ == "__main__":
    main()
