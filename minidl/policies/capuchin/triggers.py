"""In-triggers: the accesses after which a plan's swap-ins start (Capuchin, section 4.4).

An in-trigger is the latest access before SwapInStart, after the evicted-access and outside the peak that the plan
leaves. Swap-ins queue: from the last one backwards, each must end before the next starts. Without such an access, the
tensor is swapped in at its back-access. Not in the paper: a swapped tensor that a replay reads must be back for the
replay; and a swap-in that feedback has moved also moves those before it on the link. Times are whole nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minidl.plan.plan import AccessKey
from minidl.plan.trace import TensorId
from minidl.policies.capuchin.hybrid import EvictionPlanner


@dataclass(frozen=True)
class SwapIn:
    """One planned swap-in.

    evict, back  the call after which the tensor is evicted, and the call that uses it next
    time         nanoseconds of the copy
    start        SwapInStart in nanoseconds if the reading ``triggers_first`` chose it, with the ``earliest`` call that
                 may be its in-trigger; else None
    """

    tensor_id: TensorId
    nbytes: int
    evict: int
    back: int
    time: int
    start: int | None = None
    earliest: int = 0


@dataclass(frozen=True)
class PlacedTriggers:
    """In-triggers, and the ``stuck`` tensors: their swap-in cannot start earlier (just evicted, or no free memory)."""

    prefetches: Mapping[AccessKey, tuple[TensorId, ...]]
    stuck: frozenset[TensorId]


@dataclass(frozen=True)
class Timetable:
    """The facts that determine the in-triggers of a plan.

    swap_ins   in the order of their back-accesses
    starts     per call: its start in nanoseconds; one more entry, the end of the last call
    triggers   per call: its last access
    occupied   per call: bytes on the device with all evictions and without prefetches
    """

    swap_ins: tuple[SwapIn, ...]
    starts: tuple[int, ...]
    triggers: tuple[AccessKey | None, ...]
    occupied: tuple[int, ...]
    budget_bytes: int

    @classmethod
    def of(cls, choice: EvictionPlanner) -> Timetable:
        """Return the timetable of a planner's choices.
        A swapped tensor counts as on the device from the first replay that reads it."""
        calls = len(choice.facts.trace.calls)
        wanted = {} if choice.readings.sources_stay else choice.wanted_by_replays()
        occupied = choice.apart.copy()
        swap_ins = []
        for swap in choice.swapped.values():
            back = wanted.get(swap.tensor_id, swap.back)
            occupied[back:swap.back] += swap.nbytes
            start, earliest = choice.triggers.get(swap.tensor_id, (None, 0))
            swap_ins.append(SwapIn(swap.tensor_id, swap.nbytes, swap.evict, back, swap.swap_in, start, earliest))
        triggers: list[AccessKey | None] = [None] * calls
        for access in choice.facts.trace.accesses:
            triggers[access.call] = (access.tensor_id, access.access_count)
        return cls(tuple(sorted(swap_ins, key=lambda s: (s.back, s.tensor_id))), tuple(choice.starts.tolist()),
                   tuple(triggers), tuple(occupied.tolist()), choice.budget_bytes)

    def placed(self, moved: Mapping[TensorId, int]) -> PlacedTriggers:
        """Return the in-triggers if each tensor's SwapInStart is earlier by the nanoseconds in ``moved``."""
        wanted_starts = {}
        link_free = self.starts[-1]
        for swap in reversed(self.swap_ins):
            begin = min(link_free, self.starts[swap.back]) - swap.time if swap.start is None else swap.start
            wanted_starts[swap.tensor_id] = link_free = begin - moved.get(swap.tensor_id, 0)
        occupied = np.array(self.occupied, np.int64)
        prefetches: dict[AccessKey, list[TensorId]] = {}
        stuck = set()
        for swap in self.swap_ins:
            wanted = bisect_left(self.starts, wanted_starts[swap.tensor_id]) - 1
            earliest = swap.earliest
            if swap.start is None:  # the first call from which there is room until the back-access
                full = np.flatnonzero(occupied[swap.evict + 1:swap.back] > self.budget_bytes - swap.nbytes)
                earliest = swap.evict + 1 + (int(full[-1]) + 1 if len(full) else 0)
            if wanted <= earliest:
                stuck.add(swap.tensor_id)
            call = max(wanted, earliest)
            key = self.triggers[call] if call < swap.back else None
            if key is not None:
                prefetches.setdefault(key, []).append(swap.tensor_id)
                occupied[call:swap.back] += swap.nbytes
        return PlacedTriggers({key: tuple(ids) for key, ids in prefetches.items()}, frozenset(stuck))
