"""Find what to replay before each call of an expansion, and what must stay for later replays.

Mostly that is a call's dropped inputs. A write in place spoils replays that read the old bytes: before it, the engine
replays what it would spoil, and a freed tensor stays if a dropped one could not be computed without it. What replays
have computed for later calls may be dropped again. A part of ``expansion``, in plain Python that Numba can compile.
"""

from minidl.planning.problem import Array, Problem
from minidl.planning.walk import (
    ABSENT, DROPPED, DUE, FAILED, KEPT, LEFTOVERS, LIVE, RESIDENT, SEARCHES, SOURCES, SPOILT, STEPS, UNSURE, Walk,
)


def end_note(walk: Walk, t: int, notes: Array) -> None:
    """Record that tensor t's residency ends with the latest step, unless a donation has ended it earlier."""
    if len(notes) and notes[walk.note[t], 2] < 0:
        notes[walk.note[t], 2] = walk.counts[STEPS] - 1


def find_due(problem: Problem, walk: Walk, k: int) -> int:
    """Write the tensors to replay before call k to ``walk.due``; return their number.
    Dropped tensors whose replay reads bytes that call k overwrites come first, one replay for each; then the dropped
    inputs of call k, in one replay for all."""
    walk.counts[SPOILT] = due = 0
    if walk.counts[UNSURE] and problem.write_ptr[k] < problem.write_ptr[k + 1]:
        for i in range(problem.write_ptr[k], problem.write_ptr[k + 1]):
            walk.written[problem.write_idx[i]] = k
        left = 0
        for n in range(walk.counts[UNSURE]):
            g = walk.unsure[n]
            t = problem.gap_tensor[g]
            if walk.state[t] == DROPPED and walk.gap[t] == g:
                walk.unsure[left] = g
                left += 1
                if problem.gap_next[g] != k:
                    walk.due[due] = t
                    due += 1
        walk.counts[UNSURE], walk.counts[SPOILT] = left, due
    for i in range(problem.in_ptr[k], problem.in_ptr[k + 1]):
        t = problem.in_idx[i]
        if walk.state[t] == DROPPED or walk.state[t] == ABSENT:
            walk.due[due] = t
            due += 1
    walk.counts[DUE] = due
    return due


def can_replay(problem: Problem, walk: Walk, t: int) -> bool:
    """True if t can be replayed, or could be if it were dropped: no missing call of its lineage reads a tensor that was
    written since."""
    state, stack = walk.state, walk.stack
    walk.counts[SEARCHES] += 1
    depth = 1
    stack[0] = t
    while depth:
        depth -= 1
        c = problem.produced[stack[depth]]
        if c < 0 or not problem.repeatable[c] or walk.written[stack[depth]] >= 0:
            return False
        if walk.seen[c] == walk.counts[SEARCHES]:
            continue
        walk.seen[c] = walk.counts[SEARCHES]
        for j in range(problem.in_ptr[c], problem.in_ptr[c + 1]):
            v = problem.in_idx[j]
            if walk.written[v] > c:
                return False
            if (state[v] == DROPPED or state[v] == ABSENT) and depth < len(state):
                stack[depth] = v
                depth += 1
    return True


def find_replays(problem: Problem, walk: Walk, first: int, end: int) -> int:
    """Write the calls that replay the tensors ``first`` to ``end`` - 1 of ``walk.due`` to ``walk.replay``, unsorted.
    Count in ``walk.remaining`` what they read. Return their number, or FAILED if one cannot be repeated."""
    state, stack, replay = walk.state, walk.stack, walk.replay
    walk.counts[SEARCHES] += 1
    replays = 0
    for n in range(first, end):
        stack[0] = walk.due[n]
        depth = 1 if state[stack[0]] == DROPPED or state[stack[0]] == ABSENT else 0
        while depth:
            depth -= 1
            c = problem.produced[stack[depth]]
            if c < 0 or not problem.repeatable[c]:
                return FAILED
            if walk.seen[c] == walk.counts[SEARCHES]:
                continue
            walk.seen[c] = walk.counts[SEARCHES]
            replay[replays] = c
            replays += 1
            for j in range(problem.in_ptr[c], problem.in_ptr[c + 1]):
                v = problem.in_idx[j]
                if (state[v] == DROPPED or state[v] == ABSENT) and depth < len(state):
                    stack[depth] = v
                    depth += 1
    for r in range(replays):
        for j in range(problem.in_ptr[replay[r]], problem.in_ptr[replay[r] + 1]):
            walk.remaining[problem.in_idx[j]] += 1
    return replays


def free_sources(problem: Problem, walk: Walk, notes: Array) -> None:
    """Free the tensors that the program has freed, and that are kept for replays, if no replay of a dropped tensor
    reads them."""
    state, stack = walk.state, walk.stack
    walk.counts[SEARCHES] += 1
    for n in range(walk.counts[UNSURE] + walk.counts[DUE] - walk.counts[SPOILT]):
        if n < walk.counts[UNSURE]:
            stack[0] = problem.gap_tensor[walk.unsure[n]]
        else:  # the inputs of the call that these replays are for
            stack[0] = walk.due[walk.counts[SPOILT] + n - walk.counts[UNSURE]]
        depth = 1 if state[stack[0]] == DROPPED else 0
        while depth:
            depth -= 1
            c = problem.produced[stack[depth]]
            if c < 0 or walk.seen[c] == walk.counts[SEARCHES]:
                continue
            walk.seen[c] = walk.counts[SEARCHES]
            for j in range(problem.in_ptr[c], problem.in_ptr[c + 1]):
                v = problem.in_idx[j]
                if state[v] == KEPT:
                    walk.seen[problem.produced[v]] = walk.counts[SEARCHES]
                elif (state[v] == DROPPED or state[v] == ABSENT) and depth < len(state):
                    stack[depth] = v
                    depth += 1
    left = 0
    for n in range(walk.counts[SOURCES]):
        t = walk.sources[n]
        if walk.remaining[t] or walk.seen[problem.produced[t]] == walk.counts[SEARCHES]:
            walk.sources[left] = t
            left += 1
        else:
            state[t] = ABSENT
            walk.counts[LIVE] -= problem.size[t]
            end_note(walk, t, notes)
    walk.counts[SOURCES] = left


def drop_leftovers(problem: Problem, walk: Walk, c: int, k: int, notes: Array) -> None:
    """Drop leftovers, the oldest first, until the next step fits ``leftovers_bytes`` without donations.
    A leftover is a tensor that a replay has computed for a call after k. c: the call of that step."""
    over = walk.counts[LIVE] + problem.algorithm_bytes[problem.algorithm_ptr[c + 1] - 1] - problem.leftovers_bytes
    for j in range(problem.out_ptr[c], problem.out_ptr[c + 1]):
        over += problem.size[problem.out_idx[j]]
    left = 0
    for n in range(walk.counts[LEFTOVERS]):
        t = walk.leftovers[n]
        g = walk.gap[t]
        if walk.state[t] != RESIDENT or problem.gap_next[g] < k:
            continue  # it has left, or the program has accessed it
        stays = over <= 0 or walk.remaining[t] > 0 or problem.gap_next[g] == k or walk.ends[t] == k or not (
            problem.can_drop[g] or can_replay(problem, walk, t))
        for j in range(problem.in_ptr[c], problem.in_ptr[c + 1]):
            stays = stays or problem.in_idx[j] == t
        if stays:
            walk.leftovers[left] = t
            left += 1
            continue
        over -= problem.size[t]
        walk.counts[LIVE] -= problem.size[t]
        walk.state[t] = DROPPED
        end_note(walk, t, notes)
        noted = problem.can_drop[g]
        for m in range(walk.counts[UNSURE]):
            noted = noted or walk.unsure[m] == g
        if not noted:
            walk.unsure[walk.counts[UNSURE]] = g
            walk.counts[UNSURE] += 1
    walk.counts[LEFTOVERS] = left
