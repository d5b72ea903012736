"""Converts between a planner's modes (keep, swap or drop for each gap) and a Plan (actions after accesses)."""

import numpy as np

from minidl.plan.plan import AccessKey, Action, Plan
from minidl.plan.trace import TensorId, Trace
from minidl.planning.problem import DROP, KEEP, SWAP, Array, Problem


def _keys(trace: Trace) -> tuple[dict[tuple[int, TensorId], AccessKey], dict[int, AccessKey]]:
    """Return two maps: (call, tensor) -> access, and call -> its first access."""
    key_of = {(access.call, access.tensor_id): (access.tensor_id, access.access_count) for access in trace.accesses}
    return key_of, first_accesses(trace)


def first_accesses(trace: Trace) -> dict[int, AccessKey]:
    """Return a map from each call to its first access."""
    first: dict[int, AccessKey] = {}
    for access in trace.accesses:
        first.setdefault(access.call, (access.tensor_id, access.access_count))
    return first


def modes_of(plan: Plan, facts: Problem, trace: Trace) -> Array:
    """Return the mode of each gap under a plan, int64 [gaps]; facts: the trace's Problem."""
    key_of, _ = _keys(trace)
    mode = np.full(len(facts.gap_call), KEEP, np.int64)
    for gap, (call, tensor_id) in enumerate(_gaps(facts)):
        action = plan.evictions.get(key_of[call, tensor_id])
        if action is not None:
            mode[gap] = DROP if action is Action.DROP else SWAP
    return mode


def waiting(facts: Problem, plan: Plan, trace: Trace) -> Problem:
    """Return the problem with ``waits`` set as in a plan: the calls after which computation waits for all copies."""
    waits = np.zeros(len(trace.calls), np.bool_)
    waits[[access.call for access in trace.accesses if (access.tensor_id, access.access_count) in plan.waits]] = True
    return facts._replace(waits=waits)


def effective(facts: Problem, mode: Array) -> Array:
    """Return the modes with KEEP in every gap of a persistent tensor that stays on the device between iterations."""
    stays: Array = np.where((facts.gap_round >= 0) & (mode[facts.gap_round] == KEEP), KEEP, mode)
    return stays


def to_plan(trace: Trace, facts: Problem, mode: Array, prefetch_at: Array) -> Plan:
    """Return the Plan for these modes.
    prefetch_at: per gap, the call before which its swap-in starts (the in-trigger is an access of the call before
    that); 0 or less for a swap-in on demand."""
    key_of, first = _keys(trace)
    gaps = _gaps(facts)
    mode = effective(facts, mode)
    evictions: dict[AccessKey, Action] = {}
    prefetches: dict[AccessKey, list[TensorId]] = {}
    for gap in np.nonzero(mode)[0].tolist():
        evictions[key_of[gaps[gap]]] = Action.SWAP_OUT if mode[gap] == SWAP else Action.DROP
    swapped = np.nonzero((mode == SWAP) & (prefetch_at > 0))[0].tolist()
    wanted = np.where(facts.gap_head >= 0, facts.gap_head, facts.gap_next)
    for gap in sorted(swapped, key=lambda gap: (prefetch_at[gap], wanted[gap])):
        prefetches.setdefault(first[int(prefetch_at[gap]) - 1], []).append(gaps[gap][1])
    return Plan(evictions, {key: tuple(ids) for key, ids in prefetches.items()})


def _gaps(facts: Problem) -> list[tuple[int, TensorId]]:
    """Return (call after which it begins, tensor id) of each gap."""
    return list(zip(facts.gap_call.tolist(), facts.ids[facts.gap_tensor].tolist(), strict=True))
