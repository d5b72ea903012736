"""Converts between a planner's modes (keep, swap or drop for each gap) and a Plan (actions after accesses)."""

import numpy as np

from minidl.plan.plan import AccessKey, Action, Plan
from minidl.plan.trace import TensorId, Trace
from minidl.planning.problem import DROP, KEEP, SWAP, Array, Problem


def modes_of(plan: Plan, facts: Problem) -> Array:
    """Return the mode of each gap under a plan, int64 [gaps]."""
    mode = np.full(len(facts.gap_call), KEEP, np.int64)
    for gap, key in enumerate(_accesses(facts)):
        action = plan.evictions.get(key)
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
    gaps = _accesses(facts)
    mode = effective(facts, mode)
    evictions: dict[AccessKey, Action] = {}
    prefetches: dict[AccessKey, list[TensorId]] = {}
    for gap in np.nonzero(mode)[0].tolist():
        evictions[gaps[gap]] = Action.SWAP_OUT if mode[gap] == SWAP else Action.DROP
    swapped = np.nonzero((mode == SWAP) & (prefetch_at > 0))[0].tolist()
    wanted = np.where(facts.gap_head >= 0, facts.gap_head, facts.gap_next)
    for gap in sorted(swapped, key=lambda gap: (prefetch_at[gap], wanted[gap])):
        prefetches.setdefault(trace.first_accesses[int(prefetch_at[gap]) - 1], []).append(gaps[gap][0])
    return Plan(evictions, {key: tuple(ids) for key, ids in prefetches.items()})


def _accesses(facts: Problem) -> list[AccessKey]:
    """Return the access after which each gap begins."""
    return list(zip(facts.ids[facts.gap_tensor].tolist(), facts.gap_count.tolist(), strict=True))
