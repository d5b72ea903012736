"""Explains a plan that an iteration has followed: its decisions, and how each tensor came back."""

from collections.abc import Mapping, Sequence

from minidl.memory.guided.sequence import Followed, Returns
from minidl.plan.plan import Action
from minidl.plan.trace import TensorId, Trace
from minidl.report.decisions import Decision, in_ms, table, totals


def explanation(trace: Trace, last: Followed, found: Sequence[Decision], names: Mapping[TensorId, str], *,
                rows: int) -> str:
    """Return a table of the plan's decisions about the ``rows`` largest tensors, and totals over all decisions.

    names: tensor -> the layer that made it.
    """
    if not found:
        return "plan: nothing leaves the device"
    return "\n".join([*table(found, names, lambda d: observed(d, len(trace.calls), last.returns), rows=rows),
                      *_totals(trace, found, last)])


def observed(decision: Decision, calls: int, returns: Returns) -> str:
    """Return, as text, how a decision's tensor came back in the iteration that ``returns`` records.
    calls: the number of calls of an iteration. What is not used again in it comes back early in the next one."""
    key = decision.key if decision.back < calls else (decision.tensor_id, 0)
    if key in returns.late:
        late = returns.late[key]
        return f"late {in_ms(late)}" if late > 0 else "in time"
    if key in returns.paged_in:
        return f"on demand {in_ms(returns.paged_in[key])}"
    if key in returns.recomputed:
        return f"replayed {in_ms(returns.recomputed[key])}"
    if decision.action is Action.DROP:
        return "came by"  # the replay of another tensor computed it
    return "stayed" if decision.back < calls else "left"  # it was used before its memory was needed; or not again


def _totals(trace: Trace, found: Sequence[Decision], last: Followed) -> list[str]:
    lines = totals(found)
    waited, replayed = sum(last.returns.late.values()), sum(last.returns.recomputed.values())
    stalled = in_ms(last.stall_seconds)
    lines.append(f"  observed: {in_ms(replayed)} ms of replays; {stalled} ms of waiting for copies, of "
                 f"these {in_ms(waited)} for swap-ins that were late (the rest on demand, or for copies out)")
    predicted = "" if last.plan.predicted_seconds is None else f"{in_ms(last.plan.predicted_seconds)} predicted, "
    observed_ms = in_ms(last.seconds)
    lines.append(f"  step: {in_ms(trace.seconds)} ms without memory management, {predicted}{observed_ms} observed")
    return lines + ([f"  remark: {last.remark}"] if last.remark else [])
