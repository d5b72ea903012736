"""Modes that policies on demand would choose, from a dry run of each on the trace, in bytes and without addresses.

The calls are walked in order. If a call's outputs do not fit beside the tensors on the device, tensors leave: those of
the lowest rank under a rule first, each by a drop or a swap, whichever costs less. A dropped tensor is replayed before
its next use, and that replay, too, may make others leave. An eviction counts for the whole gap between two uses.

    dtr         seconds of the return, divided by bytes and by calls since the last use (``policies/dtr_swap``)
    msps        seconds of the return, divided by bytes (Capuchin, equation 2)
    first made  what can be replayed faster than swapped, in the order of production (``policies/recompute``)
    last used   the latest next use (Belady)

A start for a search where others lead to no plan. Work is counted in calls looked at, so results are the same anywhere.
The dry run is compiled: this module is imported when a search needs it.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from minidl.outside.numba_cache import njit
from minidl.plan.costs import Limits
from minidl.planning import problem
from minidl.planning.compiled import forget_older
from minidl.planning.problem import DROP, NEVER, SWAP, Array, Problem

MOST_LOOKS = 400_000  # calls that the dry run of one rule may look at
DTR, MSPS, FIRST_MADE, LAST_USED = RULES = range(4)  # in the order of the table
ELSEWHERE = -2  # what ``State.last`` has for tensors that are not on the device
USED, ON_HOST, LOOKS, SEARCHES, RESIDENT = range(5)  # positions in ``State.counts``


class State(NamedTuple):
    """The state of a dry run on its way through the calls.

    rule, device_bytes, host_bytes   of this run
    mode       per gap: what the run has chosen so far
    pointers, operands   per call: what it reads and makes, in a flat array
    workspace  per call: bytes of its smallest workspace
    counts     bytes on the device and on the host, looks left, searches along lineages, tensors in ``resident``
    resident   the tensors on the device, in any order
    place      per tensor on the device: its position in ``resident``
    last       per tensor: the call that used it last (-1: none yet), or ELSEWHERE
    gap        per tensor: the latest of its gaps that have begun, or -1
    on_host    per tensor: True if the host has it
    pinned     per tensor: the latest call that needed it on the device, or -1
    reader     per tensor: the last call that reads it in the replay under way, or -1
    passing    per tensor: True while it is on the device for the replay under way only
    rank       per tensor on the device: what ``_rank`` said when memory was short last; infinite if it may not leave
    drops      per tensor on the device: True if its drop costs less than its swap
    seen       per call: the latest search that found it
    stack, found, replay   scratch: tensors to look at, calls found, and the calls of a replay
    """

    rule: int
    device_bytes: int
    host_bytes: int
    mode: Array
    pointers: Array
    operands: Array
    workspace: Array
    counts: Array
    resident: Array
    place: Array
    last: Array
    gap: Array
    on_host: Array
    pinned: Array
    reader: Array
    passing: Array
    rank: Array
    drops: Array
    seen: Array
    stack: Array
    found: Array
    replay: Array


def by_demand(facts: Problem, limits: Limits) -> Iterator[Array]:
    """Yield the modes that result from each rule, int64 [gaps]; some may exceed the budget.
    A rule whose dry run would look at more than MOST_LOOKS calls is left out."""
    for rule in RULES:
        state = beginning(facts, rule, limits)
        if dry_run(facts, state):
            yield state.mode


def beginning(facts: Problem, rule: int, limits: Limits) -> State:
    """Return the state before the first call: tensors from before the iteration are on the device."""
    tensors, calls = len(facts.size), len(facts.in_ptr) - 1
    here = np.nonzero(facts.produced < 0)[0]
    operands = np.insert(facts.in_idx, np.repeat(facts.in_ptr[1:], np.diff(facts.out_ptr)), facts.out_idx)
    counts, (resident, place) = np.zeros(5, np.int64), np.zeros((2, tensors), np.int64)
    counts[USED], counts[LOOKS], counts[RESIDENT] = facts.size[here].sum(), MOST_LOOKS, len(here)
    resident[:len(here)], place[here] = here, np.arange(len(here))
    gap, pinned, reader = np.full((3, tensors), -1, np.int64)
    on_host, passing, drops = np.zeros((3, tensors), np.bool_)
    seen, found, replay = np.zeros((3, calls), np.int64)
    return State(rule, limits.device_bytes, limits.host_bytes, np.zeros(len(facts.gap_call), np.int64),
                 facts.in_ptr + facts.out_ptr, operands, facts.algorithm_bytes[facts.algorithm_ptr[1:] - 1], counts,
                 resident, place, np.where(facts.produced < 0, -1, ELSEWHERE), gap, on_host, pinned, reader, passing,
                 np.zeros(tensors), drops, seen, np.zeros(len(facts.in_idx) + 1, np.int64), found, replay)


def _arrive(state: State, t: int, k: int) -> None:
    """Note that call k uses tensor t on the device."""
    if state.last[t] == ELSEWHERE:
        state.place[t] = state.counts[RESIDENT]
        state.resident[state.counts[RESIDENT]] = t
        state.counts[RESIDENT] += 1
    state.last[t] = k


def _leave(facts: Problem, state: State, t: int) -> None:
    """Take tensor t off the device; the last one of ``resident`` gets its place."""
    state.counts[RESIDENT] -= 1
    moved = state.resident[state.counts[RESIDENT]]
    state.resident[state.place[t]] = moved
    state.place[moved] = state.place[t]
    state.last[t] = ELSEWHERE
    state.counts[USED] -= facts.size[t]


def _forget(facts: Problem, state: State, t: int) -> None:
    """Free tensor t's bytes on the host, if it has some there."""
    if state.on_host[t]:
        state.on_host[t] = False
        state.counts[ON_HOST] -= facts.size[t]


def _missing(facts: Problem, state: State, tensor: int, calls: Array) -> int:
    """Write the calls that would compute a tensor without bytes to ``calls``, the last one first.
    Returns their number; 0 if they cannot compute it."""
    state.counts[SEARCHES] += 1
    count, depth = 0, 1
    state.stack[0] = tensor
    while depth:
        depth -= 1
        call = facts.produced[state.stack[depth]]
        state.counts[LOOKS] -= 1
        if call < 0:
            return 0
        if state.seen[call] == state.counts[SEARCHES]:
            continue
        state.seen[call] = state.counts[SEARCHES]
        at = count
        while at > 0 and calls[at - 1] < call:  # seldom: a search goes from later calls to earlier ones
            calls[at] = calls[at - 1]
            at -= 1
        calls[at] = call
        count += 1
        for i in range(facts.in_ptr[call], facts.in_ptr[call + 1]):
            t = facts.in_idx[i]
            if state.last[t] == ELSEWHERE and not state.on_host[t]:
                state.stack[depth] = t
                depth += 1
    return count


def _rank(rule: int, seconds: float, copies: float, nbytes: int, idle: int, made: int, next_use: int) -> float:
    """Return the rank of a tensor that may leave, by the table above; the lowest leaves first.
    seconds: of its cheaper way back; copies: of its two copies; idle: calls since its last use; made, next_use: calls,
    of which made is -1 for a tensor from before the iteration."""
    if rule == DTR:
        return seconds / (nbytes * (idle + 1))
    if rule == MSPS:
        return seconds / nbytes
    if rule == FIRST_MADE:
        return float(made + NEVER) if seconds >= copies else float(made)
    return float(-next_use)


def _judge(facts: Problem, state: State, k: int, t: int) -> None:
    """Find the rank of a tensor on the device at call k, and whether its drop costs less than its swap."""
    g, size = state.gap[t], facts.size[t]
    state.rank[t], state.drops[t] = inf, False
    if (g < 0 or facts.gap_next[g] < k or state.pinned[t] == k or state.reader[t] >= 0
            or state.counts[LOOKS] < 0):
        return
    copies = again = inf
    if state.counts[ON_HOST] + size <= state.host_bytes:
        copies = facts.out_seconds[t] + facts.in_seconds[t]
    count = _missing(facts, state, t, state.found) if facts.may_drop[g] else 0
    if count:
        again = 0.0
        for n in range(count - 1, -1, -1):
            again += facts.algorithm_seconds[facts.algorithm_ptr[state.found[n]]]
    seconds = min(again, copies)
    if seconds < inf:
        state.rank[t] = _rank(state.rule, seconds, copies, size, k - state.last[t], facts.produced[t],
                              facts.gap_next[g])
        state.drops[t] = again <= copies


def _make_room(facts: Problem, state: State, k: int, need: int) -> None:
    """Let tensors leave until ``need`` bytes fit, or none is left that may; of equal ranks the first of the trace."""
    if state.counts[USED] + need <= state.device_bytes:
        return
    for n in range(state.counts[RESIDENT]):
        _judge(facts, state, k, state.resident[n])
    while state.counts[USED] + need > state.device_bytes:
        t, least = -1, inf
        for n in range(state.counts[RESIDENT]):  # few leave at a time
            v = state.resident[n]
            if (state.rank[v] < least or (state.rank[v] == least and v < t)) and (
                    state.drops[v] or state.counts[ON_HOST] + facts.size[v] <= state.host_bytes):
                t, least = v, state.rank[v]
        if t < 0:
            return
        _leave(facts, state, t)
        state.mode[state.gap[t]] = DROP if state.drops[t] else SWAP
        if not state.drops[t]:
            state.on_host[t] = True
            state.counts[ON_HOST] += facts.size[t]


def _replay(facts: Problem, state: State, k: int, wanted: int) -> None:
    """Compute a tensor that is nowhere before call k, if that is possible; of all that arrives only it stays."""
    count = _missing(facts, state, wanted, state.replay)
    for n in range(count - 1, -1, -1):
        c = state.replay[n]
        for i in range(facts.in_ptr[c], facts.in_ptr[c + 1]):
            state.reader[facts.in_idx[i]] = c
    for n in range(count - 1, -1, -1):
        c, need = state.replay[n], 0
        for i in range(state.pointers[c], state.pointers[c + 1]):
            t = state.operands[i]
            if (state.on_host[t] or facts.produced[t] == c) and state.last[t] == ELSEWHERE and not state.passing[t]:
                state.passing[t] = True
                need += facts.size[t]
        _make_room(facts, state, k, need + state.workspace[c])
        state.counts[USED] += need
        for i in range(state.pointers[c], state.pointers[c + 1]):
            t = state.operands[i]
            if state.passing[t] and state.reader[t] <= c and t != wanted:
                state.passing[t] = False
                state.counts[USED] -= facts.size[t]
    for n in range(count):
        c = state.replay[n]
        for i in range(facts.in_ptr[c], facts.in_ptr[c + 1]):
            state.reader[facts.in_idx[i]] = -1


def _bring_back(facts: Problem, state: State, k: int) -> None:
    """Bring the inputs of call k to the device, by copies and replays."""
    for i in range(facts.in_ptr[k], facts.in_ptr[k + 1]):
        t = facts.in_idx[i]
        if state.last[t] == ELSEWHERE:
            if not state.on_host[t]:
                _replay(facts, state, k, t)
            if not state.passing[t]:
                _make_room(facts, state, k, facts.size[t])
                state.counts[USED] += facts.size[t]
            state.passing[t] = False
            _arrive(state, t, k)
            _forget(facts, state, t)


for part in (_arrive, _leave, _forget, _missing, _rank, _judge, _make_room, _replay, _bring_back):
    register_jitable(_nrt=False)(part)  # without reference counting, as in ``planning/compiled``


@njit(cache=True, nogil=True, _nrt=False)
def dry_run(facts: Problem, state: State) -> bool:
    """Walk all calls; ``state.mode`` then has the modes. False if that takes too many looks."""
    for k in range(len(facts.in_ptr) - 1):
        need = given = 0
        for i in range(state.pointers[k], state.pointers[k + 1]):
            state.pinned[state.operands[i]] = k
            if facts.produced[state.operands[i]] == k:
                need += facts.size[state.operands[i]]
        for i in range(facts.may_ptr[k], facts.may_ptr[k + 1]):
            for j in range(facts.free_ptr[k], facts.free_ptr[k + 1]):
                if facts.may_in[i] == facts.free_idx[j]:
                    given += facts.size[facts.may_in[i]]
                    break
        _bring_back(facts, state, k)
        _make_room(facts, state, k, need - given + state.workspace[k])
        state.counts[USED] += need
        for i in range(state.pointers[k], state.pointers[k + 1]):
            _arrive(state, state.operands[i], k)
        for g in range(facts.gap_ptr[k], facts.gap_ptr[k + 1]):
            if facts.gap_head[g] < 0:
                state.gap[facts.gap_tensor[g]] = g
        for i in range(facts.free_ptr[k], facts.free_ptr[k + 1]):
            if state.last[facts.free_idx[i]] != ELSEWHERE:
                _leave(facts, state, facts.free_idx[i])
            _forget(facts, state, facts.free_idx[i])
        if state.counts[LOOKS] < 0:
            return False
    return True


forget_older(dry_run, (problem,))
