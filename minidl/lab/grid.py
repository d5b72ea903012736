"""Runs a grid of cells, each a trace on a machine in a budget under a policy. A cell's row is saved as soon as it ends.

A cell runs in a process of its own, with a limit on time and memory. Cells of one trace and budget go to one worker
(``worker``), one after the other, because they share preparation. A folder holds the rows (``kept``), and
``table.csv``. A grid that was killed and is started again runs the cells that are missing. A cluster runs cells by the
same function.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread

from minidl.errors import UserError
from minidl.lab import table
from minidl.lab.kept import Cell, CellFolder
from minidl.lab.row import CellResult
from minidl.lab.sources import load
from minidl.lab.training_step import Setting
from minidl.outside.reading import is_file, parse_json
from minidl.outside.stages import stage
from minidl.outside.writing import replace_file
from minidl.plan.trace_format import trace_to_json

TRIED_AGAIN = ("time: ", "memory: ", "died: ", "cannot: ")  # statuses of cells that ran to no end
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
END_SECONDS = 2.0  # that a worker whose input has ended is given to end the cell that runs
Told = Callable[[int, int, CellResult], None]


@dataclass(frozen=True)
class CellLimits:
    """The limits of the process that runs one cell: its seconds, and its bytes of memory; None: no limit."""

    seconds: float | None = None
    memory_bytes: int | None = None


# One cell ------------------------------------------------------------------------------------------------------------
class Worker:
    """A child process that runs cells, and is started again if it has died. Use it as a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, it is a context
        self.stopped = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._process is not None:
            self._end(self._process)
        self._errors.close()

    def carry_out(self, cell: Cell, limits: CellLimits = CellLimits()) -> CellResult:  # noqa: B008
        """Run a cell in the child process; return its row. If the cell fails, the row's ``status`` says why."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        line = ""
        with suppress(OSError, ValueError):  # it has died, or was stopped
            process.stdin.write(json.dumps({"cell": asdict(cell), **asdict(limits)}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if line:
            return CellResult.of(parse_json(line))
        code = self._end(process)
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:] or ["nothing said"]
        return cell.failed(f"died: {f'of signal {-code}' if code < 0 else last[0]}")

    def stop(self) -> None:
        """End the process and the cell that it runs, from any thread, by closing its standard input."""
        self.stopped = True
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> None:
        """Kill the process at once, from any thread: while it computes a bound it reads no input."""
        if self._process is not None:
            self._process.kill()

    def _start(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        # Cells run beside each other, so that one thread each is enough; and what has threads cannot be forked.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "minidl.lab.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, env={**os.environ, **dict.fromkeys(THREADS, "1")})
        return self._process

    def _end(self, process: subprocess.Popen[str]) -> int:
        self._process = None
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        try:
            return process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def carry_out(cell: Cell, limits: CellLimits = CellLimits()) -> CellResult:  # noqa: B008
    """Run a cell in a new child process; return its row, as ``Worker.carry_out`` does."""
    with Worker() as worker:
        return worker.carry_out(cell, limits)


# All of them --------------------------------------------------------------------------------------------------------
def run(wanted: Sequence[Cell], folder: str, *, jobs: int = 1, limits: CellLimits = CellLimits(), again: bool = False,  # noqa: B008
        scheduler: str | None = None, told: Told | None = None) -> list[CellResult]:
    """Run the cells whose rows are not yet in ``folder``; return all rows, in the order of the cells.
    jobs: number of worker processes. again: run cells once more that did not run to their end. scheduler: the address
    of a Dask cluster; None: this machine. told: called with (number of rows, number of cells, new row).
    Raises UserError for a trace, folder or cluster that cannot be made, written or reached."""
    kept = CellFolder(folder)
    rows: dict[Cell, CellResult] = {}
    for cell in wanted:
        row = kept.row(cell)
        if row is not None and not (again and row.status.startswith(TRIED_AGAIN)):
            rows[cell] = row
    missing = [cell for cell in dict.fromkeys(wanted) if cell not in rows]
    try:
        with stage("running", len(missing), "cells") as running:
            for cell, row in _rows([_with_trace(cell, kept) for cell in missing], jobs, limits, scheduler):
                kept.keep(cell, row)
                rows[cell] = row
                running.done += 1
                if told is not None:
                    told(len(rows), len(set(wanted)), row)
    finally:  # a run that is stopped has a table of the cells that have ended
        table.write(str(kept.folder / "table.csv"), [rows[cell].values() for cell in wanted if cell in rows])
    return [rows[cell] for cell in wanted]


def _with_trace(cell: Cell, kept: CellFolder) -> Cell:
    """Return the cell with ``file`` set to a file with its trace, which is written if it is missing."""
    path = kept.trace_file(cell)
    if not is_file(path):
        trace = load(cell.source, cell.machine.profile, fused=cell.fused, setting=Setting(ranks=cell.machine.ranks))
        replace_file(path, trace_to_json(trace).encode())
    return replace(cell, file=str(path.absolute()))


def _rows(cells: Sequence[Cell], jobs: int, limits: CellLimits, scheduler: str | None) -> Iterator[tuple[Cell,
                                                                                                         CellResult]]:
    """Run cells on this machine or on a cluster; yield each with its row, in the order in which they end."""
    if scheduler is None:
        yield from _on_this_machine(cells, jobs, limits)
    elif cells:
        yield from _on_a_cluster(cells, limits, scheduler)


def _on_this_machine(cells: Sequence[Cell], jobs: int, limits: CellLimits) -> Iterator[tuple[Cell, CellResult]]:
    """Run cells with ``jobs`` workers; yield each with its row. Cells that differ in their policies share a worker."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(replace(cell, policy=""), []).append(cell)
    waiting: SimpleQueue[list[Cell]] = SimpleQueue()
    ended: SimpleQueue[tuple[Cell, CellResult] | BaseException] = SimpleQueue()
    for group in groups.values():
        waiting.put(group)
    workers = [Worker() for _ in range(min(jobs, len(groups)))]

    def work(worker: Worker) -> None:
        try:
            with worker, suppress(Empty):
                while True:
                    for cell in waiting.get_nowait():
                        if worker.stopped:
                            return
                        ended.put((cell, worker.carry_out(cell, limits)))
        except BaseException as error:  # the thread that waits for rows raises it
            ended.put(error)

    threads = [Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in cells:
            found = ended.get()
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        for worker in workers:
            worker.stop()
        for worker, thread in zip(workers, threads, strict=True):
            thread.join(END_SECONDS)
            worker.kill()
            thread.join()


def _on_a_cluster(cells: Sequence[Cell], limits: CellLimits, scheduler: str) -> Iterator[tuple[Cell, CellResult]]:
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise UserError('--scheduler takes Dask: pip install "minidl[cluster]"') from None
    try:
        client = Client(scheduler, timeout="10s")
    except OSError as error:
        raise UserError(f"--scheduler {scheduler}: {error}") from None
    with client:
        futures = {client.submit(carry_out, cell, limits, pure=False): cell for cell in cells}
        for future in as_completed(list(futures)):
            yield futures[future], future.result()
