"""Workspaces are lent: the arena says where they lie, and stays as it is.

What a kernel needs beside its operands is over before anything else is allocated or freed, so taking a block and giving
it back at once would leave the arena as it was. ``Arena.lend`` says the same without doing it.
"""

import gc
import random
from dataclasses import replace

import pytest

from minidl import Runtime
from minidl.device import create
from minidl.device.clock import COMPUTE
from minidl.memory.bytes.arena import Arena
from minidl.memory.storage import IN, View
from minidl.ops import matmul
from minidl.ops.update import fill_
from minidl.runtime import parameter

UNIT = 256


def picture(arena: Arena) -> list[tuple[int, int, bool, tuple[int, int, int]]]:
    return [(b.offset, b.size, b.owner is None, b.marks) for b in arena.blocks()]


def worked(seed: int) -> tuple[Arena, random.Random]:
    """An arena with holes, marked at random; the same one for the same seed."""
    draw, arena, held = random.Random(seed), Arena(64 * UNIT), []
    for _ in range(40):
        if held and draw.random() < 0.45:
            marks = (draw.randrange(9), draw.randrange(9), draw.randrange(9))
            arena.free(held.pop(draw.randrange(len(held))), marks)
        else:
            block = arena.allocate(draw.randrange(1, 9 * UNIT), object(), high=draw.random() < 0.3)
            held += [block] if block is not None else []
    return arena, draw


@pytest.mark.parametrize("seed", range(50))
def test_lending_leaves_what_taking_and_giving_back_at_once_would(seed):
    (lending, draw), (taking, _) = worked(seed), worked(seed)
    for number in range(10, 14):
        nbytes, marks = draw.randrange(1, 12 * UNIT), (number, 0, draw.randrange(9))
        taken, lent = taking.allocate(nbytes, object()), lending.lend(nbytes)
        assert (taken is None) == (lent is None)
        if taken is not None and lent is not None:
            assert (lent.offset, lent.marks) == (taken.offset, taken.marks)
            taking.free(taken, marks)
            lending.touched(lent, marks)
        lending.check()
        assert picture(lending) == picture(taking)
        assert (lending.peak_bytes, lending.used_bytes) == (taking.peak_bytes, taking.used_bytes)


def test_what_is_owned_is_not_lent():
    arena = Arena(4 * UNIT)
    block = arena.allocate(UNIT, object())
    with pytest.raises(AssertionError, match="not free"):
        arena.touched(block, (1, 0, 0))


def test_what_dies_during_a_launch_is_freed_after_it_and_does_not_take_the_lent_bytes_along():
    """Blocks of one unit: the result goes where ``first`` was, and the workspace is lent right of ``doomed``, which the
    cycle collector finds while the kernel is issued. Whoever gets those bytes later has to wait for the kernel."""
    device = create("sim:p100")
    with Runtime(device, memory_budget="64MiB", host_memory=0, policy="none") as runtime:
        weight, arena = parameter((8, 8)), runtime.memory.arena
        first, doomed = matmul(weight, weight), matmul(weight, weight)
        end = doomed.storage.block.offset + UNIT
        cycle = [doomed]
        cycle.append(cycle)
        del first, doomed, cycle
        algorithms, launch, used, seen = device.algorithms, device.launch, arena.used_bytes, []

        def with_workspace(*call):
            return tuple(replace(a, workspace=UNIT) for a in algorithms(*call))

        def collecting(name, algorithm, outputs, inputs, attrs, workspace, timed=None):
            gc.collect()
            seen.append((workspace, arena.used_bytes))
            return launch(name, algorithm, outputs, inputs, attrs, workspace, timed)
        device.algorithms, device.launch = with_workspace, collecting
        result = matmul(weight, parameter((8, 8)), transpose_b=True)  # a signature of its own
        assert result.storage.block.offset == 0 and seen == [(end, used + 2 * UNIT)]  # the result, and the parameter
        launched, device.algorithms, device.launch = device.positions[COMPUTE], algorithms, launch
        fill_(weight, 0.0)  # before the next call the dead are freed
        (hole,) = [b for b in arena.blocks() if b.owner is None]
        assert (hole.offset, hole.marks[COMPUTE]) == (end - UNIT, launched)


def test_a_view_answers_for_its_base():
    with Runtime("sim:p100", policy="none") as runtime:
        base = parameter((4, 4))
        with runtime.iteration():
            kept = matmul(base, base)
            view = kept.reshape((16,))
            storage = view.storage
            assert isinstance(storage, View) and storage.block is kept.storage.block and storage.status is IN
        # It has outlived its iteration: its id is another one now.
        assert storage.tensor_id == kept.storage.tensor_id and storage.block is kept.storage.block
