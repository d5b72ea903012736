"""The order of streams: each kind of call of the vendor's between long work and a copy, on one stream.

    long work | ones to X | the call: Y from X | Z from Y

X was zero before. A call that runs on a wrong stream comes too early and reads the zeros, or the copy that follows it
reads the old Y. So Z shows for each kind of call whether it keeps its place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - the name bfloat16
import numpy as np

from bench.gpu_check.setting import Record, Setting
from minidl.device.clock import COMPUTE
from minidl.device.cuda.device import CudaDevice
from minidl.device.cuda.seam import ATTENTION_OPERANDS, Attention, Convolution, Gemm
from minidl.meta import aligned, float32, meta

SIDE = 256
COUNT = SIDE * SIDE  # elements of each operand
NBYTES = 4 * COUNT
LONG = 20  # copies of the size of ``Sizes.link_bytes``: some milliseconds
BUDGET = 64 * 2**20
CONV = Convolution("conv2d", "float32", (4, 64, 16, 16), (64, 64, 1, 1), (4, 64, 16, 16), (1, 1), (0, 0))
ATTENTION = Attention(False, "bfloat16", 4, 4, 64, 64, 64, False, 0.0)


@dataclass(frozen=True)
class Kind:
    """One kind of call: a function that issues it on the addresses (y, x, ones, room), and what Y must be afterwards.

    It also has the dtype, and the bytes of ``room``.
    """

    issue: Callable[[int, int, int, int], Any]
    dtype: str
    right: float
    room: int = 0


def measure(setting: Setting, record: Record) -> None:
    """Record for each kind of call whether it ran after the work queued before it and before the work queued after it.
    """
    with setting.runtime(precision="fp32", memory_budget=BUDGET) as runtime:
        device = runtime.device
        if not isinstance(device, CudaDevice):
            record.leave_out(f"{device.name} has no streams of a vendor's")
            return
        for name, kind in kinds(device, record).items():
            with record.one(name):
                found = between(device, kind, setting.sizes.link_bytes)
                wrong = found[found != kind.right]
                record.put(name, wrong.size, f"{name}: {'out of its place' if wrong.size else 'in its place'}")
                if wrong.size:
                    record.fail(f"{name}: {wrong.size} of {found.size} elements are not {kind.right:g}, as "
                                f"{wrong[0]:g}: it does not run on the stream that it is given to")


def kinds(device: CudaDevice, record: Record) -> dict[str, Kind]:
    """Return, by name, every kind of call by which minidl gives work to a stream."""
    vendor, stream = device.vendor, device.streams.handles[COMPUTE]
    described = meta((COUNT,), float32)
    negate = device.programs.kernel("neg", (described, described), {})
    product = Gemm("float32", False, False, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE)
    plan = next(p for p in vendor.plans(CONV) if p.deterministic)

    def fill(y: int, x: int, ones: int, room: int) -> None:
        vendor.copy(y, x, NBYTES, stream)
        vendor.fill(y, 0, NBYTES, stream)
    found = {
        "copy": Kind(lambda y, x, ones, room: vendor.copy(y, x, NBYTES, stream), "float32", 1.0),
        "fill": Kind(fill, "float32", 0.0),
        "launch": Kind(lambda y, x, ones, room: negate((y, x), {}, 0), "float32", -1.0),
        "gemm": Kind(lambda y, x, ones, room: vendor.gemm(product, y, x, ones, stream), "float32", float(SIDE)),
        "convolve": Kind(lambda y, x, ones, room: vendor.convolve(CONV, plan.name, x, ones, y, room, stream), "float32",
                         64.0, plan.workspace)}
    way = vendor.attention_plan(ATTENTION)
    if way is None:
        record.leave_out("attention: cuDNN has none here")
        return found

    def attend(y: int, x: int, ones: int, room: int) -> None:
        places = {"y": y, "lse": room, "q": x, "k": x, "v": x}
        vendor.attend(ATTENTION, way.name, [places[name] for name in ATTENTION_OPERANDS[False] if name != "mask"],
                      0, room + NBYTES, stream)
    found["attend"] = Kind(attend, "bfloat16", 1.0, NBYTES + way.workspace)
    return found


def between(device: CudaDevice, kind: Kind, long_bytes: int) -> np.ndarray:
    """Queue long work, the call, and a copy; return the copied values Z."""
    vendor, stream = device.vendor, device.streams.handles[COMPUTE]
    base, end = vendor.allocate(4 * NBYTES + aligned(kind.room) + 2 * long_bytes), vendor.event()
    x, y, z, ones, room = (base + k * NBYTES for k in range(5))
    ballast = room + aligned(kind.room)
    held = np.ones(NBYTES // np.dtype(kind.dtype).itemsize, kind.dtype)
    result = np.empty(COUNT, kind.dtype)
    try:
        vendor.copy(ones, held.ctypes.data, NBYTES, stream)
        vendor.fill(base, 0, 3 * NBYTES, stream)
        vendor.record(end, stream)
        vendor.synchronize(end)
        for _ in range(LONG):
            vendor.copy(ballast, ballast + long_bytes, long_bytes, stream)
        vendor.copy(x, ones, NBYTES, stream)
        kind.issue(y, x, ones, room)
        vendor.copy(z, y, NBYTES, stream)
        vendor.record(end, stream)
        vendor.synchronize(end)
        vendor.copy(result.ctypes.data, z, result.nbytes, stream)
        vendor.record(end, stream)
        vendor.synchronize(end)
        return result.astype(np.float64)
    finally:
        vendor.free(base)
