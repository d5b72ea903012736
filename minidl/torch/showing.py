"""Shows a plan and its step: as a table of decisions for people, as files for other programs."""

from __future__ import annotations

from minidl.outside.writing import write_whole
from minidl.plan.costs import Costs
from minidl.plan.formats import SavedPlan, is_plan, plan_to_json
from minidl.plan.plan import Action
from minidl.plan.trace import TensorId
from minidl.plan.trace_format import is_trace, trace_to_json
from minidl.report.decisions import Decision, decisions, in_ms, table, totals
from minidl.torch.course import Known
from minidl.torch.seen import Seen

ROWS = 20


def names_of(seen: Seen) -> dict[TensorId, str]:
    """Return tensor id -> the module and the line of the program that computed the tensor, where they are known."""
    return {tensor_id: str(origin) for call, origin in zip(seen.trace.calls, seen.origins, strict=True)
            for tensor_id in call.outputs if str(origin)}


def explanation(known: Known, costs: Costs, rows: int) -> str:
    """Return a table of a plan's largest evictions (at most ``rows``) with reasons and costs, and their totals."""
    assert known.seen is not None and known.shown is not None
    seen, plan = known.seen, known.shown.plan
    found = decisions(seen.trace, plan, costs)
    if not found:
        return "plan: nothing leaves the device"

    def observed(decision: Decision) -> str:
        if decision.tensor_id in known.late:
            return "recomputed" if decision.action is Action.DROP else "waited for"
        return "in time"

    took = in_ms(known.shown.seconds) + " predicted"
    took += f", {in_ms(known.seconds[-1])} observed" if known.seconds else ""
    return "\n".join([*table(found, names_of(seen), observed, rows=rows), *totals(found),
                      f"  optimizer state on the host between steps: {len(seen.states)} tensors",
                      f"  step: {in_ms(seen.trace.seconds)} ms of calls, {took}"])


def save_trace(known: Known, path: str) -> None:
    """Write the trace of a recorded kind of step to a JSON file. Raises UserError if it cannot be written."""
    assert known.recorded is not None
    write_whole(path, trace_to_json(known.recorded.trace).encode(), is_trace)


def save_plan(known: Known, path: str) -> None:
    """Write the plan that a kind of step follows to a JSON file. Raises UserError if it cannot be written."""
    assert known.seen is not None and known.shown is not None
    write_whole(path, plan_to_json(SavedPlan.of(known.shown.plan, known.seen.trace)).encode(), is_plan)
