"""Joins rectangles that look like parts of one larger rectangle (a block), so that the search has fewer to place.

In a nearly full strip, the rectangles that end at a border between two sections leave just the room for the rectangles
that begin there. So sections and approximate heights alone show which rectangles belong together:

  in line   one ends where the other begins, and both have the same height;
  stacked   they begin together and end together;
  pinwheel  four around a fifth.

Joining repeats until none of these patterns is left. The patterns are guesses, but any packing of the blocks gives a
valid packing of their parts. In this package a block is such a union, not a range of the arena.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from minidl.planning.packing.strip import ANYWHERE, Strip, live, sections
from minidl.planning.problem import Array

MOST = 7  # no guess at a border with more rectangles than this on one side
Group = tuple[tuple[int, ...], tuple[int, ...]]  # rectangles that end, and that begin, at a border in the same room


class Guess(NamedTuple):
    """Parameters that say how readily rectangles are joined.

    tolerance  heights count as equal if they differ by less than this factor times the free share of the strip.
    overlook   the share of groups that is left out at random, because some groups are wrong.
    alike      True: stack all rectangles that begin and end together; False: only those of one group at both ends.
    single     True: a border's group counts only if the border has no other.
    """

    tolerance: float = 2.0
    overlook: float = 0.0
    alike: bool = False
    single: bool = False


class Blocks:
    """The unions of rectangles (blocks) of one strip, under one guess; seed: of the groups that are left out."""

    def __init__(self, strip: Strip, guess: Guess, seed: int) -> None:
        first, last = sections(strip)
        self.strip, self.guess, self.random = strip, guess, np.random.default_rng(seed)
        self.first, self.last, self.size = first.tolist(), last.tolist(), strip.size.tolist()
        self.count = int(last.max()) + 1
        self.spare = strip.room - live(first, last, strip.size, self.count)
        self.tolerance = guess.tolerance * float(np.median(self.spare)) / strip.room
        self.parts: list[Sequence[tuple[int, int]]] = [()] * len(first)  # of each block: rectangle, offset in it
        self.begin: list[set[int]] = [set() for _ in range(self.count + 1)]
        self.end: list[set[int]] = [set() for _ in range(self.count + 1)]
        for p in np.nonzero(strip.fixed == ANYWHERE)[0].tolist():
            self.begin[self.first[p]].add(p)
            self.end[self.last[p] + 1].add(p)
        self.changed = set(range(self.count + 1))  # the borders whose groups are out of date
        self.groups: list[list[Group]] = [[]] * (self.count + 1)
        while self._join_stacks() or self._join_pinwheels() or self._join_lines():
            pass

    def remaining(self) -> tuple[Strip, list[int]]:
        """Return the strip of the blocks and single rectangles that are still to be placed, and their numbers."""
        fixed = np.nonzero(self.strip.fixed != ANYWHERE)[0]
        left = fixed.tolist() + sorted(p for there in self.begin for p in there)
        first, last, size = (np.array([of[p] for p in left], np.int64) for of in (self.first, self.last, self.size))
        at = np.append(self.strip.fixed[fixed], np.full(len(left) - len(fixed), ANYWHERE))
        return Strip(first, last, size, self.strip.room, at), left

    def offsets(self, left: Iterable[int], offset: Array) -> Array:
        """Return the offset of each original rectangle, from the offsets of the blocks and single rectangles ``left``.
        """
        result = np.zeros(len(self.strip.size), np.int64)
        stack = list(zip(left, offset.tolist(), strict=True))
        while stack:
            p, at = stack.pop()
            if p < len(result):
                result[p] = at
            stack += [(part, at + low) for part, low in self.parts[p]]
        return result

    def _join(self, parts: Sequence[tuple[int, int]]) -> bool:
        """Join ``parts``, pairs (rectangle, offset within the block), into one block; return True.
        If that would waste more bytes than the strip can spare, change nothing and return False."""
        first, last = min(self.first[p] for p, _ in parts), max(self.last[p] for p, _ in parts)
        size = max(low + self.size[p] for p, low in parts)
        lost = np.full(last - first + 1, size, np.int64)
        for p, _ in parts:
            lost[self.first[p] - first:self.last[p] - first + 1] -= self.size[p]
        if (lost > self.spare[first:last + 1]).any():
            return False
        self.spare[first:last + 1] -= lost
        for p, _ in parts:
            self.begin[self.first[p]].discard(p)
            self.end[self.last[p] + 1].discard(p)
            self.changed |= {self.first[p], self.last[p] + 1}
        self.begin[first].add(len(self.size))
        self.end[last + 1].add(len(self.size))
        self.first.append(first)
        self.last.append(last)
        self.size.append(size)
        self.parts.append(parts)
        return True

    def _join_lines(self) -> bool:
        joined = False
        for border in range(1, self.count):
            for gone, come in self._groups(border):
                if len(gone) == len(come) == 1:
                    joined |= self._join([(gone[0], 0), (come[0], 0)])
        return joined

    def _join_stacks(self) -> bool:
        alike, group_at = self.guess.alike, []
        if not alike or self.guess.overlook:  # the order of random numbers
            group_at = [{p: n for n, group in enumerate(self._groups(border)) for p in (*group[0], *group[1])}
                        for border in range(self.count + 1)]
        stacks: dict[tuple[int, ...], list[int]] = {}
        for there in self.begin:
            for p in sorted(there) if len(there) > 1 else ():
                first, last = self.first[p], self.last[p]
                if alike:
                    stacks.setdefault((first, last), []).append(p)
                elif p in group_at[first] and p in group_at[last + 1]:
                    stacks.setdefault((first, last, group_at[first][p], group_at[last + 1][p]), []).append(p)
        joined = False
        for stack in stacks.values():
            if len(stack) > 1:
                height = np.cumsum([0] + [self.size[p] for p in stack]).tolist()
                joined |= self._join(list(zip(stack, height[:-1], strict=True)))
        return joined

    def _join_pinwheels(self) -> bool:
        joined = False
        for there in self.begin:
            for p in sorted(there):
                joined |= p in there and self._join_pinwheel(p)
        return joined

    def _join_pinwheel(self, middle: int) -> bool:
        """Join five rectangles in this arrangement, or its mirror image, if they exist; return True if they do:

            left   top    top
            left   middle right
            bottom bottom right
        """
        size, first, last = self.size, self.first, self.last
        most, best = 1 << 62, None
        for left in self.end[first[middle]]:
            for top in self.begin[first[middle]]:
                off = abs(size[top] + size[middle] - size[left])
                if top == middle or off > self.tolerance * size[left]:
                    continue
                for bottom in self.end[last[middle] + 1]:
                    if first[bottom] != first[left] or bottom == middle:
                        continue
                    for right in self.begin[last[middle] + 1]:
                        wrong = abs(size[bottom] + size[middle] - size[right])
                        if last[right] == last[top] and wrong <= self.tolerance * size[right] and off + wrong < most:
                            most, best = off + wrong, (left, top, bottom, right)
        if best is None:
            return False
        left, top, bottom, right = best
        above = max(size[bottom] + size[middle], size[right])
        return self._join([(bottom, 0), (right, 0), (left, size[bottom]), (middle, size[bottom]), (top, above)])

    def _groups(self, border: int) -> list[Group]:
        """Return the groups at a border between two sections.
        A group has rectangles that end at the border and rectangles that begin there, of about the same total
        height."""
        if border in self.changed:
            self.changed.discard(border)
            if border in (0, self.count):
                groups = [(tuple(sorted(self.end[border])), tuple(sorted(self.begin[border])))]
            else:
                groups = self._split(self.end[border], self.begin[border])
                if self.guess.single and len(groups) > 1:
                    groups = []
                groups = [group for group in groups if self.random.random() >= self.guess.overlook]
            self.groups[border] = groups
        return self.groups[border]

    def _split(self, ending: set[int], beginning: set[int]) -> list[Group]:
        if not (0 < len(ending) <= MOST and 0 < len(beginning) <= MOST):
            return []
        before, after = (sum(map(self.size.__getitem__, these)) for these in (ending, beginning))
        if abs(before - after) > self.tolerance * max(before, after):
            return []
        gone, come = sorted(ending), sorted(beginning)
        groups: list[Group] = []
        while gone and come:
            group = self._least_group(gone, come)
            if group is None:
                return []
            groups.append(group)
            gone, come = [p for p in gone if p not in group[0]], [p for p in come if p not in group[1]]
        return [] if gone or come else groups

    def _least_group(self, gone: list[int], come: list[int]) -> Group | None:
        """Return the group with the fewest rectangles; among equals, the one whose heights agree best.
        gone, come: the rectangles that end, and that begin, at the border."""
        size = self.size
        others = sorted((sum(size[p] for p in some), some)
                        for k in range(len(come)) for some in combinations(come, k + 1))
        sums = [height for height, _ in others]
        most, best = (1 << 62, 0), None
        for k in range(1, len(gone) + 1):
            if best is not None and most[0] <= k + 1:
                break
            for some in combinations(gone, k):
                height = sum(size[p] for p in some)
                n = bisect_left(sums, height * (1 - self.tolerance))
                while n < len(sums) and sums[n] <= height * (1 + self.tolerance):
                    rank = k + len(others[n][1]), abs(sums[n] - height)
                    if rank < most:
                        most, best = rank, (some, others[n][1])
                    n += 1
        return best
