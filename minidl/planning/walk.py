"""The arrays that hold an iteration under given modes: its steps, its copies, and the state of each tensor.

A step is one executed call, of the program or of a replay.
"""

from typing import NamedTuple

from minidl.planning.problem import Array

FAILED = -1
# Temporary: an intermediate of replays. Kept: freed, but a dropped tensor can be computed only from it.
ABSENT, RESIDENT, AWAY, DROPPED, TEMPORARY, KEPT = 0, 1, 2, 3, 4, 5
# Positions in ``Walk.counts``.
STEPS, OUTS, BACKS, NOTED, LIVE, HOST, MOST_ON_HOST, IN_MEMORY = 0, 1, 2, 3, 4, 5, 6, 7
SEARCHES, UNSURE, SPOILT, DUE, SOURCES, LEFTOVERS = 8, 9, 10, 11, 12, 13


class StepArrays(NamedTuple):
    """The steps as arrays, in the order of execution.

    call    the call that the step executes
    group   the call of the program that it is for: the same call, or a later one that the step's replay serves
    during  the bytes in use, without swap-ins that start early and copies out that have not ended"""

    call: Array
    group: Array
    during: Array


class CopiesOut(NamedTuple):
    """The copies out, in the order of their starts, as arrays.

    tensor   the tensor
    step     the step after which it leaves the device
    note     the row of its residency in ``notes``
    spilled  True if the copy goes to the disk"""

    tensor: Array
    step: Array
    note: Array
    spilled: Array


class SwapIns(NamedTuple):
    """The swap-ins, in the order of their uses.

    tensor, use, left   the tensor, the step that uses it, the step after which it was evicted (0: in the iteration
                        before)
    gap, note           the gap that ends, and the row of the new residency in ``notes``
    start               the step before which the swap-in starts (``timing.place``)
    spilled             True if the copy comes from the disk
    """

    tensor: Array
    use: Array
    left: Array
    gap: Array
    note: Array
    start: Array
    spilled: Array


class Total(NamedTuple):
    """The totals of an expansion: peak bytes on the host, seconds of replays, and the number of residencies noted.
    failed: the call before which a replay is impossible, so that the modes cannot be carried out; -1 if none."""

    host_bytes: int
    replay_seconds: float
    noted: int
    failed: int


class Walk(NamedTuple):
    """The state of an expansion (``expansion``) on its way through the calls.

    counts     numbers of steps, copies out, swap-ins and notes so far; bytes on the device; bytes on the host, their
               peak, and the part of them in host memory; numbers of searches along lineages, of ``unsure``,
               of those of them that come first in ``due``, of all of ``due``, of ``sources``, and of ``leftovers``
    state      per tensor: ABSENT, RESIDENT, AWAY, DROPPED, TEMPORARY or KEPT
    left       per tensor: the step after which it was swapped out
    gap, note  per tensor: its current gap; the row in ``notes`` of its current residency
    written    per tensor: the last call that has written it, or -1
    copied     per tensor: True if the host has a valid copy
    spilled    per tensor: True if that copy is on the disk
    ends       per tensor: the call with which it is freed or dropped, once the expansion has reached that call
    remaining  per tensor: number of replays before this call that still read it
    donor      per tensor: the tensor that is donated to it, or -1
    replay     the calls to replay before this one, in program order
    seen       per call: the number of the last search that met it
    stack      tensors whose lineage is being searched
    due        tensors to replay before this call; the first of them only if it would spoil their replay
    unsure     gaps of dropped tensors whose replay a write in place may spoil
    sources    tensors that are kept for the replays of these
    leftovers  dropped tensors that replays have computed, the oldest first
    """

    counts: Array
    state: Array
    left: Array
    gap: Array
    note: Array
    written: Array
    copied: Array
    spilled: Array
    ends: Array
    remaining: Array
    donor: Array
    replay: Array
    seen: Array
    stack: Array
    due: Array
    unsure: Array
    sources: Array
    leftovers: Array
