"""Bugs that the simulation has found and that it meets seldom, each by the shortest program that shows it.

Sizes are in units of 256 bytes: tensors of 64 float32.
"""

from networks import leaf, small_runtime

from minidl.device.clock import COMPUTE, COPY_OUT, VirtualClock
from minidl.memory.guided.execution import attach
from minidl.memory.storage import IN, OUT
from minidl.ops.elementwise import scale


def test_an_input_is_written_over_only_when_its_copy_out_has_been_made():
    """X is on its way out when it is wanted again; memory is full, so the output takes its place; X has other uses."""
    with small_runtime(units=130) as runtime:
        attach(runtime.memory)
        x = scale(leaf(runtime, 5.0, units=64), 1.0)
        rest = leaf(runtime, 1.0, units=66)
        base, place = x.storage.base, x.storage.block
        assert runtime.memory.allocator.start_swap_out(base)
        runtime.memory.make_resident((x.storage,), "test")
        assert x.status is IN
        y = scale(x, 2.0)
        assert y.storage.block is place and x.status is OUT
        assert set(x.numpy()) == {5.0} and set(y.numpy()) == {10.0} and set(rest.numpy()) == {1.0}


def test_finish_times_that_are_still_to_come_are_not_forgotten():
    """Two copies out, of 1 s and 9 s, and 2 s of computation; an old position must not become a later one."""
    clock = VirtualClock()
    first = clock.issue(COPY_OUT, 1.0)
    last = clock.issue(COPY_OUT, 9.0)
    clock.issue(COMPUTE, 2.0)
    clock.end_iteration()
    assert clock.finish_time(COPY_OUT, first) == 1.0 and clock.finish_time(COPY_OUT, last) == 10.0
    clock.issue(COMPUTE, 18.0)
    clock.end_iteration()
    assert clock.finish_time(COPY_OUT, first) == clock.finish_time(COPY_OUT, last) == 10.0
