"""Our own planner: keep, swap or drop for every tensor, found by local search on the simulated iteration.

The paper ranks tensors by free time and by memory saving per second. Both judge one tensor at a time, on the profile
that was measured. Here a whole choice is judged, on the profile that it leads to (``planning/schedule.py``): replays
with their own transients, copies out due when their memory is wanted, transfers that queue. A first plan comes from a
short search; each iteration that follows refines it, until the time for it is used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minidl.memory.plan import (
    EMPTY_PLAN,
    AccessKey,
    Action,
    Costs,
    Eviction,
    Limits,
    Observation,
    OnDemand,
    Plan,
    Residency,
)
from minidl.memory.planning.schedule import DROP, KEEP, SWAP, Problem, problem, simulate
from minidl.memory.policies.passive import Passive
from minidl.memory.trace import TensorId, Trace

SLACK = 0.05          # a swap-in starts this share of its duration earlier than it must
EXCESS_WEIGHT = 20.0  # going over the budget by all of it costs as much as this many iterations
COPY_WEIGHT = 0.02    # a copied byte costs this share of its time on the link, even when computation hides it
TEMPERATURE = 0.003   # of the iteration: how much worse a move may be and still be kept, at first
FIRST_WORK = 8e6      # calls simulated for the first plan, which is wanted at once, and to refine one
WORK = 3.5e7          # calls simulated for each other plan that is made from scratch
SHORT_GAP = 0.01      # of the iteration: shorter gaps away from the fullest moment are not considered
# Shares of the budget that plans are made for. What is left over is not lost: it spares the moves that a full arena
# costs. How much of it pays is not known beforehand, so each share is tried, and the fastest plan is refined and kept.
SHARES = (0.99, 1.0, 0.97, 0.98, 0.99, 0.96, 0.95, 0.92, 1.0, 0.98)
ROUNDS = 40  # each takes two iterations


class Auto(OnDemand):
    """Search with the simulator as its objective; then the fastest of ``rounds`` plans that were tried."""

    name = "auto"
    plans = True

    def __init__(self, *, rounds: int = ROUNDS) -> None:
        self.rounds = rounds
        self._costs = Costs(0.0, 0.0, 0.0)
        self._limits = Limits(0, 0)

    def victims(self, resident: Sequence[Residency], nbytes: int) -> Sequence[Eviction]:
        return Passive().victims(resident, nbytes)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Plan:
        self._costs, self._limits = costs, limits
        facts = problem(trace, costs)
        mode = np.zeros(len(facts.gap_call), np.int64)
        arguments: tuple[Any, ...] = (*facts.arrays(), limits.device_bytes, SLACK, mode, mode.copy())
        _, excess, _, _ = simulate(*arguments)
        if excess <= 0 or not len(movable(facts)[0]):
            return EMPTY_PLAN
        return self._search(trace, facts, first_choice(facts), SHARES[0], 0)

    def feedback(self, plan: Plan, observed: Observation) -> Plan:
        if not plan.evictions or plan.round >= self.rounds:
            return plan
        if not plan.settled:  # its first iteration started from what another plan left in the arena
            return replace(plan, settled=True)
        if observed.seconds < plan.best_seconds:
            plan = replace(plan, best=replace(plan, best=None), best_seconds=observed.seconds)
        best = plan.best
        assert best is not None
        done = plan.round + 1
        if done == self.rounds:
            return replace(best, round=done)
        facts = problem(observed.trace, self._costs)
        if done < len(SHARES):
            found = self._search(observed.trace, facts, first_choice(facts), SHARES[done], done)
        else:  # around the fastest, a little above and below its share
            share = min(1.0, best.share + (0.0, 0.005, -0.005, -0.015)[done % 4])
            found = self._search(observed.trace, facts, modes_of(best, facts, observed.trace), share, done)
        return replace(found, best=best, best_seconds=plan.best_seconds)

    def _search(self, trace: Trace, facts: Problem, mode: np.ndarray, share: float, done: int) -> Plan:
        from minidl.memory.planning import search  # compiled code: loaded when the first plan is made

        prefetch_at = np.full(len(mode), -1, np.int64)
        budget = int(self._limits.device_bytes * share)
        temperature = TEMPERATURE * facts.seconds * (1.0 if done < len(SHARES) else 0.3)
        work = WORK if 0 < done < len(SHARES) else FIRST_WORK
        search.improve(facts.arrays(), budget, SLACK, EXCESS_WEIGHT * facts.seconds / budget,
                       COPY_WEIGHT * self._costs.out_seconds_per_byte, facts.can_drop, *movable(facts), mode,
                       prefetch_at, max(200, int(work / len(trace.calls))), temperature, done)
        predicted, _, _, _ = search.simulate(*facts.arrays(), budget, SLACK, mode, prefetch_at)
        return replace(to_plan(trace, facts, mode, prefetch_at), predicted_seconds=float(predicted), share=share,
                       round=done)


def movable(facts: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The gaps worth considering, as two groups: those at the iteration's fullest moment; the other long ones, which
    matter only when the budget is a small part of what is needed."""
    calls = len(facts.gap_ptr) - 1
    held = np.zeros(calls + 1)
    sizes = facts.size[facts.gap_tensor]
    np.add.at(held, facts.gap_call + 1, sizes)
    np.add.at(held, facts.gap_next, -sizes)
    fullest = int(np.argmax(np.cumsum(held)))
    there = (facts.gap_call < fullest) & (facts.gap_next >= fullest)
    starts = np.concatenate([[0.0], np.cumsum(facts.algorithm_seconds[facts.algorithm_ptr[:-1]])])
    long = starts[facts.gap_next] - starts[facts.gap_call] >= SHORT_GAP * facts.seconds
    return np.nonzero(there)[0], np.nonzero(long & ~there)[0]


def first_choice(facts: Problem) -> np.ndarray:
    """Everything leaves in the gap at the fullest moment: the half that is cheapest to make again for its bytes is
    dropped, the rest is swapped."""
    mode = np.zeros(len(facts.gap_call), np.int64)
    gaps, _ = movable(facts)
    tensors = facts.gap_tensor[gaps]
    price = facts.algorithm_seconds[facts.algorithm_ptr[facts.produced[tensors]]] / facts.size[tensors]
    price[~facts.can_drop[gaps]] = np.inf
    cheap = gaps[np.argsort(price, kind="stable")[:len(gaps) // 2]]
    mode[gaps] = SWAP
    mode[cheap] = np.where(facts.can_drop[cheap], DROP, SWAP)
    return mode


def _keys(trace: Trace) -> tuple[dict[tuple[int, TensorId], AccessKey], dict[int, AccessKey]]:
    """The access of a tensor by a call, and the first access of each call."""
    key_of: dict[tuple[int, TensorId], AccessKey] = {}
    first: dict[int, AccessKey] = {}
    for access in trace.accesses:
        key = (access.tensor_id, access.access_count)
        key_of[access.call, access.tensor_id] = key
        first.setdefault(access.call, key)
    return key_of, first


def modes_of(plan: Plan, facts: Problem, trace: Trace) -> np.ndarray:
    """The choice that a plan was made from."""
    key_of, _ = _keys(trace)
    mode = np.full(len(facts.gap_call), KEEP, np.int64)
    for gap, (call, tensor) in enumerate(zip(facts.gap_call, facts.gap_tensor, strict=True)):
        action = plan.evictions.get(key_of[int(call), facts.ids[tensor]])
        if action is not None:
            mode[gap] = DROP if action is Action.DROP else SWAP
    return mode


def to_plan(trace: Trace, facts: Problem, mode: np.ndarray, prefetch_at: np.ndarray) -> Plan:
    """Modes and calls as accesses: the evicted-access of each gap, and the access at which its swap-in starts."""
    key_of, first = _keys(trace)
    evictions: dict[AccessKey, Action] = {}
    prefetches: dict[AccessKey, list[TensorId]] = {}
    for gap in np.nonzero(mode)[0]:
        action = Action.SWAP_OUT if mode[gap] == SWAP else Action.DROP
        evictions[key_of[int(facts.gap_call[gap]), facts.ids[facts.gap_tensor[gap]]]] = action
    swapped = np.nonzero((mode == SWAP) & (prefetch_at > 0))[0]
    for gap in sorted(swapped, key=lambda gap: (prefetch_at[gap], facts.gap_next[gap])):
        prefetches.setdefault(first[int(prefetch_at[gap]) - 1], []).append(facts.ids[facts.gap_tensor[gap]])
    return Plan(evictions, {key: tuple(ids) for key, ids in prefetches.items()})
