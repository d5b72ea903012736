"""Makes the data of a trace's memory page: the trace runs under the engine, and its last iteration is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minidl.cli.app import kinds
from minidl.cli.app.kinds import Share
from minidl.cli.app.report_page import number_of, remarks
from minidl.cli.command import Parser
from minidl.lab import sources
from minidl.lab.cell import Machine, unmanaged
from minidl.lab.traced import TracedDevice, TracedProgram
from minidl.outside.stages import stage
from minidl.outside.units import format_bytes
from minidl.outside.validation import shown
from minidl.plan.plan import EMPTY_PLAN, Plan
from minidl.plan.trace import TensorId, Trace
from minidl.runtime import Runtime
from minidl.view.packing import pack
from minidl.view.recorded import SeenTensor
from minidl.view.recorder import StepRecorder
from minidl.view.recording import RecordedStep, Recording, Subject, TensorKind

if TYPE_CHECKING:
    from minidl.lab.torch_origins import Origin  # needs PyTorch

STEPS = 12


def packed(source: str, flags: Sequence[str]) -> dict[str, Any]:
    """Return the data of a page about a trace that was run as the flags say.
    ``source``: the trace's file, or a name such as ``torch:package.module:f:8``.
    Raises UserError for a wrong flag or trace, and OutOfMemory if the budget is too small for it."""
    parser = Parser(prog="minidl view TRACE", allow_abbrev=False)
    parser.add_argument("--policy", type=kinds.policy, default="auto")
    parser.add_argument("--memory-budget", type=kinds.budget, default=None)
    parser.add_argument("--device", default="sim:p100")
    parser.add_argument("--steps", type=kinds.whole, default=STEPS)
    options = parser.parse_args(flags)
    machine = Machine(options.device)
    trace, origins = _with_origins(source, options.device)
    seconds, peak = unmanaged(trace, machine)
    budget = options.memory_budget
    if isinstance(budget, Share):
        budget = int(budget.of_peak * peak)
    with Runtime(TracedDevice(machine.described(), trace), policy=options.policy, memory_budget=budget) as runtime:
        title = f"{source}, policy {options.policy}"
        return pack(_recording(title, runtime, trace, origins, options.steps, peak, seconds))


def _with_origins(source: str, device: str) -> tuple[Trace, Mapping[TensorId, Origin]]:
    """Return a trace, and for a PyTorch program the module and the line that made each tensor."""
    if not source.startswith(sources.TORCH):
        return sources.load(source, device), {}
    from minidl.lab.torch_capture import look

    name, batch = sources.named(source.removeprefix(sources.TORCH))
    with stage(f"taking the step {shown(source)}"):
        found = look(name, batch, device)
    return sources.checked(found.trace), found.origins


def _recording(title: str, runtime: Runtime, trace: Trace, origins: Mapping[TensorId, Origin], steps: int, peak: int,
               seconds: float) -> Recording:
    program, recorder = TracedProgram(trace), StepRecorder(runtime)
    before, course = runtime.stats(), []
    plans: list[Plan] = []
    for number in range(1, steps + 1):
        if number < steps:
            with runtime.iteration():
                program.step()
        else:
            with recorder.recording(), runtime.iteration():
                program.step()
        now = runtime.stats()
        grown, before = now.since(before), now
        entry = runtime.guide.latest if runtime.guide is not None else None
        plan = entry.last.plan if entry is not None and entry.last is not None else EMPTY_PLAN
        course.append(RecordedStep(grown.seconds, plan.predicted_seconds,
                                   grown.swapped_out_bytes + grown.swapped_in_bytes, grown.recomputed_bytes,
                                   number_of(plan, plans)))
    found = recorder.recorded
    assert found is not None
    made_by = {tensor_id: call.op for call in found.trace.calls for tensor_id in call.outputs}
    # Of the tensors that a step makes, the engine's ids are not the trace's.
    pairs = [(seen, tensor_id) for ran, call in zip(found.trace.calls, trace.calls, strict=True)
             for seen, tensor_id in zip(ran.outputs, call.outputs, strict=True)]
    origins = {**origins, **{seen: origins[tensor_id] for seen, tensor_id in pairs if tensor_id in origins}}
    names = made_by | {tensor_id: origin.module for tensor_id, origin in origins.items() if origin.module}
    told = remarks((entry.trace, entry.last), runtime, names) if entry is not None and entry.last else []
    backward = next((n for n, call in enumerate(trace.calls) if call.takes), len(trace.calls))
    forward = {tensor_id for call in found.trace.calls[:backward] for tensor_id in call.outputs}
    facts = [("device", runtime.device.name), ("budget", format_bytes(runtime.budget_bytes)),
             ("this step", f"{course[-1].seconds:.3g} s, unmanaged {seconds:.3g} s"),
             ("copied out and in", format_bytes(course[-1].swapped_bytes)),
             ("recomputed", format_bytes(course[-1].recomputed_bytes))]
    recording = Recording(title, runtime.budget_bytes, peak, runtime.host_bytes, found.trace,
                          tuple(_subject(seen, forward, made_by, names, origins) for seen in found.tensors),
                          found.events, found.stays, course, told, facts)
    recording.check()
    return recording


def _subject(seen: SeenTensor, forward: set[TensorId], made_by: Mapping[TensorId, str], names: Mapping[TensorId, str],
             origins: Mapping[TensorId, Origin]) -> Subject:
    """Return the page's entry for a tensor of a trace, named by its module, or by its operation if that is unknown.
    A tensor that outlives the iteration counts as a parameter, unless it is known as a state."""
    origin = origins.get(seen.tensor_id)
    kind = (TensorKind.OPTIMIZER_STATE if origin is not None and origin.state else
            TensorKind.PARAMETER if seen.persistent else TensorKind.ACTIVATION if seen.tensor_id in forward else
            TensorKind.GRADIENT if seen.tensor_id in made_by else TensorKind.OTHER)
    return Subject(seen.tensor_id, names.get(seen.tensor_id, ""), seen.nbytes, kind,
                   "" if origin is None else origin.line)
