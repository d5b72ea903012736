"""What an iteration would take if each gap between two accesses of a tensor had a mode: memory and time, simulated.

A gap's mode is KEEP, SWAP or DROP. A choice of modes is expanded into one linear list of steps: the program's calls,
and before each the replays that it needs. Memory is accounted by position in that list; time only decides stalls.

  expand   walk the calls with the state of every tensor. An input that was dropped is replayed: the missing calls of
           its lineage, in program order, each once; what they make and somebody wants later stays.
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
from minidl.planning.timing import Room, place, run
from minidl.planning.walk import FAILED

NO_NOTES = np.zeros((0, 4), np.int64)


class Outcome(NamedTuple):
    """What a choice of modes comes to.

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
    prefetches: tensor (-1 - tensor for a replay's output that nobody wants), first and last step (-1: until the end;
    -2 - s: until step s of the next iteration, while it is still copied out), and the residency whose bytes it was
    written over, or -1. Workspaces follow, with the number of tensors + that of their algorithm as tensor.
    """
    steps, out, back, total = expand(problem, mode, prefetch_at, notes)
    if total.noted == FAILED:
        return Outcome(1e9, 1 << 60, 0.0, 0, 0)
    place(problem, room, steps, back, prefetch_at, notes)
    seconds, excess, moved, noted = run(problem, room, steps, out, back, notes, total.noted)
    return Outcome(seconds, excess + max(0, total.host_bytes - room.host_bytes), total.replay_seconds, moved, noted)
