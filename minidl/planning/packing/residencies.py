"""Addresses for a planned iteration: each residency is a rectangle, steps wide and bytes high, in one strip of memory.

A donated input and the output over it have one address: they are one rectangle. The residencies of a plan begin and end
nearly like the entries of a stack, so packing (``solve``) needs only a percent or two more than the bytes in use. A
residency that does not fit gets no address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from minidl.meta import ALIGNMENT
from minidl.planning.packing.routes import routes
from minidl.planning.packing.solve import pack
from minidl.planning.packing.strip import ANYWHERE, Strip, most_live, stacked, strip
from minidl.planning.problem import ENDLESS, Array

NO_ADDRESS = -1
# The most work for n rectangles: this many units times n log2 n, and at most about half a second's.
ORDERS, MOST_ORDERS = 200_000, 125_000_000
SEARCHES, MOST_SEARCHES = 100_000, 125_000_000
FOR_WORKSPACES = 0.2  # the share of this work for all attempts that make room for workspaces
TRIES = 6  # the most of these attempts
FOR_STACKINGS = 0.2
TOLERANCES = (0.02, 0.01, 0.005, 0.0025)  # shares by which residencies may be rounded up
SMALL = 1e-4  # share of the room: smaller residencies are many, hold little, and get no address


class PlannedMove(NamedTuple):
    """A relocation: before ``step`` a tensor moves to the address ``offset``.
    note: the row of its residency in ``notes``."""

    note: int
    step: int
    offset: int


class Addresses(NamedTuple):
    """The result of packing: each residency's offset or NO_ADDRESS, and the relocations.
    over: bytes that found no address, without small tensors and workspaces; if relocation was forbidden, plus the
    height of the highest one above the strip.
    holes: per residency: the largest hole that is left to a workspace, in bytes; ENDLESS for what is no workspace."""

    offsets: Array
    over: int
    moves: tuple[PlannedMove, ...] = ()
    holes: Array = np.zeros(0, np.int64)


Movable = Callable[[int], Array]
"""Returns the steps before which a residency may be moved, in ascending order."""


def addresses(notes: Array, steps: int, size: Array, *, born_before: Array, outlives: Array, successor: Array,
              room: int, effort: float = 1.0, movable: Movable | None = None,
              lost: Callable[[Array], float] | None = None) -> Addresses:
    """Return addresses for the residencies of an iteration that repeats, as far as they fit.

    notes        [residencies, 4] of ``schedule.simulate``
    steps        number of steps of the iteration
    size         bytes of each tensor and, after the tensors, of each workspace
    born_before  per tensor: True if it exists when the iteration starts
    outlives     per tensor: True if it outlives the iteration; if born before it, it lies outside the strip
    successor    per tensor: the tensor of this iteration that replaces it when the next one starts, or -1
    room         bytes of the strip
    effort       share of the usual work
    movable      the steps at which a residency may be relocated; None forbids relocation
    lost         the cost of the holes that workspaces have, int64 [residencies], as in ``Addresses.holes``; None: the
                 bytes of those that have no hole

    Bytes that are live across the iteration's end have the same address at its end and at its start. Successors lie at
    the strip's low end; above them lie tensors that are freed without a successor, then tensors whose copy out ends in
    the next iteration. Small tensors get no address; room for them is left above the strip. Workspaces get no address
    either: packing only tries to leave a hole for each. Without a hole a call still runs, with a slower algorithm.
    """
    tensors = len(born_before)
    none = np.zeros(len(size) - tensors, np.bool_)
    flags = np.append(born_before, none), np.append(outlives, none), np.append(successor, np.full(len(none), -1))
    wanted = notes[:, 0] < tensors
    offsets = np.full(len(notes), NO_ADDRESS, np.int64)
    offsets[wanted], over, moves, _ = _addresses(notes[wanted], steps, size, *flags, room, effort, movable)
    holes = _holes(notes, tensors, offsets, size, room)
    nbytes = size[notes[:, 0]]
    lost = lost or (lambda holes: float(nbytes[holes < nbytes].sum()))
    least, effort = lost(holes), effort * FOR_WORKSPACES
    wanted |= holes < nbytes
    for _ in range(TRIES if not over and not moves else 0):
        # Workspaces come last in the notes, so leaving some out changes no number that the others refer to.
        if not least or notes[wanted, 0].max(initial=-1) < tensors:
            break
        effort /= 2
        found, left_out, *_ = _addresses(notes[wanted], steps, size, *flags, room, effort, None)
        if left_out:  # some workspaces that found no room are given up; or the largest, if tensors found none
            room_for = wanted & (notes[:, 0] >= tensors)
            given_up = np.nonzero(wanted)[0][found < 0]
            given_up = given_up[room_for[given_up]]
            wanted[given_up if len(given_up) else room_for & (nbytes == nbytes[room_for].max())] = False
            continue
        now = np.full(len(notes), NO_ADDRESS, np.int64)
        now[wanted] = found
        now[notes[:, 0] >= tensors] = NO_ADDRESS
        there = _holes(notes, tensors, now, size, room)
        cost = lost(there)
        if cost < least:
            offsets, holes, least = now, there, cost
        wanted |= there < nbytes  # in these addresses others have lost their holes
    offsets[notes[:, 0] >= tensors] = NO_ADDRESS
    return Addresses(offsets, over, moves, holes)


def _holes(notes: Array, tensors: int, offsets: Array, size: Array, room: int) -> Array:
    """Return the largest hole beside the placed tensors of its step for each workspace, ENDLESS for other residencies.
    Of a tensor that is relocated, only the first address counts."""
    result = np.full(len(notes), ENDLESS)
    lies = np.nonzero((notes[:, 0] < tensors) & (offsets >= 0))[0]
    begins = offsets[lies]
    ends = begins + size[np.where(notes[lies, 0] < 0, -1 - notes[lies, 0], notes[lies, 0])]
    for n in np.nonzero(notes[:, 0] >= tensors)[0]:
        step = notes[n, 1]
        there = (notes[lies, 1] <= step) & ((notes[lies, 2] >= step) | (notes[lies, 2] < 0))
        order = np.argsort(begins[there])
        tops = np.maximum.accumulate(np.append(0, ends[there][order]))
        result[n] = (np.append(begins[there][order], room) - tops).max()
    return result


def _addresses(notes: Array, steps: int, size: Array, born_before: Array, outlives: Array, successor: Array,
               room: int, effort: float, movable: Movable | None) -> Addresses:
    count = len(notes)
    tensor = np.where(notes[:, 0] < 0, -1 - notes[:, 0], notes[:, 0])
    first, last = notes[:, 1], np.where(notes[:, 2] < 0, steps - 1, notes[:, 2])
    until = -2 - notes[:, 2]  # if not negative: the step of the next iteration at which the residency ends
    head = np.arange(count)
    for n in range(count):
        if notes[n, 3] >= 0:
            head[n] = head[notes[n, 3]]
    end = last.copy()
    np.maximum.at(end, head, last)
    np.maximum.at(until, head, until.copy())
    at_start = born_before[tensor] & (first == 0)
    old = np.nonzero(at_start & (successor[tensor] >= 0))[0]
    latest = np.full(len(size), -1)
    latest[tensor] = head  # each tensor's last residency
    new = latest[successor[tensor[old]]]
    elsewhere = at_start & (outlives[tensor] | (last == 0)) & (successor[tensor] < 0)
    whole = np.nonzero((head == np.arange(count)) & ~elsewhere)[0]
    stays = ~at_start & (notes[:, 2] < 0)  # its address must not collide with those of the next iteration
    small = (size[tensor[whole]] < SMALL * room) & ~np.isin(whole, np.append(old, head[stays]))
    # Leave a quarter more than small tensors need: they get addresses at run time, outside the strip.
    little = whole[small]
    left = room - most_live(strip(first[little], end[little], size[tensor[little]], room)) * 5 // 4
    placed = whole[~small]

    fixed, base = np.full(count, ANYWHERE), 0
    gone = placed[at_start[placed] & (successor[tensor[placed]] < 0)]
    staying = placed[until[placed] >= 0]
    for rows in (new, gone):
        fixed[rows] = base + stacked(first[rows], end[rows], size[tensor[rows]])
        base += int(size[tensor[rows]].sum())
    fixed[old] = fixed[new]
    begins, ends = np.append(first[placed], np.zeros_like(staying)), np.append(end[placed], until[staying])
    rows = np.append(placed, staying)
    strips = []
    for offset in _stackings(first[staying], end[staying], until[staying], size[tensor[staying]], base, left):
        fixed[staying] = offset
        strips.append(_rounded(Strip(begins, ends, size[tensor[rows]], left, fixed[rows])))
    problem, best, over = _most_packed(strips, effort)
    offsets = np.full(count, NO_ADDRESS, np.int64)
    fits = (best + problem.size <= problem.room)[:len(placed)]
    offsets[placed[fits]] = best[:len(placed)][fits]
    offsets = offsets[head]
    moves: list[PlannedMove] = []
    if over and movable is not None:
        by_head = np.argsort(head, kind="stable")

        def parts(n: int) -> Array:
            """Return the residencies (row numbers) that rectangle n consists of, in the order of their steps."""
            return by_head[slice(*np.searchsorted(head[by_head], (rows[n], rows[n] + 1)))]

        def cuts(n: int) -> Array:
            if n >= len(placed) or at_start[parts(n)].any():
                return np.zeros(0, np.int64)
            return np.concatenate([movable(int(part)) for part in parts(n)])

        found = routes(problem, best, cuts, effort)
        for n, stays in found.items():
            its = parts(n)
            offsets[its] = stays[0].offset
            for stay in stays[1:]:
                offsets[its[first[its] >= stay.step]] = stay.offset
                there = (first[its] < stay.step) & (last[its] >= stay.step - 1)
                moves.append(PlannedMove(int(its[there][-1]), *stay))
        above = best + problem.size > problem.room
        above[list(found)] = False
        over = int(problem.size[above].sum())
    return Addresses(offsets, over, tuple(moves))


def _stackings(first: Array, end: Array, until: Array, size: Array, base: int, room: int) -> Iterator[Array]:
    """Yield offsets for the tensors whose copies out end in the next iteration, int64 [tensors].
    Each result is a stack, from address ``base`` upwards or from ``room`` downwards. It begins with the tensors made
    first, or whose copies end last. In the wrong place a tensor divides memory that two large ones need.
    first, end: the tensors' steps in this iteration; until: their last steps in the next; size: their bytes."""
    orders = stacked(first, end, size), stacked(np.zeros_like(until), until, size)
    yield base + orders[0]
    if len(size):
        yield base + orders[1]
    top = room - room % ALIGNMENT
    if len(size) and base + size.sum() <= top:
        yield from (top - order - size for order in orders)


def _most_packed(strips: list[Strip], effort: float) -> tuple[Strip, Array, int]:
    """Return the strip that leaves the fewest bytes above it, its offsets, and these bytes.
    Each gets a small share of the work, and the first that packs completely is taken; else the best gets all of it."""
    over, number, offset = ENDLESS, 0, None
    for n, each in enumerate(strips if len(strips) > 1 else ()):
        other, left = _packed(each, effort * FOR_STACKINGS, least=over)
        if not left:
            return each, other, 0
        if left < over:
            over, number, offset = left, n, other
    again, left = _packed(strips[number], effort, known=offset)
    return (strips[number], again, left) if offset is None or left < over else (strips[number], offset, over)


def _packed(problem: Strip, effort: float, *, least: int = ENDLESS, known: Array | None = None) -> tuple[Array, int]:
    many = effort * len(problem.size) * np.log2(len(problem.size) + 1)
    return pack(problem, orders=int(min(effort * MOST_ORDERS, ORDERS * many)),
                searches=int(min(effort * MOST_SEARCHES, SEARCHES * many)), least=least, known=known)


def _rounded(problem: Strip) -> Strip:
    """Round nearly equal sizes of movable rectangles up to the largest of them, if the bytes in use then still fit.
    In a batch that the number of slices does not divide, some slices are one example larger. Rounding avoids the
    small useless holes that such unequal sizes leave."""
    free = problem.fixed == ANYWHERE
    for tolerance in TOLERANCES:
        size = problem.size.copy()
        size[free] = _classes(size[free], tolerance)
        rounded = problem._replace(size=size)
        if most_live(rounded) <= problem.room:
            return rounded
    return problem


def _classes(size: Array, tolerance: float) -> Array:
    """Replace each size by the largest one that exceeds it by at most the share ``tolerance``, from the largest down.
    """
    sizes, which = np.unique(size, return_inverse=True)
    largest = sizes.copy()
    for n in range(len(sizes) - 2, -1, -1):
        if sizes[n] >= largest[n + 1] * (1.0 - tolerance):
            largest[n] = largest[n + 1]
    return largest[which]
