"""Where the tensors of a planned iteration lie: every residency of its simulation is noted, and packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minidl.plan.costs import Limits
from minidl.plan.plan import ResidencyKey
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import Array, Problem
from minidl.planning.timing import Room
from minidl.policies.auto.progress import Found
from minidl.policies.auto.search import SLACK

NOTES = 12  # residencies noted a call, at most


def with_addresses(found: Found, trace: Trace, facts: Problem, limits: Limits) -> Found:
    """The plan with an address for each residency that finds one."""
    from minidl.planning.compiled import simulate

    mode = modes_of(found.plan, facts, trace)
    notes = np.zeros((NOTES * len(trace.calls) + len(facts.ids), 4), np.int64)
    room = Room(int(limits.device_bytes * found.share), limits.host_bytes, SLACK)
    noted = simulate(facts, room, mode, mode.copy(), notes).noted
    return replace(found, plan=replace(found.plan, offsets=addresses(facts, notes[:noted], limits)))


def addresses(facts: Problem, notes: Array, limits: Limits) -> dict[ResidencyKey, int]:
    """Where each residency's bytes go. What outlives the iteration lies below, packed together.

    notes: [residencies, 4], as ``schedule.simulate`` leaves them.
    """
    from minidl.planning import packing

    before = facts.produced < 0
    outlives = before.copy()
    outlives[facts.free_idx] = False
    below = int(facts.size[outlives].sum())
    steps = int(notes[:, 1:3].max(initial=0)) + 1
    offsets, _ = packing.addresses(notes, steps, np.append(facts.size, facts.algorithm_bytes), born_before=before,
                                   outlives=outlives, room=limits.device_bytes - below)
    ids = facts.ids.tolist()
    result: dict[ResidencyKey, int] = {}
    seen: dict[int, int] = {}
    for (tensor, _, _, _), offset in zip(notes.tolist(), offsets.tolist(), strict=True):
        if 0 <= tensor < len(ids):  # no workspace, and nothing that nobody wants
            count = seen[tensor] = seen.get(tensor, -1) + 1
            if offset >= 0:
                result[ids[tensor], count] = below + offset
    return result
