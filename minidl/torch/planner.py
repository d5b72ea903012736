"""Plans a recorded step by the policy, with the share of the optimizer's state on the device that is fastest."""

from dataclasses import dataclass, replace

from minidl.errors import UserError
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import EMPTY_PLAN, Proposal
from minidl.plan.policy import Policy
from minidl.torch.planned import Obeyed, obeyed, proposed
from minidl.torch.seen import Seen

SHARES = (1.0, 0.5, 0.0)  # of an optimizer's parts whose state stays on the device


@dataclass(frozen=True)
class Choice:
    """A plan that keeps one share of the optimizer's state on the device. seen: the step with that share there.
    limits: the plan's memory limits. seconds: predicted duration of the step, with transfers of the state.
    remark: the reason if the policy has no plan, so that this one only swaps; else ""."""

    share: float
    seen: Seen
    limits: Limits
    proposal: Proposal
    obeyed: Obeyed
    seconds: float
    remark: str = ""

    @property
    def worth(self) -> tuple[int, float]:
        """The key by which choices are compared, smallest first: bytes over the budget, then seconds."""
        return self.obeyed.over_bytes, self.seconds


class Planner:
    """Asks a policy for plans. If the policy has none, the plan only swaps.

    counts_recording  True if recording the lineage of calls, which drops need, takes time from the program, as on a
                      CPU: then a plan with drops must be faster than one that only swaps, recording included.
    """

    def __init__(self, policy: Policy, *, recompute: bool, counts_recording: bool) -> None:
        self.policy, self.recompute, self.counts_recording = policy, recompute, counts_recording

    def best(self, seen: Seen, costs: Costs, limits: Limits, *, others_bytes: int = 0, most: float = 1.0) -> Choice:
        """Return the best plan for a recorded step, among plans for several shares of optimizer state on the device.
        others_bytes: bytes of state of optimizers that do not step in this step, of which an equal share stays.
        most: the largest share to try."""
        found: list[Choice] = []
        for share in SHARES:
            if share > most or (share < most and not seen.states and not others_bytes):
                continue
            there = seen.staying(share)
            if found and not others_bytes and there.states == found[-1].seen.states:
                continue  # the optimizer has too few parts for another split
            room = limits.device_bytes - round(share * others_bytes)
            if room <= 0:
                continue
            choice = self._choice(share, there, costs, replace(limits, device_bytes=room))
            found.append(choice)
            if not choice.obeyed.decisions and not choice.obeyed.over_bytes:
                break  # nothing is evicted, so a smaller share gains nothing
        return min(found, key=lambda choice: choice.worth)

    def _choice(self, share: float, seen: Seen, costs: Costs, limits: Limits) -> Choice:
        """Return the policy's plan, or one that only swaps if recording lineage takes more time than drops save.
        share: the part of the optimizer's states that stays on the device. seen: what was recorded of a step."""
        moving = seen.state_bytes * (costs.out_seconds_per_byte + costs.in_seconds_per_byte)
        found = self._planned(share, seen, costs, limits, moving)
        if found.obeyed.drops and self.counts_recording:
            swaps = self._planned(share, seen.swapping(), costs, limits, moving)
            if swaps.worth < found.worth and swaps.obeyed.over_bytes <= found.obeyed.over_bytes:
                return swaps
        return found

    def _planned(self, share: float, seen: Seen, costs: Costs, limits: Limits, moving: float) -> Choice:
        remark = ""
        try:
            proposal = proposed(self.policy, seen, costs, limits)
        except UserError as error:
            remark, proposal = str(error), Proposal(EMPTY_PLAN)
        obey = obeyed(proposal.plan, seen, costs, limits, recompute=self.recompute)
        if obey.decisions and not proposal.plan.evictions and not remark:
            remark = f"policy {self.policy.name!r} has no plan for this step"
        return Choice(share, seen, limits, proposal, obey, obey.seconds + moving, remark)

