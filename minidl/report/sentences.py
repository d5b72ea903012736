"""A plan's decisions as sentences, for readers who prefer them to a table. The numbers are those of ``explain``."""

from collections.abc import Mapping, Sequence

from minidl.memory.guided.sequence import Returns
from minidl.outside.units import format_bytes
from minidl.plan.plan import Action
from minidl.plan.trace import TensorId
from minidl.report.decisions import Decision
from minidl.report.explain import observed

TOLD = 5  # largest decisions, if not all are described
OBSERVED = {"stayed": "it stayed, as it was used again before its memory was needed",  # ``explain.observed`` in words
            "came by": "the replay of another tensor computed it, too", "left": "it was not used again"}


def sentences(found: Sequence[Decision], calls: int, returns: Returns, names: Mapping[TensorId, str], *,
              told: int | None = None) -> list[str]:
    """Return a few sentences for each of a plan's decisions, or for the first ``told`` of them.

    calls: the number of calls of the iteration.
    """
    copying = sum(decision.copy_seconds for decision in found if decision.action is Action.SWAP_OUT)
    return [sentence(decision, calls, returns, names.get(decision.tensor_id, ""), copying_s=copying)
            for decision in found[:told]]


def sentence(decision: Decision, calls: int, returns: Returns, name: str, *, copying_s: float = 0.0) -> str:
    """Return, in sentences, why one tensor leaves, what the alternative would have cost, and how it came back.

    calls: those of the iteration. name: the tensor's layer. ``copying_s``: seconds of all swaps of the plan, or 0.
    """
    d = decision
    told = ", ".join(part for part in (name, d.op, format_bytes(d.nbytes)) if part)
    leaves = "is copied to the host" if d.action is Action.SWAP_OUT else "is dropped"
    again = ("is not used again in this iteration" if d.back >= calls else
             f"is used again by call {d.back}, {seconds(d.back_s - d.evict_s)} later")
    way = _swap(d, returns_now=d.back < calls) if d.action is Action.SWAP_OUT else _drop(d, copying_s)
    came = observed(d, calls, returns)
    return (f"Tensor {d.tensor_id} ({told}) {leaves} after call {d.evict} and {again}. {way} It was expected to lose "
            f"{seconds(d.expected_s)}{_why_more(d)}; observed: {OBSERVED.get(came, came)}{_unit(came)}.")


def _swap(d: Decision, *, returns_now: bool) -> str:
    fit, take, time = ("Both copies fit", "Both copies take", "that time") if returns_now else (
        "Its copy fits", "Its copy takes", "the rest of it")
    fits = (f"{fit} into {time}, with {seconds(d.free_time_s)} to spare" if d.free_time_s >= 0 else
            f"{take} {seconds(d.swap_seconds)} more than {time}")
    other = ("it cannot be recomputed" if d.recompute_seconds is None else
             f"to recompute it would take {seconds(d.recompute_seconds)}")
    return f"{fits}; {other}."


def _drop(d: Decision, copying_s: float) -> str:
    takes = "" if d.recompute_seconds is None else (
        f"To recompute it takes {seconds(d.recompute_seconds)}"
        + (f", which saves {format_bytes(d.msps)} for each second" if d.msps else "") + "; ")
    other = ("a swap could be hidden if it were the only one" if d.free_time_s >= 0 else
             f"the copies of a swap would take {seconds(d.swap_seconds)} more than the gap")
    if d.free_time_s >= 0 and copying_s:
        other += f": its copies would add {seconds(d.copy_seconds)} to {seconds(copying_s)} of this plan's others"
    told = f"{takes}{other}."
    return told[0].upper() + told[1:]


def _why_more(d: Decision) -> str:
    """Return why more seconds are expected than if this were the only decision; "" if as many are."""
    if d.action is Action.SWAP_OUT:
        alone, why = d.swap_seconds, "its copy back starts late or waits for others"
    else:
        alone, why = d.recompute_seconds or 0.0, "its replay also computes other dropped tensors"
    return f", since {why}" if d.expected_s > alone and seconds(d.expected_s) != seconds(alone) else ""


def _unit(came: str) -> str:
    return " ms" if came[-1].isdigit() else ""


def seconds(value: float) -> str:
    """Return seconds as text, in milliseconds below one second."""
    return f"{value:.2f} s" if abs(value) >= 1 else f"{value * 1e3:.1f} ms"
