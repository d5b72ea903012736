"""The closing summary: what the run needed, what management cost, and what to try next."""

from minidl.report.meter import rate, share
from minidl.report.result import Result
from minidl.units import format_bytes


def summary(result: Result, unmanaged_seconds: float | None, hints: list[str]) -> str:
    """Aligned lines for people. ``unmanaged_seconds`` of a step, where that can be modelled."""
    lines = [
        ("memory", f"peak {format_bytes(result.peak_bytes)} of a budget of {format_bytes(result.budget_bytes)}; "
                   f"unmanaged it would be {format_bytes(result.unmanaged_peak_bytes)}"),
        ("largest operation", f"{result.largest_op.name}, {format_bytes(result.largest_op.bytes)}"),
        ("moved a step", f"{format_bytes(result.swapped_out_bytes)} out, {format_bytes(result.swapped_in_bytes)} in, "
                         f"{format_bytes(result.recomputed_bytes)} recomputed; "
                         f"host peak {format_bytes(result.host_peak_bytes)}"),
        ("speed", _speed(result, unmanaged_seconds)),
    ]
    if result.stall_seconds is not None and result.recompute_seconds is not None:
        lines.append(("time lost a step", f"{_cost(result.stall_seconds, result)} waiting for copies, "
                                          f"{_cost(result.recompute_seconds, result)} recomputing"))
    learnt = [f"{name} {value:{form}}" for name, value, form in (
        ("loss", result.loss, ".6g"), ("test accuracy", result.accuracy, ".2%"),
        ("among the top five", result.accuracy_top5, ".2%")) if value is not None]
    if learnt:
        lines.append(("learnt", ", ".join(learnt)))
    lines += [("try next" if position == 0 else "", hint) for position, hint in enumerate(hints)]
    title = f"{result.model}, batch {result.batch}, on {result.device} under {result.policy}"
    return "\n".join([title, *(f"  {name:19}{text}" for name, text in lines)])


def _speed(result: Result, unmanaged_seconds: float | None) -> str:
    items = result.items_per_second * result.step_seconds  # of a step, which may have several batches
    text = f"{rate(items, result.step_seconds)} images/s, {result.step_seconds:.3g} s a step"
    if unmanaged_seconds:
        text += (f"; {share(unmanaged_seconds, result.step_seconds)} of the "
                 f"{rate(items, unmanaged_seconds)} images/s with unlimited memory")
    return text


def _cost(seconds: float, result: Result) -> str:
    return f"{seconds:.3g} s ({share(seconds, result.step_seconds)})"
