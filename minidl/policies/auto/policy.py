"""Our own planner: keep, swap or drop for every tensor, found by local search on the simulated iteration.

The paper ranks tensors by free time and by memory saving per second. Both judge one tensor at a time, on the profile
that was measured. Here a whole choice is judged, on the profile that it leads to (``planning/schedule.py``): replays
with their own transients, copies out due when their memory is wanted, transfers that queue. A first plan comes from a
short search; the iterations that follow refine it, while the program runs under the fastest that is known.

    choices     which gaps are considered, and simple choices that a search begins with
    parts       the choices of other planners
    search      one search for one share of the budget; ``annealing`` is its compiled part
    addresses   where the tensors of a plan lie
    fitting     a plan whose tensors all find an address
    progress    what was tried, how it went, and what is followed next
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import ceil, sqrt

import numpy as np

from minidl.errors import UserError
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Eviction, Proposal, SavedProposal
from minidl.plan.policy import Observation, OnDemand, Pressure, Residency
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import Array, Problem, problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.auto.choices import most_held, simple_choices
from minidl.policies.auto.fitting import LEAST_SHARE, WARM, fitted
from minidl.policies.auto.parts import capuchins, parts
from minidl.policies.auto.progress import LEAST_GAIN, ON_DEMAND, TRIAL_EVERY, Found, Progress, Tried
from minidl.policies.auto.search import ENOUGH, SLACK, WORK, search
from minidl.policies.dtr_swap import DtrSwap

FIRST_WORK = 3e6      # calls simulated for the first plan, which is wanted at once
# Shares of the budget that plans are made for: the less of it, the more surely all finds an address, and the slower.
SHARES = (0.985, 0.99, 0.98, 1.0, 0.97)
ROUNDS = 14           # searches, at most one an iteration but for tighter plans,
FRUITLESS = 5         # and no more when so many in a row have found nothing better
LONG, MOST = 1.25, 6  # seconds: what a search takes grows with the root of an iteration's length beyond that; with the
SELDOM = 4            # length, up to so many times, if it simulates the iteration less than so often for each gap
# A search that simulates the iteration less than so often for each gap ends far behind one around the best plan if it
FRESH = 16            # begins with simple choices, as every second one does that simulates more. Of the others only the
EARLY = 3             # second and the fourth begin anew, with all kept, and simulate more:
RISING = 4            # times as much at most. Beside the second there is one from what Capuchin would do, looking at
MORE_PAIRS = 200_000  # so many pairs of candidate and decision at most, twice as many as for a first plan.


class Auto(OnDemand):
    """Search with the simulator as its objective; of what ``rounds`` searches at most find, the plan that ran
    fastest."""

    name = "auto"
    weighs_recomputation = True
    reads_from_front = True
    plans = True
    regime = DtrSwap.regime

    def __init__(self, *, rounds: int = ROUNDS) -> None:
        self.rounds = rounds

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """What ``dtr-swap`` would evict."""
        return DtrSwap().victims(resident, pressure)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """The plan of a short search, unless it promises less than going on without one; no plan if all fits, the
        workspaces of the fastest algorithms included."""
        facts = problem(trace, costs)
        mode = np.zeros(len(facts.gap_call), np.int64)
        kept = simulate(facts, Room(limits.device_bytes, limits.host_bytes, SLACK), mode, mode.copy(), NO_NOTES)
        fits = kept.excess <= 0 and kept.seconds <= facts.seconds * (1.0 + LEAST_GAIN)
        if fits or not len(most_held(facts)):
            return NO_PLAN
        on_demand = Tried(ON_DEMAND, () if trace.observed_seconds is None else (trace.observed_seconds,))
        progress = Progress(tried=(on_demand,), rested=TRIAL_EVERY)
        found, _ = self._search(progress, 0, trace, facts, costs, limits, FIRST_WORK)
        return progress.searched(found, 0).next()

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """The next plan to follow, after a search if there is time for one."""
        progress: Progress | None = proposal.notes
        if progress is None:
            return proposal
        over = self.is_over(progress)
        if over and progress.nothing_new(proposal.plan):
            return proposal
        progress = progress.after(proposal.plan, observed.seconds, observed.unseen)
        if observed.may_plan and not over:
            facts = problem(observed.trace, observed.costs)
            progress = progress.searched(*self._search(progress, progress.round + 1, observed.trace, facts,
                                                       observed.costs, observed.limits))
        return progress.next()

    def is_over(self, progress: Progress) -> bool:
        """True if there is no further search."""
        return progress.round >= self.rounds or progress.fruitless >= FRUITLESS

    def _search(self, progress: Progress, number: int, trace: Trace, facts: Problem, costs: Costs, limits: Limits,
                work: float | None = None) -> tuple[Found | None, int]:
        """(A plan, searched for from scratch for a share, or around the best one, with addresses if it promises
        more than all that was tried or waits, None if none was found; how many searches it took.)"""
        if not progress.beats(facts.seconds):
            return None, 1
        around, work, spent = progress.best, work or _work(facts), 1
        wanting = FRESH * _simulated(facts) / work  # over 1: searches simulate each gap too seldom
        if around is None or (number % 2 and (number <= EARLY or wanting <= 1)):
            share = SHARES[number % len(SHARES)]
            begins: list[tuple[Iterable[Array] | None, int]] = []  # and how many searches' work they are worth
            if number % 2 and wanting > 1:
                begins.append((None, ceil(min(RISING, wanting))))
                choices = list(capuchins(trace, facts, costs, limits, MORE_PAIRS)) if number == 1 else []
                if choices:  # what is near them is now and then better than all that is found from scratch
                    begins.append((choices, 1))
            else:
                begins.append((chain(simple_choices(facts, int(share * limits.device_bytes)),
                                     parts(trace, facts, costs, limits)), 1))
            ends = [search(trace, facts, costs, limits, begin, share=share, seed=number, work=count * work)
                    for begin, count in begins]
            found = min(filter(None, ends), key=lambda each: each.predicted, default=None)
            spent = sum(count for _, count in begins)
        else:
            share = min(1.0, around.share + (0.0, 0.005, -0.005)[number // 2 % 3])
            found = search(trace, facts, costs, limits, [modes_of(around.plan, facts, trace)], share=share, seed=number,
                           work=work, temperature=WARM)
        if found is None or not progress.promises(found):
            return found, spent
        placed, tightened = fitted(found, trace, facts, costs, limits, seed=number, work=work)
        return placed, spent + tightened // 2

    def keep(self, proposal: Proposal) -> SavedProposal:
        """The fastest plan so far, the share that it was made for, and the number of searches."""
        progress: Progress | None = proposal.notes
        if progress is None:
            return SavedProposal(proposal.plan)
        best = progress.leader.found if progress.leader.times else Found(proposal.plan, 1.0)
        return SavedProposal(best.plan, {"round": progress.round, "share": best.share})

    def recall(self, kept: SavedProposal) -> Proposal:
        """The kept plan, from which the search goes on. Raises UserError for numbers that no plan has."""
        numbers = kept.numbers
        if "round" not in numbers:  # all fits
            return Proposal(kept.plan)
        share = numbers.get("share", 1.0)
        if not LEAST_SHARE <= share <= 1.0:
            raise UserError(f"a plan for {share:g} of the budget, which must be from {LEAST_SHARE:g} to 1")
        found = Tried(Found(kept.plan, share))
        tried = (Tried(ON_DEMAND), found) if kept.plan.evictions else (found,)
        return Proposal(kept.plan, Progress(int(numbers["round"]), tried))


def _simulated(facts: Problem) -> int:
    """The calls of an iteration that is simulated once for each gap."""
    return (len(facts.gap_ptr) - 1) * len(facts.gap_call)


def _work(facts: Problem) -> float:
    """Calls that one search simulates."""
    long = min(max(facts.seconds / LONG, 1.0), MOST)
    return min(max(WORK * sqrt(long), SELDOM * _simulated(facts)), WORK * long, ENOUGH * _simulated(facts))
