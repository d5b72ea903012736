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

The same walk can note every residency, the steps for which a tensor holds its bytes, so that addresses can be found
for them (``packing``). Everything is arrays of integers and floats (``problem``), so that Numba can compile it; the
same function runs without it. Knows no storages and no device.
"""

import numpy as np

KEEP, SWAP, DROP = 0, 1, 2
ABSENT, RESIDENT, AWAY, DROPPED, TEMPORARY = 0, 1, 2, 3, 4


def simulate(in_ptr, in_idx, out_ptr, out_idx, free_ptr, free_idx, may_ptr, may_out, may_in, algorithm_ptr,
             algorithm_seconds, algorithm_bytes, size, produced, gap_ptr, gap_tensor, out_seconds, in_seconds,
             budget, host_budget, slack, mode, prefetch_at, notes):
    """(seconds of the iteration, excess in bytes, seconds spent in replays, bytes copied, residencies).

    mode: one of each gap. ``prefetch_at[gap]`` is set to the call before which the swap-in after it starts, or -1 for
    on demand. The excess is 0 if neither budget (of the device, of the host) is ever exceeded; otherwise the worst of
    all steps and a part of their sum, so that a search that is far from a feasible choice sees each step towards it.

    notes: [any length, 4]; unless empty, each residency is noted there in the order of its first step but for
    prefetches: tensor (-1 - tensor for a replay's output that nobody wants), first and last step (-1: until the end),
    and the residency whose bytes it was written over, or -1. Workspaces follow, with the number of tensors + that of
    their algorithm as tensor. The number of all is the last result.
    """
    calls, tensors = len(in_ptr) - 1, len(size)
    most = 6 * calls + 64
    failed = (1e9, 1 << 60, 0.0, 0, 0)
    noting = len(notes) > 0
    noted = 0
    note_of = np.full(tensors, -1, np.int64)     # its residency now
    donor = np.full(tensors, -1, np.int64)       # whose bytes an output is about to take over
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
    use_note, out_note = np.zeros(length, np.int64), np.zeros(length, np.int64)
    outs = uses = 0
    stack = np.zeros(tensors + 8, np.int64)
    call_seen = np.full(calls, -1, np.int64)
    replay = np.zeros(calls, np.int64)
    live = moved = host = host_most = 0
    for t in range(tensors):
        if produced[t] < 0:
            state[t] = RESIDENT
            live += size[t]
            if noting:
                notes[noted] = (t, 0, -1, -1)
                note_of[t] = noted
                noted += 1
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
                    if noting:
                        notes[noted] = (v, steps, -1, -1)
                        note_of[v] = use_note[uses] = noted
                        noted += 1
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
            for j in range(may_ptr[c], may_ptr[c + 1]):
                # what ends here, or is dropped, may be written over
                v = may_in[j]
                if (freed_now[v] == k) if c == k else (state[v] == TEMPORARY and remaining[v] == 1):
                    extra -= size[may_out[j]]
                    donor[may_out[j]] = v
                    break
            during[steps] = live + extra
            if noting:
                for j in range(out_ptr[c], out_ptr[c + 1]):
                    v = out_idx[j]
                    if c == k or state[v] == DROPPED or (state[v] == ABSENT and remaining[v] > 0):
                        notes[noted] = (v, steps, -1, -1)
                        note_of[v] = noted
                    else:
                        notes[noted] = (-1 - v, steps, steps, -1)
                    if donor[v] >= 0:
                        notes[noted, 3] = note_of[donor[v]]
                        notes[note_of[donor[v]], 2] = steps - 1
                    noted += 1
            for j in range(out_ptr[c], out_ptr[c + 1]):
                donor[out_idx[j]] = -1
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
                    if noting and notes[note_of[v], 2] < 0:
                        notes[note_of[v], 2] = steps - 1
        for i in range(out_ptr[k], out_ptr[k + 1]):
            state[out_idx[i]] = RESIDENT
            live += size[out_idx[i]]
        for i in range(free_ptr[k], free_ptr[k + 1]):
            t = free_idx[i]
            if copied[t]:
                copied[t] = False
                host -= size[t]
            if state[t] == RESIDENT:
                live -= size[t]
                if noting and notes[note_of[t], 2] < 0:
                    notes[note_of[t], 2] = steps - 1
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
                        host += size[t]
                        host_most = max(host_most, host)
                        out_t[outs], out_s[outs], out_note[outs] = t, steps - 1, note_of[t]
                        outs += 1
                    elif noting:
                        notes[note_of[t], 2] = steps - 1
                else:
                    state[t] = DROPPED
                    if copied[t]:
                        copied[t] = False
                        host -= size[t]
                    if noting and notes[note_of[t], 2] < 0:
                        notes[note_of[t], 2] = steps - 1
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
        if noting:
            notes[use_note[u], 1] = best
        if best < use:
            prefetch_at[use_gap[u]] = group[best]
            begin = max(starts[best], begin)
        link_free = min(begin, finish)
    # --- run
    issue = np.argsort(use_at[:uses], kind="mergesort")
    next_issue = next_arrival = next_out = first_tail = last_tail = 0
    tails = worst = excess = 0
    now = out_ready = in_ready = 0.0
    landed = 0
    tail_size, tail_end = np.zeros(outs + 1, np.int64), np.zeros(outs + 1)
    arrive, landed_at = np.zeros(uses + 1), np.zeros(tensors)
    for s in range(steps):
        while tails and during[s] + tails > budget:
            tails -= tail_size[first_tail]
            now = max(now, tail_end[first_tail])
            first_tail += 1
        while first_tail < last_tail and tail_end[first_tail] <= now:
            tails -= tail_size[first_tail]
            first_tail += 1
        while noting and landed < first_tail:
            notes[out_note[landed], 2] = s - 1
            landed += 1
        if during[s] > budget:
            excess += during[s] - budget
            worst = max(worst, during[s] - budget)
        while next_issue < uses and use_at[issue[next_issue]] == s:
            u = issue[next_issue]
            next_issue += 1
            moved += size[use_t[u]]
            in_ready = max(in_ready, now, landed_at[use_t[u]]) + in_seconds[use_t[u]]
            arrive[u] = in_ready
        while next_arrival < uses and use_s[next_arrival] == s:  # what this step uses must be there
            now = max(now, arrive[next_arrival])
            next_arrival += 1
        c = step_call[s]
        spare = budget - during[s] - tails
        for a in range(algorithm_ptr[c], algorithm_ptr[c + 1]):
            if algorithm_bytes[a] <= spare or a == algorithm_ptr[c + 1] - 1:
                now += algorithm_seconds[a]
                if noting and algorithm_bytes[a] and algorithm_bytes[a] <= spare:
                    notes[noted] = (tensors + a, s, s, -1)
                    noted += 1
                break
        while next_out < outs and out_s[next_out] == s:
            t = out_t[next_out]
            next_out += 1
            moved += size[t]
            out_ready = max(out_ready, now) + out_seconds[t]
            tail_size[last_tail], tail_end[last_tail], landed_at[t] = size[t], out_ready, out_ready
            last_tail += 1
            tails += size[t]
    return now, worst + excess // 8 + max(0, host_most - host_budget), replay_seconds, moved, noted
