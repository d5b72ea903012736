"""A plan from a file, followed as it is: nothing is searched and nothing corrected.

The first sequence of calls that is planned must be the one that the plan was made for. Later ones that it does not fit
(validation, say) run in passive mode.
"""

from minidl.errors import UserError
from minidl.plan.costs import Costs, Limits
from minidl.plan.formats import SavedPlan
from minidl.plan.plan import EMPTY_PLAN, Action, Plan
from minidl.plan.trace import TensorId, Trace
from minidl.policies.passive import Passive


class Saved(Passive):
    """Follows one plan; ``source`` names it in errors."""

    name = "saved"
    plans = True

    def __init__(self, saved: SavedPlan, source: str) -> None:
        self.saved = saved
        self.source = source
        self._followed = False

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Plan:
        """Raises UserError, saying what differs, if the first trace is not that of the plan."""
        difference = misfit(self.saved, trace)
        if difference is None:
            self._followed = True
            return self.saved.plan
        if not self._followed:
            raise UserError(f"{self.source} holds a plan for another iteration: {difference}")
        return EMPTY_PLAN


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
    for tensor_id, count in (*saved.plan.evictions, *saved.plan.prefetches):
        if accesses.get(tensor_id, 0) < count:
            return f"it names access {count} of tensor {tensor_id}, and here are {accesses.get(tensor_id, 0)}"
    for ids in saved.plan.prefetches.values():
        for tensor_id in ids:
            if tensor_id not in saved.evicted:
                return f"it brings tensor {tensor_id} back, which it does not evict"
    return None
