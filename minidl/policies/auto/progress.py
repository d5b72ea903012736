"""How far the search for one sequence has come: what was tried and how it went, and what is to be followed next.

An iteration under a plan that is slower is time lost, and iterations on a real machine differ by themselves. So the
program runs under what has been fastest, as the median of several iterations. Another plan is tried now and then, and
only if its prediction beats what has been observed by more than the noise: by more than iterations that were alike have
differed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from statistics import median

from minidl.plan.plan import EMPTY_PLAN, Plan, Proposal
from minidl.plan.spread import spread

LEAST_GAIN = 0.001    # of an iteration: what is predicted to gain less is not worth a trial
LEAST_NEARER = 0.01   # of what the nearest plan promises: what promises to gain less on it is no progress
TRIAL_EVERY = 4       # iterations: of so many at most one belongs to a trial
TIMES = 7             # iterations whose seconds are remembered of a plan
ENOUGH_TIMES = 3      # of these tell how much iterations differ by themselves
MOST_BIAS = 1.02      # times as long as predicted
REMEMBERED = 4        # plans, the fastest ones, beside none at all


@dataclass(frozen=True)
class Found:
    """The result of a search: a plan, the share of the device's budget that it was made for, and the seconds beyond its
    prediction that bytes without an address may cost."""

    plan: Plan
    share: float
    hindered: float = 0.0

    @property
    def predicted(self) -> float:
        """Seconds that the plan's iteration is to take; for no plan nothing is predicted."""
        return self.plan.predicted_seconds if self.plan.predicted_seconds is not None else inf

    @property
    def promised(self) -> float:
        """Seconds that its iteration may be expected to take."""
        return self.predicted + self.hindered


ON_DEMAND = Found(EMPTY_PLAN, 1.0)


@dataclass(frozen=True)
class Tried:
    """A plan, or none at all, and what its latest iterations took."""

    found: Found
    times: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """The median; of what has not run yet, and of what failed, infinite."""
        return median(self.times) if self.times else inf

    @property
    def spread(self) -> float:
        """How far from the median half of the iterations were, as a share of it."""
        if len(self.times) < ENOUGH_TIMES or self.seconds == inf:
            return 0.0
        return spread(self.times)


@dataclass(frozen=True)
class Progress:
    """The notes of ``auto`` beside a plan.

    round     number of searches; fruitless: how many of the latest in a row found nothing better.
    tried     the executions tried so far, on demand first.
    waiting   the most promising plan that has not run yet.
    nearest   the best plan while none is faster than on-demand mode; after several searches it may be.
    rested    iterations since the latest trial, with the trial and the transition to it.
    cost      iterations that a trial takes, with the transitions there and back.
    """

    round: int = 0
    tried: tuple[Tried, ...] = ()
    waiting: Found | None = None
    nearest: Found | None = None
    rested: int = 0
    cost: int = 1
    fruitless: int = 0

    @property
    def leader(self) -> Tried:
        """The fastest execution so far."""
        return min(self.tried, key=lambda each: each.seconds)

    @property
    def best(self) -> Found | None:
        """The plan that a search may go on around."""
        leader = self.leader.found
        return self.waiting or (leader if leader.plan.evictions else self.nearest)

    @property
    def noise(self) -> float:
        """The share of an iteration by which two plans must differ for one to be called faster."""
        return max(LEAST_GAIN, *(each.spread for each in self.tried))

    @property
    def bias(self) -> float:
        """How much longer iterations take than promised: the median of the plans that were tried. Of a plan that took
        far longer nothing is concluded for others: something was in its way that the prediction does not know."""
        ratios = [each.seconds / each.found.promised for each in self.tried
                  if each.seconds < inf and 0.0 < each.found.promised < inf]
        return min(median(ratios), MOST_BIAS) if ratios else 1.0

    def beats(self, predicted_seconds: float) -> bool:
        """True if an iteration that is predicted to take this would be faster than any that was seen."""
        return predicted_seconds * self.bias < self.leader.seconds * (1.0 - self.noise)

    def promises(self, found: Found) -> bool:
        """True if a plan would be faster than any that was seen, and than the one that waits."""
        return self.beats(found.promised) and (self.waiting is None or found.promised < self.waiting.promised)

    def after(self, plan: Plan, seconds: float, unseen: int = 0) -> Progress:
        """An iteration has run under a plan, after so many that led to it; only the fastest ones are remembered."""
        tried = [replace(each, times=(*each.times, seconds)[-TIMES:]) if each.found.plan is plan else each
                 for each in self.tried]
        others = sorted(tried[1:], key=lambda each: each.seconds)
        return replace(self, tried=(tried[0], *others[:REMEMBERED]), rested=self.rested + 1 + unseen,
                       cost=max(self.cost, 1 + 2 * unseen))

    def searched(self, found: Found | None, searches: int = 1) -> Progress:
        """So many more searches are over, and this is what they found."""
        searched = replace(self, round=self.round + searches, fruitless=0)
        if found is not None and self.promises(found):
            return replace(searched, waiting=found)
        if found is not None and self._comes_nearer(found):
            return replace(searched, nearest=found)
        return replace(searched, fruitless=self.fruitless + 1)

    def _comes_nearer(self, found: Found) -> bool:
        """True if no plan is faster than on-demand mode, and this one is faster than the best plan."""
        best = self.best
        return best is self.nearest and (best is None or found.promised < (1.0 - LEAST_NEARER) * best.promised)

    def next(self) -> Proposal:
        """The plan of the next iteration: the fastest known, or once in a while one that may be faster."""
        waiting = self.waiting
        if waiting is not None and not self.beats(waiting.promised):
            return replace(self, waiting=None).next()
        if waiting is not None and self.rested >= TRIAL_EVERY * self.cost:
            return Proposal(waiting.plan, replace(self, waiting=None, rested=0, tried=(*self.tried, Tried(waiting))))
        return Proposal(self.leader.found.plan, self)

    def nothing_new(self, plan: Plan) -> bool:
        """True if a plan is followed for good: it is the fastest, for several iterations, and no other one waits."""
        leader = self.leader
        return self.waiting is None and leader.found.plan is plan and len(leader.times) >= TIMES
