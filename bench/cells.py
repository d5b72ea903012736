"""One cell of the sweep: a network in a part of its unmanaged peak under one policy, once its plans have settled.

Cells are saved in a file, one line of JSON each, so that a sweep can be stopped and resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from time import process_time

from bench.planning import Timed
from minidl import OutOfMemory, Runtime
from minidl.lab.training_step import BATCHES, training_step
from minidl.outside.units import UNLIMITED
from minidl.policies.auto.progress import ENOUGH_TIMES, Progress

STEPS = {"passive": 4, "lru": 4, "recompute": 4, "dtr-swap": 4, "capuchin": 16, "capuchin-swap": 16,
         "capuchin-recompute": 6, "auto": 80}  # at most


@dataclass(frozen=True)
class Cell:
    """The result of one cell of the sweep.

    seconds    of a step after plans have settled; infinite if the training does not fit.
    predicted  seconds that the plan followed in the end had predicted; None where no plan was followed.
    planning   for each time that ``auto`` was asked for a plan, the processor seconds that it took on this machine.
    """

    network: str
    percent: int
    policy: str
    seconds: float
    predicted: float | None = None
    planning: tuple[float, ...] = ()


def measure(network: str, percent: int, policy: str, peak: int) -> Cell:
    """Run one cell; peak: of the network without management, in bytes."""
    timed = Timed(process_time)
    try:
        with Runtime("sim:p100", policy=timed if policy == "auto" else policy,
                     memory_budget=peak * percent // 100) as runtime:
            step = training_step(network, BATCHES[network])
            for _ in range(STEPS[policy]):
                before = runtime.stats()
                with runtime.iteration():
                    step()
                if timed.seconds and settled(timed, runtime):
                    break
            seconds = runtime.stats().since(before).seconds
            predicted = runtime.plan.predicted_seconds if runtime.plan is not None else None
    except OutOfMemory:
        return Cell(network, percent, policy, inf)
    return Cell(network, percent, policy, seconds, predicted, tuple(timed.seconds))


def settled(policy: Timed, runtime: Runtime) -> bool:
    """True if a plan has been made, no better one is looked for, and the fastest one has been followed for a while."""
    active = runtime.guide.active if runtime.guide is not None else None
    progress: Progress | None = active.proposal.notes if active is not None else None
    return progress is None or (policy.is_over(progress) and progress.waiting is None
                                and progress.leader.found.plan is runtime.plan
                                and active is not None and len(active.seconds) >= ENOUGH_TIMES)


def unmanaged(network: str) -> tuple[float, int]:
    """Return the seconds of a step with unlimited memory, and the most bytes in use during it."""
    with Runtime("sim:p100", policy="none", memory_budget=UNLIMITED) as runtime:
        step = training_step(network, BATCHES[network])
        for _ in range(2):
            before = runtime.stats()
            runtime.memory.arena.reset_peak()
            with runtime.iteration():
                step()
        now = runtime.stats()
        return now.since(before).seconds, now.peak_bytes


def read(log: Path) -> Iterator[Cell]:
    """Yield the cells of a file (none if there is no such file); of a cell that was run again, only the last line."""
    if log.exists():
        for line in log.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield Cell(**row | {"planning": tuple(row["planning"])})


def keep(log: Path, cell: Cell) -> None:
    """Append a cell to a file, as a line of JSON."""
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(cell)) + "\n")
