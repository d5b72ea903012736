"""The closing summary of a run: the memory it needed, the cost of memory management, and hints for the next run."""

from minidl.outside.units import format_bytes
from minidl.report.meter import BOTTLENECK, rate, share
from minidl.report.result import Result

TOP = 5  # with at most so many classes, every class is among the top five
LEAST = 0.005  # share of a step that is printed as 1%; less is not worth a word


def summary(result: Result, unmanaged_seconds: float | None, hints: list[str], *, items: str = "images",
            classes: int = 0, slices: int = 1) -> str:
    """Return the summary as aligned lines of text.

    unmanaged_seconds: the time of a step with unlimited memory; None: it cannot be modelled.
    items: the unit of a batch, as a word; classes: the number of classes in the data, 0 if unknown.
    slices: the number of slices in which a batch runs.
    """
    top5 = None if 0 < classes <= TOP else result.accuracy_top5
    lines = [
        ("memory", f"peak {format_bytes(result.peak_bytes)} of a budget of {format_bytes(result.budget_bytes)}; "
                   f"unmanaged it would be {_unmanaged(result)}"),
        ("largest operation", f"{result.largest_op.name}, {format_bytes(result.largest_op.bytes)}"),
        ("moved a step", f"{format_bytes(result.swapped_out_bytes)} out, {format_bytes(result.swapped_in_bytes)} in, "
                         f"{format_bytes(result.recomputed_bytes)} recomputed, "
                         f"{format_bytes(result.moved_bytes)} slid; "
                         f"host peak {format_bytes(result.host_peak_bytes)}"),
        ("speed", _speed(result, unmanaged_seconds, items)),
    ]
    if result.stall_seconds is not None and result.recompute_seconds is not None:
        lines.append(("time lost a step", _lost(result, unmanaged_seconds, slices)))
    if result.search_seconds is not None and result.search_seconds >= LEAST * result.step_seconds:
        lines.append(("to find this", f"{result.search_seconds:.3g} s: the first half of the steps took longer"))
    if result.planning_seconds and result.planning_share is not None:
        lines.append(("planning", f"{result.planning_seconds:.3g} s, {result.planning_share:.1%} of the run"))
    learnt = [f"{name} {value:{form}}" for name, value, form in (
        ("loss", result.loss, ".6g"), ("test accuracy", result.accuracy, ".2%"),
        ("among the top five", top5, ".2%"), ("test Dice", result.dice, ".4f"),
        ("held-out masked-LM loss", result.masked_lm_loss, ".4f"), ("words", result.masked_lm_accuracy, ".2%"),
        ("held-out loss of the next token", result.next_token_loss, ".4f"),
        ("next sentence", result.next_sentence_accuracy, ".2%")) if value is not None]
    if result.examples_per_second is not None:
        lines.append(("data", _data(result, result.examples_per_second)))
    if learnt:
        lines.append(("learnt", ", ".join(learnt)))
    lines += [("try next" if position == 0 else "", hint) for position, hint in enumerate(hints)]
    title = f"{result.model}, batch {result.batch}, on {result.device} under {result.policy}"
    return "\n".join([title, *(f"  {name:19}{text}" for name, text in lines)])


def _unmanaged(result: Result) -> str:
    """Return the bytes that an unmanaged step takes, as text."""
    needed = format_bytes(result.unmanaged_peak_bytes)
    return f"{needed}, with the smallest workspaces" if result.peak_bytes > result.unmanaged_peak_bytes else needed


def _speed(result: Result, unmanaged_seconds: float | None, items: str) -> str:
    count = result.items_per_second * result.step_seconds  # items of a step, which may have several batches
    text = f"{rate(count, result.step_seconds)} {items}/s, {result.step_seconds:.3g} s a step"
    if unmanaged_seconds:
        text += (f"; {share(unmanaged_seconds, result.step_seconds)} of the "
                 f"{rate(count, unmanaged_seconds)} {items}/s with unlimited memory")
    return text


def _lost(result: Result, unmanaged_seconds: float | None, slices: int) -> str:
    """Return, as text, what a step loses its time to; the rest of the loss is named if the time is modelled."""
    waited = "copies"
    if result.ranks and unmanaged_seconds:  # simulated ranks wait for exchanges, with unlimited memory, too
        waited = "copies and exchanges" if result.swapped_out_bytes + result.swapped_in_bytes else "exchanges"
    parts = [(result.stall_seconds or 0.0, f"waiting for {waited}"), (result.recompute_seconds or 0.0, "recomputing"),
             (result.slid_seconds or 0.0, "sliding"), (result.slower_seconds or 0.0, "in slower algorithms")]
    if unmanaged_seconds:
        rest = result.step_seconds - unmanaged_seconds - sum(seconds for seconds, _ in parts)
        parts.append((rest, f"because of {slices} slices" if slices > 1 else "waiting for launches"))
    return ", ".join(f"{_cost(seconds, result)} {cause}" for number, (seconds, cause) in enumerate(parts)
                     if number < 2 or seconds >= LEAST * result.step_seconds)


def _data(result: Result, made: float) -> str:
    """Return, as text, whether the input keeps up with the steps:
    the rate at which batches can be made (``made``, per second), the rate that steps need, and the waits."""
    items = result.items_per_second * result.step_seconds
    needed = rate(items, result.step_seconds - result.data_seconds)
    text = (f"threads can make {rate(made, 1.0)} examples/s, the steps need {needed}; "
            f"a step waits {_cost(result.data_seconds, result)}")
    if result.data_seconds > BOTTLENECK * result.step_seconds:
        text += ": data is the bottleneck (--workers, smaller files, fewer pixels)"
    return text


def _cost(seconds: float, result: Result) -> str:
    return f"{seconds:.3g} s ({share(seconds, result.step_seconds)})"
