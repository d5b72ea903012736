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

ATTEMPT = 0.3  # of the usual work, for addresses that are not to be had at any price
NOTES = 12  # residencies noted a call, at most


def with_addresses(found: Found, trace: Trace, facts: Problem, limits: Limits) -> Found:
    """The plan with an address for each residency that finds one."""
    from minidl.planning.compiled import simulate

    mode = modes_of(found.plan, facts, trace)
    notes = np.zeros((NOTES * len(trace.calls) + len(facts.ids), 4), np.int64)
    room = Room(int(limits.device_bytes * found.share), limits.host_bytes, SLACK)
    noted = simulate(facts, room, mode, mode.copy(), notes).noted
    return replace(found, plan=replace(found.plan, offsets=addresses(facts, mode, notes[:noted], limits)))


def addresses(facts: Problem, mode: Array, notes: Array, limits: Limits) -> dict[ResidencyKey, int]:
    """Where each residency's bytes go. What is there all the time lies below, packed together.

    What crosses the iteration's end (gradients that the next one frees) is to lie where it lies then in every
    iteration, above what is there all the time, so that nothing is moved: for good if memory allows, else from when it
    is made, else not at all.

    notes: [residencies, 4], as ``schedule.simulate`` leaves them.
    """
    old, new = crossing(facts)
    if len(old):
        found, over = _packed(facts, mode, notes, limits, gradient_slots(facts, old, new), effort=ATTEMPT)
        if not over:
            return found
        turn = np.zeros(len(facts.size), np.int64)
        turn[old] = turn[new] = np.arange(1, len(old) + 1)
        found, over = _packed(facts, mode, notes, limits, {}, turn, effort=ATTEMPT)
        if not over:
            return found
    return _packed(facts, mode, notes, limits, {})[0]


def crossing(facts: Problem) -> tuple[Array, Array]:
    """What an iteration finds and frees, and what it leaves in its place: one by one of the same size, and made after
    the other has been freed. Of several of a size the last that is freed goes with the last that is made."""
    freed_by = np.repeat(np.arange(len(facts.free_ptr) - 1), np.diff(facts.free_ptr))
    freed = np.full(len(facts.size), -1, np.int64)
    freed[facts.free_idx] = freed_by
    old = np.nonzero((facts.produced < 0) & (freed >= 0))[0]
    new = np.nonzero((facts.produced >= 0) & (freed < 0))[0]
    old = old[np.lexsort((freed[old], facts.size[old]))][::-1]
    new = new[np.lexsort((facts.produced[new], facts.size[new]))][::-1]
    pairs: list[tuple[int, int]] = []
    n = 0
    for o in old.tolist():
        while n < len(new) and facts.size[new[n]] > facts.size[o]:
            n += 1
        if n < len(new) and facts.size[new[n]] == facts.size[o] and freed[o] < facts.produced[new[n]]:
            pairs.append((o, int(new[n])))
            n += 1
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def gradient_slots(facts: Problem, old: Array, new: Array) -> dict[int, int]:
    """Offsets at which what crosses the end could lie all the time: tensor -> offset, or -1 for that of another one."""
    ends = np.cumsum(facts.size[new])
    return dict(zip(new.tolist(), (ends - facts.size[new]).tolist(), strict=True)) | dict.fromkeys(old.tolist(), -1)


def _packed(facts: Problem, mode: Array, notes: Array, limits: Limits, slots: dict[int, int],
            turn: Array | None = None, *, effort: float = 1.0) -> tuple[dict[ResidencyKey, int], int]:
    """(The addresses, bytes that found none). slots: tensors that lie above what is there all the time, at these
    offsets; -1: at that of another one. turn, effort: as ``packing.addresses`` takes them."""
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
                                      outlives=outlives, room=limits.device_bytes - strip, turn=turn, effort=effort)
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
