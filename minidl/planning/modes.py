"""A choice of modes as a plan, and a plan as the choice that it was made from.

A planner decides for each gap of a ``Problem``; a plan speaks of accesses, as the engine does.
"""

from __future__ import annotations

import numpy as np

from minidl.plan.plan import AccessKey, Action, Plan
from minidl.plan.trace import TensorId, Trace
from minidl.planning.problem import DROP, KEEP, SWAP, Array, Problem


def _keys(trace: Trace) -> tuple[dict[tuple[int, TensorId], AccessKey], dict[int, AccessKey]]:
    """The access of a tensor by a call, and the first access of each call."""
    key_of = {(access.call, access.tensor_id): (access.tensor_id, access.access_count) for access in trace.accesses}
    return key_of, first_accesses(trace)


def first_accesses(trace: Trace) -> dict[int, AccessKey]:
    """The first access of each call."""
    first: dict[int, AccessKey] = {}
    for access in trace.accesses:
        first.setdefault(access.call, (access.tensor_id, access.access_count))
    return first


def modes_of(plan: Plan, facts: Problem, trace: Trace) -> Array:
    """The choice that a plan was made from: a mode of each gap."""
    key_of, _ = _keys(trace)
    mode = np.full(len(facts.gap_call), KEEP, np.int64)
    for gap, (call, tensor_id) in enumerate(_gaps(facts)):
        action = plan.evictions.get(key_of[call, tensor_id])
        if action is not None:
            mode[gap] = DROP if action is Action.DROP else SWAP
    return mode


def waiting(facts: Problem, plan: Plan, trace: Trace) -> Problem:
    """The same facts with a wait after each call after which a plan has one."""
    waits = np.zeros(len(trace.calls), np.bool_)
    waits[[access.call for access in trace.accesses if (access.tensor_id, access.access_count) in plan.waits]] = True
    return facts._replace(waits=waits)


def effective(facts: Problem, mode: Array) -> Array:
    """The same choice without what is not done: a lasting tensor that stays between iterations stays in them, too."""
    stays: Array = np.where((facts.gap_round >= 0) & (mode[facts.gap_round] == KEEP), KEEP, mode)
    return stays


def to_plan(trace: Trace, facts: Problem, mode: Array, prefetch_at: Array) -> Plan:
    """Modes and calls as accesses: the evicted-access of each gap, and the access at which its swap-in starts."""
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
    """Each gap's tensor by its id, and the call after which it begins."""
    return list(zip(facts.gap_call.tolist(), facts.ids[facts.gap_tensor].tolist(), strict=True))
