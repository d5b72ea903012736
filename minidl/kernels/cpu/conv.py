"""The algorithms of a convolution and of its two gradients: how each cuts its work, and the workspace it needs.

    threads   products over columns (im2col.py), a buffer of columns for each core
    serial    the same cuts and products, so the same bits, one after the other in one buffer
    direct    plain loops (direct.py) without a workspace

Knows arrays; no tensors, no devices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numba
import numpy as np

from minidl.kernels.cpu import cuts
from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.cuts import even, pieces, up
from minidl.kernels.cpu.flat import computed, flat, row
from minidl.kernels.cpu.windows import Pair
from minidl.meta import Meta, Shape
from minidl.op import Attrs

BUFFER_BYTES = 512 * 1024  # of dgrad's packed dy: half a core's own cache
DEPTH = 320  # rows of the columns of a chunk: a panel of them is about what the innermost cache holds
PIXELS = 240  # columns of a tile
TASKS = 4  # at least, where the shape allows it: enough for a few cores


@dataclass(frozen=True)
class CpuAlgorithm:
    """One way to run a convolution.

    workspace      ``(inputs, outputs, attrs) -> bytes``
    relative_time  1.0 for the preferred one
    run            ``(*outputs, *inputs, workspace=<uint8 array of that many bytes>, **attrs)``
    """

    name: str
    bits_class: str
    workspace: Callable[[Sequence[Meta], Sequence[Meta], Attrs], int]
    relative_time: float
    run: Callable[..., None]


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a convolution is cut; im2col.py says what most of them mean. ``buffer``: elements that a worker needs."""

    tile: int
    images: int
    chunk: int
    block: int
    width: int
    tasks: int
    buffer: int
    weights: int = 0
    results: int = 0


@dataclass(frozen=True)
class Plan:
    """How one convolution is cut: x [N, C, H, W], w [K, C, R, S], y [N, K, P, Q]. A matter of shapes alone."""

    op: str
    x: Shape
    w: Shape
    y: Shape
    stride: Pair
    padding: Pair
    itemsize: int  # of what it computes with
    half: bool
    limits: tuple[int, int, int]

    @cached_property
    def pixels(self) -> int:
        """Output pixels of the batch."""
        return self.y[0] * self.area

    @cached_property
    def area(self) -> int:
        return self.y[2] * self.y[3]

    @cached_property
    def taps(self) -> int:
        return self.w[2] * self.w[3]

    @cached_property
    def cuts(self) -> Cuts:
        return {"conv2d": self._fprop, "conv2d_dgrad": self._dgrad, "conv2d_wgrad": self._wgrad}[self.op]()

    def _fprop(self) -> Cuts:
        k, c = self.w[:2]
        _, depth, most = self.limits
        chunk = even(c, max(1, depth // self.taps))
        if not self.half and self.area * 9 >= 8 * up(self.area, self.lanes):  # hardly a vector is partly empty
            tile = min(self.area, up(even(self.area, most), self.lanes))
            images, tiles, ld = 1, self.y[0] * pieces(self.area, tile), 0
        else:
            tile = min(self.pixels, up(max(self.panel, min(most, pieces(self.pixels, 2 * TASKS))), self.lanes))
            images, tiles, ld = 2, pieces(self.pixels, tile), up(tile, self.lanes)
        block = even(k, max(1, up(pieces(k, pieces(TASKS, tiles)), 8)))
        weights = block * chunk * self.taps if self.half else 0
        return Cuts(tile, images, chunk, block, up(tile, self.lanes), tiles * pieces(k, block),
                    weights + block * ld + chunk * self.taps * up(tile, self.panel), weights)

    def _dgrad(self) -> Cuts:
        k, c = self.w[:2]
        n, _, p, q = self.y
        buffer_bytes, depth, most = self.limits
        most = min(most, max(self.panel, buffer_bytes // (self.itemsize * k)))
        images = max(1, min(n, most // self.area))
        rows = p if images > 1 else min(p, max(1, most // q))
        rows = even(p, rows)
        tiles = pieces(n, images)
        block = even(c, pieces(c, pieces(TASKS, tiles)))
        plane = images * self.x[2] * self.x[3]
        if self.half:  # as many channels as fit a core's own cache in float32
            block = even(c, min(block, max(1, buffer_bytes // (self.itemsize * plane))))
        chunk = even(block, max(1, depth // self.taps))
        width = images * rows * q
        same = self.w[2:] == (1, 1) == self.stride and self.padding == (0, 0) and images == 1
        columns = 0 if same else chunk * self.taps * up(width, self.lanes)
        weights = k * (block if same else chunk * self.taps) if self.half else 0
        results = block * plane if self.half else 0
        return Cuts(rows, images, chunk, block, up(width, self.lanes), tiles * pieces(c, block),
                    weights + results + k * up(width, self.panel) + columns, weights, results)

    def _wgrad(self) -> Cuts:
        k, c = self.w[:2]
        _, depth, most = self.limits
        tile = min(self.pixels, most)
        chunk = even(c, max(1, min(depth // self.taps, max(pieces(64, self.taps), pieces(c, TASKS)))))
        block = min(k, up(pieces(k, pieces(TASKS, pieces(c, chunk))), 2 * self.lanes))
        m = chunk * self.taps
        return Cuts(tile, 1, chunk, block, up(tile, self.lanes), pieces(k, block) * pieces(c, chunk),
                    m * up(block, self.lanes) + up(block, self.panel) * up(tile, self.lanes)
                    + m * up(tile, self.lanes))

    @property
    def lanes(self) -> int:
        return cuts.lanes(self.itemsize)

    @property
    def panel(self) -> int:
        return cuts.panel(self.itemsize)

    @property
    def extents(self) -> tuple[Shape, ...]:
        """What compiled kernels are told."""
        c = self.cuts
        return (self.x, (self.w[0], *self.w[2:]), self.y[2:], self.stride, self.padding,
                (c.tile, c.images, c.chunk, c.block, c.width, c.weights, c.results))


@cache
def _plan(op: str, x: Shape, w: Shape, y: Shape, stride: Pair, padding: Pair, itemsize: int,
          limits: tuple[int, int, int]) -> Plan:
    return Plan(op, x, w, y, stride, padding, max(itemsize, 4), itemsize == 2, limits)


def plan(op: str, first: Any, second: Any, out: Any, stride: Pair, padding: Pair) -> Plan:
    """Of the arrays, or metas, of a call: its first two inputs and its output."""
    x, w, y = {"conv2d": (first, second, out), "conv2d_dgrad": (out, second, first),
               "conv2d_wgrad": (second, out, first)}[op]
    return _plan(op, x.shape, w.shape, y.shape, stride, padding, out.dtype.itemsize, (BUFFER_BYTES, DEPTH, PIXELS))


def cores() -> int:
    """Threads that compiled kernels run on."""
    return int(numba.config.NUMBA_NUM_THREADS)  # get_num_threads() would start them, at import


def _run(op: str, workers: int, out: Array, first: Array, second: Array, third: Array | None = None, *,
         stride: Pair, padding: Pair, workspace: Array | None = None, **_: Any) -> None:
    from minidl.kernels.cpu import im2col  # compiled with Numba: not loaded by devices that only count
    p = plan(op, first, second, out, stride, padding)
    workers = min(workers, p.cuts.tasks)
    elements = workers * p.cuts.buffer
    dtype = computed(out.dtype)
    buffer = np.empty(elements, dtype) if workspace is None else workspace.view(dtype)[:elements]
    arguments = (buffer, *p.extents, workers, p.cuts.tasks)
    result = row(out)
    if op == "conv2d":
        bias = np.empty(0, dtype) if third is None else np.ascontiguousarray(third, dtype)
        im2col.fprop(result, *flat(first), row(second), bias, *arguments)
    elif op == "conv2d_dgrad":
        onto = (result[:0], (0, 0, 0, 0)) if third is None else flat(third)
        kept = bool(third is not None and not p.half and third.flags.c_contiguous
                    and third.ctypes.data == out.ctypes.data)  # dx lies over it: what it is added to is there
        im2col.dgrad(result, *flat(first), row(second), *onto, kept, *arguments)
    else:
        im2col.wgrad(result, *flat(first), *flat(second), *arguments)


def _direct(op: str) -> Callable[..., None]:
    def run(*arrays: Array, workspace: Array | None = None, **attrs: Any) -> None:
        from minidl.kernels.cpu import direct
        getattr(direct, op)(*arrays, **attrs)
    return run


def _algorithms(op: str) -> tuple[CpuAlgorithm, ...]:
    def buffers(workers: int) -> Callable[[Sequence[Meta], Sequence[Meta], Attrs], int]:
        def nbytes(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> int:
            p = plan(op, inputs[0], inputs[1], outputs[0], attrs["stride"], attrs["padding"])
            return min(workers, p.cuts.tasks) * p.cuts.buffer * p.itemsize
        return nbytes

    def nothing(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> int:
        return 0
    return (CpuAlgorithm("threads", "im2col", buffers(cores()), 1.0, partial(_run, op, cores())),
            CpuAlgorithm("serial", "im2col", buffers(1), float(cores()), partial(_run, op, 1)),
            CpuAlgorithm("direct", "direct", nothing, 40.0, _direct(op)))


CONVOLUTIONS: dict[str, tuple[CpuAlgorithm, ...]] = {
    op: _algorithms(op) for op in ("conv2d", "conv2d_dgrad", "conv2d_wgrad")
}
