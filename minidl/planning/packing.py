"""Addresses for a planned iteration: every residency is a rectangle, steps wide and bytes high, in one strip of memory.

  1. What is written over something else lies where that lay: such residencies are one rectangle.
  2. Each in turn takes the lowest address that is free during all its steps; largest first (greedy by size: Pisarchyk
     and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference").
  3. While some reach above the memory, one of these goes to a random earlier place in the order, or any to any other
     place; kept unless more bytes are above it than before.

A plan's residencies nest, nearly as a stack's do, so this ends within a percent or two of what is live at once. What
still does not fit gets no address. Knows steps and sizes only.
"""

from __future__ import annotations

import numpy as np

from minidl.compiling import njit
from minidl.planning.problem import Array

NO_ADDRESS = -1
ATTEMPTS = 6   # first orders to begin with
TRIES = 3000   # changes of each
FOR_WORKSPACES = 500  # the same, when all tensors have a place already
SMALL = 1e-4  # of the room: smaller residencies are too many for what they hold, and get no address


def addresses(notes: Array, steps: int, size: Array, *, born_before: Array, outlives: Array,
              room: int, tries: int = TRIES) -> tuple[Array, int]:
    """(offset of each residency in the strip, or NO_ADDRESS; bytes that found no place).

    notes: [residencies, 4] of ``schedule.simulate``; size: of each tensor and, after them, each workspace, in bytes;
    room: bytes of the strip. born_before: tensors that are there when the iteration starts: they lie at the strip's low
    end, but for those that outlive it and lie elsewhere, and those that go at once. Small tensors get the room that is
    left above the strip. Workspaces get no address either: where there is no hole for one, a way to place the tensors
    is looked for that leaves it; without its workspace a call is only slower.
    """
    tensors = len(born_before)
    none = np.zeros(len(size) - tensors, np.bool_)
    flags = np.append(born_before, none), np.append(outlives, none)
    wanted = notes[:, 0] < tensors
    offsets = np.full(len(notes), NO_ADDRESS, np.int64)
    offsets[wanted], over = _addresses(notes[wanted], steps, size, *flags, room, tries)
    if not over:
        wanted |= _homeless(notes, tensors, offsets, size, room)
        # Workspaces come last in the notes, so leaving some out changes no number that the others refer to.
        while notes[wanted, 0].max(initial=-1) >= tensors:
            found, left_out = _addresses(notes[wanted], steps, size, *flags, room, FOR_WORKSPACES)
            if not left_out:
                offsets[wanted] = found
                break
            placed = notes[:, 0] < tensors
            placed[np.nonzero(wanted)[0][found >= 0]] = True
            if placed.sum() == wanted.sum():
                break
            wanted = placed
    offsets[notes[:, 0] >= tensors] = NO_ADDRESS
    return offsets, over


def _homeless(notes: Array, tensors: int, offsets: Array, size: Array, room: int) -> Array:
    """Which workspaces find no hole between the tensors that lie somewhere while their call runs."""
    result = np.zeros(len(notes), np.bool_)
    lies = np.nonzero((notes[:, 0] < tensors) & (offsets >= 0))[0]
    begins = offsets[lies]
    ends = begins + size[np.where(notes[lies, 0] < 0, -1 - notes[lies, 0], notes[lies, 0])]
    for n in np.nonzero(notes[:, 0] >= tensors)[0]:
        step = notes[n, 1]
        there = (notes[lies, 1] <= step) & ((notes[lies, 2] >= step) | (notes[lies, 2] < 0))
        order = np.argsort(begins[there])
        tops = np.maximum.accumulate(np.append(0, ends[there][order]))
        result[n] = (np.append(begins[there][order], room) - tops).max() < size[notes[n, 0]]
    return result


def _addresses(notes: Array, steps: int, size: Array, born_before: Array, outlives: Array,
               room: int, tries: int) -> tuple[Array, int]:
    count = len(notes)
    tensor = np.where(notes[:, 0] < 0, -1 - notes[:, 0], notes[:, 0])
    first, last = notes[:, 1], np.where(notes[:, 2] < 0, steps - 1, notes[:, 2])
    head = np.arange(count)
    for n in range(count):
        if notes[n, 3] >= 0:
            head[n] = head[notes[n, 3]]
    end = last.copy()
    np.maximum.at(end, head, last)
    elsewhere = born_before[tensor] & (first == 0) & (outlives[tensor] | (last == 0))
    whole = np.nonzero((head == np.arange(count)) & ~elsewhere)[0]
    small = size[tensor[whole]] < SMALL * room
    # A quarter more than they need: they are placed as they come, and are to leave the strip alone.
    strip = room - _most_live(first[whole[small]], end[whole[small]], size[tensor[whole[small]]], steps) * 5 // 4
    placed = whole[~small]
    first, end, sizes = first[placed], end[placed], size[tensor[placed]]
    before = born_before[tensor[placed]] & (notes[placed, 1] == 0)
    long = first - end
    orders = ((first, -sizes), (sizes * (long - 1.0),), (long, -sizes))  # later keys weigh more
    least, best = 1 << 62, np.zeros(len(placed), np.int64)
    for attempt in range(ATTEMPTS):
        order = np.lexsort((*orders[attempt % len(orders)], ~before))
        offset, over = _pack(first, end, sizes, order, strip, tries, attempt)
        if over < least:
            least, best = over, offset
        if not over:
            break
    offsets = np.full(count, NO_ADDRESS, np.int64)
    fits = best + sizes <= strip
    offsets[placed[fits]] = best[fits]
    return offsets[head], int(least)


def _most_live(first: Array, last: Array, size: Array, steps: int) -> int:
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return int(np.cumsum(change).max())


@njit(cache=True)
def _lowest_fit(first: Array, last: Array, size: Array, order: Array, offset: Array) -> int:
    """Place all in this order; the height."""
    count = len(order)
    by_offset = np.zeros(count, np.int64)  # what has been placed, lowest first
    height = 0
    for n in range(count):
        i = order[n]
        at = 0
        for m in range(n):
            j = by_offset[m]
            if first[j] <= last[i] and first[i] <= last[j]:
                if offset[j] - at >= size[i]:
                    break
                at = max(at, offset[j] + size[j])
        offset[i] = at
        m = n
        while m > 0 and offset[by_offset[m - 1]] > at:
            by_offset[m] = by_offset[m - 1]
            m -= 1
        by_offset[m] = i
        height = max(height, at + size[i])
    return height


@njit(cache=True)
def _pack(first: Array, last: Array, size: Array, order: Array, room: int, tries: int, seed: int) -> tuple[Array, int]:
    """(offsets, bytes of the rectangles above the room), the best that was found from one first order."""
    np.random.seed(seed)
    count = len(order)
    offset = np.zeros(count, np.int64)
    best = np.zeros(count, np.int64)
    trial = order.copy()
    least = 1 << 62
    for n in range(tries + 1):
        if n:
            trial[:] = order
            if np.random.random() < 0.6:
                above = 0
                at = 0
                for k in range(count):  # one of those above the room, each as likely
                    if best[order[k]] + size[order[k]] > room:
                        above += 1
                        if np.random.randint(above) == 0:
                            at = k
                to = np.random.randint(0, at + 1)
            else:
                at, to = np.random.randint(count), np.random.randint(count)
            step = 1 if to > at else -1
            for k in range(at, to, step):
                trial[k] = trial[k + step]
            trial[to] = order[at]
        height = _lowest_fit(first, last, size, trial, offset)
        over = max(0, height - room)
        for k in range(count):
            if offset[k] + size[k] > room:
                over += size[k]
        if over <= least:
            least = over
            best[:] = offset
            order[:] = trial
        if not least:
            break
    return best, least
