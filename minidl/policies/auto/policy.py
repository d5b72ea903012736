"""The policy ``auto``: it decides keep, swap or drop for every gap by local search on the simulated iteration.

Capuchin ranks tensors one at a time, by free time and by memory saving per second, on the measured profile. ``auto``
judges all decisions together, on the profile that they cause (``planning/schedule.py``): replays with their
intermediates, memory that waits for copies out, transfers that queue. The first plan comes from a short search; later
iterations refine it, while the program runs under the fastest plan known.

    choices     the gaps that a search considers, and simple choices to start from
    parts       a trace to plan for, and the choices of other planners
    by_demand   the choices of policies on demand, for where no other start leads to a plan that helps
    search      one search for one share of the budget; ``annealing`` is its compiled part
    addresses   the addresses of a plan's tensors
    fitting     a plan whose tensors all find an address
    progress    the plans tried, their times, and the plan to follow next
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil, sqrt

import numpy as np

from minidl.errors import UserError
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Eviction, Proposal, SavedProposal
from minidl.plan.policy import Observation, OnDemand, Pressure, Residency
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import Array, Problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.auto.choices import least_live, most_held, simple_choices
from minidl.policies.auto.fitting import LEAST_SHARE, TIGHTENINGS, WARM, fitted
from minidl.policies.auto.parts import Question, belady, parts
from minidl.policies.auto.progress import LEAST_GAIN, ON_DEMAND, TRIAL_EVERY, Found, Progress, Tried
from minidl.policies.auto.search import ENOUGH, NEAR, SLACK, WORK, search
from minidl.policies.dtr_swap import DtrSwap

# If all tensors fit, but in more than this share of the budget, and iterations are slower than their calls, no hole was
ROOMY = 0.9           # large enough where one was needed; a plan's addresses prevent that.
FIRST_WORK = 3e6      # calls simulated for the first plan, which is needed at once
# Shares of the budget that plans are made for: with a smaller share more tensors find an address, but plans are slower.
SHARES = (0.985, 0.99, 0.98, 1.0, 0.97)
ROUNDS = 14           # the most searches, one per iteration except for tighter plans
FRUITLESS = 5         # the search ends after this many in a row without a better plan
# The work of a search grows with the square root of the iteration's length beyond LONG seconds; with the length itself,
LONG, MOST = 1.25, 6  # up to MOST times, if it would otherwise simulate the iteration
SELDOM = 4            # fewer times than this per gap.
# Every second search starts from simple choices, if it simulates the iteration FRESH times per gap; with fewer, such
FRESH = 16            # searches end far behind those around the best plan. Then only odd searches up to number
EARLY = 3             # EARLY start anew, with all gaps kept and up to
RISING = 4            # RISING times the work. The first of them also starts from Capuchin's choices, for up to
MORE_PAIRS = 200_000  # MORE_PAIRS pairs of candidate and decision, twice as many as for the first plan.


class Auto(OnDemand):
    """Searches for plans that swap and recompute on the simulated iteration, and follows the fastest plan.

    rounds: the most searches, without those of the first plan; 0: one short search, and the plan that it finds.
    """

    name = "auto"
    weighs_recomputation = True
    reads_from_front = True
    plans = True
    regime = DtrSwap.regime

    def __init__(self, *, rounds: int = ROUNDS) -> None:
        self.rounds = rounds

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return the victims that the policy ``dtr-swap`` chooses."""
        return DtrSwap().victims(resident, pressure)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the plan of a short search; if its prediction does not beat on-demand mode, of one more search.
        The plan is empty if no prediction beats on-demand mode, or if everything fits without one."""
        asked = Question(trace, costs, limits)
        facts = asked.facts
        waited = limits.addresses and trace.observed_seconds is not None and (
            trace.observed_seconds > facts.seconds * (1.0 + LEAST_GAIN))
        if _all_fits(facts, limits, ROOMY if waited else 1.0) or not len(most_held(facts)):
            return NO_PLAN
        on_demand = Tried(ON_DEMAND, () if trace.observed_seconds is None else (trace.observed_seconds,))
        progress = Progress(tried=(on_demand,), rested=TRIAL_EVERY, asked=asked)
        found, _ = self._search(progress, 0, asked, FIRST_WORK)
        progress = progress.searched(found, 0)
        if self.rounds and progress.waiting is None:  # on the wall clock the next may be a hundred iterations away
            progress = progress.searched(*self._search(progress, 1, asked))
        return self._next(progress)

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """Record the observed iteration's time, search once if planning time allows, and return the next plan."""
        progress: Progress | None = proposal.notes
        if progress is None:
            return proposal
        over = self.is_over(progress)
        if over and progress.is_final(proposal.plan):
            return proposal
        progress = progress.after(proposal.plan, observed.seconds, observed.unseen)
        if observed.may_plan and not over:
            new = progress.asked.again if progress.asked is not None else Question
            asked = new(observed.trace, observed.costs, observed.limits)
            progress = replace(progress, asked=asked).searched(*self._search(progress, progress.round + 1, asked))
        return self._next(progress)

    def _next(self, progress: Progress) -> Proposal:
        return (progress.ended() if self.is_over(progress) else progress).next()

    def is_over(self, progress: Progress) -> bool:
        """True if no more searches are made: ``rounds`` were made, or the latest ones found no better plan."""
        return progress.round >= self.rounds or progress.fruitless >= FRUITLESS

    def _search(self, progress: Progress, number: int, asked: Question, work: float | None = None
                ) -> tuple[Found | None, int]:
        """Search once, from scratch or around the best plan; return (plan or None, number of searches this counts as).
        If there is no plan yet and it finds none that helps, or if it may be the last, one from the choices of others
        (``belady``, Capuchin, policies on demand) follows, which may exceed the budget at first. If no plan helps, its
        plan may still exceed the budget a little, if the host holds all tensors. A plan predicted to be faster than all
        plans tried or waiting gets addresses. number: that of this search, from 0; it selects the share of the budget
        to plan for. The first one ends soon after a plan promises to beat on-demand mode. work: calls to simulate;
        None: as usual."""
        trace, facts, costs, limits = asked.trace, asked.facts, asked.costs, asked.limits
        if not progress.beats(facts.seconds):
            return None, 1
        around, work, spent = progress.best, work or _work(facts), 1
        dropping = facts._replace(leftovers_bytes=limits.device_bytes)
        wanting = FRESH * _simulated(facts) / work  # above 1: a search simulates each gap too seldom
        if around is None or (number % 2 and (number <= EARLY or wanting <= 1)):
            share = SHARES[number % len(SHARES)]
            starts: list[tuple[Iterable[Array] | None, int]] = []  # (choices to start from, multiple of the usual work)
            if number % 2 and wanting > 1:
                starts.append((None, ceil(min(RISING, wanting))))
                choices = asked.capuchins(MORE_PAIRS) if number == 1 else []
                if choices:  # plans near them are sometimes better than all plans found from scratch
                    starts.append((choices, 1))
            else:
                starts.append((chain(simple_choices(facts, int(share * limits.device_bytes)), parts(asked)), 1))
            ends = [search(trace, facts, costs, limits, begin, share=share, seed=number, work=count * work)
                    for begin, count in starts]
            found = min(filter(None, ends), key=lambda each: each.predicted, default=None)
            spent = sum(count for _, count in starts)
        else:
            share = min(1.0, around.share + (0.0, 0.005, -0.005)[number // 2 % 3])
            found = search(trace, dropping if around.leftovers else facts, costs, limits,
                           [modes_of(around.plan, facts)], share=share, seed=number, work=work,
                           temperature=WARM)
        fails = around is None and (found is None or not progress.beats(found.predicted))
        last = number > 0 and (self.rounds - TIGHTENINGS // 2 <= number < self.rounds  # perhaps
                               or progress.fruitless == FRUITLESS - 1)
        if fails or last:
            begins = [belady(facts, limits.device_bytes), *asked.capuchins(MORE_PAIRS), *asked.by_demand()]
            over = NEAR if fails and facts.size.sum() <= limits.host_bytes else 0.0  # what exceeds it can be swapped
            other = search(trace, dropping, costs, limits, begins, share=1.0, seed=number, work=work, stride=1,
                           over=over)
            found = min(filter(None, (found, other)), key=lambda each: each.predicted, default=None)
            spent += 1
        if found is None or found.exceeds or not progress.promises(found):
            return found, spent
        placed, tightened = fitted(found, trace, dropping if found.leftovers else facts, costs, limits, seed=number,
                                   work=work, enough=progress.to_beat if self.rounds and not number else 0.0)
        return placed, spent + tightened // 2

    def keep(self, proposal: Proposal) -> SavedProposal:
        """Return what a checkpoint stores:
        the fastest plan so far, its share of the budget, and the number of searches."""
        progress: Progress | None = proposal.notes
        if progress is None:
            return SavedProposal(proposal.plan)
        best = progress.leader.found if progress.leader.times else Found(proposal.plan, 1.0)
        return SavedProposal(best.plan, {"round": progress.round, "share": best.share})

    def recall(self, kept: SavedProposal) -> Proposal:
        """Return the plan from a checkpoint; the search continues from it.
        Raises UserError if the plan was made for a share of the budget that is not from 0.5 to 1."""
        numbers = kept.numbers
        if "round" not in numbers:  # all tensors fit
            return Proposal(kept.plan)
        share = numbers.get("share", 1.0)
        if not LEAST_SHARE <= share <= 1.0:
            raise UserError(f"a plan for {share:g} of the budget, which must be from {LEAST_SHARE:g} to 1")
        found = Tried(Found(kept.plan, share))
        tried = (Tried(ON_DEMAND), found) if kept.plan.evictions else (found,)
        return Proposal(kept.plan, Progress(int(numbers["round"]), tried))


def _all_fits(facts: Problem, limits: Limits, share: float) -> bool:
    """True if all tensors fit within a share of the budget, and the fastest algorithms' workspaces beside them."""
    if least_live(facts).max(initial=0) > share * limits.device_bytes:
        return False
    mode = np.zeros(len(facts.gap_call), np.int64)
    room = Room(int(share * limits.device_bytes), limits.host_bytes, SLACK)
    kept = simulate(facts, room, mode, mode.copy(), NO_NOTES)
    return kept.excess <= 0 and kept.seconds <= facts.seconds * (1.0 + LEAST_GAIN)


def _simulated(facts: Problem) -> int:
    """Return how many calls are simulated in total if the iteration is simulated once for each gap."""
    return (len(facts.gap_ptr) - 1) * len(facts.gap_call)


def _work(facts: Problem) -> float:
    """Return the number of calls that one search simulates."""
    long = min(max(facts.seconds / LONG, 1.0), MOST)
    return min(max(WORK * sqrt(long), SELDOM * _simulated(facts)), WORK * long, ENOUGH * _simulated(facts))
