"""The algorithms of a convolution and of its two gradients, with their workspaces.

threads   matrix products, of Winograd tiles (winograd.py) where the shape suits them, else of columns (im2col.py),
          with a buffer for each core
serial    the same sums in the same order, so the same bits, by one core in one small buffer
direct    plain loops (direct.py) without a workspace
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numba
import numpy as np

from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.conv_cuts import ConvolutionCut, Cuts
from minidl.kernels.cpu.flat import computed, flat, row
from minidl.kernels.cpu.windows import Pair
from minidl.kernels.roles import ROLES
from minidl.meta import Meta, Shape
from minidl.op import Attrs

BUFFER_BYTES = 512 * 1024  # of dgrad's packed dy: half of a core's own cache
DEPTH = 320  # rows of the columns of a chunk: a panel of them about fills the innermost cache
PIXELS = 240  # columns of a tile
VECTORS = (32, 64)  # bytes of a vector on today's processors: AVX2, AVX-512
# From these numbers on Winograd is faster: channels that are summed, channels of the result, and tiles of 2 x 2.
LEAST = (64, 128, 64)


@dataclass(frozen=True)
class CpuAlgorithm:
    """One algorithm of a convolution.

    workspace      ``(inputs, outputs, attrs) -> bytes``
    relative_time  its time divided by that of the preferred algorithm
    run            ``(*outputs, *inputs, workspace=<uint8 array of that many bytes>, **attrs)``
    """

    name: str
    bits_class: str
    workspace: Callable[[Sequence[Meta], Sequence[Meta], Attrs], int]
    relative_time: float
    run: Callable[..., None]


@dataclass(frozen=True)
class CutElsewhere(ConvolutionCut):
    """How a convolution is cut on another processor, whose vector registers have ``vector_bytes`` bytes."""

    vector_bytes: int = 0

    @property
    def lanes(self) -> int:
        """The elements of a vector register of that processor."""
        return self.vector_bytes // self.itemsize

    @property
    def panel(self) -> int:
        """The columns of a panel of a matrix product (product.py) on that processor: three vector registers."""
        return 3 * self.lanes


@lru_cache(maxsize=1 << 12)
def _cut_of(op: str, x: Shape, w: Shape, y: Shape, stride: Pair, padding: Pair, itemsize: int,
            limits: Shape) -> ConvolutionCut:
    groups = x[1] // w[1]
    return ConvolutionCut(op, (x[0], w[1], *x[2:]), (w[0] // groups, *w[1:]), (y[0], w[0] // groups, *y[2:]), stride,
                          padding, groups, max(itemsize, 4), itemsize == 2, limits)


def cut_of(op: str, first: Any, second: Any, out: Any, stride: Pair, padding: Pair) -> ConvolutionCut:
    """Return how convolution ``op`` is cut into tasks, from its first two inputs and its output (arrays or metas)."""
    role = ROLES[op]
    x, w, y = role.pick(out, (first, second))
    return _cut_of(role.kind, x.shape, w.shape, y.shape, stride, padding, out.dtype.itemsize,
                   (BUFFER_BYTES, DEPTH, PIXELS, *LEAST))


def cores() -> int:
    """Return the number of threads that compiled kernels run on."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined] # get_num_threads() would start them


def _cuts(p: ConvolutionCut, workers: int | None) -> tuple[Cuts, int]:
    """Return the cuts, and how many workers have tasks. workers None: one worker, with the smallest possible buffer."""
    cuts = p.least if workers is None else p.cuts
    return cuts, min(workers or 1, p.groups * cuts.tasks)


@lru_cache(maxsize=1 << 12)
def _workspace(p: ConvolutionCut, workers: int | None) -> int:
    """Return the bytes of all workers' buffers: the largest sum for any length of vector registers.

    So memory layouts are the same on all processors, and a budget that holds a step on one holds it on the others.
    """
    facts = p.op, p.x, p.w, p.y, p.stride, p.padding, p.groups, p.itemsize, p.half, p.limits
    most = 0
    for vector_bytes in VECTORS:
        cuts, count = _cuts(CutElsewhere(*facts, vector_bytes), workers)
        most = max(most, count * cuts.buffer * p.itemsize)
    return most


def _run(op: str, workers: int | None, out: Array, first: Array, second: Array, third: Array | None = None, *,
         stride: Pair, padding: Pair, workspace: Array | None = None, **_: Any) -> None:
    from minidl.kernels.cpu import im2col, winograd  # compiled with Numba: not imported by dry runs
    p, relu = cut_of(op, first, second, out, stride, padding), ROLES[op].relu
    cuts, workers = _cuts(p, workers)
    dtype, elements, result = computed(out.dtype), workers * cuts.buffer, row(out)
    buffer = np.empty(elements, dtype) if workspace is None else workspace.view(dtype)[:elements]
    bias, kept = np.empty(0, dtype), False
    onto: tuple[Array, Shape] = (result[:0], (0, 0, 0, 0))
    if third is not None and p.op == "conv2d":
        bias = np.ascontiguousarray(third, dtype)
    elif third is not None:  # if dx shares its bytes, dx already holds the values to add to
        onto = flat(third)
        kept = not p.half and third.flags.c_contiguous and third.ctypes.data == out.ctypes.data
    if p.winograd:
        of_k, of_c = p.taps * p.w[1], p.taps  # elements from one window to the next, along K and along C
        turned = p.op == "conv2d_dgrad"
        winograd.winograd(result, *flat(first), row(second), (of_c, of_k) if turned else (of_k, of_c), turned, bias,
                          relu, *onto, kept, buffer, *((p.y, p.x) if turned else (p.x, p.y)),
                          (2 - padding[0], 2 - padding[1]) if turned else padding, p.groups, cuts.numbers, workers,
                          cuts.tasks)
        return
    arguments = (buffer, p.x, (p.w[0], *p.w[2:]), p.y[2:], stride, padding, p.groups, cuts.numbers, workers, cuts.tasks)
    if p.op == "conv2d":
        im2col.fprop(result, *flat(first), row(second), bias, relu, *arguments)
    elif p.op == "conv2d_dgrad":
        im2col.dgrad(result, *flat(first), row(second), *onto, kept, *arguments)
    else:
        im2col.wgrad(result, *flat(first), *flat(second), *arguments)


def _direct(op: str) -> Callable[..., None]:
    role = ROLES[op]
    options = {"relu": True} if role.relu else {}

    def run(*arrays: Array, workspace: Array | None = None, **attrs: Any) -> None:
        from minidl.kernels.cpu import direct
        getattr(direct, role.kind)(*arrays, **options, **attrs)
    return run


def _algorithms(op: str) -> tuple[CpuAlgorithm, ...]:
    def buffers(workers: int | None) -> Callable[[Sequence[Meta], Sequence[Meta], Attrs], int]:
        def nbytes(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> int:
            p = cut_of(op, inputs[0], inputs[1], outputs[0], attrs["stride"], attrs["padding"])
            return _workspace(p, workers)
        return nbytes

    def nothing(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> int:
        return 0
    return (CpuAlgorithm("threads", "products", buffers(cores()), 1.0, partial(_run, op, cores())),
            CpuAlgorithm("serial", "products", buffers(None), float(cores()), partial(_run, op, None)),
            CpuAlgorithm("direct", "direct", nothing, 40.0, _direct(op)))


CONVOLUTIONS: dict[str, tuple[CpuAlgorithm, ...]] = {op: _algorithms(op) for op in ROLES}
