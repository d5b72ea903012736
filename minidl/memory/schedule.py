"""What an iteration would take under a choice of mode (keep, swap, drop) for every tensor: memory and time, simulated.

A choice is expanded into one linear list of steps: the program's calls, and before each the replays that it needs.
Memory is accounted by position in that list; time only decides stalls. In short:

  expand     walk the calls with the state of every tensor. An input that was dropped is replayed: the missing calls of
             its lineage, in program order, each once; what they make and somebody wants later stays.
  prefetch   last use first, each swap-in starts as late as hides it behind computation (one transfer at a time), or
             else at the earliest call from which there is room for it until its use.
  run        forward: copies out start when their tensor has been used and occupy its memory until they have landed or,
             when memory is wanted, stall the computation, earliest first.

Everything is arrays of integers and floats, so that Numba can compile it; the same functions run without it. Knows
no storages and no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidl.memory.plan import Costs
from minidl.memory.trace import TensorId, Trace
from minidl.meta import aligned

KEEP, SWAP, DROP = 0, 1, 2
ABSENT, RESIDENT, AWAY, DROPPED, TEMPORARY = 0, 1, 2, 3, 4
NEVER = 1 << 30


@dataclass(frozen=True)
class Problem:
    """A trace as arrays. Calls are numbered 0..K-1, tensors 0..T-1 (``ids`` has their names).

    Lists of variable length are a pointer array of K + 1 entries and a flat array. ``pair_out`` / ``pair_in`` are the
    donations that happened, ``may_out`` / ``may_in`` those that a replay may make. ``evict_at`` and ``next_use`` are
    the calls around a tensor's longest gap (NEVER if it has none); ``can_drop`` says whether lineage can make it again.
    """

    ids: tuple[TensorId, ...]
    seconds: np.ndarray
    in_ptr: np.ndarray
    in_idx: np.ndarray
    out_ptr: np.ndarray
    out_idx: np.ndarray
    free_ptr: np.ndarray
    free_idx: np.ndarray
    donated_bytes: np.ndarray
    may_ptr: np.ndarray
    may_out: np.ndarray
    may_in: np.ndarray
    size: np.ndarray
    produced: np.ndarray
    evict_at: np.ndarray
    next_use: np.ndarray
    evict_ptr: np.ndarray
    evict_idx: np.ndarray
    can_drop: np.ndarray
    out_seconds: np.ndarray
    in_seconds: np.ndarray

    def arrays(self) -> tuple[Any, ...]:
        """The arguments of ``simulate`` that describe the trace, in order."""
        return (self.seconds, self.in_ptr, self.in_idx, self.out_ptr, self.out_idx, self.free_ptr, self.free_idx,
                self.donated_bytes, self.may_ptr, self.may_out, self.may_in, self.size, self.produced,
                self.evict_ptr, self.evict_idx, self.out_seconds, self.in_seconds)


def _flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    pointers = np.zeros(len(lists) + 1, np.int64)
    pointers[1:] = np.cumsum([len(entries) for entries in lists])
    return pointers, np.array([entry for entries in lists for entry in entries], np.int64)


def problem(trace: Trace, costs: Costs) -> Problem:
    """The arrays of a trace."""
    ids = tuple(trace.tensors)
    number = {tensor_id: n for n, tensor_id in enumerate(ids)}
    calls = trace.calls
    size = np.array([aligned(trace.tensors[i].nbytes) for i in ids], np.int64)
    produced = np.full(len(ids), -1, np.int64)
    uses: list[list[int]] = [[] for _ in ids]
    last_write = np.full(len(ids), -1, np.int64)
    for k, call in enumerate(calls):
        for tensor_id in dict.fromkeys((*call.inputs, *call.outputs)):
            uses[number[tensor_id]].append(k)
        for tensor_id in call.outputs:
            produced[number[tensor_id]] = k
        for tensor_id in call.writes:
            last_write[number[tensor_id]] = k
    starts = np.concatenate([[0.0], np.cumsum([call.seconds for call in calls])])
    evict_at = np.full(len(ids), NEVER, np.int64)
    next_use = np.full(len(ids), NEVER, np.int64)
    for n, at in enumerate(uses):
        if produced[n] >= 0 and len(at) > 1:
            gap, first = max((starts[b] - starts[a], a) for a, b in zip(at, at[1:], strict=False))
            if gap > 0:
                evict_at[n] = first
                next_use[n] = at[at.index(first) + 1]
    can_drop = _droppable(trace, number, produced, next_use, last_write)
    evict: list[list[int]] = [[] for _ in calls]
    for n in range(len(ids)):
        if evict_at[n] != NEVER:
            evict[evict_at[n]].append(n)
    in_ptr, in_idx = _flat([[number[i] for i in dict.fromkeys(call.inputs)] for call in calls])
    out_ptr, out_idx = _flat([[number[i] for i in call.outputs] for call in calls])
    free_ptr, free_idx = _flat([[number[i] for i in call.frees] for call in calls])
    may_ptr, may_out = _flat([[number[o] for o, _ in call.may_donate] for call in calls])
    _, may_in = _flat([[number[i] for _, i in call.may_donate] for call in calls])
    evict_ptr, evict_idx = _flat(evict)
    donated = np.array([sum(int(size[number[o]]) for o, _ in call.donated) for call in calls], np.int64)
    return Problem(
        ids, np.array([call.seconds for call in calls]), in_ptr, in_idx, out_ptr, out_idx, free_ptr, free_idx, donated,
        may_ptr, may_out, may_in, size, produced, evict_at, next_use, evict_ptr, evict_idx, can_drop,
        costs.latency_seconds + size * costs.out_seconds_per_byte, costs.latency_seconds + size * costs.in_seconds_per_byte)


def _droppable(trace: Trace, number: dict[TensorId, int], produced: np.ndarray, next_use: np.ndarray,
               last_write: np.ndarray) -> np.ndarray:
    """Which tensors could be computed again at their next use: no call on the way is unreplayable or reads a leaf that
    was written meanwhile. Conservative: a write anywhere between production and the end of the iteration but the last
    calls (the optimizer's, after every next use) counts."""
    possible = np.zeros(len(next_use), np.bool_)
    latest = np.full(len(next_use), NEVER, np.int64)  # the value can be made again before this call
    for call in trace.calls:
        for tensor_id in call.outputs:
            n = number[tensor_id]
            if not call.replayable:
                latest[n] = -1
                continue
            limit = NEVER
            for source in call.inputs:
                s = number[source]
                if last_write[s] >= produced[n]:
                    limit = min(limit, int(last_write[s]))
                if produced[s] >= 0 and call.inputs:
                    limit = min(limit, int(latest[s]) if latest[s] >= 0 else limit)
            latest[n] = limit
            possible[n] = next_use[n] != NEVER and next_use[n] <= limit
    return possible


def simulate(seconds, in_ptr, in_idx, out_ptr, out_idx, free_ptr, free_idx, donated_bytes, may_ptr, may_out, may_in,
             size, produced, evict_ptr, evict_idx, out_seconds, in_seconds, budget, slack, mode, prefetch_at):
    """(seconds of the iteration, excess in bytes, seconds spent in replays).

    The excess is 0 if the budget is never exceeded; otherwise the worst of all steps and a part of their sum, so that a
    search that is far from a feasible choice sees each step towards it.

    ``prefetch_at[t]`` is set to the call before which tensor t's swap-in starts, or -1 for on demand.
    """
    calls, tensors = len(seconds), len(size)
    most = 8 * calls + 64
    state = np.zeros(tensors, np.int64)
    remaining = np.zeros(tensors, np.int64)
    step_seconds = np.zeros(most)
    during = np.zeros(most, np.int64)
    group = np.zeros(most, np.int64)      # the program's call that a step belongs to
    out_step = np.full(tensors, -1, np.int64)
    use_step = np.full(tensors, -1, np.int64)
    out_list = np.zeros(tensors, np.int64)
    use_list = np.zeros(tensors, np.int64)
    outs = uses = 0
    stack = np.zeros(tensors + 8, np.int64)
    visited = np.full(tensors, -1, np.int64)
    call_seen = np.full(calls, -1, np.int64)
    replay = np.zeros(calls, np.int64)
    live = 0
    for t in range(tensors):
        prefetch_at[t] = -1
        if produced[t] < 0:
            state[t] = RESIDENT
            live += size[t]
    steps = 0
    replay_seconds = 0.0
    lost = False
    # --- expand
    for k in range(calls):
        replays = 0
        for i in range(in_ptr[k], in_ptr[k + 1]):
            t = in_idx[i]
            if state[t] == DROPPED or state[t] == ABSENT:
                depth = 1
                stack[0] = t
                while depth:
                    depth -= 1
                    u = stack[depth]
                    if visited[u] == k:
                        continue
                    visited[u] = k
                    c = produced[u]
                    if c < 0:
                        lost = True
                        continue
                    if call_seen[c] == k:
                        continue
                    call_seen[c] = k
                    replay[replays] = c
                    replays += 1
                    for j in range(in_ptr[c], in_ptr[c + 1]):
                        v = in_idx[j]
                        if (state[v] == DROPPED or state[v] == ABSENT) and visited[v] != k:
                            stack[depth] = v
                            depth += 1
        if replays:
            order = np.sort(replay[:replays])
            for r in range(replays):
                c = order[r]
                for j in range(in_ptr[c], in_ptr[c + 1]):
                    remaining[in_idx[j]] += 1
            for r in range(replays):
                c = order[r]
                if steps >= most - 2:
                    return 1e9, 1 << 60, 0.0
                for j in range(in_ptr[c], in_ptr[c + 1]):
                    v = in_idx[j]
                    if state[v] == AWAY:
                        state[v] = RESIDENT
                        live += size[v]
                        use_step[v] = steps
                        use_list[uses] = v
                        uses += 1
                extra = 0
                for j in range(out_ptr[c], out_ptr[c + 1]):
                    extra += size[out_idx[j]]
                for j in range(may_ptr[c], may_ptr[c + 1]):
                    v = may_in[j]
                    if state[v] == TEMPORARY and remaining[v] == 1:
                        extra -= size[may_out[j]]
                        break
                during[steps] = live + extra
                group[steps] = k
                step_seconds[steps] = seconds[c]
                replay_seconds += seconds[c]
                steps += 1
                for j in range(out_ptr[c], out_ptr[c + 1]):
                    v = out_idx[j]
                    if state[v] == DROPPED:
                        state[v] = RESIDENT
                        live += size[v]
                    elif state[v] == ABSENT and remaining[v] > 0:
                        state[v] = TEMPORARY
                        live += size[v]
                for j in range(in_ptr[c], in_ptr[c + 1]):
                    v = in_idx[j]
                    remaining[v] -= 1
                    if remaining[v] == 0 and state[v] == TEMPORARY:
                        state[v] = ABSENT
                        live -= size[v]
        if steps >= most - 2:
            return 1e9, 1 << 60, 0.0
        for i in range(in_ptr[k], in_ptr[k + 1]):
            t = in_idx[i]
            if state[t] == AWAY:
                state[t] = RESIDENT
                live += size[t]
                use_step[t] = steps
                use_list[uses] = t
                uses += 1
        for i in range(out_ptr[k], out_ptr[k + 1]):
            state[out_idx[i]] = RESIDENT
            live += size[out_idx[i]]
        during[steps] = live - donated_bytes[k]
        group[steps] = k
        step_seconds[steps] = seconds[k]
        steps += 1
        for i in range(free_ptr[k], free_ptr[k + 1]):
            t = free_idx[i]
            if state[t] == RESIDENT:
                live -= size[t]
            state[t] = ABSENT
        for i in range(evict_ptr[k], evict_ptr[k + 1]):
            t = evict_idx[i]
            if mode[t] != KEEP and state[t] == RESIDENT:
                live -= size[t]
                if mode[t] == SWAP:
                    state[t] = AWAY
                    out_step[t] = steps - 1
                    out_list[outs] = t
                    outs += 1
                else:
                    state[t] = DROPPED
    # --- prefetch: as late as hides it, last use first
    starts = np.zeros(steps + 1)
    for s in range(steps):
        starts[s + 1] = starts[s] + step_seconds[s]
    at_step = np.full(tensors, -1, np.int64)
    link_free = starts[steps]
    for i in range(uses - 1, -1, -1):
        t = use_list[i]
        use = use_step[t]
        finish = min(starts[use], link_free)
        begin = finish - in_seconds[t] * (1.0 + slack)
        s = use
        best = use
        while s - 1 > out_step[t]:
            if during[s - 1] + size[t] > budget:
                break
            s -= 1
            if s == 0 or group[s] != group[s - 1]:  # a swap-in starts between two calls of the program
                best = s
                if starts[s] <= begin:
                    break
        for q in range(best, use):
            during[q] += size[t]
        at_step[t] = best
        link_free = max(starts[best], begin) if best < use else begin
        if link_free > finish:
            link_free = finish
        if best < use:
            prefetch_at[t] = group[best]
    # --- run
    issue = np.argsort(at_step[use_list[:uses]], kind="mergesort")
    next_issue = next_arrival = next_out = 0
    now = out_ready = in_ready = 0.0
    tail_size = np.zeros(outs + 1, np.int64)
    tail_end = np.zeros(outs + 1)
    first_tail = last_tail = 0
    tails = 0
    worst = excess = 0
    arrive = np.zeros(tensors)
    for s in range(steps):
        begin_in = now
        while tails and during[s] + tails > budget:
            tails -= tail_size[first_tail]
            if tail_end[first_tail] > now:
                now = tail_end[first_tail]
            first_tail += 1
        if during[s] > budget:
            excess += during[s] - budget
            if during[s] - budget > worst:
                worst = during[s] - budget
        while next_issue < uses and at_step[use_list[issue[next_issue]]] == s:
            t = use_list[issue[next_issue]]
            next_issue += 1
            begin = max(in_ready, begin_in if use_step[t] > s else now)
            in_ready = begin + in_seconds[t]
            arrive[t] = in_ready
            if use_step[t] == s and in_ready > now:
                now = in_ready
        while next_arrival < uses and use_step[use_list[next_arrival]] == s:  # what this step uses must be there
            now = max(now, arrive[use_list[next_arrival]])
            next_arrival += 1
        now += step_seconds[s]
        while next_out < outs and out_step[out_list[next_out]] == s:
            t = out_list[next_out]
            next_out += 1
            begin = max(out_ready, now)
            out_ready = begin + out_seconds[t]
            tail_size[last_tail] = size[t]
            tail_end[last_tail] = out_ready
            last_tail += 1
            tails += size[t]
    if lost:
        return 1e9, 1 << 60, 0.0
    return now, worst + excess // 8, replay_seconds
