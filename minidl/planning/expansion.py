"""Expands a choice of modes into steps (the program's calls, and the replays before each) and their bytes in use.

The first part of ``schedule``: it knows positions and bytes, and no times except those of replays. Plain Python that
Numba can compile: all state is in arrays, and scalars are entries of ``Walk.counts``. In the functions, k is a call of
the program, c a call that a step executes, and t a tensor, each a number of ``Problem``.
"""

import numpy as np

from minidl.planning.lineages import can_replay, drop_leftovers, end_note, find_due, find_replays, free_sources
from minidl.planning.problem import DROP, ENDLESS, KEEP, SWAP, Array, Problem
from minidl.planning.walk import (
    ABSENT, AWAY, BACKS, DROPPED, FAILED, HOST, IN_MEMORY, KEPT, LEFTOVERS, LIVE, MOST_ON_HOST, NOTED, OUTS, RESIDENT,
    SOURCES, SPOILT, STEPS, TEMPORARY, UNSURE, CopiesOut, StepArrays, SwapIns, Total, Walk,
)


def expand(problem: Problem, mode: Array, prefetch_at: Array, notes: Array
           ) -> tuple[StepArrays, CopiesOut, SwapIns, Total]:
    """Return all steps and copies of an iteration in which each gap has its ``mode``, and their totals.
    prefetch_at is filled with -1. notes: unless empty, gets a row for each residency. ``Total.failed`` is a call if a
    tensor that cannot be replayed would have to be replayed before it, or if there are too many replays."""
    calls, tensors, gaps = len(problem.in_ptr) - 1, len(problem.size), len(problem.gap_tensor) + 1
    most = 6 * calls + 64
    # Unused rows are cut off at the end; untouched pages cost nothing.
    steps = StepArrays(np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64))
    out = CopiesOut(np.empty(gaps, np.int64), np.empty(gaps, np.int64), np.empty(gaps, np.int64),
                    np.empty(gaps, np.bool_))
    back = SwapIns(np.empty(gaps, np.int64), np.empty(gaps, np.int64), np.empty(gaps, np.int64),
                   np.empty(gaps, np.int64), np.empty(gaps, np.int64), np.empty(gaps, np.int64),
                   np.empty(gaps, np.bool_))
    walk = Walk(np.zeros(14, np.int64), np.zeros(tensors, np.int64), np.zeros(tensors, np.int64),
                np.zeros(tensors, np.int64), np.full(tensors, -1, np.int64), np.full(tensors, -1, np.int64),
                np.zeros(tensors, np.bool_), np.zeros(tensors, np.bool_), np.full(tensors, -1, np.int64),
                np.zeros(tensors, np.int64), np.full(tensors, -1, np.int64), np.zeros(calls, np.int64),
                np.zeros(calls, np.int64), np.zeros(tensors + 8, np.int64), np.zeros(2 * tensors, np.int64),
                np.zeros(gaps, np.int64), np.zeros(tensors, np.int64),
                np.zeros(2 * tensors, np.int64))
    replay_seconds, failed = _take_all(problem, walk, mode, prefetch_at, notes, steps, out, back)
    n, outs, backs = walk.counts[STEPS], walk.counts[OUTS], walk.counts[BACKS]
    return (StepArrays(steps.call[:n], steps.group[:n], steps.during[:n]),
            CopiesOut(out.tensor[:outs], out.step[:outs], out.note[:outs], out.spilled[:outs]),
            SwapIns(back.tensor[:backs], back.use[:backs], back.left[:backs], back.gap[:backs], back.note[:backs],
                    back.start[:backs], back.spilled[:backs]),
            Total(walk.counts[MOST_ON_HOST], replay_seconds, walk.counts[NOTED], failed))


def _take_all(problem: Problem, walk: Walk, mode: Array, prefetch_at: Array, notes: Array, steps: StepArrays,
              out: CopiesOut, back: SwapIns) -> tuple[float, int]:
    """Take all steps; return the seconds of replays, and the call before which a replay is impossible, or -1."""
    replay_seconds = 0.0
    _start(problem, walk, mode, notes)
    for k in range(len(problem.in_ptr) - 1):
        due = find_due(problem, walk, k)
        for n in range(walk.counts[SPOILT] + 1):
            if n < walk.counts[SPOILT] and (walk.state[walk.due[n]] != DROPPED
                                            or can_replay(problem, walk, walk.due[n])):
                continue
            replays = find_replays(problem, walk, n, n + 1 if n < walk.counts[SPOILT] else due)
            if replays == FAILED or walk.counts[STEPS] + replays >= len(steps.call) - 2:
                return 0.0, k
            _in_program_order(walk.replay, replays)
            for r in range(replays):
                c = walk.replay[r]
                _bring_back(problem, walk, c, back, notes)
                if walk.counts[LEFTOVERS] and problem.leftovers_bytes < ENDLESS:
                    drop_leftovers(problem, walk, c, k, notes)
                _take_step(problem, walk, c, k, steps, notes)
                replay_seconds += problem.algorithm_seconds[problem.algorithm_ptr[c]]
                _after_replay(problem, walk, c, notes)
            if walk.counts[SOURCES]:
                free_sources(problem, walk, notes)
        _bring_back(problem, walk, k, back, notes)
        _find_endings(problem, walk, k, mode)
        if walk.counts[LEFTOVERS] and problem.leftovers_bytes < ENDLESS:
            drop_leftovers(problem, walk, k, k, notes)
        _take_step(problem, walk, k, k, steps, notes)
        _after_call(problem, walk, k, notes)
        _evict(problem, walk, k, mode, prefetch_at, out, notes)
        for i in range(problem.free_ptr[k], problem.free_ptr[k + 1]):  # the program frees them once the call is over,
            _forget_copy(problem, walk, problem.free_idx[i])           # so what is evicted after it has no room there
    return replay_seconds, -1


def _in_program_order(replay: Array, count: int) -> None:
    """Sort the first ``count`` calls to replay, by Shell's method. NumPy's sort counts references if Numba compiles it.
    """
    stride = count // 2
    while stride:
        for n in range(stride, count):
            c, at = replay[n], n
            while at >= stride and replay[at - stride] > c:
                replay[at] = replay[at - stride]
                at -= stride
            replay[at] = c
        stride //= 2


def _start(problem: Problem, walk: Walk, mode: Array, notes: Array) -> None:
    """Set the state of the tensors from before the iteration: on the device, or swapped out in the previous iteration.
    """
    for g in range(len(problem.gap_before)):
        t = problem.gap_before[g]
        if t >= 0 and mode[g] == SWAP:
            walk.state[t], walk.gap[t] = AWAY, g
            _copy(problem, walk, t)
    walk.counts[MOST_ON_HOST] = walk.counts[HOST]
    for t in range(len(problem.size)):
        if problem.produced[t] < 0 and walk.state[t] != AWAY:
            _arrive(problem, walk, t, 0, notes)


def _arrive(problem: Problem, walk: Walk, t: int, step: int, notes: Array) -> None:
    """Record that tensor t is on the device from ``step`` on; if notes are kept, begin a row for this residency."""
    walk.state[t] = RESIDENT
    walk.counts[LIVE] += problem.size[t]
    if len(notes):
        notes[walk.counts[NOTED]] = (t, step, -1, -1)
        walk.note[t] = walk.counts[NOTED]
        walk.counts[NOTED] += 1


def _bring_back(problem: Problem, walk: Walk, c: int, back: SwapIns, notes: Array) -> None:
    """Append a swap-in for each input of call c that is swapped out; c is the next step."""
    for j in range(problem.in_ptr[c], problem.in_ptr[c + 1]):
        t = problem.in_idx[j]
        if walk.state[t] == AWAY:
            n = walk.counts[BACKS]
            _arrive(problem, walk, t, walk.counts[STEPS], notes)
            back.tensor[n], back.use[n], back.left[n] = t, walk.counts[STEPS], walk.left[t]
            back.gap[n], back.note[n], back.spilled[n] = walk.gap[t], walk.note[t], walk.spilled[t]
            walk.counts[BACKS] += 1


def _find_endings(problem: Problem, walk: Walk, k: int, mode: Array) -> None:
    """Mark the tensors that are freed or dropped after call k: it may donate their bytes to its outputs."""
    for i in range(problem.free_ptr[k], problem.free_ptr[k + 1]):
        walk.ends[problem.free_idx[i]] = k
    for g in range(problem.gap_ptr[k], problem.gap_ptr[k + 1]):
        if mode[g] == DROP and (problem.can_drop[g] or can_replay(problem, walk, problem.gap_tensor[g])):
            walk.ends[problem.gap_tensor[g]] = k


def _take_step(problem: Problem, walk: Walk, c: int, k: int, steps: StepArrays, notes: Array) -> None:
    """Append a step with its bytes in use:
    call k itself (c == k) or a replay of call c for k; its outputs get residencies."""
    s = walk.counts[STEPS]
    extra = 0
    for j in range(problem.out_ptr[c], problem.out_ptr[c + 1]):
        extra += problem.size[problem.out_idx[j]]
    for j in range(problem.may_ptr[c], problem.may_ptr[c + 1]):
        t, o = problem.may_in[j], problem.may_out[j]
        if walk.donor[o] >= 0 or not (
                walk.ends[t] == k if c == k else walk.state[t] == TEMPORARY and walk.remaining[t] == 1):
            continue
        given = False  # an input's bytes go to one output
        for n in range(problem.may_ptr[c], j):
            given = given or (problem.may_in[n] == t and walk.donor[problem.may_out[n]] == t)
        if not given:
            extra -= problem.size[o]
            walk.donor[o] = t
    steps.call[s], steps.group[s], steps.during[s] = c, k, walk.counts[LIVE] + extra
    for j in range(problem.out_ptr[c], problem.out_ptr[c + 1]):
        t = problem.out_idx[j]
        if len(notes):
            n = walk.counts[NOTED]
            donor = walk.donor[t]
            if c == k or walk.state[t] == DROPPED or (walk.state[t] == ABSENT and walk.remaining[t] > 0):
                notes[n] = (t, s, -1, -1)
                walk.note[t] = n
            else:
                notes[n] = (-1 - t, s, s, -1)
            if donor >= 0:
                notes[n, 3] = walk.note[donor]
                notes[walk.note[donor], 2] = s - 1
            walk.counts[NOTED] += 1
    for j in range(problem.out_ptr[c], problem.out_ptr[c + 1]):
        walk.donor[problem.out_idx[j]] = -1
    walk.counts[STEPS] += 1


def _after_replay(problem: Problem, walk: Walk, c: int, notes: Array) -> None:
    """Set the state of the outputs of a replayed call c:
    dropped tensors stay; others stay until the last replay that reads them."""
    for j in range(problem.out_ptr[c], problem.out_ptr[c + 1]):
        t = problem.out_idx[j]
        if walk.state[t] == DROPPED:
            walk.state[t] = RESIDENT
            walk.counts[LIVE] += problem.size[t]
            if walk.counts[LEFTOVERS] < len(walk.leftovers):
                walk.leftovers[walk.counts[LEFTOVERS]] = t
                walk.counts[LEFTOVERS] += 1
        elif walk.state[t] == ABSENT and walk.remaining[t] > 0:
            walk.state[t] = TEMPORARY
            walk.counts[LIVE] += problem.size[t]
    read = False  # a tensor that is kept for replays, for the last time in this one
    for j in range(problem.in_ptr[c], problem.in_ptr[c + 1]):
        t = problem.in_idx[j]
        walk.remaining[t] -= 1
        if walk.remaining[t] == 0 and walk.state[t] == KEPT:
            read = True
        elif walk.remaining[t] == 0 and walk.state[t] == TEMPORARY:
            if walk.counts[UNSURE] and not can_replay(problem, walk, t):
                walk.state[t] = KEPT
                walk.sources[walk.counts[SOURCES]] = t
                walk.counts[SOURCES] += 1
                read = True
                continue
            walk.state[t] = ABSENT
            walk.counts[LIVE] -= problem.size[t]
            end_note(walk, t, notes)
    if read:
        free_sources(problem, walk, notes)


def _copy(problem: Problem, walk: Walk, t: int) -> None:
    """Record that the host has a copy of tensor t: in host memory, or on the disk if host memory is full."""
    walk.copied[t] = True
    walk.counts[HOST] += problem.size[t]
    walk.spilled[t] = walk.counts[IN_MEMORY] + problem.size[t] > problem.memory_bytes
    if not walk.spilled[t]:
        walk.counts[IN_MEMORY] += problem.size[t]


def _forget_copy(problem: Problem, walk: Walk, t: int) -> None:
    """Free the host's copy of a tensor, if there is one."""
    if walk.copied[t]:
        walk.copied[t] = False
        walk.counts[HOST] -= problem.size[t]
        if not walk.spilled[t]:
            walk.counts[IN_MEMORY] -= problem.size[t]


def _after_call(problem: Problem, walk: Walk, k: int, notes: Array) -> None:
    """Put call k's outputs on the device, free the tensors that end with k there, and host copies that k outdates."""
    for i in range(problem.out_ptr[k], problem.out_ptr[k + 1]):
        walk.state[problem.out_idx[i]] = RESIDENT
        walk.counts[LIVE] += problem.size[problem.out_idx[i]]
    for i in range(problem.free_ptr[k], problem.free_ptr[k + 1]):
        t = problem.free_idx[i]
        if walk.state[t] == RESIDENT:
            walk.counts[LIVE] -= problem.size[t]
            end_note(walk, t, notes)
        walk.state[t] = ABSENT
    for i in range(problem.write_ptr[k], problem.write_ptr[k + 1]):
        walk.written[problem.write_idx[i]] = k
        _forget_copy(problem, walk, problem.write_idx[i])


def _evict(problem: Problem, walk: Walk, k: int, mode: Array, prefetch_at: Array, out: CopiesOut, notes: Array
           ) -> None:
    """Evict tensors after call k, as the modes of their gaps say.
    A tensor of which the host has a copy is not copied again."""
    for g in range(problem.gap_ptr[k], problem.gap_ptr[k + 1]):
        t = problem.gap_tensor[g]
        prefetch_at[g] = -1
        if mode[g] == KEEP or walk.state[t] != RESIDENT or (
                problem.gap_round[g] >= 0 and mode[problem.gap_round[g]] == KEEP):
            continue
        walk.counts[LIVE] -= problem.size[t]
        if mode[g] == DROP and (problem.can_drop[g] or can_replay(problem, walk, t)):
            walk.state[t], walk.gap[t] = DROPPED, g
            if not problem.can_drop[g]:
                walk.unsure[walk.counts[UNSURE]] = g
                walk.counts[UNSURE] += 1
            _forget_copy(problem, walk, t)
            end_note(walk, t, notes)
            continue
        walk.state[t] = AWAY
        walk.left[t], walk.gap[t] = walk.counts[STEPS] - 1, g
        if walk.copied[t]:
            if len(notes):
                notes[walk.note[t], 2] = walk.counts[STEPS] - 1
            continue
        _copy(problem, walk, t)
        walk.counts[MOST_ON_HOST] = max(walk.counts[MOST_ON_HOST], walk.counts[HOST])
        n = walk.counts[OUTS]
        out.tensor[n], out.step[n], out.note[n] = t, walk.counts[STEPS] - 1, walk.note[t]
        out.spilled[n] = walk.spilled[t]
        walk.counts[OUTS] += 1
