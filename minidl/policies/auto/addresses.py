"""Where the tensors of a planned iteration lie: every residency of its simulation is noted, and packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minidl.plan.costs import Limits
from minidl.plan.plan import ResidencyKey
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import SWAP, Array, Problem
from minidl.planning.timing import Room
from minidl.policies.auto.progress import Found
from minidl.policies.auto.search import SLACK

NOTES = 12  # residencies noted a call, at most


def with_addresses(found: Found, trace: Trace, facts: Problem, limits: Limits, effort: float = 1.0
                   ) -> tuple[Found, int]:
    """The plan with an address for each residency that finds one, and the bytes of those that find none. effort: share
    of the usual work."""
    from minidl.planning.compiled import simulate

    mode = modes_of(found.plan, facts, trace)
    notes = np.zeros((NOTES * len(trace.calls) + len(facts.ids), 4), np.int64)
    room = Room(int(limits.device_bytes * found.share), limits.host_bytes, SLACK)
    noted = simulate(facts, room, mode, mode.copy(), notes).noted
    offsets, over = addresses(facts, mode, notes[:noted], limits, effort)
    return replace(found, plan=replace(found.plan, offsets=offsets)), over


def addresses(facts: Problem, mode: Array, notes: Array, limits: Limits, effort: float = 1.0
              ) -> tuple[dict[ResidencyKey, int], int]:
    """Where each residency's bytes go, and the bytes of those that find no place. What is there all the time lies
    below, packed together.

    notes: [residencies, 4], as ``schedule.simulate`` leaves them.
    """
    from minidl.planning import packing

    before = facts.produced < 0
    before[facts.gap_tensor[(facts.gap_head >= 0) & (mode == SWAP)]] = False  # between iterations on the host
    outlives = before.copy()
    outlives[facts.free_idx] = False
    below = int(facts.size[outlives].sum())
    steps = int(notes[:, 1:3].max(initial=0)) + 1
    offsets, over = packing.addresses(notes, steps, np.append(facts.size, facts.algorithm_bytes), born_before=before,
                                      outlives=outlives, successor=successors(facts), room=limits.device_bytes - below,
                                      effort=effort)
    ids = facts.ids.tolist()
    result: dict[ResidencyKey, int] = {}
    seen: dict[int, int] = {}
    for (tensor, _, _, _), offset in zip(notes.tolist(), offsets.tolist(), strict=True):
        if 0 <= tensor < len(ids):  # no workspace, and nothing that nobody wants
            count = seen[tensor] = seen.get(tensor, -1) + 1
            if offset >= 0:
                result[ids[tensor], count] = below + offset
    return result, over


def successors(facts: Problem) -> Array:
    """Of each tensor, the one that is there in its stead when the next iteration starts, or -1: gradients, mostly. It
    has as many bytes, and is made when the other is gone; of several, which is whose does not matter.
    """
    freed = np.full(len(facts.size), -1, np.int64)
    freed[facts.free_idx] = np.repeat(np.arange(len(facts.free_ptr) - 1), np.diff(facts.free_ptr))
    made: dict[int, list[int]] = {}
    for tensor in np.nonzero((facts.produced >= 0) & (freed < 0))[0].tolist():
        made.setdefault(int(facts.size[tensor]), []).append(tensor)
    result = np.full(len(facts.size), -1, np.int64)
    for tensor in np.nonzero((facts.produced < 0) & (freed >= 0))[0].tolist():
        same = made.get(int(facts.size[tensor]), [])
        later = next((new for new in same if facts.produced[new] > freed[tensor]), None)
        if later is not None:
            result[tensor] = later
            same.remove(later)
    return result
