"""Placement strategies alone, on a recorded log of lifetimes. Knows times and sizes; no tensors, no devices.

How much memory does an allocator waste? Record when each buffer was born, when it died and how large it was; then let
each strategy place the buffers again and compare the highest address it needs with a bound that no strategy can beat,
the largest sum of bytes live at once. The problem is two-dimensional packing with one dimension given (dynamic storage
allocation): an online strategy, one of the engine's placements, sees the log in time order; an offline one all of it.
``planned`` is what plans with addresses are made with: heuristics, then an exact search with limited work.

    python -m minidl.lab.placement LOG.csv [--strategy all|NAME] [--capacity 16GiB] [--save OFFSETS.csv]
"""

from __future__ import annotations

import argparse
import sys
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

import numpy as np

from minidl import placements
from minidl.command import Parser, finish
from minidl.device.clock import NO_MARKS
from minidl.errors import OutOfMemory, UserError
from minidl.lab.lifetimes import Lifetime, events, is_own, lower_bound, read_log, write_offsets
from minidl.memory.arena import Arena
from minidl.memory.block import Block
from minidl.units import format_bytes, parse_bytes
from minidl.writing import require_place

ENDLESS = 1 << 60  # bytes: without a capacity the untouched end is always larger than any hole
# Work of ``planned``: units for each buffer, and in all.
ORDERS, MOST_ORDERS, SEARCHES = 100_000, 40_000_000, 1_000_000_000


@dataclass(frozen=True, slots=True)
class Placed:
    """The offset in bytes of each buffer, by id, and the end of the highest one."""

    offsets: dict[str, int]
    peak_bytes: int


Strategy = Callable[[Sequence[Lifetime], int | None], Placed]


def _does_not_fit(lifetime: Lifetime, capacity: int | None) -> OutOfMemory:
    return OutOfMemory(f"no room for {lifetime.id!r} of {format_bytes(lifetime.size)} at time {lifetime.lower}: "
                       f"{format_bytes(capacity or 0)} do not suffice", need_bytes=lifetime.size,
                       budget_bytes=capacity or 0)


def online(name: str) -> Strategy:
    """The strategy of the placement of that name: it sees the log in time order, as the engine's arena does."""
    def place(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> Placed:
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


def greedy_by_size(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> Placed:
    """Offline: the largest first, each at the lowest address that is free over its whole lifetime. Raises OutOfMemory
    if the result is higher than ``capacity``."""
    return _greedy(lifetimes, capacity, order=lambda e: (-e.size, e.lower - e.upper, e.lower))


def greedy_by_duration(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> Placed:
    """Offline: the longest-lived first, each at the lowest address that is free over its whole lifetime. Raises
    OutOfMemory if the result is higher than ``capacity``."""
    return _greedy(lifetimes, capacity, order=lambda e: (e.lower - e.upper, -e.size, e.lower))


def _greedy(lifetimes: Sequence[Lifetime], capacity: int | None, *,
            order: Callable[[Lifetime], tuple[int, int, int]]) -> Placed:
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


def planned(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> Placed:
    """Offline: the packing that a plan's addresses come from (``planning.packing``), for as little memory as it finds
    within a limit of work, seconds for some hundred buffers. Raises OutOfMemory if that is more than ``capacity``."""
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


def _placed(lifetimes: Sequence[Lifetime], offsets: dict[str, int]) -> Placed:
    # In the order of the log, whatever order a strategy placed them in.
    return Placed({e.id: offsets[e.id] for e in lifetimes},
                     max((offsets[e.id] + e.size for e in lifetimes), default=0))


OFFLINE: dict[str, Strategy] = {
    "greedy-by-size": greedy_by_size,
    "greedy-by-duration": greedy_by_duration,
    "planned": planned,
}


def strategies() -> dict[str, Strategy]:
    """All of them by name: the placements that the engine can have, those of installed packages too, and OFFLINE."""
    return {name: online(name) for name in placements.names()} | OFFLINE


def check(placed: Placed, lifetimes: Sequence[Lifetime]) -> None:
    """Raise AssertionError if two buffers overlap in both time and address, one lies below 0 or has no offset, or the
    peak is not the highest end."""
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


def _chosen(name: str) -> dict[str, Strategy]:
    known = strategies()
    if name == "all":
        return known
    if name not in known:
        near = get_close_matches(name, ["all", *known], n=2, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"no strategy {name!r} among all, {', '.join(known)}{hint}")
    return {name: known[name]}


def _compare(arguments: argparse.Namespace) -> None:
    chosen = _chosen(arguments.strategy)
    capacity = None if arguments.capacity is None else parse_bytes(arguments.capacity)
    if arguments.save is not None:
        require_place(arguments.save, is_own, force=arguments.force)
    lifetimes = read_log(arguments.log)
    bound = lower_bound(lifetimes)
    if capacity is not None and bound > capacity:
        raise OutOfMemory(f"{arguments.log} does not fit {format_bytes(capacity)}: "
                          f"up to {format_bytes(bound)} are live at once", need_bytes=bound, budget_bytes=capacity)
    results: dict[str, Placed] = {}
    rows = []
    refusal: OutOfMemory | None = None
    for name, strategy in chosen.items():
        start = time.perf_counter()
        try:
            placed = strategy(lifetimes, capacity)
        except OutOfMemory as error:
            refusal = OutOfMemory(f"{arguments.log} does not fit with {name}: {error}")
            rows.append(f"{name:<20}{'does not fit':>14}")
            continue
        seconds = time.perf_counter() - start
        check(placed, lifetimes)
        results[name] = placed
        over = 100 * (placed.peak_bytes / bound - 1)
        rows.append(f"{name:<20}{placed.peak_bytes / 2**20:>14.2f}{over:>14.2f}{seconds:>11.3f}")
    if not results and refusal is not None:
        raise refusal
    best = min(results, key=lambda name: results[name].peak_bytes)
    if arguments.save is not None:
        write_offsets(arguments.save, lifetimes, results[best].offsets, force=arguments.force)
    print(f"{arguments.log}: {len(lifetimes)} buffers, lower bound {bound / 2**20:.2f} MiB")
    print(f"{'strategy':<20}{'peak MiB':>14}{'over bound %':>14}{'seconds':>11}")
    print("\n".join(rows))
    if arguments.save is not None:
        print(f"offsets of {best} saved to {arguments.save}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code: 0, or 2 after one line about what the user got wrong."""
    parser = Parser(
        prog="python -m minidl.lab.placement", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Place the buffers of a recorded log with each strategy, and compare the memory they need\n"
                    "with the lower bound, the largest sum of bytes live at once.",
        epilog="The log is CSV with the header id,lower,upper,size. A buffer is live from lower up to, not including,\n"
               "upper (integers, any unit of time); its size is in bytes. Online strategies, which are the\n"
               "engine's placements, see the log in time order, deaths before births; offline ones (greedy-*) see all\n"
               "of it at once.\n\n"
               "exit code: 0; 2 if an argument or the log is wrong, or if no chosen strategy fits the capacity")
    parser.add_argument("log", metavar="LOG", help="CSV file of lifetimes")
    parser.add_argument("--strategy", default="all", metavar="NAME", help=f"all (default), {', '.join(strategies())}")
    parser.add_argument("--capacity", metavar="SIZE",
                        help="memory there is, like 16GiB, 512MB or 1000; unlimited by default")
    parser.add_argument("--save", metavar="OFFSETS.csv",
                        help="write the log with a column offset (bytes) as the strategy of the lowest peak places it")
    parser.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")

    def story() -> int:
        _compare(parser.parse_args(argv))
        return 0

    return finish("placement", story)


if __name__ == "__main__":
    sys.exit(main())
