"""Valleys of a half-filled strip: which rectangles fit into a valley, and which decisions exclude the others.

A strip is filled from below; its *sections* divide its time axis, and a section's *floor* is the height up to which it
is filled. A *valley* is a run of sections with one floor between higher ones, its *walls*. A decision is about one end
of a valley: the answer is a rectangle that begins (left end) or ends (right end) there and lies in the valley, or
nothing: then the floor rises at that end to the lower wall, or to the top of the smallest rectangle inside. Compiled by
Numba: state is in arrays, without reference counting, since each function receives a dozen arrays.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from minidl.planning.problem import Array

HIGH = 1 << 62  # the height of a wall that no remaining rectangle crosses


class Rectangles(NamedTuple):
    """The rectangles to place, with lists of those that begin and of those that end in each section.

    ``from_idx[from_ptr[s]:from_ptr[s + 1]]`` begin with section s, ``to_idx[to_ptr[s]:to_ptr[s + 1]]`` end with it.
    Equal rectangles are neighbours in these lists."""

    first: Array
    last: Array
    size: Array
    from_ptr: Array
    from_idx: Array
    to_ptr: Array
    to_idx: Array


class ValleyState(NamedTuple):
    """The state of the search: how far each section of the strip is filled.

    floor    per section: the height up to which its bytes are filled or given up (wasted)
    spare    per section: bytes that may still be wasted
    open     per section: number of rectangles still to place
    level    per rectangle: the number of the decision that placed it, or -1
    latest   per section: the row of ``entries`` of its floor's latest rise, or -1 if its floor never rose
    entries  [rows, 3]: a row for each rise of a floor: the decision that caused it, the section's floor before it, and
             the row of the same section's previous rise, or -1
    right    per section: the last section of the valley that begins with this section, or -1 if none does
    answers  [sections, 2]: for the valley that begins with a section, the number of possible answers of a decision at
             its left end, and at its right end
    inside   scratch memory of ``_starved``
    """

    floor: Array
    spare: Array
    open: Array
    level: Array
    latest: Array
    entries: Array
    right: Array
    answers: Array
    inside: Array


@register_jitable(_nrt=False)
def wall(state: ValleyState, s: int) -> int:
    """Return the height of section s as a wall beside a valley:
    its floor; HIGH if no rectangle over s is left to place."""
    if s < 0 or s >= len(state.open) or state.open[s] == 0:
        return HIGH
    return int(state.floor[s])


@register_jitable(_nrt=False)
def fitting(rects: Rectangles, state: ValleyState, left: int, right: int, at_left: bool, found: Array) -> int:
    """Write to ``found`` the rectangles that fit at one end of the valley left..right; return their number.
    Of equal ones only one is written. at_left: True for the left end, False for the right end."""
    count = 0
    before = -1
    pointer, numbers, edge = (rects.from_ptr, rects.from_idx, left) if at_left else (rects.to_ptr, rects.to_idx, right)
    for n in range(pointer[edge], pointer[edge + 1]):
        p = numbers[n]
        if state.level[p] < 0 and rects.first[p] >= left and rects.last[p] <= right:
            if before < 0 or rects.size[p] != rects.size[before] or (
                    rects.first[p] != rects.first[before] or rects.last[p] != rects.last[before]):
                found[count] = p
                count += 1
            before = p
    return count


@register_jitable(_nrt=False)
def rise(rects: Rectangles, state: ValleyState, left: int, right: int, at_left: bool) -> tuple[int, int]:
    """Return (section, height): how far and how high the floor rises if one end of the valley left..right stays empty.
    at_left: True for the left end, False for the right end."""
    floor = state.floor[left]
    height = min(wall(state, left - 1), wall(state, right + 1))
    if at_left:
        end = right
        for n in range(rects.from_ptr[left + 1], rects.from_ptr[right + 1]):
            p = rects.from_idx[n]
            if state.level[p] < 0 and rects.last[p] <= right:
                end = min(end, rects.first[p] - 1)
                height = min(height, floor + rects.size[p])
    else:
        end = left
        for n in range(rects.to_ptr[left], rects.to_ptr[right]):
            p = rects.to_idx[n]
            if state.level[p] < 0 and rects.first[p] >= left:
                end = max(end, rects.last[p] + 1)
                height = min(height, floor + rects.size[p])
    return end, height


@register_jitable(_nrt=False)
def may_rise(rects: Rectangles, state: ValleyState, left: int, right: int, at_left: bool, found: Array,
             count: int) -> bool:
    """True if one end of the valley left..right may stay empty, so that its floor rises there.
    No section may then waste more bytes than it can spare, and none of the ``count`` rectangles in ``found``, which
    fit at this end, may fit in the wasted area. at_left: True for the left end."""
    edge = left if at_left else right
    if state.spare[edge] == 0:
        return False
    end, height = rise(rects, state, left, right, at_left)
    lost = height - state.floor[edge]
    for s in range(min(edge, end), max(edge, end) + 1):
        if lost > state.spare[s]:
            return False
    for n in range(count):
        p = found[n]
        if rects.size[p] <= lost and min(edge, end) <= rects.first[p] and rects.last[p] <= max(edge, end):
            return False
    return True


@register_jitable(_nrt=False)
def _starved(rects: Rectangles, state: ValleyState, left: int, right: int) -> tuple[int, int]:
    """Return (section, bytes)
    of a section of the valley left..right that no fitting rectangles can fill up to the lower wall. The bytes are
    those that they can fill there; (-1, 0) if there is no such section."""
    depth = min(wall(state, left - 1), wall(state, right + 1)) - state.floor[left]
    if depth > HIGH // 2:
        return -1, 0
    state.inside[left:right + 2] = 0
    for n in range(rects.from_ptr[left], rects.from_ptr[right + 1]):
        p = rects.from_idx[n]
        if state.level[p] < 0 and rects.last[p] <= right:
            state.inside[rects.first[p]] += rects.size[p]
            state.inside[rects.last[p] + 1] -= rects.size[p]
    total = 0
    for s in range(left, right + 1):
        total += state.inside[s]
        if depth - total > state.spare[s]:
            return s, total
    return -1, 0


@register_jitable(_nrt=False)
def _look(rects: Rectangles, state: ValleyState, left: int, right: int, found: Array) -> None:
    """Count the answers at both ends of the valley left..right, and store them in ``state.answers``."""
    state.right[left] = right
    starved, _ = _starved(rects, state, left, right)
    for end in range(2):
        count = 0
        if starved < 0:
            count = fitting(rects, state, left, right, end == 0, found)
            if may_rise(rects, state, left, right, end == 0, found, count):
                count += 1
        state.answers[left, end] = count


@register_jitable(_nrt=False)
def survey(rects: Rectangles, state: ValleyState, begin: int, end: int, found: Array) -> int:
    """Count the answers of each valley that a change of sections begin..end affects; return the sections visited.
    found: scratch array."""
    sections = len(state.open)
    s, stop = max(begin - 1, 0), min(end + 1, sections - 1)
    while s > 0 and state.open[s] and state.open[s - 1] and state.floor[s - 1] == state.floor[s]:
        s -= 1
    start = s
    while s <= stop:
        left = s
        state.right[s] = -1
        s += 1
        if state.open[left] == 0:
            continue
        floor = state.floor[left]
        while s < sections and state.open[s] and state.floor[s] == floor:
            state.right[s] = -1
            s += 1
        if wall(state, left - 1) > floor and wall(state, s) > floor:
            _look(rects, state, left, s - 1, found)
    return s - start


@register_jitable(_nrt=False)
def _mark(bits: Array, level: int) -> None:
    bits[level >> 6] |= np.uint64(1) << np.uint64(level & 63)


@register_jitable(_nrt=False)
def _blame_section(state: ValleyState, bits: Array, s: int) -> None:
    e = state.latest[s]
    while e >= 0:
        _mark(bits, state.entries[e, 0])
        e = state.entries[e, 2]


@register_jitable(_nrt=False)
def _blame_wall(state: ValleyState, bits: Array, s: int, low: int, high: int) -> None:
    """Mark in ``bits`` the decisions that prevent a rectangle over section s from having its offset in low..high."""
    if s < 0 or s >= len(state.open):
        return
    if state.open[s] == 0 and state.floor[s] <= high:
        _blame_section(state, bits, s)  # all rectangles that cross it are placed
        return
    e = state.latest[s]
    while e >= 0:
        if state.entries[e, 1] <= high:
            _mark(bits, state.entries[e, 0])
        if state.entries[e, 1] <= low:
            break
        e = state.entries[e, 2]


@register_jitable(_nrt=False)
def blame(rects: Rectangles, state: ValleyState, bits: Array, left: int, right: int, at_left: bool) -> None:
    """Mark in ``bits`` the decisions that leave this end of a valley exactly its present answers.
    at_left: True for the left end."""
    edge = left if at_left else right
    floor = state.floor[edge]
    starved, total = _starved(rects, state, left, right)
    if starved >= 0:
        _blame_section(state, bits, starved)
        _blame_wall(state, bits, left - 1, floor, floor + total + state.spare[starved])
        _blame_wall(state, bits, right + 1, floor, floor + total + state.spare[starved])
        return
    _blame_section(state, bits, edge)
    end, height = rise(rects, state, left, right, at_left)
    lost = height - floor
    if state.spare[edge] < lost:
        lost = state.spare[edge] + 1  # the least waste that would have been too much
    else:
        for s in range(min(edge, end), max(edge, end) + 1):
            if state.spare[s] < lost:
                lost = state.spare[s] + 1
                _blame_section(state, bits, s)
                break
    _blame_wall(state, bits, left - 1, floor, floor + lost - 1)
    _blame_wall(state, bits, right + 1, floor, floor + lost - 1)
    if lost > 1:  # if a rectangle inside the valley were not placed yet, the floor might rise less or more narrowly
        for n in range(rects.from_ptr[left], rects.from_ptr[right + 1]):
            p = rects.from_idx[n]
            if state.level[p] >= 0 and rects.last[p] <= right:
                _mark(bits, state.level[p])
