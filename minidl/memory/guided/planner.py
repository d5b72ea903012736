"""Asks the policy for plans: a first one for a measured sequence, corrections, and new ones when copies change.

Of several ranks, rank 0 asks its policy, and all ranks adopt the answer. When to ask follows from facts on which the
ranks have agreed (``ended``), so no rank waits for an answer that is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from minidl.memory.guided.drift import Drift, noise, predicted_seconds
from minidl.memory.guided.ended import Ended
from minidl.memory.guided.sequence import KnownSequence, Returns
from minidl.memory.storage import TensorId
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Proposal
from minidl.plan.policy import Observation, Policy, required_proposal
from minidl.plan.trace import Trace
from minidl.planning.allowance import Allowance
from minidl.ranks.consensus import Alone

Changes = Sequence[tuple[int, Proposal]] | None  # proposals by the numbers of their sequences; None: none was asked for


class Planner:
    """Asks a policy for plans of the known sequences ``entries``, under the present costs and limits.
    corrects: False if the policy corrects no plan (one under which an allocation failed is given up all the same).
    consensus: the agreement of ranks, of which rank 0 plans."""

    def __init__(self, policy: Policy, costs: Costs, limits: Limits, entries: list[KnownSequence], *, corrects: bool,
                 allowance: Allowance, consensus: Alone) -> None:
        self.policy = policy
        self.costs = costs
        self.limits = limits
        self.entries = entries
        self.corrects = corrects
        self.allowance = allowance
        self.consensus = consensus
        self._drift = Drift(costs)

    def agreed(self, ended: Ended) -> None:
        """Take over the costs and limits on which the ranks have agreed."""
        self.limits = ended.limits
        if ended.costs != self.costs:
            self.costs = self._drift.costs = ended.costs

    def plan_latest(self) -> None:
        """Plan the sequence that was added last.
        If that raises, as with Unsuitable, the sequence is not known any more, and the error passes on."""
        number = len(self.entries) - 1

        def planned() -> Changes:
            with self.allowance.planning(exempt=True):
                return [(number, self._planned(self.entries[number].trace, self.costs))]

        try:
            self._adopt(planned)
        except BaseException:
            del self.entries[number]
            raise

    def correct(self, entry: KnownSequence, ended: Ended) -> None:
        """Let the policy correct the plan that an iteration has followed.
        If copies have become slower or faster for good, ask it for new plans instead, where these may pay."""
        costs = self._drift.lasting(ended.link)
        if self.corrects and not (costs is not None and self._plan_anew(costs)):
            self.judge(entry, ended.seconds, ended.stall_seconds, ended.returns)

    def judge(self, entry: KnownSequence, seconds: float, stall_seconds: float = 0.0, returns: Returns = Returns()  # noqa: B008
              ) -> None:
        """Tell the policy the times of an iteration under its plan, and adopt the plan that it answers with.
        seconds: infinite if the plan failed; then the same plan is not adopted again."""
        number, unseen = self.entries.index(entry), entry.unseen
        entry.unseen = 0

        def judged() -> Changes:
            late: dict[TensorId, float] = {}
            for (tensor_id, _), waited in returns.late.items():
                late[tensor_id] = late.get(tensor_id, 0.0) + waited
            observed = Observation(entry.trace, self.costs, self.limits, seconds, stall_seconds, late,
                                   returns.paged_in_bytes, self.allowance.open, unseen)
            proposal = NO_PLAN
            if self.corrects:
                with self.allowance.planning():
                    answer = self.policy.feedback(entry.proposal, observed)
                    proposal = answer if answer is entry.proposal else required_proposal(
                        self.policy, "feedback", answer, entry.trace, self.limits)
            if seconds == inf and proposal.plan is entry.plan:
                proposal = NO_PLAN
            return [(number, proposal)] if proposal is not entry.proposal else []

        self._adopt(judged)

    def _plan_anew(self, costs: Costs) -> bool:
        """Ask the policy for new plans under new copy costs, if they change an iteration's predicted time beyond noise.
        True if it was asked for any."""
        before, self.costs = self.costs, costs

        def planned() -> Changes:
            found, asked = [], False
            for number, entry in enumerate(self.entries):
                if not entry.plan.evictions or not self.allowance.open:
                    continue
                with self.allowance.planning():
                    band = noise(entry.seconds)
                    was, now = (predicted_seconds(entry.plan, entry.trace, each, self.limits)
                                for each in (before, costs))
                    if abs(now - was) > band * was:
                        proposal, asked = self._planned(entry.trace, costs), True
                        expected = proposal.plan.predicted_seconds
                        if expected is None or expected < now * (1.0 - band):
                            found.append((number, proposal))
            return found if asked else None

        return self._adopt(planned)

    def _planned(self, trace: Trace, costs: Costs) -> Proposal:
        answer = self.policy.plan(trace, costs, self.limits)
        return required_proposal(self.policy, "plan", answer, trace, self.limits)

    def _adopt(self, make: Callable[[], Changes]) -> bool:
        """Adopt the proposals that ``make`` returns; True if the policy was asked for any.
        Of ranks, rank 0 makes them, and sends the others the new plans without its policy's notes."""
        own: list[Changes] = []

        def made() -> Changes:
            own.append(changes := make())
            return changes and [(number, Proposal(proposal.plan, None, proposal.remark))
                                for number, proposal in changes if proposal.plan is not self.entries[number].plan]

        sent = self.consensus.decide(made)
        for number, proposal in (own[0] if own else sent) or ():
            self.entries[number].adopt(proposal)
        self.tell_plans()
        return sent is not None

    def tell_plans(self) -> None:
        """Let the ranks compare the plans in force at their next exchange."""
        self.consensus.plans = self.consensus.digest(entry.plan_facts() for entry in self.entries)
