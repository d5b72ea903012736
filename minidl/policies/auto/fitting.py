"""Finds addresses for a plan's tensors; if some get none, searches for similar plans that need less memory."""

from __future__ import annotations

from dataclasses import replace

from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import Problem
from minidl.policies.auto.addresses import with_addresses
from minidl.policies.auto.progress import LEAST_GAIN, Found
from minidl.policies.auto.search import WORK, search

TIGHTENINGS = 4       # the most searches for a tighter plan,
IF_ENOUGH = 1         # and once a plan promises enough
LEAST_EFFORT = 0.25   # the least effort of packing, as a share of the usual one
QUICK = 0.2           # the share of that effort for a tighter plan
TIGHTER = 0.03        # the most by which a tighter plan lowers its share of the budget,
LEAST_TIGHTER = 0.005  # and the least
LEAST_SHARE = 0.5     # the least share of the budget that a plan is made for
DISPLACED = 3         # times that a tensor without an address is charged: it takes the place of others in turn
WARM = 0.3            # the first temperature of a search around a known plan, as a share of the usual one


def fitted(found: Found, trace: Trace, facts: Problem, costs: Costs, limits: Limits, *, seed: int, work: float,
           enough: float = 0.0) -> tuple[Found, int]:
    """Return the plan with addresses, or one like it that needs less memory, and the number of searches for such plans.

    The engine puts a tensor without an address into any hole, perhaps where the plan wants another tensor, which then
    takes the place of the next. So each of its bytes is charged DISPLACED times the time of a copy to the host and back
    for which computation waits. A slower plan that needs less memory may be the better one. What relocations and
    workspaces without a hole cost is added to the prediction. On devices without addresses the plan stays as it is.
    seed: the seed of the searches' random moves; work: their work, in simulated calls. enough: seconds; once a plan
    promises fewer, at most IF_ENOUGH tighter ones are searched for.
    """
    if not limits.addresses:
        return found, 0
    per_byte = DISPLACED * (costs.out_seconds_per_byte + costs.in_seconds_per_byte)
    effort = max(LEAST_EFFORT, work / WORK)

    def placed(found: Found, effort: float) -> tuple[Found, int, bool]:
        """Return the plan with addresses, the bytes without one, and whether a tighter plan may be better."""
        found, over, slower = with_addresses(found, trace, facts, limits, effort)
        moved = sum(trace.tensors[tensor_id].nbytes for moves in found.plan.moves.values() for tensor_id, _ in moves)
        charge = over * per_byte
        plan = replace(found.plan, predicted_seconds=found.predicted + slower + moved * costs.move_seconds_per_byte)
        return replace(found, plan=plan, charge=charge), over, slower + charge > LEAST_GAIN * found.predicted

    best, over, lacks = placed(found, effort)
    tightened = 0
    while lacks and tightened < (TIGHTENINGS if best.promised >= enough else IF_ENOUGH):
        share = found.share - min(max(over / limits.device_bytes, LEAST_TIGHTER), TIGHTER)
        tighter = search(trace, facts, costs, limits, [modes_of(found.plan, facts)], share=share, seed=seed,
                         work=work / 2, temperature=WARM) if share >= LEAST_SHARE else None
        tightened += 1
        if tighter is None or tighter.share != share or tighter.predicted >= best.promised:
            break  # it needs the whole budget, or is slower whatever its addresses
        found, over, lacks = placed(tighter, effort * QUICK)
        best = min(best, found, key=lambda each: each.promised)
    return best, tightened
