"""Our own planner: keep, swap or drop for every tensor, found by local search on the simulated iteration.

The paper ranks tensors by free time and by memory saving per second. Both judge one tensor at a time, on the profile
that was measured. Here a whole choice is judged, on the profile that it leads to (``planning/schedule.py``): replays
with their own transients, copies out due when their memory is wanted, transfers that queue. A first plan comes from a
short search; each iteration that follows refines it, until the time for it is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import EMPTY_PLAN, AccessKey, Action, Eviction, Plan, ResidencyKey
from minidl.plan.policy import Observation, OnDemand, Pressure, Residency
from minidl.plan.trace import TensorId, Trace
from minidl.planning.problem import Problem, problem
from minidl.planning.schedule import DROP, KEEP, SWAP, simulate
from minidl.policies.dtr import Weighing

SLACK = 0.05          # a swap-in starts this share of its duration earlier than it must
EXCESS_WEIGHT = 2e3   # going over the budget by all of it costs as much as this many iterations
COPY_WEIGHT = 0.002   # a copied byte costs this share of its time on the link, even when computation hides it
TEMPERATURE = 0.003   # of the iteration: how much worse a move may be and still be kept, at first
FIRST_WORK = 4e6      # calls simulated for the first plan, which is wanted at once
WORK = 2.5e7          # calls simulated for each other one
KEPT = (0.0, 0.2, 0.4, 0.6, 0.8)                  # a first choice keeps one of these shares of the budget,
DROPPED = tuple(n / 10 for n in range(11))        # and drops one of these of the rest
SHORT_GAP = 0.01      # of the iteration: shorter gaps away from the fullest moment are not considered
NOTES = 12            # residencies noted a call, at most
# Shares of the budget that plans are made for: the less of it, the more surely all finds an address, and the slower.
SHARES = (0.985, 0.99, 0.98, 1.0, 0.97)
ROUNDS = 16           # searches, one an iteration
ENOUGH = 4000         # simulations a gap: a small iteration needs no more
NOTHING = np.zeros((0, 4), np.int64)


class Auto(OnDemand):
    """Search with the simulator as its objective; of what ``rounds`` searches find, the plan that ran fastest."""

    name = "auto"
    weighs_recomputation = True
    plans = True

    def __init__(self, *, rounds: int = ROUNDS) -> None:
        self.rounds = rounds

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        return Weighing().victims(resident, pressure)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Plan:
        facts = problem(trace, costs)
        mode = np.zeros(len(facts.gap_call), np.int64)
        arguments: tuple[Any, ...] = (*facts.arrays(), limits.device_bytes, limits.host_bytes, SLACK, mode,
                                      mode.copy(), NOTHING)
        _, excess, _, _, _ = simulate(*arguments)
        if excess <= 0 or not len(movable(facts)[0]):
            return EMPTY_PLAN
        plan = _search(trace, facts, costs, limits, None, share=SHARES[0], done=0, work=FIRST_WORK)
        return with_addresses(plan, trace, facts, limits)

    def feedback(self, plan: Plan, observed: Observation) -> Plan:
        if plan.predicted_seconds is None or plan.round >= self.rounds:  # all fits, or the search is over
            return plan
        best, best_seconds, done = plan.best or plan, plan.best_seconds, plan.round + 1
        if observed.seconds < best_seconds:
            best, best_seconds = replace(plan, best=None), observed.seconds
        found = self._another(best, best_seconds, observed, done) if done < self.rounds else None
        if found is None:
            found = replace(best, round=done)
        return replace(found, best=best, best_seconds=best_seconds)

    def _another(self, best: Plan, best_seconds: float, observed: Observation, done: int) -> Plan | None:
        """The next plan to try, if one is worth it: from scratch for one of the shares, or around the fastest; at last
        passive mode, for a search among few choices may find nothing better."""
        if done == self.rounds - 1:
            return Plan(predicted_seconds=0.0, round=done)
        trace, costs, limits = observed.trace, observed.costs, observed.limits
        facts = problem(trace, costs)
        if done % 3 or not best.evictions:
            found = _search(trace, facts, costs, limits, None, done=done, share=SHARES[done % len(SHARES)])
        else:
            share = min(1.0, best.share + (0.0, 0.005, -0.005)[done // 3 % 3])
            found = _search(trace, facts, costs, limits, modes_of(best, facts, trace), share=share, done=done,
                            temperature=0.3)
        assert found.predicted_seconds is not None
        return with_addresses(found, trace, facts, limits) if found.predicted_seconds < best_seconds else None


def _search(trace: Trace, facts: Problem, costs: Costs, limits: Limits, mode: np.ndarray | None, *, share: float,
            done: int, work: float = WORK, temperature: float = 1.0) -> Plan:
    """The plan that annealing finds for a share of the budget, from a given choice or, at None, a simple one."""
    from minidl.policies.auto import search  # compiled code: loaded when the first plan is made

    budget = int(limits.device_bytes * share)
    prices = EXCESS_WEIGHT * facts.seconds / budget, COPY_WEIGHT * costs.out_seconds_per_byte
    prefetch_at = np.full(len(facts.gap_call), -1, np.int64)

    def value(choice: np.ndarray) -> float:
        seconds, excess, _, moved, _ = search.simulate(*facts.arrays(), budget, limits.host_bytes, SLACK, choice,
                                                       prefetch_at, NOTHING)
        return seconds + prices[0] * excess + prices[1] * moved
    if mode is None:
        mode = first_choice(facts, budget, value)
    search.improve(facts.arrays(), budget, limits.host_bytes, SLACK, *prices, facts.can_drop, *movable(facts), mode,
                   prefetch_at, max(200, min(int(work / len(trace.calls)), ENOUGH * len(mode))),
                   temperature * TEMPERATURE * facts.seconds, done)
    predicted, *_ = search.simulate(*facts.arrays(), budget, limits.host_bytes, SLACK, mode, prefetch_at, NOTHING)
    return replace(to_plan(trace, facts, mode, prefetch_at), predicted_seconds=float(predicted), share=share,
                   round=done)


def with_addresses(plan: Plan, trace: Trace, facts: Problem, limits: Limits) -> Plan:
    """The plan with an address for each residency that finds one."""
    from minidl.policies.auto import search

    mode = modes_of(plan, facts, trace)
    notes = np.zeros((NOTES * len(trace.calls) + len(facts.ids), 4), np.int64)
    *_, noted = search.simulate(*facts.arrays(), int(limits.device_bytes * plan.share), limits.host_bytes, SLACK, mode,
                                mode.copy(), notes)
    return replace(plan, offsets=addresses(facts, notes[:noted], limits))


def addresses(facts: Problem, notes: np.ndarray, limits: Limits) -> dict[ResidencyKey, int]:
    """Where each residency's bytes go. What outlives the iteration lies below, packed together."""
    from minidl.planning import packing

    before = facts.produced < 0
    outlives = before.copy()
    outlives[facts.free_idx] = False
    below = int(facts.size[outlives].sum())
    steps = int(notes[:, 1:3].max(initial=0)) + 1
    offsets, _ = packing.addresses(notes, steps, np.append(facts.size, facts.algorithm_bytes), born_before=before,
                                   outlives=outlives, room=limits.device_bytes - below)
    result: dict[ResidencyKey, int] = {}
    seen: dict[int, int] = {}
    for (tensor, _, _, _), offset in zip(notes.tolist(), offsets.tolist(), strict=True):
        if 0 <= tensor < len(facts.ids):  # no workspace, and nothing that nobody wants
            count = seen[tensor] = seen.get(tensor, -1) + 1
            if offset >= 0:
                result[facts.ids[tensor], count] = below + offset
    return result


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


def first_choice(facts: Problem, budget: int, value: Callable[[np.ndarray], float]) -> np.ndarray:
    """The best of a few simple choices: of what is there at the fullest moment, what was made last stays, up to some
    share of the budget; of the rest, what is cheapest to make again for its bytes is dropped, and the others swapped.

    value: of a choice, the less the better.
    """
    gaps, _ = movable(facts)
    tensors, droppable = facts.gap_tensor[gaps], facts.can_drop[gaps]
    price = facts.algorithm_seconds[facts.algorithm_ptr[facts.produced[tensors]]] / facts.size[tensors]
    price[~droppable] = np.inf
    latest = np.argsort(-facts.gap_call[gaps], kind="stable")
    held = np.cumsum(facts.size[tensors[latest]])
    best, least = np.zeros(len(facts.gap_call), np.int64), np.inf
    by_price = np.argsort(price, kind="stable")
    for kept in KEPT:
        stays = np.zeros(len(gaps), np.bool_)
        stays[latest[:np.searchsorted(held, kept * budget)]] = True
        leaves = by_price[~stays[by_price]]
        held_by = np.cumsum(facts.size[tensors[leaves]])
        for dropped in DROPPED:
            cheap = leaves[:np.searchsorted(held_by, dropped * held_by[-1], side="right")] if len(leaves) else leaves
            mode = np.zeros(len(facts.gap_call), np.int64)
            mode[gaps[leaves]] = SWAP
            mode[gaps[cheap[droppable[cheap]]]] = DROP
            found = value(mode)
            if found < least:
                best, least = mode, found
    return best


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
