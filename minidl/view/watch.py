"""``minidl.watch``: runs one training step and shows its memory, in a notebook or as a file."""

from collections.abc import Callable
from contextlib import nullcontext
from html import escape
from typing import Any

from minidl.nn import Module
from minidl.outside.units import format_bytes
from minidl.report.layers import layer_names
from minidl.runtime.runtime import current_runtime
from minidl.view.packing import pack
from minidl.view.page import page, write_page
from minidl.view.recorder import StepRecorder
from minidl.view.recording import Recording

HEIGHT = 900  # of the page in a notebook, in pixels


class WatchedStep:
    """The memory of one step. A notebook shows it as a page; ``save`` writes that page to a file.
    result: what the step returned. recording: the facts of the page."""

    def __init__(self, result: Any, recording: Recording) -> None:
        self.result, self.recording = result, recording

    def __repr__(self) -> str:
        peak = max(event.used_bytes for event in self.recording.events)
        return (f"WatchedStep({len(self.recording.trace.calls)} calls, peak {format_bytes(peak)} of "
                f"{format_bytes(self.recording.budget_bytes)})")

    def _repr_html_(self) -> str:
        text = escape(page([pack(self.recording)]))
        return f'<iframe srcdoc="{text}" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'

    def save(self, path: str, *, force: bool = False) -> None:
        """Write the page to a file.
        Raises UserError if that fails, or over a file that is no such page unless ``force``."""
        write_page(path, [pack(self.recording)], force=force)


def watch(step: Callable[[], Any], model: Module | None = None, *, title: str = "a step") -> WatchedStep:
    """Run ``step()`` once in the current runtime, and return its memory over time.

    The step must enter ``runtime.iteration()`` itself, once; it changes parameters as always. model: the network,
    whose layers then name the tensors. The first step of a training differs from later ones: run a few before it.
    Raises UserError if no runtime is current, and what the step raises.
    """
    runtime = current_runtime()
    recorder = StepRecorder(runtime)
    with layer_names(model, runtime.executor) if model is not None else nullcontext() as names:
        with recorder.recording():
            result = step()
        found = recorder.recorded
        assert found is not None
        made = names.of(found.trace) if names is not None else {
            tensor_id: call.op for call in found.trace.calls for tensor_id in call.outputs}
        subjects = found.subjects(made, names.owned if names is not None else {})
    facts = [("device", runtime.device.name), ("policy", runtime.policy.name)]
    recording = Recording(title, runtime.budget_bytes, 0, runtime.host_bytes, found.trace, subjects, found.events,
                          found.stays, facts=facts)
    recording.check()
    return WatchedStep(result, recording)
