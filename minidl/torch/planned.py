"""Translates a plan into actions at packs and unpacks: autograd's saves and reads of saved tensors, counted in a step.

A tensor can be away only while autograd alone holds it (its window); other evictions of a plan are ignored. There is
no on-demand eviction here: a plan above the budget is completed with swaps of tensors on the device at the peak.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import EMPTY_PLAN, Action, Plan, Proposal
from minidl.plan.policy import Policy, required_proposal
from minidl.plan.trace import TensorId
from minidl.planning.compiled import simulate
from minidl.planning.expansion import expand
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.modes import modes_of, to_plan
from minidl.planning.problem import DROP, KEEP, SWAP, Array, Problem, problem
from minidl.planning.schedule import NO_NOTES, repair
from minidl.planning.timing import Room, beginnings, place
from minidl.torch.items import STAY, Decision
from minidl.torch.seen import Seen

UNRECORDED = 0.3  # cost of a call that only passes the recorder, as a share of a recorded one's


@dataclass(frozen=True)
class Obeyed:
    """A plan as saved-tensor hooks follow it: by the numbers of packs (autograd's saves) and unpacks (its reads).

    decisions    number of a pack -> the decision about the saved tensor; without a decision the tensor stays.
    triggers     number of an unpack -> the tensors whose swap-in starts after it.
    replayed     numbers of the calls that replays run again; empty if the plan drops nothing.
    seconds      predicted duration of the step, including the time that recording lineage takes.
    peak_bytes   predicted peak of the step.
    over_bytes   bytes by which the predicted peak exceeds the budget; 0 if it does not.
    """

    plan: Plan = EMPTY_PLAN
    decisions: Mapping[int, Decision] = field(default_factory=dict)
    triggers: Mapping[int, tuple[TensorId, ...]] = field(default_factory=dict)
    replayed: frozenset[int] = frozenset()
    seconds: float = 0.0
    peak_bytes: int = 0
    over_bytes: int = 0

    @property
    def drops(self) -> bool:
        """True if the plan drops any tensor."""
        return bool(self.replayed)

    def decision(self, number: int) -> Decision:
        """Return the decision about the ``number``-th tensor that autograd saves in a step."""
        return self.decisions.get(number, STAY)


def proposed(policy: Policy, seen: Seen, costs: Costs, limits: Limits) -> Proposal:
    """Return the plan that a policy proposes for a recorded step. Raises the policy's errors, such as UserError."""
    return required_proposal(policy, "plan", policy.plan(seen.trace, costs, limits), seen.trace, limits)


def obeyed(plan: Plan, seen: Seen, costs: Costs, limits: Limits, *, recompute: bool) -> Obeyed:
    """Return a plan as hooks follow it, with swaps added to hold the budget. recompute: False turns drops to swaps."""
    trace = seen.trace
    facts = problem(trace, costs)
    mode = modes_of(plan, facts)
    mode[(mode == DROP) & (~facts.can_drop | (not recompute))] = SWAP
    prefetch_at, room = np.full(len(mode), -1, np.int64), Room(limits.device_bytes, limits.host_bytes, 0.0)
    repair(facts, mode, lambda mode: simulate(facts, room, mode, prefetch_at.copy(), NO_NOTES))
    asked = mode.copy()
    ahead = costs.contention < 1.0  # otherwise a prefetch costs memory and hides nothing
    peak = completed(facts, mode, prefetch_at, limits, ahead=ahead)
    if not np.array_equal(asked, mode):
        plan = to_plan(trace, facts, mode, prefetch_at)
    action = {int(facts.ids[facts.gap_tensor[gap]]): Action.SWAP_OUT if mode[gap] == SWAP else Action.DROP
              for gap in np.nonzero(mode)[0].tolist()}
    if peak + seen.outliving_bytes <= limits.device_bytes:
        peak += seen.outliving_bytes
    else:
        action |= dict.fromkeys(seen.outlive, Action.SWAP_OUT)
    decisions = {number: Decision(action[tensor_id], tensor_id) for number, tensor_id in seen.packs.items()
                 if tensor_id in action}
    replayed = _replayed(facts, mode, seen)
    seconds = simulate(facts, room, mode, prefetch_at.copy(), NO_NOTES).seconds
    if replayed:
        seconds += seen.recording_seconds * (len(replayed) + UNRECORDED * max(seen.orders))
    return Obeyed(plan, decisions, _triggers(plan, seen, action) if ahead else {}, replayed, seconds, peak,
                  max(0, peak - limits.device_bytes))


def _replayed(facts: Problem, mode: Array, seen: Seen) -> frozenset[int]:
    """Return the numbers of the calls that the plan's replays run again; ``mode`` has the plan, gap by gap."""
    if not (mode == DROP).any():
        return frozenset()
    steps, _, _, _ = expand(facts, mode, np.full(len(mode), -1, np.int64), NO_NOTES)
    return frozenset(seen.orders[call] for call in np.unique(steps.call[steps.call != steps.group]).tolist())


def completed(facts: Problem, mode: Array, prefetch_at: Array, limits: Limits, *, ahead: bool) -> int:
    """Add swaps to ``mode`` (the plan, gap by gap) until it holds the budget, if it can; return its peak in bytes.
    If that is not enough, drops become swaps, too. ahead: True if swap-ins may start before their tensor is needed;
    then the call before which each starts is written to ``prefetch_at`` (by gap; -1: on demand)."""
    while True:
        during = bytes_during(facts, mode, prefetch_at, limits, ahead=ahead)
        if during is None:  # a dropped tensor cannot be recomputed
            assert (mode == DROP).any()
            mode[mode == DROP] = SWAP
            continue
        steps, most = during
        worst = int(np.argmax(most))
        if most[worst] <= limits.device_bytes:
            return int(most[worst])
        call = int(steps[worst])
        there = np.nonzero((mode == KEEP) & (facts.gap_call < call) & (facts.gap_next > call))[0]
        if not len(there):
            if not (mode == DROP).any():
                return int(most[worst])
            mode[mode == DROP] = SWAP  # replays need more memory than swaps
            continue
        sizes = facts.size[facts.gap_tensor[there]]
        order = np.argsort(-sizes, kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[order]), most[worst] - limits.device_bytes)) + 1
        mode[there[order[:enough]]] = SWAP


def bytes_during(facts: Problem, mode: Array, prefetch_at: Array, limits: Limits, *, ahead: bool
                 ) -> tuple[Array, Array] | None:
    """Return for each call and replayed call: the program's call that needs it, and the bytes in use during it.
    Return None if a replay is impossible. ahead: True if swap-ins start before their use; then the call before which
    each starts is written to ``prefetch_at`` (by gap; -1: on demand)."""
    steps, _, back, total = expand(facts, mode, prefetch_at, NO_NOTES)
    if total.failed >= 0:
        return None
    if ahead:
        place(facts, Room(limits.device_bytes, limits.host_bytes, 0.0), steps, beginnings(facts, steps), back,
              prefetch_at, NO_NOTES)
    return steps.group, steps.during + facts.algorithm_bytes[facts.algorithm_ptr[1:] - 1][steps.call]


def _triggers(plan: Plan, seen: Seen, action: Mapping[TensorId, Action]) -> dict[int, tuple[TensorId, ...]]:
    """Return number of an unpack -> tensors whose swap-in starts at that unpack.
    A swap-in starts at the first unpack after its in-trigger, but no later than the unpack before the tensor's own."""
    trace, unpacks = seen.trace, seen.unpacks
    call_of = {(a.tensor_id, a.access_count): a.call for a in trace.accesses} if plan.prefetches else {}
    found: dict[int, list[TensorId]] = {}
    for key, tensors in plan.prefetches.items():
        for tensor_id in tensors:
            if action.get(tensor_id) is not Action.SWAP_OUT:
                continue
            left, back = (trace.windows or {})[tensor_id]
            own = bisect_left(unpacks, back) + 1  # numbers count from 1
            number = min(bisect_left(unpacks, call_of[key] + 1) + 1, own - 1)
            if number >= 1 and unpacks[number - 1] > left:
                found.setdefault(number, []).append(tensor_id)
    return {number: tuple(tensors) for number, tensors in found.items()}


def unmanaged(seen: Seen) -> int:
    """Return the unmanaged peak of a step in bytes: its peak if nothing is evicted."""
    return max(Lifetimes.of(seen.trace).live_bytes, default=0) + seen.outliving_bytes
