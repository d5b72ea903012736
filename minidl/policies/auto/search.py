"""One search for a plan by simulated annealing, for a given share of the device's budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace
from minidl.planning.modes import to_plan
from minidl.planning.problem import DROP, ENDLESS, KEEP, SWAP, Array, Problem, within
from minidl.planning.schedule import NO_NOTES, Prices, repair
from minidl.planning.timing import Room
from minidl.policies.auto.choices import alike, movable
from minidl.policies.auto.progress import Found

SLACK = 0.05          # a swap-in starts earlier than it must by this share of its duration
EXCESS_WEIGHT = 2e3   # exceeding the budget by 100% costs as much as this many iterations
COPY_WEIGHT = 0.002   # a copied byte costs this share of its time on the link, even when computation hides it
TEMPERATURE = 0.003   # the first temperature, as a share of the iteration
WORK = 6e6            # calls simulated for one plan
ENOUGH = 4000         # the most simulations per gap
FEWEST = 40           # the fewest simulations from one choice, however long the iteration
STARTS = 8            # the most choices that a search improves a little before it goes on with the best
STRIDE = 3            # it takes every third choice
NEAR = 0.1            # share of the budget: if the best choice exceeds it by less, others go on, too
DEARER = 2            # a call is so many times as long to simulate if leftovers of replays are dropped
RISING = (1e-5, 1e-4, 1e-3, 1e-2)  # of EXCESS_WEIGHT: the rising prices of a search from scratch


def search(trace: Trace, facts: Problem, costs: Costs, limits: Limits, begin: Iterable[Array] | None, *, share: float,
           seed: int, work: float = WORK, temperature: float = 1.0, stride: int = STRIDE, over: float = 0.0
           ) -> Found | None:
    """Return the plan that annealing finds, or None if it exceeds the whole budget.
    A plan that exceeds only its share of the budget is returned as one for share 1.

    begin: modes to start from, each int64 [gaps]. Several of the best are improved with half of the work, since the
    objective of a start does not say how good its neighbours are; the best result gets the other half. If that result
    exceeds the budget by less than NEAR, the better half of the results are improved again first, until one fits.
    None: start with all gaps kept, and with a penalty for bytes over the budget that rises, so that the cheapest
    evictions are made first.

    share, work  the share of the device's budget to plan for; the number of calls to simulate
    seed         of the random moves; it also selects among the starts
    temperature  the first temperature, as a multiple of the usual one
    stride       every ``stride``-th start is taken, in the order of their objectives
    over         a plan may exceed the budget by so large a share of it. Its prediction then has the seconds of copies
                 of what exceeds the budget, out and back
    """
    from minidl.planning.compiled import simulate  # compiled code: loaded when the first plan is made
    from minidl.policies.auto.annealing import Effort, Moves, improve

    budget = int(limits.device_bytes * share)
    facts = within(facts, budget)
    room = Room(budget, limits.host_bytes, SLACK)
    prices = Prices(EXCESS_WEIGHT * facts.seconds / budget, COPY_WEIGHT * costs.out_seconds_per_byte)
    prefetch_at = np.full(len(facts.gap_call), -1, np.int64)
    may_swap = facts.size[facts.gap_tensor] <= limits.host_bytes
    otherwise = np.where(may_swap, SWAP, KEEP)
    often, rare = (gaps[(may_swap | facts.may_drop)[gaps]] for gaps in movable(facts, budget))
    if not len(often):
        return None
    moves, heat = Moves(often, rare, alike(trace, facts), may_swap), temperature * TEMPERATURE * facts.seconds

    def value(choice: Array) -> float:
        choice[(choice == SWAP) & ~may_swap] = KEEP
        found = repair(facts, choice, lambda mode: simulate(facts, room, mode, prefetch_at, NO_NOTES), otherwise)
        return found.seconds + prices.excess * found.excess + prices.copy * found.moved

    def nearly_fits(choice: Array) -> bool:
        return 0 < simulate(facts, room, choice, prefetch_at, NO_NOTES).excess < NEAR * budget

    def improved(choice: Array, evaluations: float, prices: Prices = prices) -> Array:
        choice = choice.copy()
        improve(facts, room, prices, moves, Effort(max(FEWEST, int(evaluations)), heat, seed), choice, prefetch_at)
        return choice

    each = len(trace.calls) * (1 if facts.leftovers_bytes == ENDLESS else DEARER)
    evaluations = min(work / each, ENOUGH * len(facts.gap_call))
    if begin is None:
        mode, evaluations = np.zeros(len(facts.gap_call), np.int64), evaluations / 2
        for part in RISING:
            mode = improved(mode, evaluations / len(RISING), prices._replace(excess=part * prices.excess))
    else:
        ranked = sorted(begin, key=value)
        first = ranked[seed % stride::stride][:STARTS] if len(ranked) > stride else ranked
        if len(first) > 1:
            evaluations /= 2
            first = sorted((improved(choice, evaluations / len(first)) for choice in first), key=value)
            while len(first) > 1 and nearly_fits(first[0]):  # the better half goes on, with twice the work each
                unlike = {choice.tobytes(): choice for choice in first}
                first = [*unlike.values()][:ceil(len(unlike) / 2)]
                first = sorted((improved(choice, evaluations / len(first)) for choice in first), key=value)
        mode = first[0]
    mode = improved(mode, evaluations)
    found = simulate(facts, room, mode, prefetch_at, NO_NOTES)
    if found.excess > 0:
        share, facts = 1.0, within(facts, limits.device_bytes)
        found = simulate(facts, Room(limits.device_bytes, limits.host_bytes, SLACK), mode, prefetch_at, NO_NOTES)
        if found.excess > over * limits.device_bytes:
            return None
    mode[(mode == DROP) & (prefetch_at > 0)] = SWAP  # its replay would read what was written since
    copied = found.excess * (costs.out_seconds_per_byte + costs.in_seconds_per_byte)
    plan = replace(to_plan(trace, facts, mode, prefetch_at), predicted_seconds=float(found.seconds + copied))
    return Found(plan, share, leftovers=facts.leftovers_bytes < ENDLESS, exceeds=found.excess > 0)
