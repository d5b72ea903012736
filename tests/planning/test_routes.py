"""Routes: what finds no place for all of its time is moved from one to the next; and sizes that are nearly alike."""

import numpy as np
import pytest

from bench.support.strips import KINDS, cut
from minidl.planning.packing.orders import by_orders
from minidl.planning.packing.residencies import _classes, _rounded
from minidl.planning.packing.routes import RoutePoint, routes
from minidl.planning.packing.strip import ANYWHERE, Strip, check, most_live

ROOM = 10


def found(rectangles, cuts, *, moving=()):
    """The routes in ten units of rectangles, each (first step, last step, units, offset), the last of which lies above
    the room. The others stay, but for some."""
    first, last, size, offset = np.array(rectangles).T
    fixed = offset.copy()
    fixed[[*moving, len(fixed) - 1]] = ANYWHERE
    return routes(Strip(first, last, size, ROOM, fixed), offset, lambda n: np.array(cuts, np.int64))


LOW_THEN_HIGH = [(0, 1, 6, 0), (2, 3, 6, 4), (0, 3, 4, ROOM)]


def test_what_has_no_place_for_all_of_its_time_is_moved_when_it_has_to():
    assert found(LOW_THEN_HIGH, [1, 2, 3]) == {2: [RoutePoint(0, 6), RoutePoint(2, 0)]}


def test_it_is_moved_as_late_as_it_may_be():
    early = [(0, 2, 6, 0), (2, 3, 2, 8), (0, 3, 2, ROOM)]  # 6..8 or 8..10 until step 1, 6..8 or 0..6 from then on
    assert found(early, [1, 3]) == {2: [RoutePoint(0, 6)]}
    late = [(0, 1, 6, 0), (3, 4, 6, 4), (0, 4, 4, ROOM)]  # between the two it lies anywhere
    assert found(late, [1, 2, 3, 4]) == {2: [RoutePoint(0, 6), RoutePoint(3, 0)]}
    assert found(late, [1, 2]) == {2: [RoutePoint(0, 6), RoutePoint(2, 0)]}


def test_what_may_not_be_moved_in_time_has_no_route():
    for cuts in ([], [3], [1, 3]):
        assert found(LOW_THEN_HIGH, cuts) == {}


def test_nothing_is_moved_to_where_a_part_of_it_lies():
    overlapping = [(0, 1, 3, 7), (2, 3, 3, 0), (0, 3, 5, ROOM)]  # 0..7, then 3..10: it begins at 0, and 5..10 is free
    assert found(overlapping, [2]) == {2: [RoutePoint(0, 0), RoutePoint(2, 5)]}
    narrow = [(0, 1, 4, 6), (2, 3, 2, 0), (2, 3, 2, 8), (0, 3, 6, ROOM)]  # 0..6, then 2..8
    assert found(narrow, [2]) == {}


def test_others_make_way_for_what_may_not_be_moved():
    assert found(LOW_THEN_HIGH, [], moving=[1]) == {1: [RoutePoint(2, 0)], 2: [RoutePoint(0, 6)]}
    assert found(LOW_THEN_HIGH, []) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_share_a_byte_whatever_is_moved(kind):
    routed = moves = 0
    for seed in range(6):
        whole = cut(seed, 60, kind)
        that = whole._replace(room=whole.room * (92 + seed) // 100)
        draw = np.random.default_rng(seed)
        that.fixed[draw.random(len(that.size)) < 0.1] = 0  # what stays, if it finds a place at all
        offset, _ = by_orders(that._replace(fixed=np.full(len(that.size), ANYWHERE)), 200_000)
        lies = offset + that.size <= that.room
        fixed = np.where(lies & (that.fixed == 0), offset, ANYWHERE)
        that = that._replace(fixed=fixed)
        allowed = {n: np.sort(draw.choice(1024, 700, replace=False)) for n in range(len(that.size))}
        stays = routes(that, offset, lambda n, allowed=allowed: allowed[n])
        assert not any(fixed[n] != ANYWHERE for n in stays)
        parts = []
        for n in np.nonzero(lies | np.isin(np.arange(len(lies)), list(stays)))[0].tolist():
            its = stays.get(n, [RoutePoint(int(that.first[n]), int(offset[n]))])
            assert its[0].step == that.first[n]
            ends = [*(stay.step - 1 for stay in its[1:]), int(that.last[n])]
            for before, after in zip(its, its[1:], strict=False):
                assert after.step in allowed[n] and before.step < after.step
                assert abs(before.offset - after.offset) >= that.size[n]
            parts += [(stay.step, end, that.size[n], stay.offset) for stay, end in zip(its, ends, strict=True)]
            routed, moves = routed + (not lies[n]), moves + len(its) - 1
        first, last, size, low = np.array(parts).T
        check(Strip(first, last, size, that.room, low), low)
    assert routed and (moves or kind == "network")


def test_sizes_are_rounded_up_to_those_that_are_hardly_larger():
    sizes = np.array([1000, 995, 990, 500, 499, 250, 1000])
    assert _classes(sizes, 0.005).tolist() == [1000, 1000, 990, 500, 500, 250, 1000]
    assert _classes(sizes, 0.02).tolist() == [1000, 1000, 1000, 500, 500, 250, 1000]
    draw = np.random.default_rng(0)
    for tolerance in (0.001, 0.01, 0.1):
        many = draw.integers(1, 10_000, 500)
        rounded = _classes(many, tolerance)
        assert (rounded >= many).all() and (many >= rounded * (1 - tolerance)).all()
        assert np.isin(rounded, many).all()


def test_a_strip_is_rounded_as_far_as_all_has_room():
    first, last = np.zeros(4, np.int64), np.ones(4, np.int64)
    that = Strip(first, last, np.array([1000, 995, 985, 1000]), 3990, np.full(4, ANYWHERE))
    assert _rounded(that).size.tolist() == [1000, 1000, 985, 1000]  # with 2% they would need 4000
    assert _rounded(that._replace(room=4000)).size.tolist() == [1000] * 4
    assert _rounded(that._replace(room=3980)).size.tolist() == that.size.tolist()
    fixed = np.array([ANYWHERE, 1000, ANYWHERE, ANYWHERE])
    assert _rounded(that._replace(room=4000, fixed=fixed)).size.tolist() == [1000, 995, 1000, 1000]


def halves(draw, begin, end, units, depth):
    """Rectangles (first, last, units) that fill a strip: cut at some step, or into halves of its memory."""
    if not depth or end - begin < 4:
        yield begin, end - 1, units
        return
    middle = int(draw.integers(begin + 1, end))
    parts = [(begin, end, units // 2)] * 2 if units > 1 and draw.random() < 0.5 else [
        (begin, middle, units), (middle, end, units)]
    for part in parts:
        yield from halves(draw, *part, depth - 1)


def test_slices_of_two_sizes_are_packed_like_slices_of_one():
    """Pieces of whole units, of which half have 287 bytes a unit instead of 288: a batch of 2,300 in 8 slices."""
    left = []
    for seed in range(4):
        draw = np.random.default_rng(seed)
        first, last, size = np.array(list(halves(draw, 0, 400, 64, 8))).T
        that = Strip(first, last, size * draw.choice([287, 288], len(size)), 64 * 288, np.full(len(size), ANYWHERE))
        assert most_live(that) <= that.room
        left.append([by_orders(each, 3_000_000)[1] for each in (that, _rounded(that))])
    apart, alike = np.sum(left, axis=0)
    assert alike < 0.85 * apart
