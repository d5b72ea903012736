"""Our own planner: keep, swap or drop for every tensor, found by local search on the simulated iteration.

The paper ranks tensors by free time and by memory saving per second. Both judge one tensor at a time, on the profile
that was measured. Here a whole choice is judged, on the profile that it leads to (``planning/schedule.py``): replays
with their own transients, copies out due when their memory is wanted, transfers that queue. A first plan comes from a
short search; each iteration that follows refines it, until the time for it is used up.

    choices     which gaps are considered, and the choices that a search begins with
    search      one search for one share of the budget; ``annealing`` is its compiled part
    addresses   where the tensors of a plan lie
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from minidl.errors import UserError
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Eviction, Kept, Plan, Proposal
from minidl.plan.policy import Observation, OnDemand, Pressure, Residency
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.auto.addresses import with_addresses
from minidl.policies.auto.choices import movable
from minidl.policies.auto.search import SLACK, Found, search
from minidl.policies.dtr import Weighing

FIRST_WORK = 4e6      # calls simulated for the first plan, which is wanted at once
# Shares of the budget that plans are made for: the less of it, the more surely all finds an address, and the slower.
SHARES = (0.985, 0.99, 0.98, 1.0, 0.97)
LEAST_SHARE = 0.5     # of one that is recalled
ROUNDS = 16           # searches, one an iteration
WARM = 0.3            # of the usual temperature: where a search around a known plan begins


@dataclass(frozen=True)
class Progress:
    """How far the searches for one sequence have come: what ``auto`` notes beside a plan.

    round         how many plans came before it.
    share         of the device's budget that it was made for.
    best          the one that was fastest when it was tried, and best_seconds what it took.
    """

    round: int = 0
    share: float = 1.0
    best: Found | None = None
    best_seconds: float = inf


class Auto(OnDemand):
    """Search with the simulator as its objective; of what ``rounds`` searches find, the plan that ran fastest."""

    name = "auto"
    weighs_recomputation = True
    plans = True

    def __init__(self, *, rounds: int = ROUNDS) -> None:
        self.rounds = rounds

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """What ``dtr`` would evict."""
        return Weighing().victims(resident, pressure)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """The plan of a short search; no plan if everything fits."""
        facts = problem(trace, costs)
        mode = np.zeros(len(facts.gap_call), np.int64)
        kept = simulate(facts, Room(limits.device_bytes, limits.host_bytes, SLACK), mode, mode.copy(), NO_NOTES)
        if kept.excess <= 0 or not len(movable(facts)[0]):
            return NO_PLAN
        found = search(trace, facts, costs, limits, None, share=SHARES[0], seed=0, work=FIRST_WORK)
        return Proposal(with_addresses(found, trace, facts, limits).plan, Progress(0, found.share))

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """The plan to try next, until there were ``rounds``; after each that is no better, and at last, the fastest."""
        progress: Progress | None = proposal.notes
        if progress is None or progress.round >= self.rounds:  # all fits, or the search is over
            return proposal
        tried = Found(proposal.plan, progress.share)
        best, best_seconds, done = progress.best or tried, progress.best_seconds, progress.round + 1
        if observed.seconds < best_seconds:
            best, best_seconds = tried, observed.seconds
        found = self._another(best, best_seconds, observed, done) if done < self.rounds else None
        following = found or best
        return Proposal(following.plan, Progress(done, following.share, best, best_seconds))

    def _another(self, best: Found, best_seconds: float, observed: Observation, done: int) -> Found | None:
        """The next plan to try, if one is worth it: from scratch for one of the shares, or around the fastest; at last
        passive mode, for a search among few choices may find nothing better."""
        if done == self.rounds - 1:
            return Found(Plan(predicted_seconds=0.0), 1.0)
        trace, costs, limits = observed.trace, observed.costs, observed.limits
        facts = problem(trace, costs)
        if done % 3 or not best.plan.evictions:
            found = search(trace, facts, costs, limits, None, seed=done, share=SHARES[done % len(SHARES)])
        else:
            share = min(1.0, best.share + (0.0, 0.005, -0.005)[done // 3 % 3])
            found = search(trace, facts, costs, limits, modes_of(best.plan, facts, trace), share=share, seed=done,
                           temperature=WARM)
        assert found.plan.predicted_seconds is not None
        return with_addresses(found, trace, facts, limits) if found.plan.predicted_seconds < best_seconds else None

    def keep(self, proposal: Proposal) -> Kept:
        """The fastest plan so far, the share that it was made for, and the number of plans that came before this."""
        progress: Progress | None = proposal.notes
        if progress is None:
            return Kept(proposal.plan)
        best = progress.best or Found(proposal.plan, progress.share)
        return Kept(best.plan, {"round": progress.round, "share": best.share})

    def recall(self, kept: Kept) -> Proposal:
        """The kept plan, from which the search goes on at its round. Raises UserError for numbers that no plan has."""
        if kept.plan.predicted_seconds is None:  # all fits
            return Proposal(kept.plan)
        numbers = kept.numbers
        share = numbers.get("share", 1.0)
        if not LEAST_SHARE <= share <= 1.0:
            raise UserError(f"a plan for {share:g} of the budget, which must be from {LEAST_SHARE:g} to 1")
        return Proposal(kept.plan, Progress(int(numbers.get("round", 0)), share))
