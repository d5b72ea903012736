"""The sources of traces, by a word of the command line: a file, or a network at a batch size.

    step.json        a trace, as docs/formats.md has it
    log.csv, x.log   allocations that were logged (``logs``)
    resnet50:220     a training step of a network of ours; also package.module:function:220
    torch:package.module:function:32   one of PyTorch's, looked at without values (``torch_capture``)
"""

from __future__ import annotations

from minidl.errors import UserError
from minidl.lab.inferred import completed
from minidl.lab.traced import check
from minidl.lab.training_step import SEPARATE, trace_of
from minidl.memory.switches import ALL_ON
from minidl.outside.stages import stage
from minidl.outside.validation import shown, whole
from minidl.plan.trace import Trace
from minidl.plan.trace_format import read_trace

TORCH = "torch:"
LOGS = (".csv", ".log", ".csv.gz", ".log.gz")
FILES = (".json", *LOGS)


def load(source: str, device: str = "p100", *, fused: bool = True, measured: bool = False) -> Trace:
    """The trace that a word names, with all that running it needs. ``device`` prices what is not measured yet;
    ``measured``: a program of PyTorch's is timed on this CPU instead.

    Raises UserError.
    """
    with stage(f"taking the step {shown(source)}"):
        return _loaded(source, device, fused=fused, measured=measured)


def _loaded(source: str, device: str, *, fused: bool, measured: bool) -> Trace:
    if source.endswith(".json"):
        return read_file(source)
    if source.endswith(LOGS):
        from minidl.lab.logs import read_program

        return checked(read_program(source))
    name, batch = named(source)
    if name.startswith(TORCH):
        from minidl.lab.torch_capture import capture

        return checked(capture(name.removeprefix(TORCH), batch, device, values=measured))
    return trace_of(name, batch, device=f"sim:{device.removeprefix('sim:')}",
                    switches=ALL_ON if fused else SEPARATE)


def read_file(path: str) -> Trace:
    """The trace in a file, as ``checked``. Raises UserError."""
    return checked(read_trace(path))


def checked(trace: Trace) -> Trace:
    """A trace with everything that a run needs. Raises UserError for a trace that no program can have."""
    check(trace)
    return completed(trace)


def named(source: str) -> tuple[str, int]:
    """Name and batch of ``name:batch``. Raises UserError."""
    name, colon, batch = source.rpartition(":")
    if not colon or not name:
        raise UserError(f"{shown(source)!r} is no trace: a file (.json, .csv, .log), or a network and its batch, like "
                        "resnet50:220")
    try:
        return name, whole(batch, least=1)
    except UserError as error:
        raise UserError(f"{shown(source)}: the batch {error}") from None
