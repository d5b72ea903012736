"""Comparisons, and selection by masks: elementwise over operands of several dtypes, each read and written once.

A mask is bytes of 0 and 1. Threads walk over up to four dimensions, as in ``elementwise``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.elementwise import ITEMS, outer, over_elements, walk_arguments
from minidl.kernels.cuda.launch import Argument, Kernel, Launches, Number, View, blocks_of, compute
from minidl.kernels.cuda.layout import RANK, merged, padded
from minidl.kernels.cuda.tools import Tools
from minidl.meta import DType

# Every relation except != is False if one of the numbers is NaN.
RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: bool(a == b), "!=": lambda a, b: bool(a != b), "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b), ">": lambda a, b: bool(a > b), ">=": lambda a, b: bool(a >= b)}


def compared(tools: Tools, *, dtype: str, relation: str, beside: bool, narrow: bool,
             threads: int) -> Callable[..., None]:
    """Return a kernel: y = (a relation b) if ``beside``, else y = (a relation number), for a relation such as "<".
    narrow: True if all indices are below 2^31."""
    cuda, load = tools.cuda, tools.memory(dtype)[0]
    (locate, advance), holds = tools.walk(narrow), tools.device(RELATIONS[relation])

    def kernel(y: Any, a: Any, b: Any, value: Any, n: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any,
               t3: Any, y0: Any, y1: Any, y2: Any, y3: Any, a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any,
               b2: Any, b3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * (threads * ITEMS) + cuda.threadIdx.x
        c0, c1, c2, c3 = locate(i, n1, n2, n3)
        for _ in range(ITEMS):
            if i < n:
                left = load(a, c0 * a0 + c1 * a1 + c2 * a2 + c3 * a3)
                right = value
                if beside:
                    right = load(b, c0 * b0 + c1 * b1 + c2 * b2 + c3 * b3)
                y[c0 * y0 + c1 * y1 + c2 * y2 + c3 * y3] = np.uint8(1) if holds(left, right) else np.uint8(0)
                i += threads
                c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
    return kernel


def selected(tools: Tools, *, dtype: str, wanted: int, beside: bool, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: y = a where the mask is ``wanted`` (0 or 1), elsewhere b if ``beside``, else a number.
    narrow: True if all indices are below 2^31."""
    cuda, (load, store) = tools.cuda, tools.memory(dtype)
    locate, advance = tools.walk(narrow)

    def kernel(y: Any, a: Any, b: Any, mask: Any, value: Any, n: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any,
               t2: Any, t3: Any, y0: Any, y1: Any, y2: Any, y3: Any, a0: Any, a1: Any, a2: Any, a3: Any, b0: Any,
               b1: Any, b2: Any, b3: Any, m0: Any, m1: Any, m2: Any, m3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * (threads * ITEMS) + cuda.threadIdx.x
        c0, c1, c2, c3 = locate(i, n1, n2, n3)
        for _ in range(ITEMS):
            if i < n:
                result = value
                if mask[c0 * m0 + c1 * m1 + c2 * m2 + c3 * m3] == wanted:
                    result = load(a, c0 * a0 + c1 * a1 + c2 * a2 + c3 * a3)
                elif beside:
                    result = load(b, c0 * b0 + c1 * b1 + c2 * b2 + c3 * b3)
                store(y, c0 * y0 + c1 * y1 + c2 * y2 + c3 * y3, result)
                i += threads
                c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
    return kernel


def _launch(builder: Launches, make: Callable[..., Callable[..., None]], operands: list[View], value: Argument,
            **options: Any) -> None:
    """Add launches over the elements of the first operand, to whose shape the others are broadcast.
    It takes several launches if there are more than four dimensions after merging."""
    y = operands[0]
    if not y.size:
        return
    wide = [y, *[a.expand(y.shape) for a in operands[1:]]]
    dims = merged(y.shape, *[a.strides for a in wide])
    arguments = walk_arguments(padded(dims[-RANK:], RANK, len(wide)), launch.THREADS)
    for distances in outer(dims) or [(0,) * len(wide)]:
        builder.launch(make, blocks_of(int(arguments[0]), launch.THREADS * ITEMS),
                       *[a.moved(d) for a, d in zip(wide, distances, strict=True)], value, *arguments,
                       narrow=bool(arguments[0] < 1 << 31), **options)


def _unused(dtype: DType) -> np.generic:
    """Return a 0 for an argument that no thread reads."""
    nothing: np.generic = np.dtype(compute(dtype)).type(0)
    return nothing


def _compare(builder: Launches, y: View, a: View, b: View, *, relation: str) -> None:
    """Add launches: y = True where ``relation`` holds between a and b, else False."""
    _launch(builder, compared, [y, a, b], _unused(a.dtype), dtype=a.dtype.name, relation=relation, beside=True)


def _compare_number(builder: Launches, y: View, x: View, *, relation: str) -> None:
    """Add launches: y = True where ``relation`` holds between x and the number ``value``, else False."""
    _launch(builder, compared, [y, x, x], Number("value", compute(x.dtype)), dtype=x.dtype.name, relation=relation,
            beside=False)


def _where(builder: Launches, y: View, mask: View, a: View, b: View) -> None:
    """Add launches: y = a where the mask is true, else b."""
    _launch(builder, selected, [y, a, b, mask], _unused(a.dtype), dtype=a.dtype.name, wanted=1, beside=True)


def _masked_fill(builder: Launches, y: View, x: View, mask: View, *, inverted: bool) -> None:
    """Add launches: y = ``value`` where the mask is true (``inverted``: false), else x."""
    _launch(builder, selected, [y, x, x, mask], Number("value", compute(x.dtype)), dtype=x.dtype.name,
            wanted=int(inverted), beside=False)


def _convert(builder: Launches, y: View, x: View, *, dtype: DType) -> None:
    """Add launches: y = x, converted to y's dtype."""
    over_elements(builder, y, x, form="a")


KERNELS: dict[str, Kernel] = {
    "compare": Kernel(_compare), "compare_number": Kernel(_compare_number, numbers=lambda value: {"value": value}),
    "where": Kernel(_where), "masked_fill": Kernel(_masked_fill, numbers=lambda value: {"value": value}),
    "convert": Kernel(_convert),
}
