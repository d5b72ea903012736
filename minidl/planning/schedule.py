"""The simulated iteration: its memory and time if each gap between two accesses of a tensor has a given mode.

A gap's mode is KEEP, SWAP or DROP. A choice of modes is expanded into one linear list of steps: the program's calls,
and before each the replays that it needs. Memory is accounted by position in that list; time only decides stalls.

  expand   walk the calls with the state of every tensor. An input that was dropped is replayed: the missing calls of
           its lineage, in program order, each once; their outputs with a later use stay.
  place    each swap-in starts as late as hides it behind computation (one transfer at a time), or else at the earliest
           call from which there is room for it until its use; what is used first gets room first.
  run      forward: copies out start when their tensor has been used and occupy its memory until they have landed or,
           when memory is wanted, stall the computation, earliest first. A call takes the fastest algorithm whose
           workspace is left over.

The same walk can note every residency, the steps for which a tensor holds its bytes, so that addresses can be found
for them (``packing``). Everything is arrays of integers and floats (``problem``), so that Numba can compile it
(``compiled``); the same functions run without it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minidl.planning.expansion import expand
from minidl.planning.problem import Array, Problem
from minidl.planning.timing import Room, beginnings, over, place, run
from minidl.planning.walk import FAILED

NO_NOTES = np.zeros((0, 4), np.int64)


class Prices(NamedTuple):
    """Seconds that a byte over the budget counts for, and a byte copied: copies that computation hides are not free,
    they leave no room for a slower link."""

    excess: float
    copy: float


FREE = Prices(0.0, 0.0)


class Outcome(NamedTuple):
    """The result of a choice of modes.

    seconds         of the iteration.
    excess          bytes; 0 if neither budget (of the device, of the host) is ever exceeded, otherwise the worst of all
                    steps and a part of their sum, so that a search that is far from a feasible choice sees each step
                    towards it.
    replay_seconds  spent in replays.
    moved           bytes copied, both ways.
    noted           how many residencies were noted.
    """

    seconds: float
    excess: int
    replay_seconds: float
    moved: int
    noted: int


def simulate(problem: Problem, room: Room, mode: Array, prefetch_at: Array, notes: Array) -> Outcome:
    """One iteration under a choice of modes, one of each gap. A choice that cannot be carried out takes 1e9 seconds.

    ``prefetch_at[gap]`` is set to the call before which the swap-in after it starts, or -1 for on demand.

    notes: [any length, 4]; unless empty, each residency is noted there in the order of its first step but for
    prefetches: tensor (-1 - tensor for an unused output of a replay), first and last step (-1: until the end;
    -2 - s: until step s of the next iteration, while it is still copied out), and the residency whose bytes it was
    written over, or -1. Workspaces follow, with the number of tensors + that of their algorithm as tensor.
    """
    return weighed(problem, room, mode, prefetch_at, notes, FREE, np.inf)


def weighed(problem: Problem, room: Room, mode: Array, prefetch_at: Array, notes: Array, prices: Prices, most: float
            ) -> Outcome:
    """As ``simulate``; but a choice that comes to more than ``most`` seconds, prices included, is given up as soon as
    that is certain, and said to take 1e9. A search refuses most of its choices, and most of these early."""
    steps, out, back, total = expand(problem, mode, prefetch_at, notes)
    if total.noted == FAILED:
        return Outcome(1e9, 1 << 60, 0.0, 0, 0)
    excess = over(room, steps) + max(0, total.host_bytes - room.host_bytes)
    moved = problem.size[out.tensor].sum() + problem.size[back.tensor].sum()
    starts = beginnings(problem, steps)
    most -= prices.excess * excess + prices.copy * moved - 1e-9 * starts[len(steps.call)]  # sums are rounded
    if starts[len(steps.call)] > most:
        return Outcome(1e9, excess, 0.0, moved, 0)
    place(problem, room, steps, starts, back, prefetch_at, notes)
    seconds, noted = run(problem, room, steps, starts, out, back, most, notes, total.noted)
    return Outcome(seconds if seconds <= most else 1e9, excess, total.replay_seconds, moved, noted)
