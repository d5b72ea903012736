"""Simulates an iteration: its memory and time if each gap between two accesses of a tensor has a given mode.

A gap's mode is KEEP, SWAP or DROP. The modes are expanded into one list of steps: the program's calls, and before each
call the replays that it needs. Memory depends only on the position in that list; times decide stalls.

  expand   goes through the calls and tracks every tensor's state. A dropped input is replayed: the missing calls of its
           lineage, in program order, each once; their outputs with a later use stay.
  place    starts each swap-in as late as computation still hides it (one copy at a time), but not before there is
           room for the tensor until its use. Swap-ins get room in the order of their uses.
  run      goes through the steps with times. A copy out starts after its tensor's use and occupies the tensor's memory
           until it ends; if memory is needed before, computation stalls until the earliest copies have ended. A call
           takes the fastest algorithm whose workspace fits into the free memory.

The simulation can also list every residency (``notes``), so that ``packing`` can find addresses. All data are arrays of
integers and floats (``problem``), so that Numba can compile these functions (``compiled``); they also run uncompiled.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minidl.planning.expansion import expand
from minidl.planning.problem import DROP, SWAP, Array, Problem
from minidl.planning.timing import Room, beginnings, over, place, run

NO_NOTES = np.zeros((0, 4), np.int64)
IMPOSSIBLE = 1e9  # the seconds of modes that cannot be carried out


class Prices(NamedTuple):
    """Penalties of a search's objective, in seconds per byte over the budget and seconds per byte copied.
    Copies that computation hides have a price, too, so that the plan keeps a margin for a slower link."""

    excess: float
    copy: float


FREE = Prices(0.0, 0.0)


class Outcome(NamedTuple):
    """The result of a choice of modes.

    seconds         duration of the iteration
    excess          bytes over the budgets of device and host; 0 if neither is exceeded. The largest excess of a step
                    plus a part of the sum over steps, so that a search far from a feasible choice sees its progress
    replay_seconds  seconds of replays
    moved           bytes copied, both ways
    noted           number of residencies that were written to ``notes``, an argument of ``simulate``
    failed          the call whose replays need a call that cannot be repeated, or are too many; -1 if none
    steps           number of executed calls, replays included
    """

    seconds: float
    excess: int
    replay_seconds: float
    moved: int
    noted: int
    failed: int
    steps: int


def repair(problem: Problem, mode: Array, simulated: Callable[[Array], Outcome], instead: int | Array = SWAP
           ) -> Outcome:
    """Change drops in ``mode`` in place, until all replays can be carried out and are not too many.
    simulated: returns the outcome of modes. instead: the mode in place of a drop, or one for each gap. Returns the
    outcome of the repaired modes."""
    instead = np.broadcast_to(instead, mode.shape)
    while True:
        found, drops = simulated(mode), mode == DROP
        if found.failed < 0 or not drops.any():
            return found
        ending = drops & (problem.gap_next == found.failed)
        changed = ending if ending.any() else drops
        mode[changed] = instead[changed]


def simulate(problem: Problem, room: Room, mode: Array, prefetch_at: Array, notes: Array) -> Outcome:
    """Simulate one iteration with a mode for each gap; modes that cannot be carried out take IMPOSSIBLE seconds.

    prefetch_at  [gaps] output: the call before which the gap's swap-in starts, or -1 for a swap-in on demand
    notes        [any length, 4] output, unless empty: each residency, in the order of its first step (before prefetches
                 move it): its tensor (-1 - tensor for an unused output of a replay); its first step; its last step (-1:
                 until the end; -2 - s: until step s of the next iteration, when its copy out ends); and the residency
                 whose bytes were donated to it, or -1. Workspaces follow; their tensor is the number of tensors plus
                 the number of their algorithm.
    """
    return weighed(problem, room, mode, prefetch_at, notes, FREE, np.inf)


def weighed(problem: Problem, room: Room, mode: Array, prefetch_at: Array, notes: Array, prices: Prices, most: float
            ) -> Outcome:
    """Simulate like ``simulate``, but stop early if seconds plus penalties (``prices``) certainly exceed ``most``.
    Then the result has IMPOSSIBLE seconds. A search rejects most of its choices, and most of those early."""
    steps, out, back, total = expand(problem, mode, prefetch_at, notes)
    if total.failed >= 0:
        return Outcome(IMPOSSIBLE, 1 << 60, 0.0, 0, 0, total.failed, 0)
    excess = over(room, steps) + max(0, total.host_bytes - room.host_bytes)
    moved = problem.size[out.tensor].sum() + problem.size[back.tensor].sum()
    starts = beginnings(problem, steps)
    most -= prices.excess * excess + prices.copy * moved - 1e-9 * starts[len(steps.call)]  # sums are rounded
    if starts[len(steps.call)] > most:
        return Outcome(IMPOSSIBLE, excess, 0.0, moved, 0, -1, len(steps.call))
    place(problem, room, steps, starts, back, prefetch_at, notes)
    seconds, noted = run(problem, room, steps, starts, out, back, most, notes, total.noted)
    return Outcome(seconds if seconds <= most else IMPOSSIBLE, excess, total.replay_seconds, moved, noted, -1,
                   len(steps.call))
