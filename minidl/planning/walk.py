"""The arrays that hold an expanded iteration: steps, transfers, and the state of each tensor."""

from __future__ import annotations

from typing import NamedTuple

from minidl.planning.problem import Array

FAILED = -1
ABSENT, RESIDENT, AWAY, DROPPED, TEMPORARY = 0, 1, 2, 3, 4  # temporary: made by a replay, for another one to read
STEPS, OUTS, BACKS, NOTED, LIVE, HOST, MOST_ON_HOST, IN_MEMORY = 0, 1, 2, 3, 4, 5, 6, 7  # in ``Walk.counts``


class Steps(NamedTuple):
    """The steps in order, as arrays: the call of each step, the program's call that it serves, and the bytes in use
    during it, except for early swap-ins and unfinished copies out."""

    call: Array
    group: Array
    during: Array


class CopiesOut(NamedTuple):
    """Copies out, in the order in which they start: tensor, the step after which it leaves, its residency's note, and
    whether it goes on to the disk."""

    tensor: Array
    step: Array
    note: Array
    spilled: Array


class SwapIns(NamedTuple):
    """Swap-ins in the order of their uses: tensor, the step that uses it, the one after which it had left, the gap in
    between, its new residency's note; the step before which it is to start, which ``timing.place`` finds; and whether
    it comes from the disk."""

    tensor: Array
    use: Array
    left: Array
    gap: Array
    note: Array
    start: Array
    spilled: Array


class Total(NamedTuple):
    """Of all steps: the most bytes on the host at once, seconds spent in replays, residencies noted or FAILED."""

    host_bytes: int
    replay_seconds: float
    noted: int


class Walk(NamedTuple):
    """Where each tensor is as the calls are walked, and how much has been written down.

    counts     steps, copies out, swap-ins and notes so far; bytes on the device and the host, the most of these, and
               those of the host that are in its memory
    state      per tensor: ABSENT, RESIDENT, AWAY, DROPPED or TEMPORARY
    left       per tensor: the step after which it was swapped out; gap: the one that it is in; note: its residency now
    copied     per tensor: whether the host has a valid copy; spilled: and whether that is on the disk
    ends       per tensor: the call with which it is freed or dropped, once that has been reached
    remaining  per tensor: how many replays before this call still read it
    donor      per tensor: the one whose bytes it is about to take over, or -1
    replay     the calls to replay before this one, in program order; seen: per call, the last one it is replayed for
    stack      tensors whose lineage is looked at
    """

    counts: Array
    state: Array
    left: Array
    gap: Array
    note: Array
    copied: Array
    spilled: Array
    ends: Array
    remaining: Array
    donor: Array
    replay: Array
    seen: Array
    stack: Array
