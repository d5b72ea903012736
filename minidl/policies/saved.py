"""A plan from a file, followed as it is: nothing is searched and nothing corrected.

Sequences of calls that it does not fit (validation, say) run in passive mode. Whether the sequence that is planned
first is the one that the plan was made for is asked by who has read the file: ``misfit`` says what differs.
"""

from itertools import chain

from minidl.plan.costs import Costs, Limits
from minidl.plan.formats import SavedPlan
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal
from minidl.plan.trace import TensorId, Trace
from minidl.policies.passive import Passive


class Saved(Passive):
    """Follows one plan, wherever it fits."""

    name = "saved"
    plans = True

    def __init__(self, saved: SavedPlan) -> None:
        self.saved = saved

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """The plan of the file if the trace is that of the plan, or none."""
        return Proposal(self.saved.plan) if misfit(self.saved, trace) is None else NO_PLAN


def misfit(saved: SavedPlan, trace: Trace) -> str | None:
    """The first thing in which a trace is not the one that a plan was made for; None if it fits."""
    if saved.calls != len(trace.calls):
        return f"there it has {saved.calls} calls, and here {len(trace.calls)}"
    here = SavedPlan.of(Plan({(t, 1): Action.DROP for t in trace.tensors}), trace).evicted
    accesses: dict[TensorId, int] = {}
    for access in trace.accesses:
        accesses[access.tensor_id] = access.access_count
    for tensor_id, (op, nbytes) in saved.evicted.items():
        if tensor_id not in here:
            return f"it evicts tensor {tensor_id}, which is not used here"
        if here[tensor_id] != (op, nbytes):
            return (f"tensor {tensor_id} is {nbytes} bytes of {op or 'a leaf'} there, and {here[tensor_id][1]} bytes "
                    f"of {here[tensor_id][0] or 'a leaf'} here")
    for tensor_id, count in (*saved.plan.evictions, *saved.plan.prefetches, *saved.plan.waits, *saved.plan.releases,
                             *saved.plan.replays, *saved.plan.spent, *saved.plan.moves):
        if accesses.get(tensor_id, 0) < count:
            return f"it names access {count} of tensor {tensor_id}, and here are {accesses.get(tensor_id, 0)}"
    for ids in saved.plan.prefetches.values():
        for tensor_id in ids:
            if tensor_id not in saved.evicted:
                return f"it brings tensor {tensor_id} back, which it does not evict"
    released = chain(*saved.plan.releases.values(), *saved.plan.spent.values())
    for tensor_id in (*(tensor_id for tensor_id, _ in released), *chain(*saved.plan.replays.values())):
        if tensor_id not in trace.tensors:
            return f"it releases or replays tensor {tensor_id}, which is not used here"
    for position, name in saved.plan.algorithms.items():
        if position >= len(trace.calls) or name not in {a.name for a in trace.calls[position].algorithms}:
            return f"it has call {position} take algorithm {name!r}, which is not to be had here"
    for tensor_id, _ in (*saved.plan.offsets, *chain(*saved.plan.moves.values())):
        if tensor_id not in trace.tensors:
            return f"it gives tensor {tensor_id} an address, which is not used here"
    return None
