"""Reads the trace that a word on the command line names: a file, or a network at a batch size.

step.json        a trace, as docs/formats.md describes it
log.csv, x.log   a log of allocations (``logs``)
resnet50:220     a training step of a network of minidl, batch 220; also package.module:function:220
torch:package.module:function:32   a training step of a PyTorch program, recorded without values (``torch_capture``)
"""

from pathlib import Path

from minidl.errors import UserError
from minidl.lab.inferred import completed
from minidl.lab.traced import check
from minidl.lab.training_step import SEPARATE, USUAL, Setting, trace_of
from minidl.memory.switches import ALL_ON
from minidl.outside.stages import stage
from minidl.outside.user_modules import module_file
from minidl.outside.validation import shown, whole
from minidl.plan.trace import Trace
from minidl.plan.trace_format import read_trace

TORCH = "torch:"
LOGS = (".csv", ".log", ".csv.gz", ".log.gz")
FILES = (".json", *LOGS)


def load(source: str, device: str = "p100", *, fused: bool = True, measured: bool = False,
         setting: Setting = USUAL) -> Trace:
    """Return the trace that a word of the command line names, completed so that the engine can run it.
    device: the profile that predicts the seconds of a network's calls; measured: time a PyTorch program on this CPU.
    fused: if False, minidl's networks run without fused operations. setting: the ``Setting`` of these networks.
    Raises UserError for a word that names no trace, and for a file or a program that cannot be read or run."""
    with stage(f"taking the step {shown(source)}"):
        return _loaded(source, device, fused=fused, measured=measured, setting=setting)


def _loaded(source: str, device: str, *, fused: bool, measured: bool, setting: Setting) -> Trace:
    if source.endswith(FILES):
        return read_file(source)
    name, batch = named(source)
    if name.startswith(TORCH):
        from minidl.lab.torch_capture import capture

        return checked(capture(name.removeprefix(TORCH), batch, device, values=measured))
    return trace_of(name, batch, device=f"sim:{device.removeprefix('sim:')}",
                    switches=ALL_ON if fused else SEPARATE, setting=setting)


def read_file(path: str) -> Trace:
    """Return the trace in a JSON file or a log, completed as by ``checked``.
    Raises UserError, naming the file, for a file without a trace."""
    if path.endswith(LOGS):
        from minidl.lab.logs import read_program

        trace = read_program(path)
    else:
        trace = read_trace(path)
    try:
        return checked(trace)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def checked(trace: Trace) -> Trace:
    """Return a trace with the facts that the engine needs and the trace lacks (``inferred``).
    Raises UserError for a trace that no program can have, such as one that reads a freed tensor."""
    check(trace)
    return completed(trace)


def file_of(source: str) -> Path | None:
    """Return the file that a source is, or the file of the user's module that it names; None if there is none."""
    return Path(source) if source.endswith(FILES) else module_file(source.rpartition(":")[0].removeprefix(TORCH))


def named(source: str) -> tuple[str, int]:
    """Return the name and the batch in a word ``name:batch``. Raises UserError for any other word."""
    name, colon, batch = source.rpartition(":")
    if not colon or not name:
        raise UserError(f"{shown(source)!r} is no trace: a file (.json, .csv, .log), or a network and its batch, like "
                        "resnet50:220")
    try:
        return name, whole(batch, least=1)
    except UserError as error:
        raise UserError(f"{shown(source)}: the batch {error}") from None
