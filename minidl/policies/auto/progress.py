"""The state of ``auto`` for one sequence of calls: the plans tried, their times, and the plan to follow next.

Trying a slower plan loses time, and times on a real machine are noisy. So the program runs under the plan with the
least median time. Another plan is tried now and then, and only if its predicted time is below that median by more than
the noise, the spread of iterations under one plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

from minidl.plan.plan import EMPTY_PLAN, Plan, Proposal
from minidl.plan.spread import spread
from minidl.policies.auto.parts import Question

LEAST_GAIN = 0.001    # share of an iteration: a plan with a smaller predicted gain is not tried
LEAST_NEARER = 0.01   # share of the nearest plan's time: a plan with a smaller gain on it is no progress
TRIAL_EVERY = 4       # at most one of so many iterations belongs to a trial,
WORTH = 0.1           # or of WORTH / g if the waiting plan promises the share g, twice of what any plan tried missed
TIMES = 7             # iterations of a plan whose seconds are remembered
ENOUGH_TIMES = 3      # the fewest of them that give a spread
MOST_BIAS = 1.02      # limit of the ratio of measured to predicted time
REMEMBERED = 4        # the fastest plans that are remembered, besides on-demand mode


@dataclass(frozen=True)
class Found:
    """The result of a search: a plan, and the share of the budget that it was made for.

    charge: seconds added to the prediction when plans are compared, because tensors without an address may take the
    places of others. It is a guess: some such tensors cost more, and some cost nothing.
    leftovers: True if the plan relies on the engine to drop again what replays have computed for later calls.
    exceeds: True if the plan needs more than the budget, so that the engine evicts the rest on demand. Its tensors get
    no addresses.
    """

    plan: Plan
    share: float
    charge: float = 0.0
    leftovers: bool = False
    exceeds: bool = False

    @property
    def predicted(self) -> float:
        """Predicted seconds of an iteration; infinite without a plan."""
        return self.plan.predicted_seconds if self.plan.predicted_seconds is not None else inf

    @property
    def promised(self) -> float:
        """Predicted seconds plus the charge."""
        return self.predicted + self.charge


ON_DEMAND = Found(EMPTY_PLAN, 1.0)


@dataclass(frozen=True)
class Tried:
    """A plan (or on-demand mode) that has run, and the seconds of its latest iterations."""

    found: Found
    times: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """The median time; infinite if it has not run yet or failed."""
        return median(self.times) if self.times else inf

    @property
    def spread(self) -> float:
        """The median absolute deviation of the times as a share of their median; 0 for too few times."""
        if len(self.times) < ENOUGH_TIMES or self.seconds == inf:
            return 0.0
        return spread(self.times)


@dataclass(frozen=True)
class Progress:
    """The notes that ``auto`` keeps beside a plan.

    round      number of searches made
    fruitless  number of the latest searches in a row that found no better plan
    tried      the plans that have run, with their times; the first is on-demand mode, without a plan
    waiting    the most promising plan that has not run yet
    nearest    the best plan found while none is predicted to beat on-demand mode; searches around it may find one that
               does
    rested     iterations since a plan was last tried, including that trial and the changeover to it
    cost       iterations that a trial takes, including the changeovers to it and back
    asked      the question of the latest search, with what other planners answered; None before the first search
    """

    round: int = 0
    tried: tuple[Tried, ...] = ()
    waiting: Found | None = None
    nearest: Found | None = None
    rested: int = 0
    cost: int = 1
    fruitless: int = 0
    asked: Question | None = field(default=None, compare=False)

    @property
    def leader(self) -> Tried:
        """The fastest of the plans that have run, on-demand mode included."""
        return min(self.tried, key=lambda each: each.seconds)

    @property
    def best(self) -> Found | None:
        """The plan from which the next search may start; None if there is none.
        It is the plan that waits to be tried, else the fastest that has run, else (on-demand mode) the nearest one."""
        leader = self.leader.found
        return self.waiting or (leader if leader.plan.evictions else self.nearest)

    @property
    def noise(self) -> float:
        """The share of an iteration's time by which one plan must beat another to count as faster."""
        return max(LEAST_GAIN, *(each.spread for each in self.tried))

    @property
    def bias(self) -> float:
        """The median ratio of measured to predicted seconds over the plans tried, at most MOST_BIAS.
        The median counts one plan more, which took what was predicted, since a single plan may have missed for a reason
        of its own. The ratio is limited since a plan that took far longer met something that no prediction models.
        """
        return min(median([1.0, *(ratio for ratio in self._ratios() if ratio < inf)]), MOST_BIAS)

    def _ratios(self, *, charged: bool = True) -> list[float]:
        """Return the ratio of measured to promised seconds of each plan tried; infinite if it failed.
        charged: False leaves plans with a charge out."""
        return [each.seconds / each.found.promised for each in self.tried
                if 0.0 < each.found.promised < inf and (charged or not each.found.charge)]

    def beats(self, predicted_seconds: float) -> bool:
        """True if a predicted time, multiplied by the bias, is below the fastest measured time by more than the noise.
        """
        return predicted_seconds < self.to_beat

    @property
    def to_beat(self) -> float:
        """The predicted seconds below which a plan is worth a trial."""
        return self.leader.seconds * (1.0 - self.noise) / self.bias

    def promises(self, found: Found) -> bool:
        """True if a plan is predicted to be faster than all plans tried and than the plan that waits to be tried."""
        return self.beats(found.promised) and (self.waiting is None or found.promised < self.waiting.promised)

    def after(self, plan: Plan, seconds: float, unseen: int = 0) -> Progress:
        """Return the progress after an iteration of ``seconds`` under a plan.
        unseen: the number of iterations before it in which the engine changed over to the plan, and which were not
        timed. Only the fastest plans are remembered."""
        tried = [replace(each, times=(*each.times, seconds)[-TIMES:]) if each.found.plan is plan else each
                 for each in self.tried]
        others = sorted(tried[1:], key=lambda each: each.seconds)
        return replace(self, tried=(tried[0], *others[:REMEMBERED]), rested=self.rested + 1 + unseen,
                       cost=max(self.cost, 1 + 2 * unseen))

    def searched(self, found: Found | None, searches: int = 1) -> Progress:
        """Return the progress after ``searches`` more searches, whose result is ``found`` (None: no plan)."""
        searched = replace(self, round=self.round + searches, fruitless=0)
        if found is not None and self.promises(found):
            return replace(searched, waiting=found)
        if found is not None and self._comes_nearer(found):
            return replace(searched, nearest=found)
        return replace(searched, fruitless=self.fruitless + 1)

    def _comes_nearer(self, found: Found) -> bool:
        """True if no plan beats on-demand mode, and this one promises clearly fewer seconds than any so far."""
        best = self.best
        return best is self.nearest and (best is None or found.promised < (1.0 - LEAST_NEARER) * best.promised)

    def ended(self) -> Progress:
        """Return the progress once no more searches are made.
        If no plan has been tried, the nearest one waits for a trial, without its charge."""
        nearest = self.nearest
        if nearest is None or self.waiting is not None or len(self.tried) > 1:
            return self
        return replace(self, waiting=replace(nearest, charge=0.0), nearest=None)

    def next(self) -> Proposal:
        """Return the plan of the next iteration: the fastest known, or now and then the waiting one, as a trial."""
        waiting = self.waiting
        if waiting is not None and not self.beats(waiting.promised):
            return replace(self, waiting=None).next()
        if waiting is not None and self.rested >= self.cost * self._wait(waiting):
            return Proposal(waiting.plan, replace(self, waiting=None, rested=0, tried=(*self.tried, Tried(waiting))))
        return Proposal(self.leader.found.plan, self)

    def _wait(self, waiting: Found) -> float:
        """Return how long to rest before a plan is tried, as a multiple of the iterations that its trial takes.
        What plans with a charge have missed says nothing about a plan without one."""
        gain = 1.0 - waiting.promised * self.bias / self.leader.seconds
        missed = max(self._ratios(charged=waiting.charge > 0.0), default=1.0) - 1.0
        return max(1.0, min(TRIAL_EVERY, WORTH / gain)) if gain > 2.0 * missed else TRIAL_EVERY

    def is_final(self, plan: Plan) -> bool:
        """True if a plan is final: it is the fastest, it has enough times, and no other plan waits."""
        leader = self.leader
        return self.waiting is None and leader.found.plan is plan and len(leader.times) >= TIMES
