"""The host pool alone: exact sizes, pieces, coalescing; and against a map of bytes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minidl.memory.bytes.host_pool import HostPool


def striped() -> HostPool:
    """40 bytes, of which 0..5, 10..18, 25..30 are free."""
    pool = HostPool(40)
    pieces = [pool.allocate(n) for n in (5, 5, 8, 7, 5, 10)]
    for index in (0, 2, 4):
        pool.free(pieces[index])
    pool.check()
    return pool


def test_sizes_are_exact():
    pool = HostPool(10)
    assert pool.allocate(3) == ((0, 3),)
    assert pool.allocate(7) == ((3, 7),)
    assert pool.used_bytes == 10 and pool.allocate(1) is None


def test_the_smallest_range_that_holds_all_bytes_is_preferred_to_pieces():
    pool = striped()
    assert pool.allocate(6) == ((10, 6),)
    assert pool.allocate(2) == ((16, 2),)
    assert pool.allocate(5) == ((0, 5),)  # the lowest of equals
    assert pool.allocate(5) == ((25, 5),)
    pool.check()


def test_a_copy_that_fits_in_no_range_is_scattered_over_the_lowest():
    pool = striped()
    assert pool.allocate(9) == ((0, 5), (10, 4))
    assert pool.allocate(9) == ((14, 4), (25, 5))  # all that is left
    assert pool.allocate(1) is None
    pool.check()


def test_too_few_free_bytes_get_none_and_change_nothing():
    pool = striped()  # 18 free of 40
    assert pool.allocate(19) is None
    assert (pool.used_bytes, pool.peak_bytes) == (22, 40)
    pool.check()


def test_no_bytes_are_no_pieces_which_is_not_a_refusal():
    pool = HostPool(0)
    assert pool.allocate(0) == ()
    assert pool.allocate(1) is None
    pool.free(())
    pool.check()


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_freed_neighbours_become_one_range_in_whatever_order_they_are_freed(order):
    pool = HostPool(9)
    pieces = {letter: pool.allocate(3) for letter in "abc"}
    for letter in order:
        pool.free(pieces[letter])
        pool.check()
    assert pool.allocate(9) == ((0, 9),) and pool.peak_bytes == 9


@pytest.mark.parametrize("extents", [((0, 5),), ((4, 2),), ((9, 2),), ((8, 12),), ((35, 6),), ((12, 1),), ((17, 2),)])
def test_freeing_bytes_that_are_free_or_outside_is_an_error(extents):
    pool = striped()
    with pytest.raises(AssertionError, match="double free of host bytes"):
        pool.free(extents)


def test_less_than_nothing_is_no_size():
    with pytest.raises(AssertionError, match="allocation of -1 bytes"):
        HostPool(1).allocate(-1)
    with pytest.raises(ValueError, match="host pool of -1 bytes"):
        HostPool(-1)


@pytest.mark.parametrize(("corrupt", "message"), [
    (lambda p: p._starts.pop(), "2 starts and 3 ends"),
    (lambda p: p._starts.reverse(), "bytes$|touches"),
    (lambda p: p._starts.__setitem__(1, 5), "touches the one that ends at 5"),
    (lambda p: p._ends.__setitem__(1, 10), "the free range 10..10"),
    (lambda p: p._ends.__setitem__(2, 41), "the free range 25..41 of 40"),
    (lambda p: p._ends.__setitem__(2, 31), "21 bytes are used, counted 22"),
    (lambda p: p._keys.reverse(), "by size"),
    (lambda p: setattr(p, "_used", 23), "22 bytes are used, counted 23"),
    (lambda p: setattr(p, "_peak", 21), "peak 21"),
])
def test_check_sees_each_corruption(corrupt, message):
    pool = striped()
    corrupt(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check()


class HostPoolAgainstModel(RuleBasedStateMachine):
    """The model is one flag a byte."""

    @initialize(capacity=st.integers(0, 40))
    def start(self, capacity):
        self.pool = HostPool(capacity)
        self.taken = [False] * capacity
        self.live: list[tuple[tuple[int, int], ...]] = []
        self.peak = 0

    @rule(nbytes=st.integers(0, 12))
    def allocate(self, nbytes):
        free_bytes = self.taken.count(False)
        bounds = [0, *[i + 1 for i, taken in enumerate(self.taken) if taken], len(self.taken) + 1]
        whole = sorted((end - 1 - start, start) for start, end in zip(bounds, bounds[1:], strict=False)
                       if end - 1 - start >= nbytes)
        extents = self.pool.allocate(nbytes)
        if nbytes > free_bytes:
            assert extents is None
            return
        if nbytes and whole:
            assert extents == ((whole[0][1], nbytes),)  # the smallest, and the lowest of these
        given = [i for offset, count in extents for i in range(offset, offset + count)]
        if not whole:  # the lowest free bytes, in order
            assert given == [i for i, taken in enumerate(self.taken) if not taken][:nbytes]
        assert len(given) == nbytes and not any(self.taken[i] for i in given)
        for i in given:
            self.taken[i] = True
        self.peak = max(self.peak, sum(self.taken))
        self.live.append(extents)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        extents = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.pool.free(extents)
        for offset, count in extents:
            self.taken[offset:offset + count] = [False] * count

    @precondition(lambda self: self.taken and not self.taken[-1])
    @rule(data=st.data())
    def limit(self, data):
        used = len(self.taken) - self.taken[::-1].index(True) if any(self.taken) else 0
        capacity = data.draw(st.integers(used, len(self.taken)))
        if used:
            with pytest.raises(AssertionError, match="in use"):
                self.pool.limit(used - 1)
        self.pool.limit(capacity)
        del self.taken[capacity:]

    @invariant()
    def same_bytes(self):
        if hasattr(self, "pool"):
            self.pool.check()
            assert self.pool.capacity == len(self.taken)
            assert (self.pool.used_bytes, self.pool.peak_bytes) == (sum(self.taken), self.peak)
            free = [i for start, end in zip(self.pool._starts, self.pool._ends, strict=True) for i in range(start, end)]
            assert free == [i for i, taken in enumerate(self.taken) if not taken]


TestHostPoolAgainstModel = HostPoolAgainstModel.TestCase
TestHostPoolAgainstModel.settings = settings(max_examples=200, stateful_step_count=30, deadline=None, database=None)
