"""What an iteration would take if each gap between two accesses of a tensor had a mode: memory and time, simulated.

A gap's mode is KEEP, SWAP or DROP. A choice of modes is expanded into one linear list of steps: the program's calls,
and before each the replays that it needs. Memory is accounted by position in that list; time only decides stalls.

  expand     walk the calls with the state of every tensor. An input that was dropped is replayed: the missing calls of
             its lineage, in program order, each once; what they make and somebody wants later stays.
  prefetch   last use first, each swap-in starts as late as hides it behind computation (one transfer at a time), or
             else at the earliest call from which there is room for it until its use.
  run        forward: copies out start when their tensor has been used and occupy its memory until they have landed or,
             when memory is wanted, stall the computation, earliest first. A call takes the fastest algorithm whose
             workspace is left over.

Everything is arrays of integers and floats, so that Numba can compile it; the same functions run without it. Knows
no storages and no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidl.memory.plan import Costs
from minidl.memory.trace import TensorId, Trace, TraceCall
from minidl.meta import aligned

KEEP, SWAP, DROP = 0, 1, 2
ABSENT, RESIDENT, AWAY, DROPPED, TEMPORARY = 0, 1, 2, 3, 4
NEVER = 1 << 30
WORTH_MOVING = 1e-4  # of all that is live at once: smaller tensors stay, they are too many for what they hold


@dataclass(frozen=True)
class Problem:
    """A trace as arrays: calls 0..K-1, tensors 0..T-1 (``ids`` names them), gaps 0..G-1 in order of ``gap_call``.

    Lists of variable length are a pointer array of K + 1 entries and a flat array: inputs, outputs, frees, donations
    that a call may make, its algorithms (fastest first; the last needs least workspace), and the gaps that begin with
    it. A gap lies between the calls ``gap_call`` and ``gap_next`` that access ``gap_tensor`` one after the other.
    """

    ids: tuple[TensorId, ...]
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
    algorithm_ptr: np.ndarray
    algorithm_seconds: np.ndarray
    algorithm_bytes: np.ndarray
    size: np.ndarray
    produced: np.ndarray
    gap_ptr: np.ndarray
    gap_tensor: np.ndarray
    out_seconds: np.ndarray
    in_seconds: np.ndarray
    gap_call: np.ndarray
    gap_next: np.ndarray
    can_drop: np.ndarray
    seconds: float

    def arrays(self) -> tuple[Any, ...]:
        """The arguments of ``simulate`` that describe the trace, in order."""
        return (self.in_ptr, self.in_idx, self.out_ptr, self.out_idx, self.free_ptr, self.free_idx, self.donated_bytes,
                self.may_ptr, self.may_out, self.may_in, self.algorithm_ptr, self.algorithm_seconds,
                self.algorithm_bytes, self.size, self.produced, self.gap_ptr, self.gap_tensor, self.out_seconds,
                self.in_seconds)


def _flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    pointers = np.zeros(len(lists) + 1, np.int64)
    pointers[1:] = np.cumsum([len(entries) for entries in lists])
    return pointers, np.array([entry for entries in lists for entry in entries], np.int64)


def _algorithms(call: TraceCall) -> list[tuple[float, int]]:
    """(seconds, workspace) of the algorithms worth having: each faster one needs more workspace."""
    best: list[tuple[float, int]] = []
    for seconds, workspace in sorted(((a.seconds, a.workspace) for a in call.algorithms), key=lambda a: (a[1], a[0])):
        if not best or seconds < best[-1][0]:
            best.append((seconds, aligned(workspace) if workspace else 0))
    return best[::-1]


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
    latest = _latest_replay(trace, number, produced, last_write)
    least = WORTH_MOVING * size.sum()
    gaps = sorted((a, b, n) for n, at in enumerate(uses) if produced[n] >= 0 and size[n] >= least
                  for a, b in zip(at, at[1:], strict=False) if b > a + 1)
    gap_lists: list[list[int]] = [[] for _ in calls]
    for a, _, n in gaps:
        gap_lists[a].append(n)
    in_ptr, in_idx = _flat([[number[i] for i in dict.fromkeys(call.inputs)] for call in calls])
    out_ptr, out_idx = _flat([[number[i] for i in call.outputs] for call in calls])
    free_ptr, free_idx = _flat([[number[i] for i in call.frees] for call in calls])
    may_ptr, may_out = _flat([[number[o] for o, _ in call.may_donate] for call in calls])
    _, may_in = _flat([[number[i] for _, i in call.may_donate] for call in calls])
    gap_ptr, gap_tensor = _flat(gap_lists)
    algorithms = [_algorithms(call) for call in calls]
    algorithm_ptr, _ = _flat([[0] * len(a) for a in algorithms])
    return Problem(
        ids, in_ptr, in_idx, out_ptr, out_idx, free_ptr, free_idx,
        np.array([sum(int(size[number[o]]) for o, _ in call.donated) for call in calls], np.int64),
        may_ptr, may_out, may_in, algorithm_ptr, np.array([s for a in algorithms for s, _ in a]),
        np.array([w for a in algorithms for _, w in a], np.int64), size, produced, gap_ptr, gap_tensor,
        costs.latency_seconds + size * costs.out_seconds_per_byte,
        costs.latency_seconds + size * costs.in_seconds_per_byte,
        np.array([a for a, _, _ in gaps], np.int64), np.array([b for _, b, _ in gaps], np.int64),
        np.array([b <= latest[n] for _, b, n in gaps], np.bool_), sum(a[0][0] for a in algorithms))


def _latest_replay(trace: Trace, number: dict[TensorId, int], produced: np.ndarray,
                   last_write: np.ndarray) -> np.ndarray:
    """The last call before which each tensor's value could be made again; -1: never.

    A leaf that is written in place ends the replays that read it before.
    """
    latest = np.full(len(produced), NEVER, np.int64)
    for call in trace.calls:
        for tensor_id in call.outputs:
            n = number[tensor_id]
            if not call.replayable:
                latest[n] = -1
                continue
            limit = NEVER
            for source in call.inputs:
                s = number[source]
                if last_write[s] > produced[n]:
                    limit = min(limit, int(last_write[s]))
                if latest[s] >= 0:
                    limit = min(limit, int(latest[s]))
            latest[n] = limit
    return latest


def simulate(in_ptr, in_idx, out_ptr, out_idx, free_ptr, free_idx, donated_bytes, may_ptr, may_out, may_in,
             algorithm_ptr, algorithm_seconds, algorithm_bytes, size, produced, gap_ptr, gap_tensor, out_seconds,
             in_seconds, budget, slack, mode, prefetch_at):
    """(seconds of the iteration, excess in bytes, seconds spent in replays, bytes copied).

    mode: one of each gap. ``prefetch_at[gap]`` is set to the call before which the swap-in after it starts, or -1 for
    on demand. The excess is 0 if the budget is never exceeded; otherwise the worst of all steps and a part of their
    sum, so that a search that is far from a feasible choice sees each step towards it.
    """
    calls, tensors = len(in_ptr) - 1, len(size)
    most = 6 * calls + 64
    failed = (1e9, 1 << 60, 0.0, 0)
    state = np.zeros(tensors, np.int64)
    away_step = np.zeros(tensors, np.int64)      # the step after which it was swapped out
    gap_of = np.zeros(tensors, np.int64)         # the gap it is in
    copied = np.zeros(tensors, np.bool_)         # the host has a valid copy
    freed_now = np.full(tensors, -1, np.int64)
    remaining = np.zeros(tensors, np.int64)
    step_call = np.zeros(most, np.int64)
    during = np.zeros(most, np.int64)
    group = np.zeros(most, np.int64)             # the program's call that a step belongs to
    length = len(gap_tensor) + 1
    out_t, out_s = np.zeros(length, np.int64), np.zeros(length, np.int64)
    use_t, use_s, use_from = np.zeros(length, np.int64), np.zeros(length, np.int64), np.zeros(length, np.int64)
    use_gap, use_at = np.zeros(length, np.int64), np.zeros(length, np.int64)
    outs = uses = 0
    stack = np.zeros(tensors + 8, np.int64)
    call_seen = np.full(calls, -1, np.int64)
    replay = np.zeros(calls, np.int64)
    live = moved = 0
    for t in range(tensors):
        if produced[t] < 0:
            state[t] = RESIDENT
            live += size[t]
    steps = 0
    replay_seconds = 0.0
    # --- expand
    for k in range(calls):
        replays = 0
        for i in range(in_ptr[k], in_ptr[k + 1]):
            if state[in_idx[i]] == DROPPED or state[in_idx[i]] == ABSENT:
                depth = 1
                stack[0] = in_idx[i]
                while depth:
                    depth -= 1
                    c = produced[stack[depth]]
                    if c < 0:
                        return failed
                    if call_seen[c] == k:
                        continue
                    call_seen[c] = k
                    replay[replays] = c
                    replays += 1
                    for j in range(in_ptr[c], in_ptr[c + 1]):
                        v = in_idx[j]
                        if (state[v] == DROPPED or state[v] == ABSENT) and depth < tensors:
                            stack[depth] = v
                            depth += 1
        if steps + replays >= most - 2:
            return failed
        if replays:
            order = np.sort(replay[:replays])
            for r in range(replays):
                for j in range(in_ptr[order[r]], in_ptr[order[r] + 1]):
                    remaining[in_idx[j]] += 1
        for r in range(replays + 1):
            c = order[r] if r < replays else k
            for j in range(in_ptr[c], in_ptr[c + 1]):
                v = in_idx[j]
                if state[v] == AWAY:
                    state[v] = RESIDENT
                    live += size[v]
                    use_t[uses], use_s[uses], use_from[uses], use_gap[uses] = v, steps, away_step[v], gap_of[v]
                    uses += 1
            extra = 0
            for j in range(out_ptr[c], out_ptr[c + 1]):
                extra += size[out_idx[j]]
            step_call[steps] = c
            group[steps] = k
            if c == k:
                for i in range(free_ptr[k], free_ptr[k + 1]):
                    freed_now[free_idx[i]] = k
                for g in range(gap_ptr[k], gap_ptr[k + 1]):
                    if mode[g] == DROP:
                        freed_now[gap_tensor[g]] = k
                if donated_bytes[k]:
                    extra -= donated_bytes[k]
                else:  # what ends here, or is dropped, may be written over
                    for j in range(may_ptr[k], may_ptr[k + 1]):
                        if freed_now[may_in[j]] == k:
                            extra -= size[may_out[j]]
                            break
            else:
                for j in range(may_ptr[c], may_ptr[c + 1]):
                    if state[may_in[j]] == TEMPORARY and remaining[may_in[j]] == 1:
                        extra -= size[may_out[j]]
                        break
            during[steps] = live + extra
            steps += 1
            if c == k:
                break
            replay_seconds += algorithm_seconds[algorithm_ptr[c]]
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
        for i in range(out_ptr[k], out_ptr[k + 1]):
            state[out_idx[i]] = RESIDENT
            live += size[out_idx[i]]
        for i in range(free_ptr[k], free_ptr[k + 1]):
            t = free_idx[i]
            if state[t] == RESIDENT:
                live -= size[t]
            state[t] = ABSENT
        for g in range(gap_ptr[k], gap_ptr[k + 1]):
            t = gap_tensor[g]
            prefetch_at[g] = -1
            if mode[g] != KEEP and state[t] == RESIDENT:
                live -= size[t]
                if mode[g] == SWAP:
                    state[t] = AWAY
                    away_step[t] = steps - 1
                    gap_of[t] = g
                    if not copied[t]:
                        copied[t] = True
                        out_t[outs], out_s[outs] = t, steps - 1
                        outs += 1
                else:
                    state[t] = DROPPED
    # --- prefetch: as late as hides it, last use first
    starts = np.zeros(steps + 1)
    for s in range(steps):
        starts[s + 1] = starts[s] + algorithm_seconds[algorithm_ptr[step_call[s]]]
    link_free = starts[steps]
    for u in range(uses - 1, -1, -1):
        t, use = use_t[u], use_s[u]
        finish = min(starts[use], link_free)
        begin = finish - in_seconds[t] * (1.0 + slack)
        best = s = use
        while s - 1 > use_from[u] and during[s - 1] + size[t] <= budget:
            s -= 1
            if s == 0 or group[s] != group[s - 1]:  # a swap-in starts between two calls of the program
                best = s
                if starts[s] <= begin:
                    break
        for q in range(best, use):
            during[q] += size[t]
        use_at[u] = best
        if best < use:
            prefetch_at[use_gap[u]] = group[best]
            begin = max(starts[best], begin)
        link_free = min(begin, finish)
    # --- run
    issue = np.argsort(use_at[:uses], kind="mergesort")
    next_issue = next_arrival = next_out = first_tail = last_tail = 0
    tails = worst = excess = 0
    now = out_ready = in_ready = 0.0
    tail_size, tail_end = np.zeros(outs + 1, np.int64), np.zeros(outs + 1)
    arrive = np.zeros(uses + 1)
    for s in range(steps):
        before = now
        while tails and during[s] + tails > budget:
            tails -= tail_size[first_tail]
            now = max(now, tail_end[first_tail])
            first_tail += 1
        if during[s] > budget:
            excess += during[s] - budget
            worst = max(worst, during[s] - budget)
        while next_issue < uses and use_at[issue[next_issue]] == s:
            u = issue[next_issue]
            next_issue += 1
            moved += size[use_t[u]]
            in_ready = max(in_ready, before if use_s[u] > s else now) + in_seconds[use_t[u]]
            arrive[u] = in_ready
        while next_arrival < uses and use_s[next_arrival] == s:  # what this step uses must be there
            now = max(now, arrive[next_arrival])
            next_arrival += 1
        c = step_call[s]
        spare = budget - during[s] - tails
        for a in range(algorithm_ptr[c], algorithm_ptr[c + 1]):
            if algorithm_bytes[a] <= spare or a == algorithm_ptr[c + 1] - 1:
                now += algorithm_seconds[a]
                break
        while next_out < outs and out_s[next_out] == s:
            t = out_t[next_out]
            next_out += 1
            moved += size[t]
            out_ready = max(out_ready, now) + out_seconds[t]
            tail_size[last_tail], tail_end[last_tail] = size[t], out_ready
            last_tail += 1
            tails += size[t]
    return now, worst + excess // 8, replay_seconds, moved
