"""Our own planner: keep, swap or drop for every tensor, found by local search on the simulated iteration.

The paper ranks tensors by free time and by memory saving per second. Both judge one tensor at a time, on the profile
that was measured. Here a whole choice is judged, on the profile that it leads to (``memory/schedule.py``): replays
with their own transients, copies out due when their memory is wanted, transfers that queue. A first plan comes from a
short search; each iteration that follows refines it, until the time for it is used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from minidl.memory.plan import EMPTY_PLAN, AccessKey, Action, Costs, Eviction, Limits, Observation, OnDemand, Plan, Residency
from minidl.memory.policies.passive import Passive
from minidl.memory.schedule import DROP, KEEP, NEVER, SWAP, Problem, problem, simulate
from minidl.memory.trace import TensorId, Trace

WORTH_MOVING_BYTES = 1 << 20
SLACK = 0.05          # a swap-in starts this share of its duration earlier than it must
EXCESS_WEIGHT = 20.0  # going over the budget by all of it costs as much as this many iterations
FIRST_WORK = 4e6      # steps simulated for the first plan, and for each refinement
ROUNDS = 12


class Auto(OnDemand):
    """Search with the simulator as its objective."""

    name = "auto"
    plans = True

    def __init__(self) -> None:
        self._costs: Costs | None = None
        self._limits: Limits | None = None

    def victims(self, resident: Sequence[Residency], nbytes: int) -> Sequence[Eviction]:
        return Passive().victims(resident, nbytes)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Plan:
        self._costs, self._limits = costs, limits
        facts = problem(trace, costs)
        mode = np.zeros(len(facts.size), np.int64)
        _, excess, _ = simulate(*facts.arrays(), limits.device_bytes, SLACK, mode, mode.copy())
        if excess <= 0:
            return EMPTY_PLAN
        return self._refine(trace, facts, first_choice(facts, limits.device_bytes), 0, limits)

    def feedback(self, plan: Plan, observed: Observation) -> Plan:
        if not plan.evictions or plan.round >= ROUNDS or self._costs is None or self._limits is None:
            return plan
        facts = problem(observed.trace, self._costs)
        return self._refine(observed.trace, facts, modes_of(plan, facts, observed.trace), plan.round, self._limits)

    def _refine(self, trace: Trace, facts: Problem, mode: np.ndarray, done: int, limits: Limits) -> Plan:
        from minidl.memory import search  # compiled code: loaded when the first plan is made

        prefetch_at = np.full(len(mode), -1, np.int64)
        seconds = float(facts.seconds.sum())
        budget = limits.device_bytes
        evaluations = max(200, int(FIRST_WORK / len(facts.seconds)))
        temperature = 0.002 * seconds * 0.6 ** done
        search.improve(facts.arrays(), budget, SLACK, EXCESS_WEIGHT * seconds / budget, facts.can_drop,
                       movable(facts), mode, prefetch_at, evaluations, temperature, done)
        predicted, _, _ = search.simulate(*facts.arrays(), budget, SLACK, mode, prefetch_at)
        return replace(to_plan(trace, facts, mode, prefetch_at), predicted_seconds=float(predicted), round=done + 1)


def movable(facts: Problem) -> np.ndarray:
    """The tensors worth moving: large, and idle while the unmanaged iteration needs most."""
    usage = np.zeros(len(facts.seconds) + 1)
    for n in range(len(facts.size)):
        if facts.evict_at[n] != NEVER:
            usage[facts.evict_at[n] + 1] += facts.size[n]
            usage[facts.next_use[n]] -= facts.size[n]
    peak = int(np.argmax(np.cumsum(usage)))
    large = (facts.size >= WORTH_MOVING_BYTES) & (facts.evict_at != NEVER)
    return np.nonzero(large & (facts.evict_at < peak) & (facts.next_use >= peak))[0]


def first_choice(facts: Problem, budget: int) -> np.ndarray:
    """Everything leaves: the half that is cheapest to make again for its bytes is dropped, the rest is swapped."""
    mode = np.zeros(len(facts.size), np.int64)
    tensors = movable(facts)
    price = facts.seconds[facts.produced[tensors]] / facts.size[tensors]
    price[~facts.can_drop[tensors]] = np.inf
    cheap = np.argsort(price, kind="stable")[:len(tensors) // 2]
    mode[tensors] = SWAP
    mode[tensors[cheap]] = np.where(facts.can_drop[tensors[cheap]], DROP, SWAP)
    return mode


def modes_of(plan: Plan, facts: Problem, trace: Trace) -> np.ndarray:
    """The choice that a plan was made from."""
    number = {tensor_id: n for n, tensor_id in enumerate(facts.ids)}
    mode = np.full(len(facts.size), KEEP, np.int64)
    for (tensor_id, _), action in plan.evictions.items():
        mode[number[tensor_id]] = DROP if action is Action.DROP else SWAP
    return mode


def to_plan(trace: Trace, facts: Problem, mode: np.ndarray, prefetch_at: np.ndarray) -> Plan:
    """Modes and calls as accesses: the evicted-access of each tensor, and the access at which its swap-in starts."""
    key_of: dict[tuple[int, TensorId], AccessKey] = {}
    first_key: dict[int, AccessKey] = {}
    for access in trace.accesses:
        key = (access.tensor_id, access.access_count)
        key_of[access.call, access.tensor_id] = key
        first_key.setdefault(access.call, key)
    evictions: dict[AccessKey, Action] = {}
    prefetches: dict[AccessKey, list[TensorId]] = {}
    for n in np.nonzero(mode)[0]:
        tensor_id = facts.ids[n]
        action = Action.SWAP_OUT if mode[n] == SWAP else Action.DROP
        evictions[key_of[int(facts.evict_at[n]), tensor_id]] = action
    swapped = [n for n in np.nonzero((mode == SWAP) & (prefetch_at > 0))[0]]
    for n in sorted(swapped, key=lambda n: (prefetch_at[n], facts.next_use[n])):
        prefetches.setdefault(first_key[int(prefetch_at[n]) - 1], []).append(facts.ids[n])
    return Plan(evictions, {key: tuple(ids) for key, ids in prefetches.items()})
