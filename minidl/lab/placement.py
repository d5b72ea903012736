"""Placement strategies alone, on a recorded log of lifetimes. Knows times and sizes; no tensors, no devices.

How much memory does an allocator waste? Record when each buffer was born, when it died and how large it was; then let
each strategy place the buffers again and compare the highest address it needs with a bound that no strategy can beat,
the largest sum of bytes live at once. The problem is two-dimensional packing with one dimension given (dynamic storage
allocation): an online strategy sees the log in time order, as an allocator does; an offline one sees all of it.

    python -m minidl.lab.placement LOG.csv [--strategy all|NAME] [--capacity 16GiB] [--save OFFSETS.csv]
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

from minidl.device.clock import NO_MARKS, Extents
from minidl.errors import OutOfMemory, UserError
from minidl.memory.arena import Arena, Block
from minidl.memory.host_pool import HostPool
from minidl.units import format_bytes, parse_bytes

COLUMNS = ["id", "lower", "upper", "size"]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One buffer: ``size`` bytes that are live from time ``lower`` up to, not including, ``upper``."""

    id: str
    lower: int
    upper: int
    size: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The offset in bytes of each buffer, by id, and the end of the highest one."""

    offsets: dict[str, int]
    peak_bytes: int


Strategy = Callable[[Sequence[Lifetime], int | None], Placement]


def read_log(path: str) -> list[Lifetime]:
    """Lifetimes from a CSV file with the header ``id,lower,upper,size`` (an ``offset`` column, which ``--save``
    writes, may follow and is ignored). Raises UserError naming file, line and value."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            if header not in (COLUMNS, [*COLUMNS, "offset"]):
                raise UserError(f"{path}, line 1: the header is {','.join(header)!r}, not {','.join(COLUMNS)!r}")
            lifetimes: dict[str, Lifetime] = {}
            for row in rows:
                if row:
                    where = f"{path}, line {rows.line_num}"
                    lifetime = _read_row(row, len(header), where)
                    if lifetime.id in lifetimes:
                        raise UserError(f"{where}: the id {lifetime.id!r} appears twice")
                    lifetimes[lifetime.id] = lifetime
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no CSV text: {error}") from error
    if not lifetimes:
        raise UserError(f"{path} has no rows after its header")
    return list(lifetimes.values())


def _read_row(row: list[str], columns: int, where: str) -> Lifetime:
    if len(row) != columns:
        raise UserError(f"{where}: {len(row)} values instead of {columns}: {','.join(row)!r}")
    numbers = []
    for name, text in zip(COLUMNS[1:], row[1:4], strict=True):
        try:
            numbers.append(int(text))
        except ValueError:
            raise UserError(f"{where}: {name} is {text!r}, not an integer") from None
    lower, upper, size = numbers
    if upper <= lower:
        raise UserError(f"{where}: upper {upper} is not after lower {lower}")
    if size < 1:
        raise UserError(f"{where}: size is {size}, not at least 1")
    return Lifetime(row[0].strip(), lower, upper, size)


def _events(lifetimes: Sequence[Lifetime]) -> Iterator[tuple[Lifetime, bool]]:
    """Births (True) and deaths in time order; at the same time deaths come first, as intervals are half-open."""
    deaths = [(e.upper, False, i) for i, e in enumerate(lifetimes)]
    births = [(e.lower, True, i) for i, e in enumerate(lifetimes)]
    for _, birth, index in sorted(deaths + births):
        yield lifetimes[index], birth


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of bytes live at once: no placement can have a lower peak."""
    live = most = 0
    for lifetime, birth in _events(lifetimes):
        live += lifetime.size if birth else -lifetime.size
        most = max(most, live)
    return most


def _does_not_fit(lifetime: Lifetime, capacity: int | None) -> OutOfMemory:
    return OutOfMemory(f"no room for {lifetime.id!r} of {format_bytes(lifetime.size)} at time {lifetime.lower}: "
                       f"{format_bytes(capacity or 0)} do not suffice", need_bytes=lifetime.size,
                       budget_bytes=capacity or 0)


def _room(lifetimes: Sequence[Lifetime], capacity: int | None) -> int:
    """The capacity; without one, enough that the untouched end is always larger than any hole, as if endless."""
    return 2 * sum(e.size for e in lifetimes) if capacity is None else capacity


def best_fit(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> Placement:
    """Online: the smallest hole that fits, as minidl's :class:`~minidl.memory.arena.Arena` places. Raises OutOfMemory
    at the first buffer for which no hole is large enough."""
    arena = Arena(_room(lifetimes, capacity), alignment=1)  # sizes are taken as they are logged
    blocks: dict[str, Block] = {}
    offsets: dict[str, int] = {}
    for lifetime, birth in _events(lifetimes):
        if birth:
            block = arena.allocate(lifetime.size, lifetime)
            if block is None:
                raise _does_not_fit(lifetime, capacity)
            blocks[lifetime.id] = block
            offsets[lifetime.id] = block.offset
        else:
            arena.free(blocks.pop(lifetime.id), NO_MARKS)
    return _placement(lifetimes, offsets)


def first_fit(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> Placement:
    """Online: the lowest hole that fits. Raises OutOfMemory at the first buffer for which no hole is large enough."""
    pool = HostPool(_room(lifetimes, capacity))
    pieces: dict[str, Extents] = {}
    offsets: dict[str, int] = {}
    for lifetime, birth in _events(lifetimes):
        if birth:
            extents = pool.allocate(lifetime.size)
            # The pool splits what fits nowhere in one piece; a buffer may not be split.
            if extents is None or len(extents) > 1:
                raise _does_not_fit(lifetime, capacity)
            pieces[lifetime.id] = extents
            offsets[lifetime.id] = extents[0][0]
        else:
            pool.free(pieces.pop(lifetime.id))
    return _placement(lifetimes, offsets)


def greedy_by_size(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> Placement:
    """Offline: the largest first, each at the lowest address that is free over its whole lifetime. Raises OutOfMemory
    if the result is higher than ``capacity``."""
    return _greedy(lifetimes, capacity, order=lambda e: (-e.size, e.lower - e.upper, e.lower))


def greedy_by_duration(lifetimes: Sequence[Lifetime], capacity: int | None = None) -> Placement:
    """Offline: the longest-lived first, each at the lowest address that is free over its whole lifetime. Raises
    OutOfMemory if the result is higher than ``capacity``."""
    return _greedy(lifetimes, capacity, order=lambda e: (e.lower - e.upper, -e.size, e.lower))


def _greedy(lifetimes: Sequence[Lifetime], capacity: int | None, *,
            order: Callable[[Lifetime], tuple[int, int, int]]) -> Placement:
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
    return _placement(lifetimes, offsets)


def _placement(lifetimes: Sequence[Lifetime], offsets: dict[str, int]) -> Placement:
    # In the order of the log, whatever order a strategy placed them in.
    return Placement({e.id: offsets[e.id] for e in lifetimes},
                     max((offsets[e.id] + e.size for e in lifetimes), default=0))


STRATEGIES: dict[str, Strategy] = {
    "best_fit": best_fit,
    "first_fit": first_fit,
    "greedy_by_size": greedy_by_size,
    "greedy_by_duration": greedy_by_duration,
}


def check(placement: Placement, lifetimes: Sequence[Lifetime]) -> None:
    """Raise AssertionError if two buffers overlap in both time and address, one lies below 0 or has no offset, or the
    peak is not the highest end."""
    live: list[tuple[int, int, str]] = []  # (offset, end, id), ascending
    peak = 0
    for lifetime, birth in _events(lifetimes):
        offset = placement.offsets.get(lifetime.id, -1)
        if offset < 0:
            raise AssertionError(f"{lifetime.id!r} has no place: {placement.offsets.get(lifetime.id)}")
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
    if peak != placement.peak_bytes:
        raise AssertionError(f"the highest buffer ends at {peak}, the peak says {placement.peak_bytes}")


def _save(path: str, placement: Placement, lifetimes: Sequence[Lifetime]) -> None:
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*COLUMNS, "offset"])
            writer.writerows((e.id, e.lower, e.upper, e.size, placement.offsets[e.id]) for e in lifetimes)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def _chosen(name: str) -> list[str]:
    if name == "all":
        return list(STRATEGIES)
    if name not in STRATEGIES:
        near = get_close_matches(name, ["all", *STRATEGIES], n=2, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"no strategy {name!r} among all, {', '.join(STRATEGIES)}{hint}")
    return [name]


def _compare(arguments: argparse.Namespace) -> None:
    names = _chosen(arguments.strategy)
    capacity = None if arguments.capacity is None else parse_bytes(arguments.capacity)
    lifetimes = read_log(arguments.log)
    bound = lower_bound(lifetimes)
    if capacity is not None and bound > capacity:
        raise OutOfMemory(f"{arguments.log} does not fit {format_bytes(capacity)}: "
                          f"up to {format_bytes(bound)} are live at once", need_bytes=bound, budget_bytes=capacity)
    placements: dict[str, Placement] = {}
    rows = []
    refusal: OutOfMemory | None = None
    for name in names:
        start = time.perf_counter()
        try:
            placement = STRATEGIES[name](lifetimes, capacity)
        except OutOfMemory as error:
            refusal = OutOfMemory(f"{arguments.log} does not fit with {name}: {error}")
            rows.append(f"{name:<20}{'does not fit':>14}")
            continue
        seconds = time.perf_counter() - start
        check(placement, lifetimes)
        placements[name] = placement
        over = 100 * (placement.peak_bytes / bound - 1)
        rows.append(f"{name:<20}{placement.peak_bytes / 2**20:>14.2f}{over:>14.2f}{seconds:>11.3f}")
    if not placements and refusal is not None:
        raise refusal
    best = min(placements, key=lambda name: placements[name].peak_bytes)
    if arguments.save is not None:
        _save(arguments.save, placements[best], lifetimes)
    print(f"{arguments.log}: {len(lifetimes)} buffers, lower bound {bound / 2**20:.2f} MiB")
    print(f"{'strategy':<20}{'peak MiB':>14}{'over bound %':>14}{'seconds':>11}")
    print("\n".join(rows))
    if arguments.save is not None:
        print(f"offsets of {best} saved to {arguments.save}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code: 0, or 2 after one line about what the user got wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m minidl.lab.placement", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Place the buffers of a recorded log with each strategy, and compare the memory they need\n"
                    "with the lower bound, the largest sum of bytes live at once.",
        epilog="The log is CSV with the header id,lower,upper,size. A buffer is live from lower up to, not including,\n"
               "upper (integers, any unit of time); its size is in bytes. Online strategies (best_fit, first_fit) see\n"
               "the log in time order, deaths before births; offline ones (greedy_*) see all of it at once.\n\n"
               "exit code: 0; 2 if an argument or the log is wrong, or if no chosen strategy fits the capacity")
    parser.add_argument("log", metavar="LOG", help="CSV file of lifetimes")
    parser.add_argument("--strategy", default="all", metavar="NAME", help=f"all (default), {', '.join(STRATEGIES)}")
    parser.add_argument("--capacity", metavar="SIZE",
                        help="memory there is, like 16GiB, 512MB or 1000; unlimited by default")
    parser.add_argument("--save", metavar="OFFSETS.csv",
                        help="write the log with a column offset (bytes) as the strategy of the lowest peak places it")
    try:
        _compare(parser.parse_args(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
