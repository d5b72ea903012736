"""--report FILE: records the last step of a run and writes an HTML page that shows its memory."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from minidl.memory.guided.sequence import Followed
from minidl.outside.units import format_bytes
from minidl.plan.plan import EMPTY_PLAN, Plan
from minidl.plan.trace import TensorId, Trace
from minidl.report.decisions import decisions
from minidl.report.layers import LayerNames
from minidl.report.meter import Meter, rate, share
from minidl.report.sentences import sentences
from minidl.runtime import Runtime
from minidl.view.packing import pack
from minidl.view.recorder import StepRecorder
from minidl.view.recording import RecordedStep, Recording


def remarks(followed: tuple[Trace, Followed], runtime: Runtime,
            names: Mapping[TensorId, str]) -> list[tuple[TensorId, str]]:
    """Return, for each eviction of the followed plan, the tensor's id and sentences about the reason and the cost."""
    assert runtime.guide is not None
    trace, last = followed
    found = decisions(trace, last.plan, runtime.guide.costs)
    told = sentences(found, len(trace.calls), last.returns, names)
    return [(decision.tensor_id, text) for decision, text in zip(found, told, strict=True)]


def number_of(plan: Plan, plans: list[Plan]) -> int:
    """Return the number of a plan among ``plans``, from 1; 0 for the empty plan. A new plan is appended."""
    if plan is EMPTY_PLAN:
        return 0
    if all(plan is not other for other in plans):
        plans.append(plan)
    return 1 + next(n for n, other in enumerate(plans) if other is plan)


class ReportPage:
    """Records one step of a run for a page. Call ``note`` after every step: the page shows the earlier steps, too."""

    def __init__(self, runtime: Runtime, names: LayerNames) -> None:
        self._runtime = runtime
        self._names = names
        self._recorder = StepRecorder(runtime)
        self._noted: list[Followed | None] = []

    def recording(self) -> AbstractContextManager[None]:
        """Return a context; the training step that runs inside it is recorded."""
        return self._recorder.recording()

    def note(self, followed: Followed | None) -> None:
        """Record that a step has ended, and the plan that it followed, if any."""
        is_new = followed is not None and all(followed is not other for other in self._noted)
        self._noted.append(followed if is_new else None)  # what is known from before says nothing of this step

    def packed(self, title: str, meter: Meter, unmanaged_peak_bytes: int,
               followed: tuple[Trace, Followed] | None) -> list[dict[str, Any]]:
        """Return the page's recordings: of this device, or of all ranks, which all call this.
        Raises AssertionError if no step was recorded, or if the recording contradicts itself."""
        ranks, mine = self._runtime.ranks, self._recording(title, meter, unmanaged_peak_bytes, followed)
        if ranks is None or not self._runtime.device.has_values:  # of simulated ranks, one is there
            return [pack(mine)]
        return ranks.agree(pack(replace(mine, rank=ranks.rank)))

    def _recording(self, title: str, meter: Meter, unmanaged_peak_bytes: int,
                   followed: tuple[Trace, Followed] | None) -> Recording:
        recorded, runtime = self._recorder.recorded, self._runtime
        assert recorded is not None, "no step was recorded"
        names = self._names.of(recorded.trace)
        # The plan that was followed last tells nothing of a step that did not follow it.
        told = remarks(followed, runtime, names) if followed is not None and self._noted[-1] is not None else []
        seen: list[Plan] = []
        plans = [EMPTY_PLAN if followed is None else followed.plan for followed in self._noted[-len(meter.steps):]]
        steps = [RecordedStep(step.seconds, plan.predicted_seconds,
                              step.grown.swapped_out_bytes + step.grown.swapped_in_bytes,
                      step.grown.recomputed_bytes, number_of(plan, seen))
                 for step, plan in zip(meter.steps, plans, strict=True)]
        recording = Recording(title, runtime.budget_bytes, unmanaged_peak_bytes, runtime.host_bytes, recorded.trace,
                              recorded.subjects(names, self._names.owned), recorded.events, recorded.stays, steps,
                              told, self._facts(meter), recorded.began_s)
        recording.check()
        return recording

    def _facts(self, meter: Meter) -> list[tuple[str, str]]:
        runtime, step = self._runtime, meter.steps[-1]
        return [("device", runtime.device.name), ("policy", runtime.policy.name),
                ("budget", format_bytes(runtime.budget_bytes)),
                ("this step", f"{step.seconds:.3g} s, {rate(meter.batch, step.seconds)} {meter.items}/s"),
                ("waited for copies", share(step.grown.stall_seconds, step.seconds)),
                ("copied out", format_bytes(step.grown.swapped_out_bytes)),
                ("copied in", format_bytes(step.grown.swapped_in_bytes)),
                ("recomputed", format_bytes(step.grown.recomputed_bytes)),
                ("moved", format_bytes(step.grown.moved_bytes))]
