"""The simulation finds bugs: each of these is planted into the engine, and seen within SEEDS worlds.

A bug is a piece of one function's source and what stands there instead. A piece that no longer occurs exactly once is
an error: whoever changes that line decides what the bug is now.
"""

from __future__ import annotations
import __future__

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from inspect import getsource
from textwrap import dedent
from types import FunctionType

import pytest
from simulation import reference, simulate

SEEDS = 200

ALLOCATOR, ARENA, DEVICE = "memory.copies:Allocator.", "memory.arena:Arena.", "device.contract:Timekeeper."
MANAGER, PLACER, SPACE = "memory.manager:Manager.", "memory.placing:Placer.", "memory.space:Space."
EXECUTOR, POOL = "executor:Executor.", "memory.host_pool:HostPool."

BUGS: dict[str, tuple[str, str, str]] = {
    # Waits that are missing, or for too little.
    "a copy out does not wait for the kernel that writes its bytes": (
        ALLOCATOR + "start_swap_out", "device.wait(COPY_OUT, COMPUTE, self._positions[COMPUTE])", "pass"),
    "a copy in does not wait for those that used its block before": (
        ALLOCATOR + "start_swap_in", "device.wait_marks(COPY_IN, block.marks)", "pass"),
    "a copy in does not wait for the copy out that it reads": (
        ALLOCATOR + "start_swap_in", "device.wait(COPY_IN, COPY_OUT, storage.copied_out)", "pass"),
    "a kernel does not wait for the copy in of its input": (
        ALLOCATOR + "finish_swap_in", "self.device.wait(COMPUTE, COPY_IN, storage.copied_in)", "pass"),
    "a kernel does not wait for those that used its output's block before": (
        PLACER + "place", "self.device.wait_marks(COMPUTE, block.marks)", "pass"),
    "a move does not wait for the copies of what it moves": (
        ALLOCATOR + "slide", "(0, storage.copied_out, storage.copied_in)", "(0, 0, 0)"),
    "the bytes that a move left behind are marked as if it was over": (
        ALLOCATOR + "slide", "(self._positions[COMPUTE], hole.marks[1]", "(0, hole.marks[1]"),
    "waiting for a stream ends one piece of work too early": (
        DEVICE + "wait", "self.clock.wait(stream, on, position)", "self.clock.wait(stream, on, position - 1)"),
    "a stream that has waited once does not wait again": (
        DEVICE + "wait", "waited[on] = position", "waited[on] = position + 10"),
    "reading a value does not wait for the device": (
        "device.cpu.device:CpuDevice.read", "self.synchronize(COMPUTE, self.positions[COMPUTE])", "pass"),
    "copies under way when an iteration ends are forgotten": (
        "device.clock:VirtualClock.end_iteration", "max(0, bisect_right(finished, now) - 1)", "len(finished) - 1"),
    # Marks that are lost.
    "a freed block forgets the copy out of it": (
        ALLOCATOR + "leave_device", "storage.copied_out, storage", "0, storage"),
    "a freed block forgets the kernels that used it": (
        ALLOCATOR + "leave_device", "(self._positions[COMPUTE], storage", "(0, storage"),
    "a block that swallows its right neighbour forgets its marks": (
        ARENA + "free", "marks = unite_marks(following.marks, marks)", "pass"),
    "a block that is swallowed by its left neighbour forgets its own marks": (
        ARENA + "free", "marks = unite_marks(previous.marks, marks)", "marks = previous.marks"),
    # Sizes and addresses.
    "an allocation is rounded down": (
        ARENA + "allocate", "-(-nbytes // alignment) * alignment", "max(1, nbytes // alignment) * alignment"),
    "an allocation is one unit too small": (
        ARENA + "allocate", "-(-nbytes // alignment) * alignment", "max(1, (nbytes - 1) // alignment) * alignment"),
    "a host copy is four bytes too small": (
        POOL + "allocate", "starts[index] = start + nbytes", "starts[index] = start + nbytes - 4"),
    "a moved block is moved one unit too little of": (
        ALLOCATOR + "slide", "device.move(block.offset, origin, block.size)",
        "device.move(block.offset, origin, max(256, block.size - 256))"),
    "blocks slide in descending order": (
        ALLOCATOR + "slide", "for block, origin in moved:", "for block, origin in reversed(moved):"),
    # Blocks that are freed twice, or never.
    "a block is freed twice": (
        ALLOCATOR + "leave_device", "storage.block = None", "pass"),
    "a workspace forgets the kernel that used it": (
        ALLOCATOR + "take_back", "self.arena.touched(block, marks)", "pass"),
    "a dropped tensor keeps its host copy": (
        SPACE + "_forget", "self.allocator.forget_host_copy(storage)", "pass"),
    "a freed tensor keeps its host copy": (
        MANAGER + "deallocate", "self.allocator.forget_host_copy(storage)", "pass"),
    "an input that was written over keeps naming its block": (
        PLACER + "launched", "storage.block = None", "pass"),
    "what is freed in the middle of the arena's work is freed at once": (
        MANAGER + "deallocate", "self.busy or get_ident() != self.thread", "False"),
    "what was freed in the middle of the arena's work is freed though a replay needs it again": (
        MANAGER + "bury", "record_gone or not storage.refs", "True"),
    # Who leaves, and who may be written over.
    "an operand of the call under way is evicted": (
        SPACE + "_evictable", "and s not in pinned", ""),
    "an input that others still ask for is given away": (
        "memory.donation:free", "base.refs == 1", "base.refs >= 1"),
    # Values.
    "a host copy stays when the tensor is written in place": (
        MANAGER + "after_write", "self.allocator.forget_host_copy(base)", "pass"),
    "what must be computed from the old bytes is not computed before they are written": (
        MANAGER + "before_write", "self.replay(other)", "pass"),
    "what a dropped value starts from is freed while its leaves are written": (
        MANAGER + "deallocate", "calls is None or reads(calls, self.writing)", "calls is None"),
    "a replay reads what was written in place since": (
        "memory.lineage:missing_calls", "base.mutated_at > call.sequence", "False"),
    "a replay writes over a resident sibling": (
        EXECUTOR + "_replay_call", "storage is not None and storage.status is RECOMPUTE and storage.refs > 0",
        "storage is not None"),
    "an update is made twice when its operands had to be brought in": (
        EXECUTOR + "run", "read, made = tracker.record(signature, algorithm, inputs, outputs)",
        "read, made = tracker.record(signature, algorithm, inputs, outputs)\n"
        "    if written and memory.paged_in_bytes:\n"
        "        self.device.launch(op.name, algorithm, outputs, inputs, attrs, 0)"),
    "a tensor on its way in counts as there": (
        MANAGER + "make_resident", "self._arrive(base)", "base.become(IN)"),
    "a tensor whose block was given away counts as there": (
        ALLOCATOR + "finish_swap_out", "storage.become(OUT)", "storage.become(IN)"),
    "an eviction to the host copies nothing": (
        SPACE + "evict", "elif self._back_up(storage):", "elif self._back_up(storage) or True:"),
    # Plans.
    "a plan's triggers are found at the access after": (
        "memory.guide:Entry.adopt", "(access.tensor_id, access.access_count)",
        "(access.tensor_id, access.access_count + 1)"),
    "a plan's evictions are made one call late": (
        "memory.guide:Guide.follow", "return entry.actions.get(position)\n    self.active",
        "return entry.actions.get(position - 1)\n    self.active"),
    "a plan is followed on after the program has left it": (
        "memory.guide:Guide.follow", "and entry.steps[position] == step", ""),
}


def function_at(where: str) -> FunctionType:
    """The function of a "module:path" below minidl."""
    module, _, path = where.partition(":")
    found = reduce(getattr, path.split("."), import_module(f"minidl.{module}"))
    assert isinstance(found, FunctionType)
    return found


@contextmanager
def planted(where: str, right: str, wrong: str) -> Iterator[None]:
    """The function at ``where`` with ``wrong`` in place of ``right``. Its code is exchanged, so that everybody who
    has imported it runs it too."""
    function = function_at(where)
    source = dedent(getsource(function))
    assert source.count(right) == 1, f"{right!r} occurs {source.count(right)} times in {where}"
    made: dict[str, Callable] = {}
    annotations = __future__.annotations.compiler_flag
    exec(compile(source.replace(right, wrong), f"<bug in {where}>", "exec", annotations), function.__globals__, made)
    before = function.__code__
    function.__code__ = made[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = before


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    for seed in range(SEEDS):
        right = reference(seed)  # of the engine as it is
        assert right.seen
        try:
            with planted(*BUGS[bug]):
                simulate(seed)
        except Exception:
            return
    pytest.fail(f"not seen in {SEEDS} worlds: {bug}")


def test_the_same_worlds_show_nothing_wrong_without_a_bug():
    for seed in range(SEEDS):
        simulate(seed)


def test_there_are_at_least_twenty_bugs_and_each_changes_something():
    assert len(BUGS) >= 20 and len({where + right + wrong for where, right, wrong in BUGS.values()}) == len(BUGS)
    for where, right, wrong in BUGS.values():
        before = function_at(where).__code__
        with planted(where, right, wrong):
            code = function_at(where).__code__
            assert (code.co_code, code.co_consts, code.co_names) != (before.co_code, before.co_consts, before.co_names)
        assert function_at(where).__code__ is before
