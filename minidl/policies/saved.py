"""A policy that follows a plan from a file, without searching or correcting it.

Iterations that the plan does not fit, such as validation, run in passive mode. The code that reads the file calls
``misfit`` to check that the plan was made for the first iteration that is planned.
"""

from minidl.plan.costs import Costs, Limits
from minidl.plan.formats import SavedPlan
from minidl.plan.mistakes import mistake
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal
from minidl.plan.trace import Trace
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
    for tensor_id, (op, nbytes) in saved.evicted.items():
        if tensor_id not in here:
            return f"it evicts tensor {tensor_id}, unused in this iteration"
        if here[tensor_id] != (op, nbytes):
            return (f"tensor {tensor_id} is {nbytes} bytes of {op or 'a leaf'} in the plan, and {here[tensor_id][1]} "
                    f"bytes of {here[tensor_id][0] or 'a leaf'} here")
    return mistake(saved.plan, trace)
