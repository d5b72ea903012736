"""Rectangles of steps x bytes that are known to fit a strip of memory, cut from it or drawn as networks use memory."""

from __future__ import annotations

import heapq

import numpy as np

from minidl.planning.packing.strip import Strip, strip

GRID = 1024  # steps and units of memory of the whole
KINDS = ("guillotine", "pinwheel", "mosaic", "network", "adversarial")


def cut(seed: int, pieces: int, kind: str = "guillotine", *, fill: float = 1.0, shrink: bool = False,
        holes: float = 0.0, steps: int = GRID, height: int = GRID, unit: int = 1024) -> Strip:
    """A strip, and so many rectangles that fit into it, in random order.

    kind: how the whole is cut: ``guillotine`` by straight cuts from side to side of what is cut; ``pinwheel`` now and
    then into four around a fifth, which no such cuts make; ``mosaic`` along an uneven grid, so that much begins and
    ends together; ``network`` with lifetimes that nest, first made last gone; ``adversarial`` into long thin and short
    thick pieces.
    fill: share of the strip that the whole takes. The rest lies above it, or, if shrink, is taken from each piece, each
    by a share of its own, so that no two heights add up to the same any more.
    holes: share of the pieces that are left out.
    """
    rng = np.random.default_rng(seed)
    if kind == "network":
        whole = _nested(rng, pieces, steps, height)
    elif kind == "mosaic":
        whole = _mosaic(rng, pieces, steps, height)
    else:
        whole = _cut(rng, pieces, kind, steps, height)
    first, last, _, size = (np.array(column, np.int64) for column in zip(*whole, strict=True))
    size *= unit
    room = height * unit
    if shrink:
        size = np.maximum(1, (size * (1 - (1 - fill) * rng.uniform(0, 2, len(size)))).astype(np.int64))
    else:
        room = int(np.ceil(room / fill))
    order = rng.permutation(len(size))[round(holes * len(size)):]
    return strip(first[order], last[order], size[order], room)


Rectangle = tuple[int, int, int, int]  # first and last step, lowest unit, units


def _cut(rng: np.random.Generator, pieces: int, kind: str, steps: int, height: int) -> list[Rectangle]:
    """Cut the whole into pieces, each time the largest piece, or now and then another one by lot."""
    heap: list[tuple[float, Rectangle]] = [(0.0, (0, steps - 1, 0, height))]
    done: list[Rectangle] = []
    while heap and len(heap) + len(done) < pieces:
        _, whole = heapq.heappop(heap)
        room = pieces - len(heap) - len(done)
        parts = _pinwheel(rng, whole) if kind == "pinwheel" and room >= 5 and rng.random() < 0.3 else []
        parts = parts or _halves(rng, whole, kind)
        if len(parts) == 1:
            done.append(whole)
        for part in parts if len(parts) > 1 else ():
            first, last, _, size = part
            heapq.heappush(heap, (-(last - first + 1) * size * rng.uniform(0.3, 1.0), part))
    return done + [part for _, part in heap]


def _halves(rng: np.random.Generator, whole: Rectangle, kind: str) -> list[Rectangle]:
    first, last, low, size = whole
    long, high = last - first + 1, size
    if long < 2 and high < 2:
        return [whole]
    across = rng.random() < (0.5 if kind != "adversarial" else (0.1, 0.9)[(first // 128 + whole[2] // 128) % 2])
    if long < 2 or (across and high >= 2):
        at = int(rng.integers(1, high))
        return [(first, last, low, at), (first, last, low + at, size - at)]
    at = int(rng.integers(first + 1, last + 1))
    return [(first, at - 1, low, size), (at, last, low, size)]


def _pinwheel(rng: np.random.Generator, whole: Rectangle) -> list[Rectangle]:
    first, last, low, size = whole
    if last - first < 2 or size < 3:
        return []
    left, right = sorted(rng.choice(np.arange(first + 1, last + 1), 2, replace=False).tolist())
    bottom, top = sorted(rng.choice(np.arange(1, size), 2, replace=False).tolist())
    return [(first, right - 1, low, bottom), (right, last, low, top), (left, last, low + top, size - top),
            (first, left - 1, low + bottom, size - bottom), (left, right - 1, low + bottom, top - bottom)]


def _nested(rng: np.random.Generator, pieces: int, steps: int, height: int) -> list[Rectangle]:
    """Draw lifetimes as in a forward and a backward pass: those that begin first end last, with short ones between."""
    whole: list[Rectangle] = []
    first, last, low = 0, steps - 1, 0
    layers = max(2, pieces // 6)
    parts = np.sort(rng.choice(np.arange(1, height), layers, replace=False))
    lows = np.concatenate([[0], parts])
    highs = np.concatenate([parts, [height]])
    ups = np.sort(rng.choice(np.arange(1, steps // 2), layers, replace=False))
    downs = np.sort(rng.choice(np.arange(steps // 2 + 1, steps), layers, replace=False))[::-1]
    for layer in range(layers + 1):
        low, size = int(lows[layer]), int(highs[layer] - lows[layer])
        whole.append((first, last, low, size))
        if layer < layers:
            rest = height - int(highs[layer])
            if rest <= 0:
                break
            for begin, end in ((first, int(ups[layer]) - 1), (int(downs[layer]), last)):
                if end >= begin:
                    whole += [(a, b, int(highs[layer]) + c, d) for a, b, c, d in
                              _cut(rng, int(rng.integers(1, 5)), "guillotine", end - begin + 1, rest)
                              for a, b in ((a + begin, b + begin),)]
            first, last = int(ups[layer]), int(downs[layer]) - 1
    return whole


def _mosaic(rng: np.random.Generator, pieces: int, steps: int, height: int) -> list[Rectangle]:
    """Join cells of an uneven grid to rectangles that grow until they touch others."""
    side = int(np.ceil((2.5 * pieces) ** 0.5))
    columns = np.concatenate([[0], np.sort(rng.choice(np.arange(1, steps), side - 1, replace=False)), [steps]])
    rows = np.concatenate([[0], np.sort(rng.choice(np.arange(1, height), side - 1, replace=False)), [height]])
    taken = np.zeros((side, side), np.bool_)
    whole: list[Rectangle] = []
    for cell in rng.permutation(side * side).tolist():
        left, low = divmod(cell, side)
        if taken[left, low]:
            continue
        right, high = left + 1, low + 1
        for _ in range(int(rng.integers(0, 5))):
            if rng.random() < 0.5 and right < side and not taken[right, low:high].any():
                right += 1
            elif high < side and not taken[left:right, high].any():
                high += 1
        taken[left:right, low:high] = True
        whole.append((int(columns[left]), int(columns[right]) - 1, int(rows[low]), int(rows[high] - rows[low])))
    return whole
