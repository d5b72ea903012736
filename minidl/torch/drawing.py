"""Converts a planned step into a recording for the page that draws memory over time (``managed.page``).

The plan says during which calls a tensor is on the device (its residencies). PyTorch's allocator does not tell
addresses, so the page shows addresses that are computed from the residencies by packing, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs
from minidl.plan.plan import AccessKey, Action
from minidl.plan.trace import TensorId
from minidl.planning.expansion import expand
from minidl.planning.modes import modes_of
from minidl.planning.packing.solve import pack
from minidl.planning.packing.strip import most_live, strip
from minidl.planning.problem import Array, Problem, problem
from minidl.planning.walk import StepArrays
from minidl.report.decisions import decisions, in_ms
from minidl.torch.known import Known
from minidl.torch.reporting import names_of
from minidl.torch.seen import Kind as Role
from minidl.torch.seen import Seen
from minidl.view.recording import (
    EventKind,
    Fate,
    RecordedStep,
    Recording,
    Stay,
    StayState,
    Subject,
    TensorKind,
    WorkEvent,
)

DRAWN = "drawn from lifetimes; PyTorch's allocator has its own"
WORK = 2_000_000  # limit on the work of packing
KINDS = {Role.PARAMETER: TensorKind.PARAMETER, Role.GRADIENT: TensorKind.GRADIENT,
         Role.STATE: TensorKind.OPTIMIZER_STATE}


@dataclass(frozen=True)
class _Copy:
    """A transfer that starts before call ``step``. tensor: its index; out: True to the host, False to the device."""

    step: int
    tensor: int
    out: bool


@dataclass(frozen=True)
class _Layout:
    """Residencies as arrays: tensor index, first and last call, address in bytes, and how each residency ended."""

    tensor: Array
    first: Array
    last: Array
    offset: Array
    fate: Sequence[Fate]


def drawn(known: Known, costs: Costs, budget: int) -> Recording:
    """Return the recording from which ``minidl view`` draws the memory of a planned step over time."""
    seen, plan = known.seen, known.shown
    assert seen is not None and plan is not None
    facts = problem(seen.trace, costs)
    mode = modes_of(plan.plan, facts)
    notes = np.zeros((24 * len(seen.trace.calls) + 8 * len(facts.size) + 64, 4), np.int64)
    steps, out, _, total = expand(facts, mode, np.full(len(mode), -1, np.int64), notes)
    notes[out.note, 2] = out.step  # a hook releases the storage at once, however long its copy takes
    layout = _layout(facts, notes[:total.noted], len(steps.call), plan.plan.evictions)
    copies = _copies(layout)
    events, at = _events(facts, steps, copies, seen, layout, costs)
    stays = tuple(Stay(int(t), int(offset), int(facts.size[t]), StayState.HERE, at[first], at[last + 1], fate)
                  for t, first, last, offset, fate in zip(layout.tensor, layout.first, layout.last, layout.offset,
                                                          layout.fate, strict=True))
    moved = sum(int(facts.size[copy.tensor]) for copy in copies)
    again = sum(seen.trace.tensors[t].nbytes for (t, _), action in plan.plan.evictions.items() if action is Action.DROP)
    took = known.seconds[-1] if known.seconds else plan.seconds
    shown = [("addresses", DRAWN), ("budget", format_bytes(budget)),
             ("peak of the plan", format_bytes(plan.peak_bytes)),
             *([("refused", f"{format_bytes(plan.over_bytes)} more than the budget")] if known.obeyed is None else ()),
             ("copied out and in", format_bytes(moved)),
             ("recomputed", format_bytes(again)), ("a step", f"{in_ms(took)} ms")]
    top = max((stay.offset + stay.size for stay in stays), default=0)
    recording = Recording(f"PyTorch, addresses {DRAWN}", max(top, min(budget, known.unmanaged_bytes)),
                          known.unmanaged_bytes, 0, seen.trace, _subjects(facts, seen), events, stays,
                          (RecordedStep(took, plan.seconds, moved, again, 1),), _remarks(known, costs), shown,
                          limit_bytes=budget if known.obeyed is None else 0)
    recording.check()
    return recording


def _layout(facts: Problem, notes: Array, steps: int, evictions: Mapping[AccessKey, Action]) -> _Layout:
    """Return the residencies in ``notes``, with addresses such that no two simultaneous ones share bytes."""
    tensor = np.where(notes[:, 0] < 0, -1 - notes[:, 0], notes[:, 0])
    first, last = notes[:, 1], np.where(notes[:, 2] < 0, steps - 1, notes[:, 2])
    keep = (tensor < len(facts.size)) & (last >= first)
    taken = set(notes[notes[:, 3] >= 0, 3].tolist())
    dropped = {t for (t, _), action in evictions.items() if action is Action.DROP}
    later: set[int] = set()
    fates: dict[int, Fate] = {}
    for n in reversed(np.nonzero(keep)[0].tolist()):
        t = int(tensor[n])
        fates[n] = (Fate.OVERWRITTEN if n in taken else Fate.STAYS if notes[n, 2] < 0 else Fate.FREED if t not in later
                    else Fate.DROPPED if int(facts.ids[t]) in dropped else Fate.SWAPPED)
        if notes[n, 0] >= 0:
            later.add(t)
    chosen = np.nonzero(keep)[0]
    there = strip(first[chosen], last[chosen], facts.size[tensor[chosen]], 0)
    offset, _ = pack(there._replace(room=most_live(there)), orders=WORK, searches=0)
    return _Layout(tensor[chosen], first[chosen], last[chosen], offset, [fates[n] for n in chosen.tolist()])


def _copies(layout: _Layout) -> list[_Copy]:
    """Return the transfers in order: a swapped tensor goes out after a residency and comes in before its next one."""
    found, away = [], set()
    for n in np.argsort(layout.first, kind="stable").tolist():
        t = int(layout.tensor[n])
        if t in away:
            away.discard(t)
            found.append(_Copy(int(layout.first[n]), t, out=False))
        if layout.fate[n] is Fate.SWAPPED:
            away.add(t)
            found.append(_Copy(int(layout.last[n]) + 1, t, out=True))
    return sorted(found, key=lambda copy: copy.step)


def _events(facts: Problem, steps: StepArrays, copies: Sequence[_Copy], seen: Seen, layout: _Layout, costs: Costs
            ) -> tuple[tuple[WorkEvent, ...], list[int]]:
    """Return the events by time, and the index of the event of each call and replay; the last index is the end's."""
    used = np.zeros(len(steps.call) + 2, np.int64)
    np.add.at(used, layout.first, facts.size[layout.tensor])
    np.add.at(used, layout.last + 1, -facts.size[layout.tensor])
    used = np.cumsum(used)
    host, now, waiting = 0, 0.0, list(copies)[::-1]
    events: list[WorkEvent] = []
    at: list[int] = []
    for s in range(len(steps.call)):
        call, group = int(steps.call[s]), int(steps.group[s])
        while waiting and waiting[-1].step <= s:
            copy = waiting.pop()
            nbytes = int(facts.size[copy.tensor])
            host += nbytes if copy.out else -nbytes
            seconds = nbytes * (costs.out_seconds_per_byte if copy.out else costs.in_seconds_per_byte)
            events.append(WorkEvent(EventKind.COPY_OUT if copy.out else EventKind.COPY_IN, "", group, copy.tensor,
                                    nbytes,
                                now, now + seconds, now, int(used[s - 1]) if s else 0, -1, host, (0, 0)))
        at.append(len(events))
        one = seen.trace.calls[call]
        events.append(WorkEvent(EventKind.CALL if call == group else EventKind.REPLAY, one.op, group, -1, 0, now,
                            now + one.seconds, now, int(used[s]), -1, host, (0, 0)))
        now += one.seconds
    at.append(len(events))
    events.append(WorkEvent(EventKind.BOUNDARY, "", len(seen.trace.calls), -1, 0, now, now, now, 0, -1, host, (0, 0)))
    return tuple(events), at


def _subjects(facts: Problem, seen: Seen) -> tuple[Subject, ...]:
    """Return the name, bytes and kind of each tensor, in the order of ``facts``."""
    names = names_of(seen)
    backward = {t for call, origin in zip(seen.trace.calls, seen.origins, strict=True) if origin.backward
                for t in call.outputs}
    made = {t for call in seen.trace.calls for t in call.outputs}

    def kind(tensor_id: TensorId) -> TensorKind:
        if tensor_id in seen.kinds:
            return KINDS[seen.kinds[tensor_id]]
        if tensor_id in backward:
            return TensorKind.GRADIENT
        return TensorKind.ACTIVATION if tensor_id in made else TensorKind.OTHER

    return tuple(Subject(int(i), names.get(int(i), ""), seen.trace.tensors[int(i)].nbytes, kind(int(i)))
                 for i in facts.ids)


def _remarks(known: Known, costs: Costs) -> list[tuple[TensorId, str]]:
    assert known.seen is not None and known.shown is not None
    found = decisions(known.seen.trace, known.shown.plan, costs)
    return [(d.tensor_id, f"leaves by {d.action.value}; the gap is {in_ms(d.back_s - d.evict_s)} ms, two copies take "
                          f"{in_ms(d.back_s - d.evict_s - d.free_time_s)} ms"
                          + ("" if d.recompute_seconds is None else
                             f", recomputing it {in_ms(d.recompute_seconds)} ms")) for d in found]
