"""Fills, random numbers and uploads, in place.

Random numbers are functions of (seed, position in C order) alone; they differ from the CPU's.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy the name bfloat16
import numpy as np

from minidl.kernels.cuda import launch, steps
from minidl.kernels.cuda.elementwise import ITEMS, outer, over_elements, walk_arguments
from minidl.kernels.cuda.launch import (
    Kernel,
    Launcher,
    Launches,
    Number,
    PreparedLaunches,
    View,
    blocks_of,
    compute,
    resolved,
    view,
)
from minidl.kernels.cuda.layout import RANK, merged, padded
from minidl.kernels.cuda.shape import copy, zero
from minidl.kernels.cuda.tools import Tools
from minidl.kernels.random import fold_seed, random_bits
from minidl.meta import Meta, row_major


def random_numbers(tools: Tools, *, dtype: str, normal: bool, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: y = level + width * (a normal number, by Box & Muller 1958, or one of [0, 1)).
    In the second case (not ``normal``) y is at most ``most``."""
    cuda, (_, store), number, bits_of = tools.cuda, tools.memory(dtype), tools.number(dtype), tools.random_bits
    (locate, advance), math = tools.walk(narrow), tools.math
    unit, half = number(2.0**-24), number(0.5)  # 24 bits are exact in float32

    def kernel(y: Any, key: Any, second_key: Any, level: Any, width: Any, most: Any, first_position: Any, n: Any,
               n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any, y0: Any, y1: Any, y2: Any, y3: Any,
               p0: Any, p1: Any, p2: Any, p3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * (threads * ITEMS) + cuda.threadIdx.x
        c0, c1, c2, c3 = locate(i, n1, n2, n3)
        for _ in range(ITEMS):
            if i < n:
                position = (first_position + c0 * p0 + c1 * p1 + c2 * p2 + c3 * p3) & 0xFFFFFFFF
                share = number(bits_of(key, position) >> 8) * unit
                if normal:
                    angle = number(bits_of(second_key, position) >> 8) * unit * number(2 * np.pi)
                    radius = number(math.sqrt(number(-2) * number(math.log(share + half * unit))))
                    value = level + width * (radius * number(math.cos(angle)))
                else:
                    value = min(level + width * share, most)
                store(y, c0 * y0 + c1 * y1 + c2 * y2 + c3 * y3, value)
                i += threads
                c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
    return kernel


def _fill(builder: Launches, y: View, **_: Any) -> None:
    over_elements(builder, y, form="number", value=Number("value", compute(y.dtype)))


def _random(builder: Launches, y: View, *, normal: bool, start: int = 0) -> None:
    if not y.size:
        return
    kind = compute(y.dtype)
    dims = merged(y.shape, y.strides, row_major(y.shape))
    arguments = walk_arguments(padded(dims[-RANK:], RANK, 2), launch.THREADS)
    most = Number("mean" if normal else f"below_{y.dtype.name}", kind)
    level, width = (Number(name, kind) for name in (("mean", "std") if normal else ("low", "width")))
    for y_at, position in outer(dims) or [(0, 0)]:
        builder.launch(random_numbers, blocks_of(int(arguments[0]), launch.THREADS * ITEMS), y.moved(y_at),
                       Number("key", "int64"), Number("second_key", "int64"), level, width, most,
                       np.int64(start + position), *arguments, dtype=y.dtype.name, normal=normal,
                       narrow=bool(arguments[0] < 1 << 31))


def _keys(seed: int) -> dict[str, Any]:
    key = fold_seed(seed)
    return {"key": key, "second_key": random_bits(key, 1)}


@cache
def _below(dtype: str, low: float, high: float) -> float:
    """Return the largest number of a dtype below ``high``; a random number of [low, high) may round up to ``high``."""
    kind = np.dtype(dtype).type
    with np.errstate(over="ignore"):  # ``high`` may overflow a half
        return float(np.nextafter(kind(high), kind(low)))


def _uniform_numbers(seed: int, low: float, high: float) -> dict[str, Any]:
    below = {f"below_{dtype}": _below(dtype, low, high) for dtype in launch.COMPUTE}
    return {**_keys(seed), "low": low, "width": high - low, **below}


class Upload(Kernel):
    """The kernel that converts the host array ``attrs["data"]`` to the tensor's dtype and copies it into the tensor.
    If ``attrs["data"]`` is None, it writes zeros."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)

    def prepare(self, metas: Sequence[Meta], attrs: dict[str, Any]) -> PreparedLaunches:
        empty, (meta,) = attrs["data"] is None, metas
        prepared = self._prepared.get((meta, empty))
        if prepared is None:
            builder, y = Launches(), view(0, meta)
            if empty:
                zero(builder, y)
            elif not meta.contiguous:
                copy(builder, y, builder.scratch(meta.shape, meta.dtype.name))
            prepared = self._prepared[meta, empty] = PreparedLaunches(tuple(builder.launches), builder.workspace)
        return prepared

    def issue(self, launcher: Launcher, addresses: Sequence[int], metas: Sequence[Meta], attrs: dict[str, Any],
              workspace: int = 0) -> None:
        data, (meta,) = attrs["data"], metas
        if data is not None:
            # Not ascontiguousarray, which would turn a scalar into one dimension.
            values = np.asarray(data, dtype=meta.dtype.name, order="C")
            dense = addresses[0] + meta.offset * meta.dtype.itemsize
            launcher.upload(dense if meta.contiguous else workspace, values)
        for each in self.prepare(metas, attrs).launches:
            places = (addresses[0], workspace)
            launcher.launch(each.source, each.blocks, [resolved(a, places, {}) for a in each.arguments])


KERNELS: dict[str, Kernel] = {
    **steps.KERNELS,
    "add_": Kernel(lambda builder, a, b: over_elements(builder, a, a, b, formula="add", form="a, b")),
    "copy_": Kernel(copy),
    "fill_": Kernel(_fill, numbers=lambda value: {"value": value}),
    "full": Kernel(_fill, numbers=lambda value: {"value": value}),
    "normal_": Kernel(lambda builder, y, **start: _random(builder, y, normal=True, **start),
                      numbers=lambda seed, mean, std: {**_keys(seed), "mean": mean, "std": std}),
    "uniform_": Kernel(lambda builder, y, **start: _random(builder, y, normal=False, **start),
                       numbers=_uniform_numbers),
    "upload": Upload(), "upload_": Upload(),
}
