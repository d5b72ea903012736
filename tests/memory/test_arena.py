"""The arena alone, one sentence at a time, with units of 16 bytes. test_arena_model.py compares it with a model."""

import gc
from collections.abc import Callable
from itertools import groupby

import pytest

from minidl.device.clock import NO_MARKS
from minidl.memory.bytes.arena import Arena
from minidl.memory.bytes.block import Block

UNIT = 16


def arena_of(units: int) -> Arena:
    return Arena(units * UNIT, alignment=UNIT)


def filled(layout: str) -> tuple[Arena, dict[str, Block]]:
    """An arena drawn with one letter a unit: equal neighbours are one block, a dot is free. ``aab.c`` is 5 units."""
    arena = arena_of(len(layout))
    blocks = [(letter, arena.allocate(len(list(run)) * UNIT, letter)) for letter, run in groupby(layout)]
    for letter, block in blocks:
        if letter == ".":
            arena.free(block, NO_MARKS)
    arena.check()
    return arena, {letter: block for letter, block in blocks if letter != "."}


def drawn(arena: Arena) -> str:
    return "".join(("." if b.owner is None else str(b.owner)) * (b.size // UNIT) for b in arena.blocks())


# One sentence at a time


def test_the_capacity_is_rounded_down_to_whole_units():
    arena = Arena(5 * UNIT + 15, alignment=UNIT)  # 95 bytes hold 5 units
    assert (arena.capacity, arena.free_bytes, arena.largest_free) == (80, 80, 80)
    assert Arena(1000).capacity == 768  # 3 x 256, the default


@pytest.mark.parametrize(("nbytes", "size"), [(0, 16), (1, 16), (15, 16), (16, 16), (17, 32), (33, 48)])
def test_sizes_are_rounded_up_to_whole_units_and_nothing_takes_one(nbytes, size):
    arena = arena_of(4)
    block = arena.allocate(nbytes, "a")
    assert block.size == size == arena.used_bytes


def test_the_smallest_hole_that_fits_is_taken_from_its_low_end():
    arena, _ = filled("a...b..c....d")
    arena.allocate(2 * UNIT, "x")
    assert drawn(arena) == "a...bxxc....d"
    arena.allocate(2 * UNIT, "y")
    assert drawn(arena) == "ayy.bxxc....d"


def test_of_equal_holes_the_lowest_is_taken():
    arena, _ = filled("a..b..c")
    arena.allocate(UNIT, "x")
    assert drawn(arena) == "ax.b..c"


def test_high_takes_the_top_of_the_highest_hole_that_fits():
    arena, _ = filled("...a..b.")
    arena.allocate(2 * UNIT, "x", high=True)
    assert drawn(arena) == "...axxb."
    arena.allocate(2 * UNIT, "y", high=True)
    assert drawn(arena) == ".yyaxxb."


def test_a_request_larger_than_the_largest_hole_gets_none_and_changes_nothing():
    arena, _ = filled("..a...")
    assert arena.largest_free == 3 * UNIT and arena.free_bytes == 5 * UNIT
    assert arena.allocate(3 * UNIT + 1, "x") is None
    assert arena.allocate(3 * UNIT + 1, "x", high=True) is None
    assert drawn(arena) == "..a..." and arena.peak_bytes == 6 * UNIT


def test_an_arena_smaller_than_one_unit_holds_nothing():
    arena = Arena(UNIT - 1, alignment=UNIT)
    assert arena.allocate(0, "x") is None
    assert (arena.largest_free, list(arena.blocks()), arena.cheapest_slide(1)) == (0, [], None)
    assert arena.cheapest_window(1, lambda block: 0.0) is None
    arena.check()


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_freed_neighbours_become_one_block_in_whatever_order_they_are_freed(order):
    arena, blocks = filled("aabbcc")
    for letter in order:
        arena.free(blocks[letter], NO_MARKS)
        arena.check()
    assert [(b.offset, b.size) for b in arena.blocks()] == [(0, 6 * UNIT)]


def test_the_marks_of_united_blocks_are_the_elementwise_maximum_and_both_parts_of_a_carved_block_have_them():
    arena, blocks = filled("abc.")
    arena.free(blocks["a"], (9, 1, 1))
    arena.free(blocks["c"], (1, 9, 1))  # its right neighbour was never used
    arena.free(blocks["b"], (1, 1, 9))
    part = arena.allocate(UNIT, "x")
    assert part.marks == part.next.marks == (9, 9, 9)


def test_a_block_at_a_given_address_waits_for_copies_out_of_its_own_bytes_alone():
    """Copies at 7, 5 and 6 may still run when their bytes are freed. The user of best fit's choice waits for all."""
    for asked, copied_out in {"a": 7, "b": 0, "bc": 5, "cd": 6}.items():
        arena, blocks = filled("abcde")
        for letter, position in (("a", 7), ("c", 5), ("b", 0), ("d", 6)):
            arena.free(blocks[letter], (9, position, 3))
        block = arena.allocate_at("abcd".index(asked[0]) * UNIT, len(asked) * UNIT, "x")
        assert block.marks == (9, copied_out, 3), asked
    assert arena.allocate(UNIT, "y").marks == (9, 7, 3)


def test_an_owner_that_never_ran_passes_on_the_marks_it_got():
    arena = arena_of(1)
    arena.free(arena.allocate(UNIT, "a"), (5, 0, 3))
    arena.free(arena.allocate(UNIT, "b"), NO_MARKS)
    assert arena.allocate(UNIT, "c").marks == (5, 0, 3)


def test_a_second_free_is_an_error_even_after_the_same_bytes_have_a_new_owner():
    arena = arena_of(2)
    block = arena.allocate(UNIT, "a")
    arena.free(block, NO_MARKS)
    with pytest.raises(AssertionError, match="double free of the block of"):
        arena.free(block, NO_MARKS)
    arena = arena_of(1)  # an exact fit: the new block takes the whole of the free one
    block = arena.allocate(UNIT, "a")
    arena.free(block, NO_MARKS)
    arena.allocate(UNIT, "b")
    with pytest.raises(AssertionError, match="double free"):
        arena.free(block, NO_MARKS)
    assert drawn(arena) == "b"


def test_none_is_no_owner_and_less_than_nothing_is_no_size():
    with pytest.raises(AssertionError, match="needs an owner"):
        arena_of(1).allocate(1, None)
    with pytest.raises(AssertionError, match="allocation of -1 bytes"):
        arena_of(1).allocate(-1, "a")
    with pytest.raises(ValueError, match="arena of -1 bytes"):
        Arena(-1)


def test_the_peak_is_the_most_used_at_once_until_it_is_reset():
    arena, blocks = filled("aabc")
    arena.free(blocks["a"], NO_MARKS)
    arena.free(blocks["b"], NO_MARKS)
    assert (arena.used_bytes, arena.free_bytes, arena.peak_bytes) == (UNIT, 3 * UNIT, 4 * UNIT)
    arena.reset_peak()
    assert arena.peak_bytes == UNIT
    arena.allocate(UNIT, "x")
    assert arena.peak_bytes == 2 * UNIT


def test_a_slide_packs_its_range_downwards_and_leaves_one_hole_above():
    arena, blocks = filled("a.bb..cd.e")
    moved = arena.slide(blocks["a"].next, blocks["c"])
    assert drawn(arena) == "abbc...d.e"
    assert [(b.owner, old // UNIT, b.offset // UNIT) for b, old in moved] == [("b", 2, 1), ("c", 6, 3)]
    arena.check()


def test_a_slide_unites_its_hole_with_a_free_right_neighbour_and_leaves_the_left_alone():
    arena, blocks = filled(".a.b..c")
    arena.slide(blocks["a"], blocks["b"])
    assert drawn(arena) == ".ab...c"
    arena.check()
    assert arena.slide(blocks["a"], blocks["b"]) == []  # nothing is left to move


def test_after_a_slide_the_hole_and_the_moved_blocks_have_the_marks_of_all_bytes_of_the_range():
    arena, blocks = filled("abcde")
    arena.free(blocks["b"], (7, 0, 0))
    arena.free(blocks["d"], (0, 8, 0))
    arena.free(blocks["e"], (0, 0, 9))  # united with d
    arena.slide(blocks["a"], blocks["c"].next)
    assert drawn(arena) == "ac..." and blocks["c"].next.marks == (7, 8, 9)
    assert blocks["a"].marks == NO_MARKS and blocks["c"].marks == (7, 8, 9)  # a did not move


def test_a_slide_needs_its_range_in_address_order():
    arena, blocks = filled("a.b")
    with pytest.raises(AssertionError, match="does not follow"):
        arena.slide(blocks["b"], blocks["a"])
    assert drawn(arena) == "a.b"


def test_the_cheapest_slide_moves_the_fewest_bytes():
    arena, _ = filled(".aaa.b..cc.")  # 3 free units: . b .. costs 1; 4: . b .. cc . costs 3; 5: all, 6
    first, last = arena.cheapest_slide(3 * UNIT)
    assert (first.offset, last.offset) == (4 * UNIT, 6 * UNIT)
    arena.slide(first, last)
    assert drawn(arena) == ".aaab...cc."
    assert arena.cheapest_slide(5 * UNIT + 1) is None


def test_the_cheapest_window_never_reaches_over_a_block_that_may_not_be_evicted():
    arena, _ = filled("a.bp.ccd")
    prices = {"a": 1.0, "b": 1.0, "p": None, "c": 5.0, "d": 4.0}
    assert arena.cheapest_window(2 * UNIT, lambda b: prices[b.owner])[0] == 1.0  # a. before .b
    cost, blocks = arena.cheapest_window(3 * UNIT, lambda b: prices[b.owner])
    assert (cost, [b.owner for b in blocks]) == (2.0, ["a", "b"])
    cost, blocks = arena.cheapest_window(4 * UNIT, lambda b: prices[b.owner])
    assert (cost, [b.owner for b in blocks]) == (9.0, ["c", "d"])
    assert arena.cheapest_window(5 * UNIT, lambda b: prices[b.owner]) is None


def test_a_window_that_is_free_already_costs_nothing_after_prices_that_do_not_add_up_exactly():
    arena, _ = filled("xxabc..")  # in binary, 0.1 + 0.2 + 0.3 - 0.1 - 0.2 - 0.3 is 1e-16, more than x
    prices = {"x": 1e-17, "a": 0.1, "b": 0.2, "c": 0.3}
    assert arena.cheapest_window(2 * UNIT, lambda b: prices[b.owner]) == (0.0, [])


def test_of_equal_slides_and_windows_the_lowest_is_taken():
    arena, blocks = filled(".a.b.")
    first, last = arena.cheapest_slide(2 * UNIT)
    assert (first.offset, last.offset) == (0, 2 * UNIT)
    assert arena.cheapest_window(2 * UNIT, lambda b: 1.0) == (1.0, [blocks["a"]])


@pytest.mark.parametrize("price", [-1.0, float("inf"), float("nan")])
def test_a_price_is_finite_and_not_negative(price):
    arena, _ = filled("a")
    with pytest.raises(AssertionError, match="the cost of evicting"):
        arena.cheapest_window(1, lambda b: price)


def test_blocks_that_are_gone_leave_no_cycle_for_the_garbage_collector():
    arena = arena_of(40)
    gc.collect()
    gc.disable()
    try:
        blocks = [arena.allocate(UNIT, "x") for _ in range(40)]
        for index in (0, 2, 1, 10, 30, 31, 32, *range(3, 10)):  # alone, between free ones, right and left of one
            arena.free(blocks[index], NO_MARKS)
        arena.slide(blocks[11], blocks[35])
        blocks += [arena.allocate(UNIT, "y") for _ in range(11)]  # the last is an exact fit
        blocks.clear()
        assert gc.collect() == 0
    finally:
        gc.enable()


# Every invariant of check() can fail


def _swap_index(arena: Arena) -> None:
    arena._keys.reverse()


def _forget_index(arena: Arena) -> None:
    arena._free_at.clear()


def _split_free(arena: Arena) -> None:
    right = Block(6 * UNIT, UNIT, None, NO_MARKS, arena._free_at[5 * UNIT], None)
    right.previous.size = UNIT
    right.previous.next = right


CORRUPTIONS: dict[str, tuple[Callable[[Arena], object], str]] = {
    "gap": (lambda a: setattr(a._tiling.first.next, "offset", 3 * UNIT), "its left neighbour ends at"),
    "overlap": (lambda a: setattr(a._tiling.first, "size", 3 * UNIT), "its left neighbour ends at"),
    "not from 0": (lambda a: setattr(a._tiling.first, "offset", UNIT), "its left neighbour ends at 0"),
    "back link": (lambda a: setattr(a._tiling.first.next.next, "previous", a._tiling.first), "on its left"),
    "short": (lambda a: setattr(a._free_at[5 * UNIT], "size", UNIT), "blocks end at"),
    "odd size": (lambda a: setattr(a._tiling.first, "size", UNIT + 1), "no multiple of 16"),
    "empty block": (lambda a: setattr(a._tiling.first, "size", 0), "no multiple of 16"),
    "two free blocks touch": (_split_free, "are both free and touch"),
    "owner gone": (lambda a: setattr(a._tiling.first, "owner", None), "are both free and touch|the index holds"),
    "index order": (_swap_index, "the index holds"),
    "index lost": (_forget_index, "the index holds"),
    "index key": (lambda a: a._keys.append(1 << 40), "the index holds"),
    "index of an owned block": (lambda a: a._free_at.update({0: a._tiling.first}), "the index holds"),
    "used": (lambda a: setattr(a, "used_bytes", a.used_bytes - UNIT), "bytes are used"),
    "peak": (lambda a: setattr(a, "peak_bytes", 0), "bytes are used"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_check_sees_each_corruption(name):
    arena, _ = filled("aa.bc..")
    corrupt, message = CORRUPTIONS[name]
    corrupt(arena)
    with pytest.raises(AssertionError, match=message):
        arena.check()
