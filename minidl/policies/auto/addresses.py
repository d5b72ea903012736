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


def with_addresses(found: Found, trace: Trace, facts: Problem, limits: Limits) -> tuple[Found, int]:
    """The plan with an address for each residency that finds one, and the bytes of those that find none."""
    from minidl.planning.compiled import simulate

    mode = modes_of(found.plan, facts, trace)
    notes = np.zeros((NOTES * len(trace.calls) + len(facts.ids), 4), np.int64)
    room = Room(int(limits.device_bytes * found.share), limits.host_bytes, SLACK)
    noted = simulate(facts, room, mode, mode.copy(), notes).noted
    offsets, over = addresses(facts, mode, notes[:noted], limits)
    return replace(found, plan=replace(found.plan, offsets=offsets)), over


def addresses(facts: Problem, mode: Array, notes: Array, limits: Limits) -> tuple[dict[ResidencyKey, int], int]:
    """Where each residency's bytes go, and the bytes of those that find no place. What is there all the time lies
    below, packed together.

    notes: [residencies, 4], as ``schedule.simulate`` leaves them.
    """
    slots = gradient_slots(facts)
    if slots:
        found, over = _packed(facts, mode, notes, limits, slots)
        if not over:
            return found, over
    return _packed(facts, mode, notes, limits, {})


def gradient_slots(facts: Problem) -> dict[int, int]:
    """Offsets at which gradients could lie in every iteration, from when they are made until the next one frees them:
    tensor -> offset. Then none has to be moved in between, which is worth it where memory allows.

    Empty unless what an iteration leaves has the sizes of what it finds and frees, and is made after all that is freed.
    """
    freed_by = np.repeat(np.arange(len(facts.free_ptr) - 1), np.diff(facts.free_ptr))
    freed = np.full(len(facts.size), -1, np.int64)
    freed[facts.free_idx] = freed_by
    old = np.nonzero((facts.produced < 0) & (freed >= 0))[0]
    new = np.nonzero((facts.produced >= 0) & (freed < 0))[0]
    if (len(old) != len(new) or not len(new) or freed[old].max() >= facts.produced[new].min()
            or not np.array_equal(np.sort(facts.size[old]), np.sort(facts.size[new]))):
        return {}
    ends = np.cumsum(facts.size[new])
    return dict(zip(new.tolist(), (ends - facts.size[new]).tolist(), strict=True)) | dict.fromkeys(old.tolist(), -1)


def _packed(facts: Problem, mode: Array, notes: Array, limits: Limits, slots: dict[int, int]
            ) -> tuple[dict[ResidencyKey, int], int]:
    """(The addresses, bytes that found none). slots: tensors that lie above what is there all the time, at these
    offsets; -1: at that of another one."""
    from minidl.planning import packing

    before = facts.produced < 0
    before[facts.gap_tensor[(facts.gap_head >= 0) & (mode == SWAP)]] = False  # between iterations on the host
    outlives = before.copy()
    outlives[facts.free_idx] = False
    below = int(facts.size[outlives].sum())
    strip = below + sum(int(facts.size[tensor]) for tensor, offset in slots.items() if offset >= 0)
    packed = ~np.isin(np.where(notes[:, 0] < 0, -1 - notes[:, 0], notes[:, 0]), list(slots))
    rest = notes[packed]
    rest[:, 3] = np.append(np.where(packed, np.cumsum(packed) - 1, -1), -1)[rest[:, 3]]  # these are numbers of rows
    steps = int(notes[:, 1:3].max(initial=0)) + 1
    offsets, over = packing.addresses(rest, steps, np.append(facts.size, facts.algorithm_bytes), born_before=before,
                                      outlives=outlives, room=limits.device_bytes - strip)
    at = np.full(len(notes), -1, np.int64)
    at[packed] = np.where(offsets >= 0, offsets + strip, -1)
    ids = facts.ids.tolist()
    result: dict[ResidencyKey, int] = {}
    seen: dict[int, int] = {}
    for (tensor, _, _, _), offset in zip(notes.tolist(), at.tolist(), strict=True):
        if 0 <= tensor < len(ids):  # no workspace, and nothing that nobody wants
            count = seen[tensor] = seen.get(tensor, -1) + 1
            slot = slots.get(tensor, -1)
            if slot >= 0 or offset >= 0:
                result[ids[tensor], count] = below + slot if slot >= 0 else offset
    return result, over
