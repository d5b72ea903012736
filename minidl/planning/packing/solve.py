"""Packs a strip: first by heuristic orders, then by exact search.

  1. Split the strip into parts that do not overlap in time, and pack each part on its own.
  2. Try orders of placing (``orders``).
  3. If rectangles still reach above the strip although the bytes in use fit at each step: exact search (``search``),
     alternating between the original rectangles and guessed unions of them (``blocks``), with growing work limits.
     Not of more than 2,000 rectangles.
  4. If it finds nothing, or was not made: the orders of allocators (``greedy``), if they leave less above the strip.

Work is limited and counted, not timed: the same strip has the same packing on any machine. A unit is about two
nanoseconds.
"""

from itertools import count

import numpy as np

from minidl.planning.packing.blocks import Blocks, Guess
from minidl.planning.packing.greedy import greedy
from minidl.planning.packing.orders import above, by_orders
from minidl.planning.packing.search import FOUND, NONE, StripSearch
from minidl.planning.packing.strip import Strip, apart, most_live
from minidl.planning.problem import ENDLESS, Array

A_SECTION = 16  # units of work for one section that a search visits
A_GUESS = 50_000  # units of work to find the blocks, for each rectangle
FIRST_SEARCH = 500_000  # sections
MOST_SEARCHED = 2_000  # rectangles
HALVINGS = 6
GUESSES = (None, Guess(alike=True), Guess(tolerance=2.5, alike=True), Guess(overlook=0.2, alike=True), None,
           Guess(tolerance=0.5, alike=True), Guess(tolerance=2.5, overlook=0.1, alike=True), Guess(single=True),
           Guess(overlook=0.4, alike=True))  # None: the rectangles themselves, without blocks


def pack(strip: Strip, *, orders: int, searches: int, least: int = ENDLESS, known: Array | None = None
         ) -> tuple[Array, int]:
    """Return (offsets, excess): the excess is the bytes above the strip's room, 0 if all rectangles fit.
    orders, searches: limits of the work for orders and for exact search (``orders.above`` defines the excess); least:
    an excess that another strip reaches; the orders of allocators are given up where they leave more; known: the
    offsets of an earlier packing of this strip, in which these orders have been tried; they are not tried again."""
    offset = np.zeros(len(strip.size), np.int64)
    over = 0
    parts = list(apart(strip)) if len(strip.size) else []
    for part in parts:
        share = len(part) / len(strip.size)
        offset[part], more = _pack_part(strip.of(part), int(orders * share), int(searches * share), least,
                                        known[part] if known is not None else None)
        over += more
    return offset, over


def pack_low(strip: Strip, *, orders: int, searches: int) -> Array:
    """Return offsets for the smallest room found, at most that of a greedy order; ``strip.room`` is ignored.
    Bisects between the peak of bytes in use and the best packing so far. orders, searches: each attempt's work."""
    low = most_live(strip)
    high, best = min(((int((offset + strip.size).max(initial=0)), offset) for offset in greedy(strip)),
                     key=lambda each: each[0])
    room = low
    for _ in range(HALVINGS + 1 if len(strip.size) ** 2 < orders else 0):
        if high - low < 1:
            break
        offset, over = pack(strip._replace(room=room), orders=orders, searches=searches)
        if (offset + strip.size).max() < high:
            best, high = offset, int((offset + strip.size).max())
        if over:
            low = room + 1  # taken as impossible, though the search may have missed a packing
        room = (low + high) // 2
    return best


def _pack_part(part: Strip, orders: int, searches: int, least: int, known: Array | None) -> tuple[Array, int]:
    offset, over = by_orders(part, orders)
    if over and most_live(part) <= part.room and len(part.size) <= MOST_SEARCHED:
        found = _search(part, searches)
        if found is not None:
            return found, 0
    for other in (greedy(part, least=min(over, least)) if known is None else (known,)) if over else ():
        if (left := above(other, part.size, part.room)) < over:
            offset, over = other, left
    return offset, over


def _search(part: Strip, most_work: int) -> Array | None:
    """Return offsets with all rectangles inside the strip, or None if the search found none."""
    plain = StripSearch(part)
    done = 0
    for turn in count():
        guess = GUESSES[turn % len(GUESSES)]
        limit = FIRST_SEARCH * _luby(turn // len(GUESSES) + 1)
        search, blocks = plain, None
        if guess is not None:
            done += A_GUESS * len(part.size)
            blocks = Blocks(part, guess, turn)
            left, numbers = blocks.remaining()
            search = StripSearch(left)
            search.attempts = turn
        if done >= most_work:
            return None
        found, work = search.attempt(min(limit, (most_work - done) // A_SECTION))
        done += A_SECTION * work
        if found == FOUND:
            return search.offsets if blocks is None else blocks.offsets(numbers, search.offsets)
        if found == NONE and blocks is None:
            return None
    return None


def _luby(n: int) -> int:
    """Return the n-th term, n >= 1, of the Luby sequence 1 1 2 1 1 2 4 ..., used as limits between restarts.
    With them a search takes at most a logarithmic factor longer than with the best limits (Luby, Sinclair, Zuckerman
    1993, "Optimal Speedup of Las Vegas Algorithms")."""
    power = n.bit_length()
    return 1 << (power - 1) if n == (1 << power) - 1 else _luby(n - (1 << (power - 1)) + 1)
