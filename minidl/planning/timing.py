"""The times of a planned iteration: when its copies start, and how long it takes.
The second and third part of ``schedule``.

Each direction of the link carries one copy at a time, and so does the disk, both directions together. Only the compute
stream waits: for its inputs, for memory, and for all copies so far after calls with a wait. Plain Python that Numba can
compile.
"""

from typing import NamedTuple

import numpy as np

from minidl.planning.levels import BLOCK, lift, reach, settle, tops
from minidl.planning.problem import Array, Problem
from minidl.planning.walk import CopiesOut, StepArrays, SwapIns


class Room(NamedTuple):
    """The bytes that an iteration may use on the device and on the host.
    slack: a swap-in starts earlier than necessary by this share of its own duration."""

    device_bytes: int
    host_bytes: int
    slack: float


def beginnings(problem: Problem, steps: StepArrays) -> Array:
    """Return the start of each step, and the end of the last, in seconds [steps + 1], if nothing waits.
    Each call takes its fastest algorithm."""
    starts = np.zeros(len(steps.call) + 1)
    for s in range(len(steps.call)):
        starts[s + 1] = starts[s] + problem.algorithm_seconds[problem.algorithm_ptr[steps.call[s]]]
    return starts


def place(problem: Problem, room: Room, steps: StepArrays, starts: Array, back: SwapIns, prefetch_at: Array,
          notes: Array ) -> None:
    """Choose the step before which each swap-in starts: as late as the link allows, but not before there is room.
    Swap-ins get room in the order of their uses. Otherwise, if the link is slower than the computation that hides
    it, tensors needed later would fill the memory that the next call waits for.

    Written: ``back.start``, the step; prefetch_at, by gap, the number of the call of that step, -1 on demand; notes, by
    residency, column 1, the step, unless notes is empty. starts: of each step, in seconds, if nothing waits."""
    during, group, size = steps.during, steps.group, problem.size
    begin = np.zeros(len(back.tensor))
    link_free = starts[len(steps.call)]
    for n in range(len(back.tensor) - 1, -1, -1):
        t = back.tensor[n]
        seconds = problem.disk_in_seconds[t] if back.spilled[n] else problem.in_seconds[t]
        link_free = min(starts[back.use[n]], link_free) - seconds * (1.0 + room.slack)
        begin[n] = link_free
    first, following = _openings(steps)
    top, added = tops(during), np.zeros(len(during) // BLOCK + 1, np.int64)
    for n in range(len(back.tensor)):
        t, use = back.tensor[n], back.use[n]
        latest = min(np.searchsorted(starts, begin[n], side="right") - 1, use - 1)
        hidden = first[latest] if latest >= 0 else -1  # the latest start that computation hides
        roomy = reach(during, top, added, max(hidden, back.left[n] + 1), use, room.device_bytes - size[t])
        best = hidden if roomy == hidden else min(following[roomy], use)
        lift(during, top, added, best, use, size[t])
        back.start[n] = best
        if len(notes):
            notes[back.note[n], 1] = best
        if best < use:
            prefetch_at[back.gap[n]] = group[best]
    settle(during, added)


def _openings(steps: StepArrays) -> tuple[Array, Array]:
    """Return for each step the latest opening up to it [steps], and the earliest from it on, or the end [steps + 1].
    An opening is a step before which a swap-in may start: the first step after a call of the program."""
    count = len(steps.call)
    first, following = np.zeros(count, np.int64), np.full(count + 1, count, np.int64)
    for s in range(1, count):
        first[s] = s if steps.group[s] != steps.group[s - 1] else first[s - 1]
    for s in range(count - 1, -1, -1):
        following[s] = s if first[s] == s else following[s + 1]
    return first, following


def over(room: Room, steps: StepArrays) -> int:
    """Return the bytes over the budget in the worst step, plus an eighth of their sum over all steps.
    Swap-ins that start early and unfinished copies out do not count, since both wait for room."""
    worst = excess = 0
    for s in range(len(steps.during)):
        if steps.during[s] > room.device_bytes:
            excess += steps.during[s] - room.device_bytes
            worst = max(worst, steps.during[s] - room.device_bytes)
    return worst + excess // 8


def run(problem: Problem, room: Room, steps: StepArrays, starts: Array, out: CopiesOut, back: SwapIns, most: float,
        notes: Array, noted: int) -> tuple[float, int]:
    """Go through the steps; return (seconds, residencies noted). Stop early once ``most`` seconds are exceeded.

    An unfinished copy out still occupies its tensor's memory. If copies out of persistent tensors are unfinished at the
    end of the iteration, they run on into the next one; then the computation is repeated from that state, which is the
    steady state. starts: from ``beginnings``; notes: workspaces are noted after the first ``noted`` rows.
    """
    now, written, first, late = _pass(problem, room, steps, starts, out, back, most, notes, noted, len(out.tensor),
                                      np.zeros(0))
    if now <= most and first < len(out.tensor):
        now, written, _, _ = _pass(problem, room, steps, starts, out, back, most, notes, noted, first, late)
        took = 0.0
        for n in range(len(out.tensor)):
            t = out.tensor[n]
            took += problem.disk_out_seconds[t] if out.spilled[n] else problem.out_seconds[t]
        now = max(now, took)  # a shorter iteration would leave more copies unfinished each time
    return now, written


def _by_start(start: Array, count: int) -> Array:
    """Return the numbers of swap-ins by ascending start, then by number. The starts are below ``count``.
    Numba takes a second longer to compile NumPy's sort."""
    after, order = np.zeros(count + 1, np.int64), np.zeros(len(start), np.int64)
    for n in range(len(start)):
        after[start[n] + 1] += 1
    for s in range(count):
        after[s + 1] += after[s]
    for n in range(len(start)):
        order[after[start[n]]] = n
        after[start[n]] += 1
    return order


def _lost(problem: Problem, seconds: float, now: float, out_ready: float, in_ready: float) -> float:
    """Return how many seconds a kernel that starts at ``now`` loses to the copies beside it.
    The copies end at ``out_ready`` and ``in_ready``."""
    if problem.contention <= 0.0:
        return 0.0
    # The kernel's duration if a copy runs beside all of it; with a contention of 1 it waits until the copies end.
    longest = seconds / (1.0 - problem.contention) if problem.contention < 1.0 else np.inf
    return problem.contention * (min(max(out_ready - now, 0.0), longest) + min(max(in_ready - now, 0.0), longest))


class _Queues(NamedTuple):
    """The copies of a pass. issue: swap-ins in the order of their starts; arrive: per swap-in, when it ends; landed_at:
    per tensor, when its copy out ends; tail_size, tail_end: bytes and ends of the copies out, those of the iteration
    before first."""

    issue: Array
    arrive: Array
    landed_at: Array
    tail_size: Array
    tail_end: Array


def _pass(problem: Problem, room: Room, steps: StepArrays, starts: Array, out: CopiesOut, back: SwapIns, most: float,
          notes: Array, noted: int, first_carried: int, carried_end: Array) -> tuple[float, int, int, Array]:
    """Simulate one iteration during which copies out of the previous iteration still run.

    The copies still running are those from number ``first_carried`` on; they end at ``carried_end``. Return (seconds,
    residencies noted, number of the first copy out that is unfinished at the end, seconds left of it and later ones).
    """
    before, outs, backs = len(out.tensor) - first_carried, len(out.tensor), len(back.tensor)
    queues = _Queues(_by_start(back.start, len(steps.call)), np.zeros(backs + 1), np.zeros(len(problem.size)),
                     np.zeros(before + outs + 1, np.int64), np.zeros(before + outs + 1))
    now, noted, first, last = _take_steps(problem, room, steps, starts, out, back, most, notes, noted, first_carried,
                                          carried_end, queues)
    return now, noted, first - before, queues.tail_end[first:last] - now


def _take_steps(problem: Problem, room: Room, steps: StepArrays, starts: Array, out: CopiesOut, back: SwapIns,
                most: float, notes: Array, noted: int, first_carried: int, carried_end: Array, queues: _Queues
                ) -> tuple[float, int, int, int]:
    """Go through the steps of a pass; return (seconds, residencies noted, first copy out, end of the copies out).
    The last two are numbers of ``queues``: of the first copy that is unfinished at the end, and of the last plus 1."""
    budget, during, outs, backs = room.device_bytes, steps.during, len(out.tensor), len(back.tensor)
    issue, arrive, landed_at, tail_size, tail_end = queues
    before = outs - first_carried
    next_issue = next_arrival = next_out = first_tail = landed = 0
    last_tail = before
    tails = 0
    now = out_ready = in_ready = disk_ready = 0.0
    for n in range(before):
        t = out.tensor[first_carried + n]
        tail_size[n], tail_end[n], landed_at[t] = problem.size[t], carried_end[n], carried_end[n]
        tails += problem.size[t]
        out_ready = carried_end[n]
        if out.spilled[first_carried + n]:
            disk_ready = out_ready
    for s in range(len(steps.call)):
        if now + starts[len(steps.call)] - starts[s] > most:
            return now + starts[len(steps.call)] - starts[s], noted, before + outs, before + outs
        while tails and during[s] + tails > budget:
            tails -= tail_size[first_tail]
            now = max(now, tail_end[first_tail])
            first_tail += 1
        while first_tail < last_tail and tail_end[first_tail] <= now:
            tails -= tail_size[first_tail]
            first_tail += 1
        while len(notes) and landed < first_tail:
            if landed >= before:
                notes[out.note[landed - before], 2] = s - 1
            else:
                notes[out.note[first_carried + landed], 2] = -1 - s
            landed += 1
        while next_issue < backs and back.start[issue[next_issue]] == s:
            n = issue[next_issue]
            next_issue += 1
            t = back.tensor[n]
            in_ready = max(in_ready, now, landed_at[t])
            if back.spilled[n]:
                in_ready = disk_ready = max(in_ready, disk_ready) + problem.disk_in_seconds[t]
            else:
                in_ready += problem.in_seconds[t]
            arrive[n] = in_ready
        while next_arrival < backs and back.use[next_arrival] == s:  # this step's inputs must have arrived
            now = max(now, arrive[next_arrival])
            next_arrival += 1
        c = steps.call[s]
        spare = budget - during[s] - tails
        last = problem.algorithm_ptr[c + 1] - 1
        for a in range(problem.algorithm_ptr[c], last + 1):
            workspace = problem.algorithm_bytes[a]
            if workspace <= spare or a == last:
                seconds = problem.algorithm_seconds[a]
                now += seconds + _lost(problem, seconds, now, out_ready, in_ready)
                if len(notes) and workspace and workspace <= spare:
                    notes[noted] = (len(problem.size) + a, s, s, -1)
                    noted += 1
                break
        while next_out < outs and out.step[next_out] == s:
            t = out.tensor[next_out]
            out_ready = max(out_ready, now)
            if out.spilled[next_out]:
                out_ready = disk_ready = max(out_ready, disk_ready) + problem.disk_out_seconds[t]
            else:
                out_ready += problem.out_seconds[t]
            tail_size[last_tail], tail_end[last_tail], landed_at[t] = problem.size[t], out_ready, out_ready
            last_tail += 1
            next_out += 1
            tails += problem.size[t]
        if problem.waits[c] and steps.group[s] == c:
            now = max(now, out_ready, in_ready)
    while first_tail < last_tail and tail_end[first_tail] <= now:
        first_tail += 1
    first_tail = max(first_tail, before)  # in a steady state the previous iteration's copies have ended
    return now, noted, first_tail, last_tail
