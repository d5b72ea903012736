"""Explains a plan, one decision at a time: why it was possible, its expected cost, and its real cost.

It uses a trace, a plan and the link's costs alone, so it explains every policy's plan in the same terms, those of the
paper (sections 4.3 to 4.5):

  free time     (back-access - SwapTime in) - (evicted-access + SwapTime out): if at least 0, the copies can be hidden.
  MSPS          memory saving per second: bytes / seconds of recomputation from tensors on the device or the host.
  copies        seconds of both copies: a swap adds them to those of the plan's other swaps on the link.
  swap alone    seconds by which both copies exceed the gap, if this were the only swap.
  again alone   seconds of recomputation, if this were the only drop.
  expected      seconds lost by this decision when all of them are carried out. Calls start as without stalls, later by
                each wait before them; swap-ins queue; a tensor that another tensor's replay also computes costs
                nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minidl.outside import tables
from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs
from minidl.plan.plan import AccessKey, Action, Plan
from minidl.plan.trace import TensorId, Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.policies.capuchin.msps import GapCandidate, lineage


@dataclass(frozen=True, slots=True)
class Decision:
    """The eviction of one tensor:
    it leaves the device after call ``evict``, which makes access number ``count``, until call ``back``.

    op                  the operation that made the tensor; "" if it existed before the iteration.
    evict_s, back_s     start of these calls in seconds, if computation never waited.
    back                the next call that uses it; the number of calls if none in this iteration does.
    free_time_s         if negative, the seconds by which the gap is too short for its copies (``copy_seconds``).
    recompute_seconds   of its replay, if nothing else were dropped; None if it has no replay.
    expected_s          seconds lost: a wait for the swap-in, or a replay.
    """

    tensor_id: TensorId
    op: str
    nbytes: int
    action: Action
    count: int
    evict: int
    back: int
    evict_s: float
    back_s: float
    free_time_s: float
    recompute_seconds: float | None
    expected_s: float

    @property
    def key(self) -> AccessKey:
        """The access after which the tensor leaves, in the form of plans."""
        return self.tensor_id, self.count

    @property
    def copy_seconds(self) -> float:
        """Seconds of the tensor's copies in this iteration: out, and in if it is used again."""
        return self.back_s - self.evict_s - self.free_time_s

    @property
    def swap_seconds(self) -> float:
        """Seconds by which the copies exceed the gap, if this were the only swap; 0 if they fit."""
        return max(0.0, -self.free_time_s)

    @property
    def msps(self) -> float | None:
        """Bytes of the tensor per second of its replay; None if it has no replay, or one of 0 seconds."""
        return self.nbytes / self.recompute_seconds if self.recompute_seconds else None


@dataclass(frozen=True, slots=True)
class _Gap:
    """The calls of two consecutive accesses of a tensor."""

    evict: int
    back: int


def decisions(trace: Trace, plan: Plan, costs: Costs) -> list[Decision]:
    """Return every eviction of a plan, largest tensor first.
    Evictions after accesses that the trace lacks are left out."""
    facts = Lifetimes.of(trace)
    made_by = {tensor_id: call.op for call in trace.calls for tensor_id in call.outputs}
    gaps = _gaps(facts, plan)
    expected = _expected(facts, plan, costs, gaps)
    found = []
    for (tensor_id, count), gap in gaps.items():
        nbytes = facts.nbytes[tensor_id]
        evict_s, back_s = facts.start_s[gap.evict], facts.start_s[gap.back]
        copies = _out_seconds(costs, nbytes) + (_in_seconds(costs, nbytes) if gap.back < len(trace.calls) else 0.0)
        replay = _replay(facts, tensor_id, gap, lambda t, call: False)
        found.append(Decision(
            tensor_id, made_by.get(tensor_id, ""), nbytes, plan.evictions[tensor_id, count], count, gap.evict, gap.back,
            evict_s, back_s, back_s - evict_s - copies,
            None if replay is None else _seconds(trace, replay), expected[tensor_id, count]))
    return sorted(found, key=lambda d: (-d.nbytes, d.evict, d.tensor_id))


def _gaps(facts: Lifetimes, plan: Plan) -> dict[AccessKey, _Gap]:
    gaps = {}
    for tensor_id, count in plan.evictions:
        calls = facts.uses.get(tensor_id, [])
        if 0 < count <= len(calls):
            gaps[tensor_id, count] = _Gap(calls[count - 1],
                                          calls[count] if count < len(calls) else len(facts.trace.calls))
    return gaps


def _expected(facts: Lifetimes, plan: Plan, costs: Costs, gaps: Mapping[AccessKey, _Gap]) -> dict[AccessKey, float]:
    """Return the seconds lost by each decision if the plan is carried out exactly and memory suffices."""
    calls = facts.trace.calls
    wanted: dict[int, list[AccessKey]] = {}
    for key, gap in gaps.items():
        wanted.setdefault(gap.back, []).append(key)
    started = _started(facts, plan, gaps)
    arrives: dict[AccessKey, float] = {}
    lost = dict.fromkeys(gaps, 0.0)
    made_again: set[AccessKey] = set()
    dropped: dict[TensorId, list[AccessKey]] = {}
    for key in gaps:
        if plan.evictions[key] is Action.DROP:
            dropped.setdefault(key[0], []).append(key)

    def missing(tensor_id: TensorId, call: int) -> AccessKey | None:
        """Return the gap in which a tensor is dropped and not yet recomputed when ``call`` starts, or None."""
        return next((key for key in dropped.get(tensor_id, ())
                     if gaps[key].evict < call <= gaps[key].back and key not in made_again), None)

    now = link_free = 0.0
    for k, call in enumerate(calls):
        for key in wanted.get(k, ()):
            if plan.evictions[key] is Action.SWAP_OUT:
                if key not in arrives:  # on demand
                    arrives[key] = link_free = max(now, link_free) + _in_seconds(costs, facts.nbytes[key[0]])
                lost[key] = max(0.0, arrives[key] - now)
            elif key not in made_again:
                replay = _replay(facts, key[0], gaps[key], lambda t, at: missing(t, at) is not None)
                for again in sorted(replay or ()):
                    lost[key] += calls[again].seconds
                    made_again.update(other for t in calls[again].outputs if (other := missing(t, k)) is not None)
            now += lost[key]
        now += call.seconds
        for key in started.get(k, ()):
            arrives[key] = link_free = max(now, link_free) + _in_seconds(costs, facts.nbytes[key[0]])
    return lost


def _started(facts: Lifetimes, plan: Plan, gaps: Mapping[AccessKey, _Gap]) -> dict[int, list[AccessKey]]:
    """Return call -> the swap-ins that start after it, as the plan lists them, each named by its eviction's access."""
    started: dict[int, list[AccessKey]] = {}
    for (trigger, count), tensor_ids in plan.prefetches.items():
        calls = facts.uses.get(trigger, [])
        if not 0 < count <= len(calls):
            continue
        k = calls[count - 1]
        for tensor_id in tensor_ids:
            started.setdefault(k, []).extend(
                key for key, gap in gaps.items() if key[0] == tensor_id and gap.evict <= k < gap.back)
    return started


def _replay(facts: Lifetimes, tensor_id: TensorId, gap: _Gap,
            is_away: Callable[[TensorId, int], bool]) -> set[int] | None:
    """Return the calls that recompute a tensor at its back-access; None if its lineage does not allow it."""
    found = lineage(facts, GapCandidate(tensor_id, facts.nbytes[tensor_id], gap.evict, gap.back), is_away)
    return None if found is None else found[0]


def _seconds(trace: Trace, calls: set[int]) -> float:
    return sum(trace.calls[k].seconds for k in sorted(calls))


def _out_seconds(costs: Costs, nbytes: int) -> float:
    return costs.latency_seconds + nbytes * costs.out_seconds_per_byte


def _in_seconds(costs: Costs, nbytes: int) -> float:
    return costs.latency_seconds + nbytes * costs.in_seconds_per_byte


# For people ----------------------------------------------------------------------------------------------------------
HEADINGS = ("layer", "made by", "bytes", "away from", "to", "free time", "saved/s", "copies", "swap alone",
            "again alone", "chosen", "expected", "observed")
LEFT = (0, 1, 10, 12)  # columns of words


def table(found: Sequence[Decision], names: Mapping[TensorId, str], observed: Callable[[Decision], str], *, rows: int
          ) -> list[str]:
    """Return lines: a heading, and one line for each of the ``rows`` decisions about the largest tensors.

    names: tensor -> the layer that made it. observed: text on how a decision's tensor came back. "away from", "to": the
    call after which it leaves, and the next that uses it, each with its start in ms, if computation never waited.
    """
    cells = [HEADINGS]
    for d in found[:rows]:
        cells.append((
            names.get(d.tensor_id, "-"), d.op or "-", format_bytes(d.nbytes), f"#{d.evict} {in_ms(d.evict_s)}",
            f"#{d.back} {in_ms(d.back_s)}", in_ms(d.free_time_s), "-" if d.msps is None else f"{format_bytes(d.msps)}",
            in_ms(d.copy_seconds), in_ms(d.swap_seconds),
            "-" if d.recompute_seconds is None else in_ms(d.recompute_seconds), d.action.value, in_ms(d.expected_s),
            observed(d)))
    shown = f"the {rows} largest of {len(found)}" if rows < len(found) else f"all {len(found)}"
    return [f"plan: what leaves the device, {shown}; times in ms; alone: if nothing else left",
            *tables.table(cells, left=LEFT)]


def totals(found: Sequence[Decision]) -> list[str]:
    """Return lines: how many bytes are swapped and dropped, and the seconds that this is expected to cost."""
    lines = []
    for action, verb in ((Action.SWAP_OUT, "swapped"), (Action.DROP, "dropped")):
        chosen = [d for d in found if d.action is action]
        copies = f"copies {in_ms(sum(d.copy_seconds for d in chosen))} ms, " if action is Action.SWAP_OUT else ""
        lines.append(f"  {verb}: {len(chosen)} tensors, {format_bytes(sum(d.nbytes for d in chosen))}, {copies}"
                     f"expected to lose {in_ms(sum(d.expected_s for d in chosen))} ms")
    return lines


def in_ms(seconds: float) -> str:
    """Return seconds as text in milliseconds."""
    return f"{seconds * 1e3:.{1 if abs(seconds) < 1 else 0}f}"
