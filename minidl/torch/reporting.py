"""The report on a program that runs under ``managed``: bytes, seconds and steps, as numbers and as text.

It also shows a plan and its step: as a table of decisions for people, as files for other programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from minidl.outside.units import format_bytes
from minidl.outside.writing import write_whole
from minidl.plan.costs import Costs
from minidl.plan.formats import SavedPlan, is_plan, plan_to_json
from minidl.plan.plan import Action
from minidl.plan.trace import TensorId
from minidl.plan.trace_format import is_trace, trace_to_json
from minidl.report.decisions import Decision, decisions, in_ms, table, totals
from minidl.torch.budget import Floor
from minidl.torch.course import Course, Phase
from minidl.torch.known import Known
from minidl.torch.seen import Seen

SWAPPING = "with swaps alone"  # planned steps, if the policy has no plan of its own


@dataclass
class Report:
    """The numbers that ``managed.report()`` returns; printed, they are a table.

    budget_bytes     the budget; unmanaged_bytes: the peak if nothing is evicted; floor: the smallest budget;
                     planned_bytes: the peak by the current plans. Each is that of the kind of step that has the
                     largest. 0 or None until known.
    out_bytes        bytes copied to the host so far; in_bytes: copied back; state_bytes: optimizer state among both;
                     host_bytes: the peak of host memory in use for copies.
    late, refused    how often a read in planned steps found its tensor still away (dropped ones always are); tensors
                     for which the host had no room.
    over_bytes       by how much the largest measured peak exceeds the budget; over: in which step, and by what it was
                     exceeded; 0 and "" if no measured step has exceeded it.
    remark           the reason if the policy has no plan of its own for a kind of step; else "".
    steps            number of steps of each phase; diverged: number of steps that began by a plan and then saved other
                     tensors.
    seconds          median of the latest 50 steps, by phase; stalled_seconds: total wait of computation for copies.
    """

    budget_bytes: int
    unmanaged_bytes: int = 0
    floor: Floor | None = None
    planned_bytes: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    host_bytes: int = 0
    state_bytes: int = 0
    stalled_seconds: float = 0.0
    replayed_calls: int = 0
    refused: int = 0
    late: int = 0
    diverged: int = 0
    over_bytes: int = 0
    over: str = ""
    remark: str = ""
    steps: dict[Phase, int] = field(default_factory=dict)
    seconds: dict[Phase, float] = field(default_factory=dict)
    _took: dict[Phase, list[float]] = field(default_factory=dict, repr=False)

    @property
    def floor_bytes(self) -> int:
        """The fewest bytes in which the step can run; 0 until known."""
        return self.floor.nbytes if self.floor is not None else 0

    def stepped(self, phase: Phase, seconds: float, saved: Any) -> None:
        """Add a step that has ended to the numbers. saved: the ``Saved`` with its counts."""
        self.steps[phase] = self.steps.get(phase, 0) + 1
        self._took.setdefault(phase, []).append(seconds)
        del self._took[phase][:-50]
        self.refused += saved.refused
        self.late += saved.late if phase is Phase.GUIDED else 0

    def exceeded(self, step: int, peak: int, grown: int) -> None:
        """Store by how much a step exceeded the budget. grown: bytes that have come since the step was recorded."""
        if peak - self.budget_bytes > self.over_bytes:
            self.over_bytes = peak - self.budget_bytes
            why = (f"{format_bytes(grown)} of tensors have come since the step was recorded" if grown else
                   "it was exceeded by what no recorded step did, such as a pass for validation, or larger tensors")
            self.over = f"in step {step} or before it: {why}"

    def now(self, backend: Any, replayed_calls: int, course: Course, state_bytes: int) -> Report:
        """Return a copy of this report with the given counts, and those of the backend and the course, filled in."""
        traffic, known = backend.traffic, course.known
        floors = [k.floor for k in known if k.floor is not None]
        plans = [k.obeyed for k in known if k.obeyed is not None]
        return replace(self, out_bytes=traffic.out_bytes, in_bytes=traffic.in_bytes, host_bytes=backend.host.most,
                       stalled_seconds=traffic.stalled_seconds, replayed_calls=replayed_calls, diverged=course.diverged,
                       state_bytes=state_bytes, unmanaged_bytes=max((k.unmanaged_bytes for k in known), default=0),
                       floor=max(floors, key=lambda floor: floor.nbytes, default=None),
                       planned_bytes=max((plan.peak_bytes for plan in plans), default=0),
                       remark=next((k.remark for k in known if k.remark), course.unrecorded),
                       steps=dict(self.steps), seconds={phase: median(took) for phase, took in self._took.items()})

    def __str__(self) -> str:
        lines = [("budget", format_bytes(self.budget_bytes))]
        if self.floor is not None:
            lines += [("unmanaged peak", format_bytes(self.unmanaged_bytes)), ("floor, all evicted", str(self.floor))]
        if self.planned_bytes:
            lines.append(("peak of the plan", format_bytes(self.planned_bytes)))
        if self.over_bytes:
            lines.append(("budget exceeded by", f"{format_bytes(self.over_bytes)}, {self.over}"))
        lines += [("copied out", format_bytes(self.out_bytes)), ("copied in", format_bytes(self.in_bytes)),
                  ("of both, the optimizer's state", format_bytes(self.state_bytes)),
                  ("most on the host", format_bytes(self.host_bytes)),
                  ("calls replayed", str(self.replayed_calls)), ("brought back late", str(self.late)),
                  ("stalled", f"{self.stalled_seconds * 1e3:.1f} ms")]
        names = {phase: SWAPPING if phase is Phase.GUIDED and self.remark else phase.value for phase in self.steps}
        lines += [(f"steps, {names[phase]}", f"{count}, {self.seconds[phase] * 1e3:.1f} ms each")
                  for phase, count in self.steps.items()]
        if not self.steps:
            lines.append(("steps", "none has ended: an optimizer's step ends one, or memory.step()"))
        if self.diverged:
            lines.append(("of all steps, unlike their plan", str(self.diverged)))
        if self.refused:
            lines.append(("saved tensors that found no room on the host", str(self.refused)))
        if self.remark:
            lines.append(("swaps in place of a plan", self.remark))
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:{width}}  {value}" for name, value in lines)


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


def save_trace(known: Known, path: str, *, force: bool) -> None:
    """Write the trace of a recorded kind of step to a JSON file. Raises UserError if it cannot be written."""
    assert known.recorded is not None
    write_whole(path, trace_to_json(known.recorded.trace).encode(), is_trace, force=force)


def save_plan(known: Known, path: str, *, force: bool) -> None:
    """Write the plan that a kind of step follows to a JSON file. Raises UserError if it cannot be written."""
    assert known.seen is not None and known.shown is not None
    write_whole(path, plan_to_json(SavedPlan.of(known.shown.plan, known.seen.trace)).encode(), is_plan, force=force)
