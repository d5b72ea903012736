"""Where each placement puts blocks, worked out by hand; and the arena under every one of them, against a model."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minidl.device.clock import NO_MARKS, unite_marks
from minidl.memory.bytes.arena import Arena
from minidl.memory.bytes.block import Block
from minidl.placements import PLACEMENTS, Hole, Place, Placement
from minidl.placements.best_fit import BestFit
from minidl.placements.bfc import MOST_WASTED, Bfc
from minidl.placements.caching import Caching
from minidl.placements.first_fit import FirstFit

UNIT = 16  # bytes
MAKES = {
    "best-fit": BestFit,
    "first-fit": FirstFit,
    "bfc": lambda: Bfc(most_wasted=4 * UNIT),
    "caching": lambda: Caching(unit=UNIT),  # one small segment is more than these arenas have
    # Small are requests of up to 2 units, in segments of 4; large ones of less than 6 share segments of 10.
    "caching, small segments": lambda: tiny_caching(),
}


def tiny_caching() -> Caching:
    """PyTorch's rules with limits of a few units."""
    caching = Caching(unit=UNIT)
    caching.most_small, caching.small_segment = 2 * UNIT, 4 * UNIT
    caching.large_segment, caching.least_alone = 10 * UNIT, 6 * UNIT
    return caching


def placed(placement: Placement, units: int, script: str) -> list[int | None]:
    """The addresses, in units, of what a script allocates: ``a3`` is a block a of 3 units, ``-a`` frees it."""
    arena, blocks, addresses = Arena(units * UNIT, alignment=UNIT, placement=placement), {}, []
    for word in script.split():
        if word[0] == "-":
            arena.free(blocks.pop(word[1]), NO_MARKS)
        else:
            block = arena.allocate(int(word[1:]) * UNIT, word[0])
            blocks[word[0]] = block
            addresses.append(block and block.offset // UNIT)
        arena.check()
    return addresses


def test_all_placements_of_the_table_are_tested_here():
    assert set(PLACEMENTS) <= set(MAKES)


# One sentence at a time


def test_first_fit_takes_the_lowest_hole_and_best_fit_the_smallest():
    script = "a3 w1 b2 x1 -a -b c2"  # holes 0..3 and 4..6, and the rest
    assert placed(FirstFit(), 10, script) == [0, 3, 4, 6, 0]
    assert placed(BestFit(), 10, script) == [0, 3, 4, 6, 4]


def test_first_fit_puts_what_lives_long_at_the_top_of_the_highest_hole():
    arena = Arena(8 * UNIT, alignment=UNIT, placement=FirstFit())
    arena._tiling.carve(3 * UNIT, UNIT, "w")  # holes 0..3 and 4..8
    assert arena.allocate(UNIT, "a", high=True).offset == 7 * UNIT
    assert arena.allocate(2 * UNIT, "b").offset == 0


def test_bfc_splits_a_chunk_of_twice_the_request_and_gives_a_smaller_one_out_whole():
    arena = Arena(6 * UNIT, alignment=UNIT, placement=Bfc())
    block = arena.allocate(3 * UNIT, "a")
    assert (block.size, arena.free_bytes) == (3 * UNIT, 3 * UNIT)
    assert arena.allocate(2 * UNIT, "b").size == 3 * UNIT  # 1 unit is less than the request
    assert arena.free_bytes == 0


def test_bfc_splits_off_what_would_waste_128_MiB():
    assert Bfc().place(400 << 20, [Hole(0, (400 << 20) + MOST_WASTED)], high=True) == Place(0, 400 << 20)
    whole = (400 << 20) + MOST_WASTED - 256
    assert Bfc().place(400 << 20, [Hole(0, whole)], high=False) == Place(0, whole)


@settings(max_examples=200, deadline=None, database=None)
@given(sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=12), units=st.integers(1, 4000))
def test_the_bins_of_tensorflow_find_the_chunk_that_bfc_takes(sizes, units):
    nbytes, holes, offset = units * 256, [], 0
    for size in sizes:
        holes.append(Hole(offset, size * 256))
        offset += size * 256 + 256
    bins: dict[int, list[Hole]] = {}  # by the power of two of the size in units of 256 bytes
    for hole in holes:
        bins.setdefault((hole.size // 256).bit_length(), []).append(hole)
    found = next((hole for number in range(units.bit_length(), 64)
                  for hole in sorted(bins.get(number, []), key=lambda hole: (hole.size, hole.offset))
                  if hole.size >= nbytes), None)
    shown = sorted((hole for hole in holes if hole.size >= nbytes), key=lambda hole: (hole.size, hole.offset))
    assert (found is None) == (not shown)
    if found is not None:
        assert Bfc().place(nbytes, shown, high=False).offset == found.offset


def test_small_and_large_blocks_never_share_a_segment():
    # a reserves 0..4 for small blocks, b 4..14 for large ones; c goes to the first, d to the second, e to a third.
    assert placed(tiny_caching(), 24, "a1 b3 c1 d5 e2 f2") == [0, 4, 1, 7, 2, 14]


def test_a_freed_block_stays_with_its_kind_until_nothing_else_is_left():
    # a's segment 0..4 is free again, and yet b, which is large, reserves 4..14; only e, for want of room, takes 0..4.
    assert placed(tiny_caching(), 14, "a2 -a b3 c4 d3 e3") == [0, 4, 7, 11, 0]


def test_segments_that_are_all_free_are_let_go_of_when_a_new_one_finds_no_room():
    # a fills 0..8 and b 8..16, each alone; free again, they make room for one of 16.
    assert placed(tiny_caching(), 16, "a8 b8 -a -b c16") == [0, 8, 0]


def test_a_segment_of_the_usual_size_is_sought_before_one_that_takes_what_is_left():
    # Small segments 0..4, 4..8 and 12..16 are free again, 8..12 is in use; x wants 10, and 0..8 are only 8.
    script = "p2 q2 r2 s2 t2 u2 v2 w2 -p -q -r -s -v -w x5"
    assert placed(tiny_caching(), 22, script) == [0, 2, 4, 6, 8, 10, 12, 14, 12]


def test_the_cheapest_window_is_one_that_the_placement_can_use():
    caching = tiny_caching()
    arena = Arena(20 * UNIT, alignment=UNIT, placement=caching)
    for name, units in (("a", 3), ("b", 3), ("c", 4), ("d", 3), ("e", 3), ("f", 4)):  # two segments of 10, full
        arena.allocate(units * UNIT, name)
    price = {"c": 1.0, "d": 1.0}
    cost, blocks = arena.cheapest_window(6 * UNIT, lambda block: price.get(block.owner, 9.0))
    assert (cost, [block.owner for block in blocks]) == (10.0, ["b", "c"])  # c and d lie in two segments


def test_free_neighbours_of_two_segments_serve_no_block_together_while_a_third_is_in_use():
    # a, b and c each in a segment of its own (6 rounded up to 8); with c in use, 0..16 are two pieces of 8.
    caching = tiny_caching()
    assert placed(caching, 24, "a6 b6 c6 -a -b d8 e8") == [0, 8, 16, 0, 8]


def test_a_large_piece_is_split_only_if_the_rest_is_more_than_the_largest_small_request():
    arena = Arena(10 * UNIT, alignment=UNIT, placement=tiny_caching())
    assert arena.allocate(3 * UNIT, "a").size == 3 * UNIT  # 7 are left
    assert arena.allocate(5 * UNIT, "b").size == 7 * UNIT  # 2 would be left


def test_a_last_segment_takes_what_is_left_if_that_holds_the_request():
    assert placed(tiny_caching(), 9, "a3 b3") == [0, 3]  # 9 of the usual 10
    assert placed(tiny_caching(), 2, "a2 b1") == [0, None]


def test_the_limits_of_caching_are_those_of_pytorch():
    caching = Caching()
    assert (caching.most_small, caching.small_segment) == (1 << 20, 2 << 20)
    assert (caching.large_segment, caching.least_alone) == (20 << 20, 10 << 20)
    big = [Hole(0, 1 << 30)]
    for nbytes, segment in ((1, 2 << 20), (1 << 20, 2 << 20), ((1 << 20) + 1, 20 << 20), (10 << 20, 10 << 20),
                            ((10 << 20) + 1, 12 << 20)):
        assert caching.place(nbytes, big, high=False).segment.end == segment


@pytest.mark.parametrize(("answer", "why"), [
    (Place(0, UNIT), "its size is less"), (Place(3 * UNIT, 2 * UNIT), "in none of the holes"),
    (Place(UNIT // 2, 2 * UNIT), f"no multiples of {UNIT}"), (Place(0, 2 * UNIT + 1), f"no multiples of {UNIT}"),
    (Place(7 * UNIT, 2 * UNIT), "in none of the holes")])
def test_an_answer_that_no_arena_can_follow_is_an_error_that_names_the_placement_and_what_is_wrong(answer, why):
    class Wrong(Placement):
        name = "wrong"

        def place(self, nbytes, holes, *, high):
            return answer
    arena = Arena(8 * UNIT, alignment=UNIT, placement=Wrong())
    arena._tiling.carve(4 * UNIT, UNIT, "in the way")
    with pytest.raises(AssertionError, match=f"placement 'wrong' answers Place.*{why}"):
        arena.allocate(2 * UNIT, "a")
    assert [b.owner for b in arena.blocks() if b.owner] == ["in the way"]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_that_does_not_compact_slides_nothing_and_takes_no_address(name):
    placement = PLACEMENTS[name]()
    arena = Arena(8 * UNIT, alignment=UNIT, placement=placement)
    assert placement.compacts == arena.compacts == (name in ("best-fit", "first-fit"))
    arena._tiling.carve(2 * UNIT, UNIT, "a")
    blocks = list(arena.blocks())
    if not arena.compacts:
        assert arena.slide(blocks[0], blocks[-1]) == [] and arena.cheapest_slide(1) is None
        assert arena.allocate_at(0, UNIT, "b") is None
        assert blocks == list(arena.blocks())
    else:
        assert arena.cheapest_slide(7 * UNIT) == (blocks[0], blocks[-1])
        assert arena.allocate_at(0, UNIT, "b").offset == 0


# Against a model


class Contract(RuleBasedStateMachine):
    """What holds for an arena whatever its placement: no byte has two owners, every byte is owned or free, no byte
    forgets a use, and what it says would fit does."""

    make: str

    @initialize(units=st.integers(1, 40))
    def start(self, units):
        self.placement = MAKES[self.make]()
        self.arena = Arena(units * UNIT, alignment=UNIT, placement=self.placement)
        self.owner_of = [None] * units  # of each unit
        self.history = [NO_MARKS] * units  # the maximum of all marks it was ever freed with
        self.blocks: dict[int, Block] = {}
        self.owners = 0

    def units(self, block: Block) -> range:
        return range(block.offset // UNIT, (block.offset + block.size) // UNIT)

    def take(self, block: Block, nbytes: int) -> None:
        assert block.owner == self.owners and block.size >= max(nbytes, 1)
        for unit in self.units(block):
            assert self.owner_of[unit] is None
            self.owner_of[unit] = self.owners
        self.blocks[self.owners] = block

    @rule(nbytes=st.integers(0, 12 * UNIT), high=st.booleans())
    def allocate(self, nbytes, high):
        self.owners += 1
        fits, before = self.arena.fits(nbytes), self.arena.free_bytes
        block = self.arena.allocate(nbytes, self.owners, high=high)
        assert (block is not None) == fits
        if block is not None:
            self.take(block, nbytes)
        else:
            assert self.arena.free_bytes == before

    @rule(nbytes=st.integers(0, 6 * UNIT), at=st.integers(0, 39))
    def allocate_at(self, nbytes, at):
        self.owners += 1
        block = self.arena.allocate_at(at * UNIT, nbytes, self.owners)
        if block is not None:
            assert block.offset == at * UNIT
            self.take(block, nbytes)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), marks=st.tuples(*[st.integers(0, 9)] * 3))
    def free(self, data, marks):
        block = self.blocks.pop(data.draw(st.sampled_from(sorted(self.blocks))))
        for unit in self.units(block):
            self.owner_of[unit] = None
            self.history[unit] = unite_marks(self.history[unit], marks)
        self.arena.free(block, marks)

    @rule(nbytes=st.integers(0, 12 * UNIT))
    def lend(self, nbytes):
        block = self.arena.lend(nbytes)
        assert block is not None or not self.arena.fits(nbytes)
        if block is not None:
            assert block.owner is None and block.size >= nbytes

    @rule(nbytes=st.integers(0, 16 * UNIT), data=st.data())
    def empty_the_cheapest_window(self, nbytes, data):
        """Once its blocks are gone, there is a place; and with none of them gone there is one only if it is free."""
        prices = {o: data.draw(st.none() | st.integers(0, 5).map(float)) for o in self.blocks}
        found = self.arena.cheapest_window(nbytes, lambda block: prices[block.owner])
        if found is None:
            assert not self.arena.fits(nbytes)
            return
        cost, blocks = found
        assert cost == sum(prices[block.owner] for block in blocks)
        assert not self.arena.fits(nbytes) or cost == 0.0
        for block in blocks:
            del self.blocks[block.owner]
            for unit in self.units(block):
                self.owner_of[unit] = None
            self.arena.free(block, NO_MARKS)
        assert self.arena.fits(nbytes)

    @rule(data=st.data())
    def slide(self, data):
        blocks = list(self.arena.blocks())
        low = data.draw(st.integers(0, len(blocks) - 1))
        high = data.draw(st.integers(low, len(blocks) - 1))
        moved = self.arena.slide(blocks[low], blocks[high])
        assert self.arena.compacts or not moved
        for block, old in moved:
            for unit in self.units(block):
                self.history[unit] = unite_marks(self.history[unit], block.marks)
            assert block.offset < old
        self.owner_of = [b.owner for b in self.arena.blocks() for _ in self.units(b)]

    @invariant()
    def every_byte_is_where_it_was(self):
        if not hasattr(self, "arena"):
            return
        self.arena.check()
        assert [b.owner for b in self.arena.blocks() for _ in self.units(b)] == self.owner_of
        assert all(self.blocks[b.owner] is b for b in self.arena.blocks() if b.owner is not None)
        if isinstance(self.placement, Caching):
            segments = self.placement._segments
            assert all(left.end <= right.offset for left, right in pairwise(segments))
            assert all(any(s.offset <= b.offset and b.offset + b.size <= s.end for s in segments)
                       for b in self.blocks.values())
        assert self.arena.free_bytes == UNIT * self.owner_of.count(None)
        for block in self.arena.blocks():
            for unit in self.units(block):
                assert unite_marks(self.history[unit], block.marks) == block.marks  # no byte forgets a use


@pytest.mark.parametrize("make", MAKES)
def test_the_arena_keeps_its_contract_under_every_placement(make):
    machine = type("Contract", (Contract,), {"make": make})
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None,
                                                         database=None))


class AskedBestFit(BestFit):
    """Best fit by way of a list of holes, as all others are asked: its type is not BestFit."""


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(0, 5 * UNIT), st.booleans(), st.integers(0, 30)), max_size=40))
def test_what_the_arena_finds_by_itself_is_what_best_fit_would_answer(program):
    arenas = [Arena(24 * UNIT, alignment=UNIT, placement=p) for p in (None, BestFit(), AskedBestFit())]
    live: list[list[Block]] = []
    for nbytes, high, victim in program:
        blocks = [arena.allocate(nbytes, "x", high=high) for arena in arenas]
        assert len({(b.offset, b.size) if b is not None else None for b in blocks}) == 1
        if blocks[0] is not None:
            live.append(blocks)
        if live and victim % 2:
            for arena, block in zip(arenas, live.pop(victim % len(live)), strict=True):
                arena.free(block, NO_MARKS)
        assert len({tuple((b.offset, b.size, b.owner) for b in arena.blocks()) for arena in arenas}) == 1
