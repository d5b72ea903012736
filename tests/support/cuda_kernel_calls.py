"""Call single CUDA kernels in a simulator of a GPU's memory, on operands of any layout, and compare with formulas."""

import numpy as np
from cuda_simulator import Memory, Simulator

from bench.support.kernel_cases import OPS
from minidl import meta as metas
from minidl.kernels.cuda import KERNELS, launch, sums
from minidl.kernels.cuda import shape as shapes
from minidl.meta import meta, row_major

# Tolerances: one rounding to the dtype, after float32 tree sums; float64 shows that the formulas are right.
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "bfloat16": 1.02 * 2.0**-8, "float16": 1.02 * 2.0**-11}


def make_blocks_tiny(monkeypatch):
    """Use blocks and tiles of a few threads, so that small operands have several, and ragged edges."""
    monkeypatch.setattr(launch, "THREADS", 16)
    monkeypatch.setattr(sums, "COLUMNS", 4)
    monkeypatch.setattr(sums, "DEPTH", 2)
    monkeypatch.setattr(shapes, "TILE", 4)
    forget_prepared(monkeypatch)


def forget_prepared(monkeypatch):
    """Make every kernel prepare each call again."""
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "_prepared", {})


def channels_last(shape):
    """Return channels-last strides of [N, C, ...]; contiguous ones for fewer dimensions."""
    if len(shape) < 3:
        return row_major(shape)
    order = (0, *range(2, len(shape)), 1)
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def reversed_in_wider(shape):
    """Return strides as permute and narrow produce them: reversed dimension order, inside wider dimensions."""
    strides, step = [], 1
    for n in shape:
        strides.append(step)
        step *= n + 3
    return tuple(strides)


class Placed:
    """A tensor in simulated memory."""

    def __init__(self, memory, shape, dtype, strides=None, values=None):
        self.meta = meta(tuple(shape), metas.DTYPES[dtype], strides)
        extent = 1 + sum((n - 1) * s for n, s in zip(self.meta.shape, self.meta.strides, strict=True))
        self.address = memory.take(extent * self.meta.dtype.itemsize)
        start = self.address - memory.base
        flat = memory.bytes[start:start + extent * self.meta.dtype.itemsize].view(dtype)
        self.array = np.lib.stride_tricks.as_strided(
            flat, self.meta.shape, [s * flat.itemsize for s in self.meta.strides])
        if values is not None:
            self.array[...] = values


def call(name, inputs, attrs, *, layout=None, donate=None, counting=False, simulator=Simulator):
    """Run a kernel; return its outputs (of an in-place one: its written inputs), and check that others are unchanged.
    """
    op, kernel = OPS[name], KERNELS[name]
    memory = Memory(1 << 20, counting=counting)
    simulator = simulator(memory, flipped=layout is not None)
    placed = [Placed(memory, a.shape, a.dtype.name, layout(a.shape) if layout and a.ndim else None, a) for a in inputs]
    inferred = () if op.mutates else op.infer(*[p.meta for p in placed], **attrs)
    outputs = []
    for m in inferred if isinstance(inferred, tuple) else (inferred,):
        strides = layout(m.shape) if layout is channels_last else None
        outputs.append(Placed(memory, m.shape, m.dtype.name, strides))
    if donate is not None:
        outputs[donate[0]] = placed[donate[1]]
    operands = [*outputs, *placed]
    described = [p.meta for p in operands]
    room = kernel.workspace(described, attrs)
    workspace = memory.take(room) if room else 0
    kernel.issue(simulator, [p.address for p in operands], described, attrs, workspace)
    written = set() if op.mutates is None else set(op.mutates(len(inputs)))
    for i, (p, before) in enumerate(zip(placed, inputs, strict=True)):
        assert i in written or p in outputs or p.array.tobytes() == before.tobytes(), f"{name} wrote its input {i}"
    results = [placed[i].array for i in sorted(written)] if op.mutates else [p.array for p in outputs]
    return results if not counting else (results, memory, operands, simulator)


def check(case, results, inputs, dtype):
    exact = [a.astype(np.float64) if metas.DTYPES[a.dtype.name].floating else a for a in inputs]
    expected = case.reference(*exact, **case.attrs)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    for result, right in zip(results, expected, strict=True):
        scale = max(1.0, float(np.max(np.abs(right), initial=0)))
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(result.astype(np.float64), right, rtol=tolerance,
                                   atol=scale * min(tolerance, 2e-5))
