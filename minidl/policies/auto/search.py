"""One search: the plan that annealing finds for a share of the device's budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.plan.trace import Trace
from minidl.planning.modes import to_plan
from minidl.planning.problem import Array, Problem
from minidl.planning.schedule import NO_NOTES
from minidl.planning.timing import Room
from minidl.policies.auto.choices import first_choice, movable

SLACK = 0.05          # a swap-in starts this share of its duration earlier than it must
EXCESS_WEIGHT = 2e3   # going over the budget by all of it costs as much as this many iterations
COPY_WEIGHT = 0.002   # a copied byte costs this share of its time on the link, even when computation hides it
TEMPERATURE = 0.003   # of the iteration: how much worse a move may be and still be kept, at first
WORK = 2.5e7          # calls simulated for one plan
ENOUGH = 4000         # simulations a gap: a small iteration needs no more
FEWEST = 200          # simulations, however long the iteration


@dataclass(frozen=True)
class Found:
    """What a search has found: a plan, and the share of the device's budget that it was made for."""

    plan: Plan
    share: float


def search(trace: Trace, facts: Problem, costs: Costs, limits: Limits, mode: Array | None, *, share: float, seed: int,
           work: float = WORK, temperature: float = 1.0) -> Found:
    """The plan that is found from a given choice of modes, which is overwritten, or, at None, from a simple one.

    work: calls to simulate; temperature: that of the beginning, in multiples of the usual one.
    """
    from minidl.planning.compiled import simulate  # compiled code: loaded when the first plan is made
    from minidl.policies.auto.annealing import Effort, Moves, Prices, improve

    budget = int(limits.device_bytes * share)
    room = Room(budget, limits.host_bytes, SLACK)
    prices = Prices(EXCESS_WEIGHT * facts.seconds / budget, COPY_WEIGHT * costs.out_seconds_per_byte)
    prefetch_at = np.full(len(facts.gap_call), -1, np.int64)

    def value(choice: Array) -> float:
        seconds, excess, _, moved, _ = simulate(facts, room, choice, prefetch_at, NO_NOTES)
        return seconds + prices.excess * excess + prices.copy * moved

    if mode is None:
        mode = first_choice(facts, budget, value)
    evaluations = max(FEWEST, min(int(work / len(trace.calls)), ENOUGH * len(mode)))
    improve(facts, room, prices, Moves(*movable(facts)),
            Effort(evaluations, temperature * TEMPERATURE * facts.seconds, seed), mode, prefetch_at)
    predicted = simulate(facts, room, mode, prefetch_at, NO_NOTES).seconds
    return Found(replace(to_plan(trace, facts, mode, prefetch_at), predicted_seconds=float(predicted)), share)
