"""Compares strategies that choose the addresses of buffers, on a recorded log of the buffers' lifetimes.

How much memory does an allocator waste? Record when each buffer was born, when it died and how large it was; then let
each strategy place the buffers again and compare the highest address it needs with a bound that no strategy can beat,
the largest sum of bytes live at once. The problem is two-dimensional packing with one dimension given (dynamic storage
allocation): an online strategy, one of the engine's placements, sees the log in time order; an offline one all of it.
The strategy ``planned`` is that of plans with addresses: heuristics, then an exact search with limited work.

A new strategy is one function and one line: in OFFLINE, or as an entry point of the group ``minidl.strategies`` whose
object, called, returns the function. ``minidl lab placement`` is the command.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from minidl import placements
from minidl.device.clock import NO_MARKS
from minidl.errors import OutOfMemory
from minidl.lab.lifetimes import Lifetime, events
from minidl.memory.bytes.arena import Arena
from minidl.memory.bytes.block import Block
from minidl.outside.registry import Registry
from minidl.outside.units import format_bytes
from minidl.plan.trace import Trace

ENDLESS = 1 << 60  # bytes: without a capacity the untouched end is always larger than any hole
# Work of ``planned``: units for each buffer, and in all.
ORDERS, MOST_ORDERS, SEARCHES = 100_000, 40_000_000, 1_000_000_000


@dataclass(frozen=True, slots=True)
class PlacedBuffers:
    """The result of a strategy: the offset in bytes of each buffer, by id, and the end of the highest buffer."""

    offsets: dict[str, int]
    peak_bytes: int


Strategy = Callable[[Sequence[Lifetime], int | None], PlacedBuffers]


def _does_not_fit(lifetime: Lifetime, capacity: int | None) -> OutOfMemory:
    return OutOfMemory(f"no room for {lifetime.id!r} of {format_bytes(lifetime.size)} at time {lifetime.lower}: "
                       f"{format_bytes(capacity or 0)} do not suffice", need_bytes=lifetime.size,
                       budget_bytes=capacity or 0)


def online(name: str) -> Strategy:
    """Return a strategy that places buffers with the engine's placement of that name, one by one in time order."""
    def place(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> PlacedBuffers:
        room = ENDLESS if capacity is None else capacity
        arena = Arena(room, alignment=1, placement=placements.create(name))  # sizes are taken as they are logged
        blocks: dict[str, Block] = {}
        offsets: dict[str, int] = {}
        for lifetime, birth in events(lifetimes):
            if birth:
                block = arena.allocate(lifetime.size, lifetime)
                if block is None:
                    raise _does_not_fit(lifetime, capacity)
                blocks[lifetime.id] = block
                offsets[lifetime.id] = block.offset
            else:
                arena.free(blocks.pop(lifetime.id), NO_MARKS)
        return _placed(lifetimes, offsets)
    return place


def greedy_by_size(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> PlacedBuffers:
    """Place the largest buffer first, and each at the lowest address that is free over its whole lifetime.
    Raises OutOfMemory if the result needs more than ``capacity`` bytes (None: no limit)."""
    return _greedy(lifetimes, capacity, order=lambda e: (-e.size, e.lower - e.upper, e.lower))


def greedy_by_duration(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> PlacedBuffers:
    """Place the buffer that lives longest first, and each at the lowest address that is free over its whole lifetime.
    Raises OutOfMemory if the result needs more than ``capacity`` bytes (None: no limit)."""
    return _greedy(lifetimes, capacity, order=lambda e: (e.lower - e.upper, -e.size, e.lower))


def _greedy(lifetimes: Sequence[Lifetime], capacity: int | None, *,
            order: Callable[[Lifetime], tuple[int, int, int]]) -> PlacedBuffers:
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, lower, upper), ascending
    offsets: dict[str, int] = {}
    for lifetime in sorted(lifetimes, key=order):
        lower, upper, size = lifetime.lower, lifetime.upper, lifetime.size
        offset = 0
        for start, end in [(s, e) for s, e, born, dead in placed if born < upper and dead > lower]:
            if start - offset >= size:
                break
            offset = max(offset, end)  # placed buffers that never met may overlap in address
        if capacity is not None and offset + size > capacity:
            raise _does_not_fit(lifetime, capacity)
        offsets[lifetime.id] = offset
        insort(placed, (offset, offset + size, lower, upper))
    return _placed(lifetimes, offsets)


def planned(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> PlacedBuffers:
    """Place all buffers together, as plans with addresses do (``planning.packing``): a search for the least memory.
    The search is limited to seconds for some hundred buffers. Raises OutOfMemory if the result needs more bytes than
    ``capacity`` (None: no limit)."""
    # Loaded when asked for: it is compiled.
    from minidl.planning.packing.solve import pack_low
    from minidl.planning.packing.strip import strip

    times = np.unique([time for e in lifetimes for time in (e.lower, e.upper)])
    first, last = (np.searchsorted(times, [getattr(e, end) for e in lifetimes]) for end in ("lower", "upper"))
    offset = pack_low(strip(first, last - 1, np.array([e.size for e in lifetimes], np.int64), 0),
                      orders=min(MOST_ORDERS, ORDERS * len(lifetimes)), searches=SEARCHES)
    placed = _placed(lifetimes, {e.id: at for e, at in zip(lifetimes, offset.tolist(), strict=True)})
    if capacity is not None and placed.peak_bytes > capacity:
        highest = max(lifetimes, key=lambda e: placed.offsets[e.id] + e.size)
        raise _does_not_fit(highest, capacity)
    return placed


def _placed(lifetimes: Sequence[Lifetime], offsets: dict[str, int]) -> PlacedBuffers:
    # In the order of the log, whatever order a strategy placed them in.
    return PlacedBuffers({e.id: offsets[e.id] for e in lifetimes},
                     max((offsets[e.id] + e.size for e in lifetimes), default=0))


OFFLINE: dict[str, Strategy] = {
    "greedy-by-size": greedy_by_size,
    "greedy-by-duration": greedy_by_duration,
    "planned": planned,
}


REGISTRY: Registry[Strategy] = Registry(
    "strategy", "minidl.strategies",
    {**{name: partial(online, name) for name in placements.names()},
     **{name: lambda strategy=strategy: strategy for name, strategy in OFFLINE.items()}})  # type: ignore[misc]


def strategies() -> dict[str, Strategy]:
    """Return all strategies by name, also those of installed packages.
    There is one for each placement of the engine or of an installed package, and those in OFFLINE."""
    return {name: REGISTRY.create(name) for name in REGISTRY.names()}


def lifetimes_of(trace: Trace) -> list[Lifetime]:
    """Return the lifetimes of a trace's buffers and workspaces, with positions of calls as times.
    A tensor that no call makes lives from the start; an output that takes over an input's bytes shares its buffer."""
    born: dict[int, tuple[int, int]] = {}  # tensor -> (buffer's number, birth)
    found: list[Lifetime] = []
    made = {i for call in trace.calls for i in call.outputs}
    names = iter(range(1 << 60))
    for tensor in trace.tensors.values():
        if tensor.tensor_id not in made:
            born[tensor.tensor_id] = next(names), 0
    end = len(trace.calls)
    for n, call in enumerate(trace.calls):
        over = {o: i for o, i in call.donated if i in call.frees and i in born}
        for output in call.outputs:
            born[output] = born.pop(over[output]) if output in over else (next(names), n)
        workspace = call.algorithms[0].workspace if call.algorithms else 0
        if workspace:
            found.append(Lifetime(f"workspace {n}", n, n + 1, workspace))
        for tensor_id in call.frees:
            if tensor_id in born:
                name, birth = born.pop(tensor_id)
                found.append(Lifetime(str(name), birth, n + 1, trace.tensors[tensor_id].nbytes))
    found += [Lifetime(str(name), birth, end, trace.tensors[i].nbytes) for i, (name, birth) in born.items()
              if birth < end]
    return sorted((e for e in found if e.size), key=lambda e: (e.lower, e.upper, e.id))


def over_time(placed: PlacedBuffers, lifetimes: Sequence[Lifetime]) -> list[tuple[int, int, int]]:
    """Return (time, height, hole bytes) for each time at which a buffer is born or dies, in ascending order.
    height: the address in bytes at which the highest buffer ends that is live after these events; 0 if none is live.
    hole bytes: all bytes below that address in which no live buffer is."""
    live: dict[str, tuple[int, int]] = {}
    found: list[tuple[int, int, int]] = []
    for lifetime, birth in events(lifetimes):
        time = lifetime.lower if birth else lifetime.upper
        if birth:
            live[lifetime.id] = placed.offsets[lifetime.id], lifetime.size
        else:
            del live[lifetime.id]
        height = max((offset + size for offset, size in live.values()), default=0)
        now = time, height, height - sum(size for _, size in live.values())
        if found and found[-1][0] == time:
            found[-1] = now
        else:
            found.append(now)
    return found


def check(placed: PlacedBuffers, lifetimes: Sequence[Lifetime]) -> None:
    """Raise AssertionError if two buffers overlap in both time and address, or ``peak_bytes`` is not the highest end.
    Raise it, too, for a buffer without an offset, or with an offset below 0."""
    live: list[tuple[int, int, str]] = []  # (offset, end, id), ascending
    peak = 0
    for lifetime, birth in events(lifetimes):
        offset = placed.offsets.get(lifetime.id, -1)
        if offset < 0:
            raise AssertionError(f"{lifetime.id!r} has no place: {placed.offsets.get(lifetime.id)}")
        entry = (offset, offset + lifetime.size, lifetime.id)
        if not birth:
            live.remove(entry)
            continue
        insort(live, entry)
        index = live.index(entry)
        # Those that were live do not overlap, so the new one can only run into a neighbour.
        for left, right in pairwise(live[max(index - 1, 0):index + 2]):
            if left[1] > right[0]:
                raise AssertionError(f"{left[2]!r} at {left[0]}..{left[1]} and {right[2]!r} at {right[0]}..{right[1]} "
                                     f"are both live at time {lifetime.lower}")
        peak = max(peak, entry[1])
    if peak != placed.peak_bytes:
        raise AssertionError(f"the highest buffer ends at {peak}, the peak says {placed.peak_bytes}")
