"""A policy that follows a plan from a file, without searching or correcting it.

Iterations that the plan does not fit, such as validation, run in passive mode. The code that reads the file calls
``misfit`` to check that the plan was made for the first iteration that is planned.
"""

from itertools import chain

from minidl.plan.costs import Costs, Limits
from minidl.plan.formats import SavedPlan
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal
from minidl.plan.trace import TensorId, Trace
from minidl.policies.passive import Passive


class SavedPlanPolicy(Passive):
    """Follows one saved plan in every iteration that the plan fits."""

    name = "saved"
    plans = True

    def __init__(self, saved: SavedPlan) -> None:
        self.saved = saved

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the saved plan if it fits the trace, else no plan."""
        return Proposal(self.saved.plan) if misfit(self.saved, trace) is None else NO_PLAN


def misfit(saved: SavedPlan, trace: Trace) -> str | None:
    """Return, as text, how a trace first differs from the iteration that a plan was made for; None if it fits."""
    if saved.calls != len(trace.calls):
        return f"its iteration has {saved.calls} calls, and this one {len(trace.calls)}"
    here = SavedPlan.of(Plan({(t, 1): Action.DROP for t in trace.tensors}), trace).evicted
    accesses: dict[TensorId, int] = {}
    for access in trace.accesses:
        accesses[access.tensor_id] = access.access_count
    for tensor_id, (op, nbytes) in saved.evicted.items():
        if tensor_id not in here:
            return f"it evicts tensor {tensor_id}, unused in this iteration"
        if here[tensor_id] != (op, nbytes):
            return (f"tensor {tensor_id} is {nbytes} bytes of {op or 'a leaf'} in the plan, and {here[tensor_id][1]} "
                    f"bytes of {here[tensor_id][0] or 'a leaf'} here")
    for tensor_id, count in (*saved.plan.evictions, *saved.plan.prefetches, *saved.plan.waits, *saved.plan.releases,
                             *saved.plan.replays, *saved.plan.spent, *saved.plan.moves):
        if accesses.get(tensor_id, 0) < count:
            return f"it names access {count} of tensor {tensor_id}, which has {accesses.get(tensor_id, 0)}"
    for ids in saved.plan.prefetches.values():
        for tensor_id in ids:
            if tensor_id not in saved.evicted:
                return f"it swaps in tensor {tensor_id}, which it does not evict"
    released = chain(*saved.plan.releases.values(), *saved.plan.spent.values())
    for tensor_id in (*(tensor_id for tensor_id, _ in released), *chain(*saved.plan.replays.values())):
        if tensor_id not in trace.tensors:
            return f"it releases or replays tensor {tensor_id}, unused in this iteration"
    for position, name in saved.plan.algorithms.items():
        if position >= len(trace.calls) or name not in {a.name for a in trace.calls[position].algorithms}:
            return f"it chooses algorithm {name!r} for call {position}, which does not have it here"
    for tensor_id, _ in (*saved.plan.offsets, *chain(*saved.plan.moves.values())):
        if tensor_id not in trace.tensors:
            return f"it gives an address to tensor {tensor_id}, unused in this iteration"
    return None
