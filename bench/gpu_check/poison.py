"""NaN where a launch will write: an element that a kernel leaves out, or reads before it writes it, shows as NaN."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from minidl.device import Device
from minidl.device.clock import COMPUTE, Timed
from minidl.device.contract import Operand
from minidl.device.cpu.device import CpuDevice
from minidl.device.cpu.numerics import POISON
from minidl.device.cuda.device import CudaDevice
from minidl.meta import Algorithm


def poison_outputs(device: Device) -> None:
    """From now on each launch on this device finds NaN in its outputs and its workspace.

    An output that takes over the bytes of an input is left as it is. The fill is in stream order before the launch,
    which by then owns these bytes; it is a piece of work of its own, so the launch's duration does not have it.
    """
    launch = device.launch

    def poisoned(op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
                 attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        kept = {operand.base.block.offset for operand in inputs}
        spans = [(o.base.block.offset, o.base.block.size) for o in outputs if o.base.block.offset not in kept]
        if algorithm.workspace:
            spans.append((workspace, algorithm.workspace))
        _fill(device, (*outputs, *inputs)[0], [span for span in spans if span[1]])
        return launch(op_name, algorithm, outputs, inputs, attrs, workspace, timed)
    device.launch = poisoned  # type: ignore[method-assign]


def _fill(device: Device, anchor: Operand, spans: Sequence[tuple[int, int]]) -> None:
    """Fill (offset, length) ranges of the arena with NaN; ``anchor`` is any operand in it, which gives its address."""
    if isinstance(device, CudaDevice) and spans:
        m = anchor.meta
        arena = device.address(anchor) - anchor.base.block.offset - m.offset * m.dtype.itemsize
        device.streams.begin()
        for offset, nbytes in spans:
            device.vendor.fill(arena + offset, POISON, nbytes, device.streams.handles[COMPUTE])
        device.streams.mark(COMPUTE)
    elif isinstance(device, CpuDevice):
        for offset, nbytes in spans:
            device.clock.issue(COMPUTE, 0.0, partial(device.numerics.poison, offset, nbytes))
