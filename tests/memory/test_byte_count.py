"""An arena without addresses: it refuses by bytes alone, and the next user of bytes waits for their last one."""

import random

import pytest

from minidl.errors import UserError
from minidl.memory.bytes.byte_count import ByteCount
from minidl.meta import ALIGNMENT
from minidl.placements import Unplaced
from minidl.runtime import Runtime

UNITS = 64


@pytest.mark.parametrize("seed", range(20))
def test_an_allocation_succeeds_if_and_only_if_so_many_bytes_are_free(seed):
    chance, arena, held = random.Random(seed), ByteCount(UNITS * ALIGNMENT, placement=Unplaced()), []
    for now in range(1, 300):
        if held and chance.random() < 0.5:
            arena.free(held.pop(chance.randrange(len(held))), (now, 0, 0))
        else:
            wanted, lent = chance.randrange(1, UNITS * ALIGNMENT // 3), chance.random() < 0.3
            had = arena.free_bytes
            assert arena.fits(wanted) == (arena.rounded(wanted) <= had)
            block = arena.lend(wanted) if lent else arena.allocate(wanted, "owner")
            assert (block is not None) == arena.fits(wanted) if lent else (
                arena.rounded(wanted) <= had) == (block is not None)
            if block is not None and lent:
                arena.touched(block, (now, 0, 0))
                assert arena.free_bytes == had
            elif block is not None:
                held.append(block)
        arena.check()
        assert arena.used_bytes == sum(block.size for block in held)


def test_bytes_are_used_again_in_the_order_in_which_they_were_freed_and_with_their_marks():
    arena = ByteCount(4 * ALIGNMENT, placement=Unplaced())
    a, b, c, d = (arena.allocate(ALIGNMENT, "owner") for _ in range(4))
    arena.free(c, (1, 9, 0))  # a copy out of it still runs
    arena.free(a, (2, 0, 0))
    assert arena.allocate(1, "owner").marks == (1, 9, 0) and arena.allocate(1, "owner").marks == (2, 0, 0)
    arena.free(b, (3, 0, 0))
    arena.free(d, (4, 0, 7))
    assert arena.allocate(2 * ALIGNMENT, "owner").marks == (4, 0, 7)
    with pytest.raises(AssertionError, match="double free"):
        arena.free(b, (5, 0, 0))


def test_a_device_that_holds_bytes_refuses_it():
    with pytest.raises(UserError, match="is for simulated devices"):
        Runtime("cpu:virtual", placement=Unplaced(), memory_budget="1MiB")
