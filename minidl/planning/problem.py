"""A trace as arrays of integers and floats, so that Numba can compile the simulation of a plan. Decides nothing."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from minidl.meta import aligned, block_bytes
from minidl.plan.costs import Costs, DiskCosts
from minidl.plan.trace import TensorId, Trace, TraceCall

KEEP, SWAP, DROP = 0, 1, 2  # the mode of a gap
NEVER = 1 << 30
ENDLESS = 1 << 62  # bytes of host memory if there is no disk behind it
WORTH_MOVING = 1e-4  # share of all tensors' bytes: smaller tensors are many, hold little, and stay

Array: TypeAlias = np.ndarray


class Problem(NamedTuple):
    """A trace as arrays of numbers: calls 0..K-1, tensors 0..T-1 and gaps 0..G-1.

    ``ids`` has the tensors' ids. Gaps are in the order of ``gap_call`` and of that call's operands. Lists of variable
    length are a pointer array of K + 1 entries and a flat array: a call's inputs, outputs, frees, writes in place,
    possible donations, algorithms (fastest first; the last needs the least workspace), and gaps that begin after it.

    A gap lies between ``gap_call`` and ``gap_next``, two consecutive calls that access ``gap_tensor``. A persistent
    tensor also has a gap across the iteration's end: from its last access to K, and from the start of the next
    iteration to its first access there, ``gap_head`` (-1 for all other gaps). ``gap_round`` of all its gaps is that
    gap (-1 for other tensors). A persistent tensor may leave within the iteration only if it is also away between
    iterations; otherwise its address at the end would differ from that at the start. A tensor that the iteration makes
    and the next one frees unread, such as a gradient, may have a gap from its last access to K, without a swap-in.
    ``gap_before`` is the tensor that is away when an iteration starts if the gap's tensor is swapped: the same tensor
    if it is persistent, and the previous iteration's gradient in the gap of a gradient, if it is there; otherwise -1.

    gap_count                per gap: the number, from 1, of the access of its tensor after which it begins
    size                     per tensor: bytes on the device
    produced                 per tensor: the call that makes it, or -1 if it exists before the iteration
    out_seconds, in_seconds  per tensor: seconds of a copy to, from the host
    disk_out_seconds, disk_in_seconds   per tensor: seconds of a copy through the host to, from the disk
    can_drop                 per gap: True if its tensor can be replayed at the gap's end, whatever else is dropped
    may_drop                 per gap: True also if a write in place within the gap, or before it, may spoil the replay:
                             if it would, the tensor is replayed before that write, or swapped instead of dropped
    repeatable               per call: True if the same inputs give the same outputs again
    waits                    per call: True if computation waits after it until all copies so far have ended
    seconds                  duration of the iteration with the fastest algorithms and without copies
    contention               seconds that computation loses for each second that a copy runs beside it
    memory_bytes             bytes of host memory; further copies go to the disk
    leftovers_bytes          what replays have computed for later calls is dropped again, the oldest first, where more
                             bytes than this would be in use, as the engine does"""

    ids: Array
    in_ptr: Array
    in_idx: Array
    out_ptr: Array
    out_idx: Array
    free_ptr: Array
    free_idx: Array
    write_ptr: Array
    write_idx: Array
    may_ptr: Array
    may_out: Array
    may_in: Array
    algorithm_ptr: Array
    algorithm_seconds: Array
    algorithm_bytes: Array
    size: Array
    produced: Array
    gap_ptr: Array
    gap_tensor: Array
    out_seconds: Array
    in_seconds: Array
    disk_out_seconds: Array
    disk_in_seconds: Array
    gap_call: Array
    gap_next: Array
    gap_count: Array
    gap_head: Array
    gap_round: Array
    gap_before: Array
    can_drop: Array
    may_drop: Array
    repeatable: Array
    waits: Array
    seconds: float
    contention: float
    memory_bytes: int
    leftovers_bytes: int = ENDLESS


def within(facts: Problem, nbytes: int) -> Problem:
    """Return the problem for a budget of ``nbytes``: if leftovers of replays are dropped, they are dropped above it."""
    return facts if facts.leftovers_bytes == ENDLESS else facts._replace(leftovers_bytes=nbytes)


def live_bytes(facts: Problem) -> Array:
    """Return the bytes of the tensors alive during each call if none is evicted or donated; workspaces not counted."""
    return _alive(facts.size, facts.produced, facts.free_ptr, facts.free_idx)


def freed_by(facts: Problem) -> Array:
    """Return for each tensor the call after which the program frees it, or NEVER: int64 [tensors]."""
    result = np.full(len(facts.size), NEVER, np.int64)
    result[facts.free_idx] = np.repeat(np.arange(len(facts.free_ptr) - 1), np.diff(facts.free_ptr))
    return result


def _alive(size: Array, produced: Array, free_ptr: Array, free_idx: Array) -> Array:
    calls = len(free_ptr) - 1
    change = np.zeros(calls + 1, np.int64)
    np.add.at(change, np.maximum(produced, 0), size)
    np.subtract.at(change, np.repeat(np.arange(calls), np.diff(free_ptr)) + 1, size[free_idx])
    live: Array = np.cumsum(change)[:calls]
    return live


def change_of(sizes: Array, begin: Array, end: Array, head: Array, calls: int) -> Array:
    """Return by how many bytes the tensors that are away in some gaps change from call to call, int64 [calls + 1].
    Its cumulative sum is their bytes during each call. sizes: of the tensors; begin, end, head: as in Problem."""
    change = np.zeros(calls + 1, np.int64)
    np.add.at(change, begin + 1, sizes)
    np.subtract.at(change, end, sizes)
    round_the_end = head >= 0
    change[0] += sizes[round_the_end].sum()
    np.subtract.at(change, head[round_the_end], sizes[round_the_end])
    return change


def _unread(uses: list[list[tuple[int, int]]], size: Array, produced: Array, stays: list[bool], freed: Mapping[int, int]
            ) -> dict[int, int]:
    """Return the tensors that the next iteration frees unread, each with its predecessor or -1.
    Predecessors are the tensors of as many bytes that this iteration frees unread. If the next iteration reads a tensor
    of this one, this one has read a tensor of as many bytes of the one before; tensors of such sizes are left out."""
    earlier = [n for n in range(len(size)) if produced[n] < 0 and not stays[n]]
    read = {int(size[n]) for n in earlier if uses[n]}
    old: dict[int, list[int]] = {}
    for n in reversed(earlier):
        old.setdefault(int(size[n]), []).append(n)
    return {n: old[nbytes].pop() if old.get(nbytes) else -1 for n, nbytes in enumerate(size.tolist())
            if produced[n] >= 0 and n not in freed and nbytes not in read}


def _flat(lists: list[list[int]]) -> tuple[Array, Array]:
    pointers = np.zeros(len(lists) + 1, np.int64)
    pointers[1:] = np.cumsum([len(entries) for entries in lists])
    return pointers, np.array([entry for entries in lists for entry in entries], np.int64)


def _algorithms(call: TraceCall) -> list[tuple[float, int]]:
    """Return (seconds, workspace) of the Pareto-optimal algorithms of a call, the fastest first."""
    best: list[tuple[float, int]] = []
    for seconds, workspace in sorted(((a.seconds, a.workspace) for a in call.algorithms), key=lambda a: (a[1], a[0])):
        if not best or seconds < best[-1][0]:
            best.append((seconds, aligned(workspace) if workspace else 0))
    return best[::-1] or [(call.seconds, 0)]


def problem(trace: Trace, costs: Costs, *, lasting: bool = True, budget: int = ENDLESS) -> Problem:
    """Return a trace as a Problem. lasting: True to give persistent tensors gaps, too.
    budget: tensors that the next iteration frees unread have gaps at the end if more than so many bytes stay even if
    all other tensors are away."""
    ids = tuple(trace.tensors)
    number = {tensor_id: n for n, tensor_id in enumerate(ids)}
    calls = trace.calls
    size = np.array([block_bytes(trace.tensors[i].nbytes) for i in ids], np.int64)
    produced = np.full(len(ids), -1, np.int64)
    uses: list[list[tuple[int, int]]] = [[] for _ in ids]  # (call, position among its operands)
    writes: list[list[int]] = [[] for _ in ids]
    cut = np.full(len(ids), NEVER, np.int64)  # the call before which its lineage ends
    for k, call in enumerate(calls):
        for position, tensor_id in enumerate(dict.fromkeys((*call.inputs, *call.outputs))):
            uses[number[tensor_id]].append((k, position))
        for tensor_id in call.outputs:
            produced[number[tensor_id]] = k
        for tensor_id in call.writes:
            writes[number[tensor_id]].append(k)
            cut[number[tensor_id]] = min(cut[number[tensor_id]], k + 1)
        for tensor_id in call.leaves:
            cut[number[tensor_id]] = min(cut[number[tensor_id]], k)
    latest = _latest_replay(trace, number, writes, cut)
    least = WORTH_MOVING * size.sum()
    freed = {number[i]: k for k, call in enumerate(calls) for i in call.frees}
    lasting = lasting and trace.windows is None
    stays = [lasting and produced[n] < 0 and n not in freed and trace.tensors[ids[n]].persistent
             for n in range(len(ids))]
    round_the_end = {n for n, at in enumerate(uses) if stays[n] and size[n] >= least and at
                     and at[0][0] + len(calls) > at[-1][0] + 1}
    movable = [produced[n] >= 0 and size[n] >= least or n in round_the_end for n in range(len(ids))]
    # After a call its operands leave in their order, as in the engine, because their copies queue on the link.
    ordered = [(a, position, b, n, -1, count) for n, at in enumerate(uses) if movable[n]
               for count, ((a, position), (b, _)) in enumerate(zip(at, at[1:], strict=False), 1)
               if b > a + 1 and trace.may_leave(ids[n], a, b)]
    ordered += [(*uses[n][-1], len(calls), n, uses[n][0][0], len(uses[n])) for n in round_the_end]
    free_ptr, free_idx = _flat([[number[i] for i in call.frees] for call in calls])
    before = {n: n for n in round_the_end}
    if lasting and budget < ENDLESS:
        begin, _, end, which, head, _ = np.array(ordered, np.int64).reshape(-1, 6).T
        stay = _alive(size, produced, free_ptr, free_idx) - np.cumsum(
            change_of(size[which], begin, end, head, len(calls)))[:-1]
        for n, old in _unread(uses, size, produced, stays, freed).items():
            last, until = uses[n][-1][0], freed.get(old, -1)
            if size[n] >= least and last < len(calls) - 1 and budget < max(
                    stay[last + 1:].max(), stay[:until + 1].max(initial=0)):
                ordered.append((*uses[n][-1], len(calls), n, -1, len(uses[n])))
                before[n] = old
    gaps = [(a, b, n, head, count) for a, _, b, n, head, count in sorted(ordered)]
    ends = {n: g for g, (_, _, n, head, _) in enumerate(gaps) if head >= 0}
    gap_lists: list[list[int]] = [[] for _ in calls]
    for a, _, n, _, _ in gaps:
        gap_lists[a].append(n)
    in_ptr, in_idx = _flat([[number[i] for i in dict.fromkeys(call.inputs)] for call in calls])
    out_ptr, out_idx = _flat([[number[i] for i in call.outputs] for call in calls])
    write_ptr, write_idx = _flat([[number[i] for i in dict.fromkeys(call.writes)] for call in calls])
    gap_ptr, gap_tensor = _flat(gap_lists)
    repeatable = np.array([call.replayable for call in calls], np.bool_)
    # The call before which a tensor's lineage ends; -1: it has none.
    lineage = [int(cut[n]) if p >= 0 and repeatable[p] else -1 for n, p in enumerate(produced)]
    # The engine lets an input that the program still holds donate its bytes only if it could compute the input again.
    over = [[(number[o], number[i]) for o, i in call.may_donate if (o, i) in call.donated or k < lineage[number[i]]]
            for k, call in enumerate(calls)]
    may_ptr, may_out = _flat([[o for o, _ in pairs] for pairs in over])
    _, may_in = _flat([[i for _, i in pairs] for pairs in over])
    may_drop = np.array([b < min(lineage[n], len(calls)) for _, b, n, _, _ in gaps], np.bool_)
    can_drop = np.array([b <= latest[n] for _, b, n, _, _ in gaps], np.bool_) & may_drop
    if trace.windows is not None:  # what follows such a plan does not replay before writes
        may_drop = can_drop
    algorithms = [_algorithms(call) for call in calls]
    algorithm_ptr, _ = _flat([[0] * len(a) for a in algorithms])
    out_seconds = costs.latency_seconds + size * costs.out_seconds_per_byte
    in_seconds = costs.latency_seconds + size * costs.in_seconds_per_byte
    disk = costs.disk or DiskCosts(ENDLESS, 0.0, 0.0, 0.0)
    return Problem(
        np.array(ids, np.int64), in_ptr, in_idx, out_ptr, out_idx, free_ptr, free_idx,
        write_ptr, write_idx, may_ptr, may_out, may_in, algorithm_ptr, np.array([s for a in algorithms for s, _ in a]),
        np.array([w for a in algorithms for _, w in a], np.int64), size, produced, gap_ptr, gap_tensor,
        out_seconds, in_seconds,
        np.maximum(out_seconds, disk.latency_seconds + size * disk.out_seconds_per_byte),
        np.maximum(in_seconds, disk.latency_seconds + size * disk.in_seconds_per_byte),
        np.array([a for a, _, _, _, _ in gaps], np.int64), np.array([b for _, b, _, _, _ in gaps], np.int64),
        np.array([count for *_, count in gaps], np.int64), np.array([head for *_, head, _ in gaps], np.int64),
        np.array([ends.get(n, -1) for _, _, n, _, _ in gaps], np.int64),
        np.array([before.get(n, -1) if b == len(calls) else -1 for _, b, n, _, _ in gaps], np.int64),
        can_drop, may_drop, repeatable, np.zeros(len(calls), np.bool_),
        float(sum(a[0][0] for a in algorithms)), costs.contention, disk.memory_bytes)


def _latest_replay(trace: Trace, number: dict[TensorId, int], writes: list[list[int]], cut: Array) -> Array:
    """Return per tensor the last call that its replay can precede, whatever else is dropped: the first write in place
    of a tensor that the replay, or the replay of its sources, would read.

    writes, cut: per tensor, the calls that write it, and the call before which its lineage ends. A source without a
    lineage then, or whose call is not repeatable, is never dropped: only writes to it are limits, not its replay."""
    latest = np.full(len(cut), NEVER, np.int64)
    for k, call in enumerate(trace.calls):
        limit = NEVER
        for source in call.inputs:
            s = number[source]
            at = bisect_right(writes[s], k)
            if at < len(writes[s]):
                limit = min(limit, writes[s][at])
            if k < cut[s]:
                limit = min(limit, int(latest[s]))
        for tensor_id in call.outputs:
            latest[number[tensor_id]] = limit if call.replayable else NEVER
    return latest
