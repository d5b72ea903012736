"""Feedback: the policy sees how a planned step went, and may answer with another plan."""

from __future__ import annotations

from collections.abc import Mapping

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Proposal
from minidl.plan.policy import Observation, Policy, required_proposal
from minidl.planning.allowance import Allowance
from minidl.torch.course import Known


def corrected(policy: Policy, known: Known, costs: Costs, limits: Limits, *, seconds: float, stalled: float,
              late: Mapping[int, int], allowance: Allowance) -> Proposal | None:
    """Return the policy's new plan for a step that has just followed a plan; None if the policy keeps the plan.
    seconds: the step's duration; stalled: those spent waiting. late: tensor -> how often it was needed while away.
    allowance: counts the seconds spent on planning, and says if more may be spent."""
    seen, proposal = known.seen, known.proposal
    if seen is None or proposal is None or proposal.notes is None:
        return None
    waited = {tensor_id: times * (costs.latency_seconds + seen.trace.tensors[tensor_id].nbytes
                                  * costs.in_seconds_per_byte) for tensor_id, times in late.items()}
    observed = Observation(seen.trace, costs, limits, seconds, stalled, waited,
                           sum(seen.trace.tensors[tensor_id].nbytes for tensor_id in late), allowance.open)
    with allowance.planning():
        answer = required_proposal(policy, "feedback", policy.feedback(proposal, observed))
    return None if answer is proposal else answer
