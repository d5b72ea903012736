"""Addresses for the tensors of a plan:
the iteration is simulated to list every residency, and the residencies are packed. A residency for which packing
finds no single address is relocated while it lasts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from minidl.plan.costs import Limits
from minidl.plan.plan import AccessKey, Move, ResidencyKey
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import NEVER, SWAP, Array, Problem, freed_by, within
from minidl.planning.timing import Room
from minidl.policies.auto.progress import Found
from minidl.policies.auto.search import SLACK

if TYPE_CHECKING:
    from minidl.planning.packing.residencies import Addresses

NOTES = 12  # the most residencies noted per call


def with_addresses(found: Found, trace: Trace, facts: Problem, limits: Limits, effort: float = 1.0
                   ) -> tuple[Found, int, float]:
    """Return (the plan with addresses and relocations, bytes without an address, seconds that calls lose).
    Calls lose seconds if their workspaces find no hole. effort: the work of packing, as a multiple of the usual."""
    from minidl.planning.compiled import simulate

    facts = within(facts, int(limits.device_bytes * found.share))
    mode = modes_of(found.plan, facts)
    notes = np.zeros((NOTES * len(trace.calls) + len(facts.ids), 4), np.int64)
    room = Room(int(limits.device_bytes * found.share), limits.host_bytes, SLACK)
    simulated = simulate(facts, room, mode, mode.copy(), notes)
    notes = notes[:simulated.noted]
    openings = Openings(facts, notes, simulated.steps)
    offsets, packed = addresses(facts, mode, notes, limits, effort, openings)
    moves: dict[AccessKey, tuple[Move, ...]] = {}
    for note, step, offset in packed.moves:
        key, tensor_id = trace.first_accesses[openings.call_before(step)], int(facts.ids[notes[note, 0]])
        moves[key] = (*moves.get(key, ()), Move(tensor_id, offset))
    plan = replace(found.plan, offsets=offsets, moves=moves)
    return replace(found, plan=plan), packed.over, _slower(facts, notes, packed.holes)


def _slower(facts: Problem, notes: Array, holes: Array) -> float:
    """Return the seconds that calls lose whose workspaces find no hole, since they take a slower algorithm.
    holes: the largest hole at each workspace's step, in bytes."""
    lost = 0.0
    for row in np.nonzero(holes < np.append(facts.size, facts.algorithm_bytes)[notes[:, 0]])[0].tolist():
        wanted = slower = int(notes[row, 0]) - len(facts.size)
        last = facts.algorithm_ptr[np.searchsorted(facts.algorithm_ptr, wanted, side="right")] - 1
        while slower < last and facts.algorithm_bytes[slower] > holes[row]:
            slower += 1
        lost += float(facts.algorithm_seconds[slower] - facts.algorithm_seconds[wanted])
    return lost


def addresses(facts: Problem, mode: Array, notes: Array, limits: Limits, effort: float = 1.0,
              openings: Openings | None = None) -> tuple[dict[ResidencyKey, int], Addresses]:
    """Return the addresses of the residencies that got one, and the result of packing.
    Tensors that are on the device between iterations, before and after, fill the lowest bytes.
    notes: the residencies, [n, 4] as ``schedule.simulate`` writes them; openings: where a tensor may be relocated;
    None: nowhere. effort: the work of packing, as a multiple of the usual."""
    from minidl.planning import packing

    before = facts.produced < 0
    before[facts.gap_tensor[(facts.gap_head >= 0) & (mode == SWAP)]] = False  # on the host between iterations
    outlives = before.copy()
    outlives[facts.free_idx] = False
    below = int(facts.size[outlives].sum())
    steps = int(notes[:, 1:3].max(initial=0)) + 1
    found = packing.addresses(notes, steps, np.append(facts.size, facts.algorithm_bytes), born_before=before,
                              outlives=outlives, successor=successors(facts), room=limits.device_bytes - below,
                              effort=effort, movable=openings.of if openings is not None else None,
                              lost=lambda holes: _slower(facts, notes, holes))
    found = found._replace(moves=tuple(move._replace(offset=below + move.offset) for move in found.moves))
    ids = facts.ids.tolist()
    result: dict[ResidencyKey, int] = {}
    seen: dict[int, int] = {}
    for (tensor, _, _, _), offset in zip(notes.tolist(), found.offsets.tolist(), strict=True):
        if 0 <= tensor < len(ids):  # not a workspace, and not an unused output
            count = seen[tensor] = seen.get(tensor, -1) + 1
            if offset >= 0:
                result[ids[tensor], count] = below + offset
    return result, found


class Openings:
    """The steps of a planned iteration before which tensors may be relocated:
    the first step after a call of the program, not after a replay. steps: number of all steps."""

    def __init__(self, facts: Problem, notes: Array, steps: int) -> None:
        self._notes = notes
        made, rows = np.unique(notes[:, 0], return_index=True)  # a tensor's first residency begins when it is made
        own = (made >= 0) & (made < len(facts.size))
        made, rows = made[own], rows[own]
        rows, calls = rows[facts.produced[made] >= 0], facts.produced[made[facts.produced[made] >= 0]]
        calls, which = np.unique(calls, return_index=True)
        # A call that only writes leaves no note. Its step is known if no replay runs between its neighbours there.
        count = len(facts.in_ptr) - 1
        every, known = np.arange(count), np.concatenate([[-1], calls, [count]])
        replays = np.concatenate([[0], notes[rows[which], 1] - calls, [steps - count]])  # before each of ``known``
        fewest, most = replays[np.searchsorted(known, every, "right") - 1], replays[np.searchsorted(known, every)]
        sure = (fewest == most) & (np.diff(facts.out_ptr) + np.diff(facts.write_ptr) > 0)  # not calls that only read
        self._calls, self._steps = every[sure], (every + fewest)[sure]
        operands = np.concatenate([facts.in_idx, facts.out_idx])
        callers = np.concatenate([np.repeat(every, np.diff(facts.in_ptr)), np.repeat(every, np.diff(facts.out_ptr))])
        operands, callers = operands[sure[callers]], callers[sure[callers]]
        order = np.lexsort((callers, operands))  # the accesses of each tensor, one tensor after the other
        self._tensors, self._accesses = operands[order], (callers + fewest[callers])[order]

    def call_before(self, step: int) -> int:
        """Return the number, from 0, of the program's call right before ``step``; step: one of the steps of ``of``."""
        return int(self._calls[np.searchsorted(self._steps, step - 1)])

    def of(self, note: int) -> Array:
        """Return the steps before which a residency may be relocated, in ascending order. note: the residency's row.
        They lie between its first and last access by the program, when no copy of the tensor is under way."""
        tensor, first, last, _ = self._notes[note].tolist()
        its = self._accesses[self._tensors.searchsorted(tensor):self._tensors.searchsorted(tensor, "right")]
        steps = its[(first <= its) & ((its <= last) | (last < 0))]
        if not len(steps):
            return np.zeros(0, np.int64)
        found: Array = self._steps[(self._steps >= steps[0]) & (self._steps < steps[-1])] + 1
        return found


def successors(facts: Problem) -> Array:
    """Return, for each tensor, the tensor that takes its place when the next iteration starts, or -1: int64 [tensors].
    Most of them are gradients: the last iteration's gradient is freed, and a new one of the same size outlives this
    one. Among several tensors of one size, any assignment will do."""
    freed = freed_by(facts)
    made: dict[int, list[int]] = {}
    for tensor in np.nonzero((facts.produced >= 0) & (freed == NEVER))[0].tolist():
        made.setdefault(int(facts.size[tensor]), []).append(tensor)
    result = np.full(len(facts.size), -1, np.int64)
    for tensor in np.nonzero((facts.produced < 0) & (freed < NEVER))[0].tolist():
        same = made.get(int(facts.size[tensor]), [])
        later = next((new for new in same if facts.produced[new] > freed[tensor]), None)
        if later is not None:
            result[tensor] = later
            same.remove(later)
    return result
