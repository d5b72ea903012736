"""Decisions between steps: makes and corrects plans, and sets how much optimizer state stays on the device.

Feedback: the policy sees how a planned step went, and may answer with another plan.
"""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Proposal
from minidl.plan.policy import Observation, Policy, required_proposal
from minidl.planning.allowance import Allowance
from minidl.torch.backends import Backend
from minidl.torch.beneath import compiled, recordable
from minidl.torch.budget import floor_of, fullest, refuse
from minidl.torch.course import MARGIN, Course, Phase
from minidl.torch.known import Known
from minidl.torch.optimizers import listed
from minidl.torch.planned import obeyed, unmanaged
from minidl.torch.planner import Planner
from minidl.torch.seen import Seen
from minidl.torch.states import States

WORTH_A_PLAN = 100  # steps are planned anew if tensors of this part (1 in 100) of the budget have come


class Deciding:
    """Makes and corrects plans. share: the fraction of the optimizers' state that stays on the device; it never rises.
    """

    def __init__(self, planner: Planner, states: States, backend: Backend, limits: Limits, allowance: Allowance
                 ) -> None:
        self.planner, self.states, self.backend, self.limits = planner, states, backend, limits
        self.allowance = allowance
        self.share = 1.0
        self._stuck = self._refused = 0
        self._compiled = compiled()
        self._listed: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()

    @property
    def costs(self) -> Costs:
        """The costs of copies as measured so far."""
        return self.backend.traffic.costs(self.backend.contention)

    def plan(self, known: Known, seen: Seen, optimizers: Sequence[torch.optim.Optimizer], *, again: bool) -> None:
        """Store in ``known`` the first plan for a recorded step, in which ``optimizers`` stepped.
        Raises BudgetTooSmall if the step's floor is above the budget. again: True if a step of this kind has run
        before; else it is worth a plan only if it shows how much steps of other kinds may keep."""
        peak = unmanaged(seen.staying(1.0))
        if not again and MARGIN * peak > self.limits.device_bytes:
            return
        if compiled():
            seen = seen.swapping()  # compiled code may write what a replay would read, and the recorder does not see it
        known.recorded, costs = seen, self.costs
        known.floor = floor = floor_of(seen, costs, self.limits)
        known.unmanaged_bytes = peak
        if floor.nbytes > self.limits.device_bytes:
            known.seen, known.refused = seen, fullest(seen, costs, self.limits)
            full = self.backend.host.refused > self._refused
            refuse(self.limits.device_bytes, floor, states=bool(seen.states),
                   full_host=self.limits.host_bytes if full else 0)
        with self.allowance.planning(exempt=True):
            best = self.planner.best(seen, costs, self.limits, most=self.share,
                                     others_bytes=self.states.others_bytes(optimizers))
        self.share = best.share
        known.seen, known.proposal, known.limits, known.remark = best.seen, best.proposal, best.limits, best.remark
        known.obey(best.obeyed)

    def correct(self, known: Known, seconds: float, stalled: float, late: Mapping[int, int]) -> None:
        """Tell the policy how a planned step went, and store its new plan, if any, in ``known``; see ``corrected``."""
        known.seconds.append(seconds)
        known.late, costs, limits = dict(late), self.costs, known.limits or self.limits
        found = corrected(self.planner.policy, known, costs, limits, seconds=seconds, stalled=stalled,
                          late=late if self.backend.contention < 1.0 else {}, allowance=self.allowance)
        if found is not None and known.seen is not None:
            same = known.proposal is not None and known.proposal.plan is found.plan
            known.proposal = found
            if not same:
                known.remark = ""
                known.obey(obeyed(found.plan, known.seen, costs, limits, recompute=self.planner.recompute))

    def exceeded(self, course: Course, known: Known, there_bytes: int) -> int:
        """Return how many bytes of tensors have come since a step that exceeded the budget was recorded; 0 for few.
        Plan anew if they are many. there_bytes: bytes there when the step began, without state that can leave."""
        known.trusted, known.calls = 0, None
        known.outgrown = known.outgrown or course.phase is Phase.KEPT
        grown = there_bytes - known.recorded.there_bytes if known.recorded is not None else 0
        if grown <= self.limits.device_bytes // WORTH_A_PLAN:
            return 0
        if known.obeyed is not None:
            course.forget_plans()
        return grown

    def begin(self, course: Course, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Choose the next step's phase. optimizers: those that have stepped in the last step.
        Plans are void if the program now holds state that they evict, if the lists in the optimizer's state have
        another length than after the step before, or if the process has its first compiled code."""
        steady = True
        for optimizer in optimizers:
            count = listed(optimizer)
            steady = steady and count == self._listed.get(optimizer, 0)
            self._listed[optimizer] = count
        if self.states.stuck != self._stuck or not steady or compiled() != self._compiled:
            course.forget_plans()
        self._stuck, self._compiled = self.states.stuck, compiled()
        if not recordable():
            course.unrecorded = "this PyTorch runs compiled code uncompiled in a recorded step"
        course.begin(steady=steady)
        self._refused = self.backend.host.refused
        self._place_states(course)

    def _place_states(self, course: Course) -> None:
        """Keep the plan's share of optimizer state on the device in the next step; if it has no plan, send all away."""
        known = {Phase.GUIDED: course.expected, Phase.KEPT: course.model}.get(course.phase)
        self.states.staying = self.share if known is not None else 0.0
        self.states.whole = known is not None and known.obeyed is not None and (
            known.obeyed.peak_bytes + 2 * known.parameter_bytes <= self.limits.device_bytes)
        if known is None:
            self.states.all_away()


def corrected(policy: Policy, known: Known, costs: Costs, limits: Limits, *, seconds: float, stalled: float,
              late: Mapping[int, int], allowance: Allowance) -> Proposal | None:
    """Return the policy's new plan for a step that has just followed a plan; None if it keeps the plan.
    seconds: the step's duration; stalled: its seconds of waiting. late: tensor -> how often it was needed while away.
    allowance: counts the seconds spent on planning, and says if more may be spent. A plan without notes stays."""
    seen, proposal = known.seen, known.proposal
    if seen is None or proposal is None or proposal.notes is None:
        return None
    waited = {tensor_id: times * (costs.latency_seconds + seen.trace.tensors[tensor_id].nbytes
                                  * costs.in_seconds_per_byte) for tensor_id, times in late.items()}
    observed = Observation(seen.trace, costs, limits, seconds, stalled, waited,
                           sum(seen.trace.tensors[tensor_id].nbytes for tensor_id in late), allowance.open)
    with allowance.planning():
        answer = policy.feedback(proposal, observed)
    return None if answer is proposal else required_proposal(policy, "feedback", answer, seen.trace, limits)
