"""A plan whose bytes all find an address: where some do not, others are searched for that need less memory."""

from __future__ import annotations

from dataclasses import replace

from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import Problem
from minidl.policies.auto.addresses import with_addresses
from minidl.policies.auto.progress import Found
from minidl.policies.auto.search import WORK, search

TIGHTENINGS = 4       # at most, one after the other,
LEAST_EFFORT = 0.5    # of the usual one for addresses,
QUICK = 0.2           # and so much of it where a tighter plan is tried
TIGHTER = 0.03        # of the budget less at most: a large tensor without an address is no measure,
LEAST_TIGHTER = 0.005  # and at least
LEAST_SHARE = 0.5     # of the budget that a plan is made for
WARM = 0.3            # of the usual temperature: where a search around a known plan begins


def fitted(found: Found, trace: Trace, facts: Problem, costs: Costs, limits: Limits, *, seed: int, work: float
           ) -> tuple[Found, int]:
    """(The plan with addresses, or a tighter one near it; how many tighter ones were searched for, with half the work.)

    What has no address is placed as it comes, in the way of what has one. A byte of it counts as much as one that is
    copied out and in while computation waits: less memory may do better, even at the price of a slower plan. A machine
    without addresses takes the plan as it is.
    """
    if not limits.addresses:
        return found, 0
    per_byte = costs.out_seconds_per_byte + costs.in_seconds_per_byte
    effort = max(LEAST_EFFORT, work / WORK)

    def priced(found: Found, over: int) -> Found:
        moved = sum(trace.tensors[tensor_id].nbytes for moves in found.plan.moves.values() for tensor_id, _ in moves)
        return replace(found, hindered=over * per_byte + moved * costs.move_seconds_per_byte)

    best, over = with_addresses(found, trace, facts, limits, effort)
    best = priced(best, over)
    tightened = 0
    while over and tightened < TIGHTENINGS:
        share = found.share - min(max(over / limits.device_bytes, LEAST_TIGHTER), TIGHTER)
        tighter = search(trace, facts, costs, limits, [modes_of(found.plan, facts, trace)], share=share, seed=seed,
                         work=work / 2, temperature=WARM) if share >= LEAST_SHARE else None
        tightened += 1
        if tighter is None or tighter.share != share:  # it took the whole budget
            break
        found, over = with_addresses(tighter, trace, facts, limits, effort * QUICK)
        found = priced(found, over)
        best = min(best, found, key=lambda each: each.promised)
    return best, tightened
