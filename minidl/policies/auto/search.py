"""One search: the plan that annealing finds for a share of the device's budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace
from minidl.planning.modes import to_plan
from minidl.planning.problem import Array, Problem
from minidl.planning.schedule import NO_NOTES, Prices
from minidl.planning.timing import Room
from minidl.policies.auto.choices import alike, movable
from minidl.policies.auto.progress import Found

SLACK = 0.05          # a swap-in starts this share of its duration earlier than it must
EXCESS_WEIGHT = 2e3   # going over the budget by all of it costs as much as this many iterations
COPY_WEIGHT = 0.002   # a copied byte costs this share of its time on the link, even when computation hides it
TEMPERATURE = 0.003   # of the iteration: how much worse a move may be and still be kept, at first
WORK = 6e6            # calls simulated for one plan
ENOUGH = 4000         # simulations a gap: a small iteration needs no more
FEWEST = 40           # simulations from one choice, however long the iteration
STARTS = 8            # choices that a search improves a little,
STRIDE = 3            # each so many places behind the other in the order of what they come to
RISING = (1e-5, 1e-4, 1e-3, 1e-2)  # of EXCESS_WEIGHT: the prices under which a search from scratch begins


def search(trace: Trace, facts: Problem, costs: Costs, limits: Limits, begin: Iterable[Array] | None, *, share: float,
           seed: int, work: float = WORK, temperature: float = 1.0) -> Found | None:
    """The plan that is found from some choices of modes; None if it needs more than the whole budget.

    begin: the choices; several of the best ones are improved a little, as none says how good what is near it is, and
    the one that has become best with what is left of the work. None: from scratch, with all kept and a price of bytes
    over the budget that is low at first and rises, so that they go where that costs least time. work: calls to
    simulate; temperature: that of the beginning, in multiples of the usual one; seed: another one begins with other
    choices, too.
    """
    from minidl.planning.compiled import simulate  # compiled code: loaded when the first plan is made
    from minidl.policies.auto.annealing import Effort, Moves, improve

    budget = int(limits.device_bytes * share)
    room = Room(budget, limits.host_bytes, SLACK)
    prices = Prices(EXCESS_WEIGHT * facts.seconds / budget, COPY_WEIGHT * costs.out_seconds_per_byte)
    prefetch_at = np.full(len(facts.gap_call), -1, np.int64)
    moves, heat = Moves(*movable(facts, budget), alike(trace, facts)), temperature * TEMPERATURE * facts.seconds

    def value(choice: Array) -> float:
        seconds, excess, _, moved, _ = simulate(facts, room, choice, prefetch_at, NO_NOTES)
        return seconds + prices.excess * excess + prices.copy * moved

    def improved(choice: Array, evaluations: float, prices: Prices = prices) -> Array:
        choice = choice.copy()
        improve(facts, room, prices, moves, Effort(max(FEWEST, int(evaluations)), heat, seed), choice, prefetch_at)
        return choice

    evaluations = min(work / len(trace.calls), ENOUGH * len(facts.gap_call))
    if begin is None:
        mode, evaluations = np.zeros(len(facts.gap_call), np.int64), evaluations / 2
        for part in RISING:
            mode = improved(mode, evaluations / len(RISING), prices._replace(excess=part * prices.excess))
    else:
        ranked = sorted(begin, key=value)
        first = ranked[seed % STRIDE::STRIDE][:STARTS] if len(ranked) > STRIDE else ranked
        if len(first) > 1:
            evaluations /= 2
            first = [min((improved(choice, evaluations / len(first)) for choice in first), key=value)]
        mode = first[0]
    mode = improved(mode, evaluations)
    found = simulate(facts, room, mode, prefetch_at, NO_NOTES)
    if found.excess > 0:
        share = 1.0
        found = simulate(facts, Room(limits.device_bytes, limits.host_bytes, SLACK), mode, prefetch_at, NO_NOTES)
        if found.excess > 0:
            return None
    return Found(replace(to_plan(trace, facts, mode, prefetch_at), predicted_seconds=float(found.seconds)), share)
