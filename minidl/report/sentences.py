"""A plan's decisions as sentences, for who reads no table. The numbers are those of ``explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minidl.memory.guided.sequence import Returns
from minidl.outside.units import format_bytes
from minidl.plan.plan import Action
from minidl.plan.trace import TensorId
from minidl.report.explain import Decision, observed

TOLD = 5  # of the largest decisions, where not all are told


def sentences(found: Sequence[Decision], calls: int, returns: Returns, names: Mapping[TensorId, str], *,
              told: int | None = None) -> list[str]:
    """A few sentences for each of a plan's decisions (or for the first ``told`` of them), which are those of an
    iteration of so many calls."""
    copying = sum(copy_seconds(decision) for decision in found if decision.action is Action.SWAP_OUT)
    return [sentence(decision, calls, returns, names.get(decision.tensor_id, ""), copying_s=copying)
            for decision in found[:told]]


def copy_seconds(decision: Decision) -> float:
    """Seconds of a tensor's two copies."""
    return decision.back_s - decision.evict_s - decision.free_time_s


def sentence(decision: Decision, calls: int, returns: Returns, name: str, *, copying_s: float = 0.0) -> str:
    """Why one tensor leaves, what the other way would have cost, and how it came back.

    ``copying_s``: what the copies of all the plan's swaps take; 0 where that is not known.
    """
    d = decision
    told = ", ".join(part for part in (name, d.op, format_bytes(d.nbytes)) if part)
    leaves = "is copied to the host" if d.action is Action.SWAP_OUT else "is dropped"
    again = ("is not used again in this iteration" if d.back >= calls else
             f"is used again by call {d.back}, {seconds(d.back_s - d.evict_s)} later")
    way = _swap(d) if d.action is Action.SWAP_OUT else _drop(d, copying_s)
    return (f"Tensor {d.tensor_id} ({told}) {leaves} after call {d.evict} and {again}. {way} It was expected to lose "
            f"{seconds(d.expected_s)}; observed: {observed(d, returns)}{_unit(d, returns)}.")


def _swap(d: Decision) -> str:
    fits = (f"Both copies fit into that time, with {seconds(d.free_time_s)} to spare" if d.free_time_s >= 0 else
            f"Both copies take {seconds(d.swap_seconds)} more than that")
    other = ("nothing else could bring it back" if d.recompute_seconds is None else
             f"to compute it again would take {seconds(d.recompute_seconds)}")
    return f"{fits}; {other}."


def _drop(d: Decision, copying_s: float) -> str:
    takes = "" if d.recompute_seconds is None else (
        f"To compute it again takes {seconds(d.recompute_seconds)}"
        + (f", which saves {format_bytes(d.msps)} for each second" if d.msps else "") + "; ")
    other = ("a swap could be hidden, were it the only one" if d.free_time_s >= 0 else
             f"a swap would take {seconds(d.swap_seconds)} more than there is")
    if d.free_time_s >= 0 and copying_s:
        other += f": its copies would add {seconds(copy_seconds(d))} to {seconds(copying_s)} of this plan's others"
    told = f"{takes}{other}."
    return told[0].upper() + told[1:]


def _unit(d: Decision, returns: Returns) -> str:
    return " ms" if observed(d, returns)[-1].isdigit() else ""


def seconds(value: float) -> str:
    """Seconds as people say them: in ms below one of them."""
    return f"{value:.2f} s" if abs(value) >= 1 else f"{value * 1e3:.1f} ms"
