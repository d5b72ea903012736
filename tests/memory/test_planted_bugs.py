"""The simulation finds bugs: each of these is planted into the engine, and seen within SEEDS worlds.

A bug is a piece of one function's source and what stands there instead. A piece that no longer occurs exactly once is
an error: whoever changes that line decides what the bug is now.

A bug is found by what it does: work out of order or on the wrong bytes, a wrong result, or another promise that is
broken. An engine that crashes proves nothing, least of all if what was planted is no program: that fails here.
"""

from __future__ import annotations
import __future__

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from importlib import import_module
from inspect import getsource
from textwrap import dedent
from traceback import extract_tb
from types import FunctionType
from unittest.mock import patch

import pytest
from races import Violation
from simulation import WrongResult, reference, simulate

SEEDS = 200
PLANTED = "<bug in "  # how the file is called that planted code says it comes from

ALLOCATOR, ARENA, DEVICE = "memory.allocator:Allocator.", "memory.bytes.arena:Arena.", "device.timekeeper:Timekeeper."
FREEING, EVICTING, PLACING = "memory.freeing:Freeing.", "memory.evicting:Evicting.", "memory.runner:CallRunner."
REPLAY, GUARD = "memory.replay:Replay.", "memory.writing:WriteGuard."
EXECUTOR, POOL = "executor:Executor.", "memory.bytes.host_pool:HostPool."

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
        PLACING + "_place", "state.device.wait_marks(COMPUTE, block.marks)", "pass"),
    "a move does not wait for the copies of what it moves": (
        "memory.moving:slide_blocks", "(0, storage.copied_out, storage.copied_in)", "(0, 0, 0)"),
    "the bytes that a move left behind are marked as if it was over": (
        "memory.moving:slide_blocks", "(device.positions[COMPUTE], hole.marks[1]", "(0, hole.marks[1]"),
    "waiting for a stream ends one piece of work too early": (
        DEVICE + "wait", "self.clock.wait(stream, on, position)", "self.clock.wait(stream, on, position - 1)"),
    "a stream that has waited once does not wait again": (
        DEVICE + "wait", "position > waited[on]", "position > waited[on] == 0"),
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
    "a block at a planned address forgets the copies out of its own bytes": (
        ARENA + "free", "self._copies.append((copy, block.offset, block.offset + size, self._last))", "pass"),
    # Sizes and addresses.
    "an allocation is rounded down": (
        ARENA + "allocate", "-(-nbytes // alignment) * alignment", "max(1, nbytes // alignment) * alignment"),
    "an allocation is one unit too small": (
        ARENA + "allocate", "-(-nbytes // alignment) * alignment", "max(1, (nbytes - 1) // alignment) * alignment"),
    "a host copy is four bytes too small": (
        POOL + "_cut", "starts[index] += nbytes", "starts[index] += nbytes - 4"),
    "a moved block is moved one unit too little of": (
        "memory.moving:slide_blocks", "allocator.move(block.offset, origin, block.size)",
        "allocator.move(block.offset, origin, max(256, block.size - 256))"),
    "blocks slide in descending order": (
        "memory.moving:slide_blocks", "for block, origin in moved:", "for block, origin in reversed(moved):"),
    # Blocks that are freed twice, or never.
    "a block is freed twice": (
        ALLOCATOR + "leave_device", "storage.block = None", "pass"),
    "a workspace forgets the kernel that used it": (
        ALLOCATOR + "take_back", "self.arena.touched(block, marks)", "pass"),
    "a dropped tensor keeps its host copy": (
        EVICTING + "give_up_copy", "state.allocator.forget_host_copy(storage)", "pass"),
    "a freed tensor keeps its host copy": (
        FREEING + "deallocate", "state.allocator.forget_host_copy(storage)", "pass"),
    "an input that was written over keeps naming its block": (
        PLACING + "_end_donations", "storage.block = None", "pass"),
    "what is freed in the middle of the arena's work is freed at once": (
        FREEING + "deallocate", "busy.on or get_ident() != state.thread", "False"),
    "what was freed in the middle of the arena's work is freed though a replay needs it again": (
        FREEING + "free_queued", "record_gone or not storage.refs", "True"),
    # Who leaves, and who may be written over.
    "an operand of the call under way is evicted": (
        EVICTING + "evictable", "and s not in pinned", ""),
    "an input that others still ask for is given away": (
        "memory.runner:free_donations", "base.refs == 1", "base.refs >= 1"),
    # Values.
    "a host copy stays when the tensor is written in place": (
        GUARD + "after_write", "state.allocator.forget_host_copy(base)", "pass"),
    "what must be computed from the old bytes is not computed before they are written": (
        GUARD + "_secure", "self.replaying.replay(*dropped)", "pass"),
    "what a dropped value starts from is freed while its leaves are written": (
        FREEING + "starts_a_replay", "(storage, state.writing, ", "(storage, set(), "),
    "what could be made again before a write is taken for such after it": (
        FREEING + "starts_a_replay", "self._known_at != state.writes", "False"),
    "a replay reads what was written in place since": (
        "memory.lineage:missing_calls", "base.mutated_at > call.sequence", "False"),
    "a replay writes over a resident sibling": (
        REPLAY + "replay_call", "storage is not None and storage.status is RECOMPUTE and storage.refs > 0",
        "storage is not None"),
    "an update is made twice when its operands had to be brought in": (
        EXECUTOR + "run", "read, made = self.record_tensor_access(signature, algorithm, inputs, outputs)",
        "read, made = self.record_tensor_access(signature, algorithm, inputs, outputs)\n"
        "    if written and hasattr(memory, 'replaying') and memory.replaying.paged_in_bytes:\n"
        "        self.device.launch(op.name, algorithm, outputs, inputs, attrs, 0)"),
    "a tensor on its way in counts as there": (
        "memory.guided.execution:GuidedExecution.arrive", "self.state.allocator.finish_swap_in(storage)",
        "storage.set_status(IN)"),
    "a tensor whose block was given away counts as there": (
        ALLOCATOR + "finish_swap_out", "storage.set_status(OUT)", "storage.set_status(IN)"),
    "an eviction to the host copies nothing": (
        EVICTING + "evict", "elif self.back_up(storage):", "elif self.back_up(storage) or True:"),
    # Plans.
    "a plan's triggers are found at the access after": (
        "memory.guided.sequence:_actions", "(access.tensor_id, access.access_count)",
        "(access.tensor_id, access.access_count + 1)"),
    "a plan's evictions are made one call late": (
        "memory.guided.follower:PlanFollower.follow", "return entry.actions.get(position)\n    self.active",
        "return entry.actions.get(position - 1)\n    self.active"),
    "a plan is followed on after the program has left it": (
        "memory.guided.follower:PlanFollower.follow", "and entry.steps[position] == step", ""),
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
    exec(compile(source.replace(right, wrong), f"{PLANTED}{where}>", "exec", annotations), function.__globals__, made)
    before = function.__code__
    function.__code__ = made[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = before


class By(Enum):
    """By what a bug is found. The last two prove nothing."""

    ORDER = "work that is out of order, or on bytes of another value"
    RESULT = "a wrong result"
    PROMISE = "another promise that is broken"
    CRASH = "a crash of the engine"
    NO_PROGRAM = "planted code that is no program"


@dataclass(frozen=True)
class Finding:
    """What was seen in the first world in which anything was: ``words`` are those of the error."""

    by: By
    seed: int
    words: str


def found_by(error: BaseException) -> By:
    """How an error that a simulation raised tells of a bug."""
    if isinstance(error, AssertionError):
        return By.ORDER if isinstance(error, Violation) else By.RESULT if isinstance(error, WrongResult) else By.PROMISE
    innermost = extract_tb(error.__traceback__)[-1]
    return By.NO_PROGRAM if innermost.filename.startswith(PLANTED) else By.CRASH


@contextmanager
def noting_finalisers(errors: list[BaseException]) -> Iterator[None]:
    """What goes wrong in finalisers, which Python only reports."""
    with patch.object(sys, "unraisablehook", lambda report: errors.append(report.exc_value)):
        yield


def find(where: str, right: str, wrong: str) -> Finding | None:
    """Plant a bug into the engine and look for it in one world after the other. Planted code that is no program counts
    before what it leads to."""
    for seed in range(SEEDS):
        assert reference(seed).seen  # of the engine as it is
        errors: list[BaseException] = []
        with planted(where, right, wrong), noting_finalisers(errors):
            try:
                simulate(seed)
                broken = []
            except Exception as error:
                broken = [error]
        for error in (*(error for error in errors if found_by(error) is By.NO_PROGRAM), *broken):
            return Finding(found_by(error), seed, f"{type(error).__name__}: {error}")
    return None


# All others are found by the order of work, or by the values that it finds.
FOUND_BY: dict[By, set[str]] = {
    By.RESULT: {
        "the bytes that a move left behind are marked as if it was over",
        "copies under way when an iteration ends are forgotten",
        "a replay reads what was written in place since",
        "an update is made twice when its operands had to be brought in",
    },
    By.PROMISE: {
        "a host copy is four bytes too small",
        "a block is freed twice",
        "a dropped tensor keeps its host copy",
        "a freed tensor keeps its host copy",
        "what is freed in the middle of the arena's work is freed at once",
        "what must be computed from the old bytes is not computed before they are written",
        "what a dropped value starts from is freed while its leaves are written",
        "a tensor whose block was given away counts as there",
        "an eviction to the host copies nothing",
        "a plan's triggers are found at the access after",
        "a plan's evictions are made one call late",
        "a plan is followed on after the program has left it",
        "what could be made again before a write is taken for such after it",
    },
}
RARE = {  # seen in the tenth world or later
    "a move does not wait for the copies of what it moves",
    "copies under way when an iteration ends are forgotten",
    "what was freed in the middle of the arena's work is freed though a replay needs it again",
    "what a dropped value starts from is freed while its leaves are written",
    "a replay reads what was written in place since",
    "an eviction to the host copies nothing",
    "what could be made again before a write is taken for such after it",
}


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=pytest.mark.slow if bug in RARE else ()) for bug in BUGS])
def test_a_planted_bug_is_found_by_what_it_does(bug):
    found = find(*BUGS[bug])
    assert found is not None, f"not seen in {SEEDS} worlds: {bug}"
    assert found.by not in (By.CRASH, By.NO_PROGRAM), f"found by {found.by.value} alone: {found.words}"
    expected = next((by for by, bugs in FOUND_BY.items() if bug in bugs), By.ORDER)
    assert found.by is expected, f"found by {found.by.value}, not by {expected.value}: {found.words}"


@pytest.mark.parametrize(("bug", "wrong", "by"), [
    ("a stream that has waited once does not wait again", "position > nowhere[on]", By.NO_PROGRAM),
    ("a stream that has waited once does not wait again", "position > waited[None]", By.NO_PROGRAM),
    ("a freed tensor keeps its host copy", "self.allocator.no_such_method(storage)", By.NO_PROGRAM),  # in a finaliser
    ("a copy in does not wait for those that used its block before", "device.wait_marks(COPY_IN, None)", By.CRASH)])
def test_a_crash_is_not_taken_for_a_finding(bug, wrong, by):
    where, right, _ = BUGS[bug]
    found = find(where, right, wrong)
    assert found is not None and found.by is by and found.words


@pytest.mark.slow
def test_the_same_worlds_show_nothing_wrong_without_a_bug():
    for seed in range(SEEDS):
        simulate(seed)


def test_there_are_at_least_forty_bugs_and_each_changes_something():
    assert {*FOUND_BY[By.RESULT], *FOUND_BY[By.PROMISE], *RARE} <= BUGS.keys()
    assert len(BUGS) >= 40 and len({where + right + wrong for where, right, wrong in BUGS.values()}) == len(BUGS)
    for where, right, wrong in BUGS.values():
        before = function_at(where).__code__
        with planted(where, right, wrong):
            code = function_at(where).__code__
            assert (code.co_code, code.co_consts, code.co_names) != (before.co_code, before.co_consts, before.co_names)
        assert function_at(where).__code__ is before
