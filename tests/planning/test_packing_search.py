"""The packer as a solver: strips that are known to be full are packed, and what is called impossible is impossible."""

import numpy as np
import pytest

from bench.support.strips import KINDS, cut
from minidl.planning.packing.blocks import Blocks, Guess
from minidl.planning.packing.greedy import greedy
from minidl.planning.packing.orders import _meeting, above, by_orders
from minidl.planning.packing.search import FOUND, NONE, UNKNOWN, StripSearch
from minidl.planning.packing.solve import pack, pack_low
from minidl.planning.packing.strip import ANYWHERE, Strip, apart, check, most_live, sections, stacked, strip

SECONDS = 200_000_000  # units of work: about as many as are done in one


def twisted(a, b, c, d):
    """Rectangles for which what is live at once is not enough, if no two sums of these four are equal.

    In the place of b + c come b and c, in that of a + d come a and d, so b and c lie together, and a and d. In the
    place of a and b comes a + b: they lie together, in the middle. But c and d, on both sides of that, make way for
    c + d.
    """
    rows = [(0, 0, b + c), (0, 1, a + d), (1, 2, b), (1, 3, c), (2, 2, a), (2, 3, d), (3, 4, a + b), (4, 4, c + d)]
    return strip(*np.array(rows).T, a + b + c + d)


def fits(that, placed=()):
    """Whether there is a packing: tried with every rectangle at every offset."""
    n = len(placed)
    if n == len(that.size):
        return True
    meets = [(at, at + int(that.size[m])) for m, at in enumerate(placed)
             if that.first[m] <= that.last[n] and that.first[n] <= that.last[m]]
    size = int(that.size[n])
    return any(all(at + size <= low or high <= at for low, high in meets) and fits(that, (*placed, at))
               for at in range(that.room - size + 1))


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (8, 4, 2, 1), (2, 1, 8, 4), (3, 5, 6, 7)])
def test_the_search_finds_a_packing_or_there_is_none(sizes):
    for room in range(sum(sizes), 2 * sum(sizes)):
        that = twisted(*sizes)._replace(room=room)
        search = StripSearch(that)
        found, _ = search.attempt(SECONDS)
        assert (found == FOUND) == fits(that)
        assert room > sum(sizes) or found == NONE
        if found == FOUND:
            check(that, search.offsets)
            break


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_never_says_that_there_is_no_packing_where_there_is_one(kind):
    for seed in range(40):
        that = cut(seed, 30, kind, fill=0.95 + 0.05 * (seed % 3) / 2, shrink=True)
        search = StripSearch(that)
        found, _ = search.attempt(100_000)
        assert found != NONE
        if found == FOUND:
            check(that, search.offsets)


def test_what_lies_lowest_is_the_floor_of_the_search_longest_first():
    # 0 and 1 are there from the start, of 3 and 2 bytes; the longer one is lower.
    first, last, size = np.array([0, 0, 1, 2]), np.array([1, 3, 3, 3]), np.array([3, 2, 1, 3])
    fixed = np.append(stacked(first[:2], last[:2], size[:2]), [ANYWHERE, ANYWHERE])
    that = Strip(first, last, size, 6, fixed)
    search = StripSearch(that)
    assert search.attempt(SECONDS)[0] == FOUND and search.offsets[:2].tolist() == [2, 0]
    check(that, search.offsets)
    assert StripSearch(that._replace(room=5)).attempt(SECONDS)[0] == NONE
    offset, over = by_orders(that, SECONDS)
    assert not over and offset[:2].tolist() == [2, 0]


def test_what_is_fixed_stays_where_it_lies_while_other_orders_are_tried():
    for seed in range(4):
        that = cut(seed, 30)
        fixed = np.full(len(that.size), ANYWHERE)
        fixed[:2] = 0, that.size[0]
        offset, over = by_orders(that._replace(fixed=fixed, room=that.room // 2), 100_000)  # never all of them
        assert over and offset[:2].tolist() == fixed[:2].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fill", "shrink"), [(1.0, False), (0.99, False), (0.99, True), (0.97, True)])
def test_a_strip_that_was_cut_into_pieces_is_packed_again(kind, fill, shrink):
    for seed in range(2):
        that = cut(seed, 60 if kind != "mosaic" else 40, kind, fill=fill, shrink=shrink)
        offset, over = pack(that, orders=1_000_000, searches=SECONDS)
        assert over == 0
        check(that, offset)


def test_pieces_that_are_cut_fill_the_strip():
    for kind in KINDS:
        that = cut(3, 100, kind)
        filled = np.zeros(that.last.max() + 1, np.int64)
        for first, last, size in zip(that.first, that.last, that.size, strict=True):
            filled[first:last + 1] += size
        assert (filled == that.room).all() and 80 < len(that.size) < 160
        shrunk = cut(3, 100, kind, fill=0.97, shrink=True)
        assert 0.94 * shrunk.room < most_live(shrunk) < shrunk.room == that.room


@pytest.mark.parametrize("fill", [0.99, 1.0])
@pytest.mark.parametrize("kind", ["guillotine", "network"])
def test_four_hundred_and_fifty_pieces_are_packed(kind, fill):
    that = cut(0, 450, kind, fill=fill, shrink=True)
    offset, over = pack(that, orders=1_000_000, searches=SECONDS)
    assert over == 0
    check(that, offset)


def test_a_strip_of_which_pieces_are_missing_is_packed():
    for seed in range(3):
        that = cut(seed, 200, holes=0.1)
        assert len(that.size) == 180
        offset, over = pack(that, orders=1_000_000, searches=SECONDS)
        assert over == 0
        check(that, offset)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mosaic"])
def test_strips_of_one_hundred_and_fifty_pieces_are_packed_again(kind):
    for seed in range(8):
        for fill, shrink in ((1.0, False), (0.99, False), (0.99, True), (0.97, True)):
            that = cut(seed, 150, kind, fill=fill, shrink=shrink)
            offset, over = pack(that, orders=1_000_000, searches=4 * SECONDS)
            assert over == 0, (seed, fill, shrink)
            check(that, offset)


def test_the_same_strip_has_the_same_packing_every_time():
    for kind in ("pinwheel", "mosaic"):
        that = cut(5, 40, kind, fill=0.98, shrink=True)
        (one, over), (other, _) = (pack(that, orders=3_000_000, searches=SECONDS) for _ in range(2))
        assert (one == other).all() and over == 0


def test_work_is_limited_and_what_is_left_lies_on_top():
    that = cut(0, 400, "mosaic")
    found, work = StripSearch(that).attempt(1000)
    assert found == UNKNOWN and work < 1000 + 2 * len(np.unique(that.first))
    offset, over = by_orders(that, 10_000)
    assert over > 0
    check(that._replace(room=1 << 60), offset)


def test_what_is_left_after_other_orders_is_counted_and_overlaps_nowhere():
    for kind in KINDS:
        for seed in range(3):
            that = cut(seed, 60, kind)
            that = that._replace(room=that.room * 9 // 10)  # never all of them
            offset, over = by_orders(that, 3_000_000)
            check(that._replace(room=1 << 60), offset)
            high = offset + that.size
            assert over == that.size[high > that.room].sum() + high.max() - that.room > 0
            assert over < by_orders(that, 10_000)[1]


def test_what_meets_is_found_unless_it_is_too_much():
    that = cut(1, 50, "network")
    begins, others = _meeting(that, 1 << 40)
    for n in range(len(that.size)):
        meets = (that.first <= that.last[n]) & (that.last >= that.first[n])
        meets[n] = False
        assert sorted(others[begins[n]:begins[n + 1]]) == np.nonzero(meets)[0].tolist()
    assert len(_meeting(that, len(others))[1]) == len(others)
    none = _meeting(that, len(others) - 1)
    assert not none[0].any() and not len(none[1])


def test_what_does_not_meet_is_packed_apart():
    first, last = np.array([4, 0, 2, 0, 9]), np.array([6, 1, 3, 2, 9])
    that = strip(first, last, np.array([5, 1, 2, 3, 8]), 8)
    assert [part.tolist() for part in apart(that)] == [[1, 3, 2], [0], [4]]
    offset, over = pack(that, orders=1000, searches=SECONDS)
    assert over == 0 and offset[[0, 4]].tolist() == [0, 0]
    assert [at.tolist() for at in sections(that)] == [[2, 0, 1, 0, 3], [2, 0, 1, 1, 3]]


def test_the_least_room_is_looked_for_when_what_is_live_at_once_does_not_do():
    that = twisted(3, 5, 6, 7)
    height = int((pack_low(that, orders=10_000, searches=SECONDS) + that.size).max())
    assert fits(that._replace(room=height)) and not fits(that._replace(room=height - 1)) and height > that.room


def test_what_a_guess_has_joined_is_a_packing_of_the_parts():
    # bottom 0..2, right 3..4, left 0..1, top 2..4 and the middle; then two in line, and one on top of these.
    wheel = [(0, 2, 2), (3, 4, 3), (0, 1, 4), (2, 4, 3), (2, 2, 1), (5, 6, 4), (7, 8, 4), (5, 8, 2)]
    whole, _ = Blocks(strip(*np.array(wheel).T, 6), Guess(alike=True), 0).remaining()
    assert whole.size.tolist() == [6]
    for kind in KINDS:
        that = cut(2, 80, kind, fill=0.99, shrink=True)
        for seed, guess in enumerate((Guess(), Guess(alike=True), Guess(single=True), Guess(overlook=0.3))):
            blocks = Blocks(that, guess, seed)
            left, numbers = blocks.remaining()
            assert len(left.size) < len(that.size) or kind == "mosaic"
            offset, _ = by_orders(left, 1_000_000)
            check(that._replace(room=1 << 60), blocks.offsets(numbers, offset))


@pytest.mark.parametrize(("offset", "message"), [
    ([0, 0, 2], "1 at 0..3 and 0 at 0..2 are both there at step 1"),
    ([0, 2, -1], "2 at -1..3 is not within 5"),
    ([0, 2, 2], "2 at 2..6 is not within 5"),
])
def test_the_check_of_a_packing_sees_what_is_wrong(offset, message):
    that = strip(np.array([0, 1, 5]), np.array([2, 3, 6]), np.array([2, 3, 4]), 5)
    check(that, np.array([0, 2, 1]))
    with pytest.raises(AssertionError, match=message):
        check(that, np.array(offset))


def test_greedy_orders_that_are_given_up_are_none_that_leave_less_above_the_strip():
    random = np.random.default_rng(7)
    for _ in range(30):
        first, long, size = (random.integers(low, high, 40) for low, high in ((0, 30), (0, 12), (1, 50)))
        that = strip(first, first + long, size, 200)
        every = [above(offset, that.size, that.room) for offset in greedy(that)]
        assert len(every) == 8
        for start in (max(every), min(every)):
            found = [above(offset, that.size, that.room) for offset in greedy(that, least=start)]
            assert min(found) == min(every) and len(found) <= len(every)
