"""Elementwise operations: one thread computes a few elements, each read once and written once.

For operands that are runs of whole groups of 16 bytes (8 elements of a 16-bit float beside a float32),
``element_groups`` loads a group at a time. This file handles any layout and is the reference.

An output may share exactly the bytes of an input that the operation donates. Operands of one dense layout
(channels-last too) are one run of elements. Others are walked over in up to four dimensions, with neighbouring threads
along the output's innermost one, which is fast as long as the inputs have the same innermost dimension or repeat.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.fast import is_on
from minidl.kernels.cuda.fast.element_groups import (
    GROUPS,
    application,
    dense_groups,
    dropout_groups,
    group_width,
    over_repeated,
)
from minidl.kernels.cuda.launch import Argument, Kernel, Launches, Number, View, blocks_of, compute, integers
from minidl.kernels.cuda.layout import RANK, digits, is_dense, merged, padded
from minidl.kernels.cuda.tools import Tools
from minidl.kernels.random import fold_seed
from minidl.meta import DType, row_major

ITEMS = 4  # elements of a thread: as many loads are in flight at once


def dense(tools: Tools, *, dtypes: tuple[str, str, str], formula: str, form: str,
          threads: int) -> Callable[..., None]:
    """Return a kernel: y[i] = formula(a[i], b[i], number). formula: the name of a function of ``scalar``; "": none.
    form: the operands that the formula takes, such as "a, b"; others are not read. dtypes: of y (which decides the
    dtype of computation), of a and of b."""
    cuda, number = tools.cuda, tools.number(dtypes[0])
    (_, store), (load_a, _), (load_b, _) = map(tools.memory, dtypes)
    apply, reads_a, reads_b = application(tools, dtypes[0], formula, form), "a" in form, "a, b" in form

    def kernel(y: Any, a: Any, b: Any, value: Any, n: Any) -> None:
        first = np.int64(cuda.blockIdx.x) * (threads * ITEMS) + cuda.threadIdx.x
        # All loads before the first store: the compiler may not reorder them, as y may share an input's bytes.
        a_values, b_values = cuda.local.array(ITEMS, number), cuda.local.array(ITEMS, number)
        for k in range(ITEMS):
            i = first + k * threads
            if i < n:
                if reads_a:
                    a_values[k] = load_a(a, i)
                if reads_b:
                    b_values[k] = load_b(b, i)
        for k in range(ITEMS):
            i = first + k * threads
            if i < n:
                store(y, i, apply(a_values[k], b_values[k], value, i))
    return kernel


def strided(tools: Tools, *, dtypes: tuple[str, str, str], formula: str, form: str, narrow: bool,
            threads: int) -> Callable[..., None]:
    """Return a kernel that does the work of ``dense`` for operands of any strides, in four dimensions.
    narrow: True if all indices are below 2^31."""
    cuda, number = tools.cuda, tools.number(dtypes[0])
    (_, store), (load_a, _), (load_b, _) = map(tools.memory, dtypes)
    apply, reads_a, reads_b = application(tools, dtypes[0], formula, form), "a" in form, "a, b" in form
    locate, advance = tools.walk(narrow)

    def kernel(y: Any, a: Any, b: Any, value: Any, n: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any,
               t3: Any, y0: Any, y1: Any, y2: Any, y3: Any, a0: Any, a1: Any, a2: Any, a3: Any,
               b0: Any, b1: Any, b2: Any, b3: Any) -> None:
        first = np.int64(cuda.blockIdx.x) * (threads * ITEMS) + cuda.threadIdx.x
        a_values, b_values = cuda.local.array(ITEMS, number), cuda.local.array(ITEMS, number)
        places = cuda.local.array(ITEMS, np.int64)
        c0, c1, c2, c3 = locate(first, n1, n2, n3)
        for k in range(ITEMS):
            if first + k * threads < n:
                places[k] = c0 * y0 + c1 * y1 + c2 * y2 + c3 * y3
                if reads_a:
                    a_values[k] = load_a(a, c0 * a0 + c1 * a1 + c2 * a2 + c3 * a3)
                if reads_b:
                    b_values[k] = load_b(b, c0 * b0 + c1 * b1 + c2 * b2 + c3 * b3)
                c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
        for k in range(ITEMS):
            if first + k * threads < n:
                store(y, places[k], apply(a_values[k], b_values[k], value, places[k]))
    return kernel


def dropout_elements(tools: Tools, *, dtype: str, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel for dropout. p0 .. p3: contiguous strides, because random numbers go by position in C order."""
    cuda, (load, store), drop = tools.cuda, tools.memory(dtype), tools.scalar(dtype).dropout
    locate, advance = tools.walk(narrow)
    bits_of = tools.random_bits

    def kernel(y: Any, x: Any, key: Any, threshold: Any, scale: Any, start: Any, first_position: Any,
               n: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any,
               y0: Any, y1: Any, y2: Any, y3: Any, x0: Any, x1: Any, x2: Any, x3: Any,
               p0: Any, p1: Any, p2: Any, p3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * (threads * ITEMS) + cuda.threadIdx.x
        c0, c1, c2, c3 = locate(i, n1, n2, n3)
        for _ in range(ITEMS):
            if i < n:
                position = (start + first_position + c0 * p0 + c1 * p1 + c2 * p2 + c3 * p3) & 0xFFFFFFFF
                value = load(x, c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3)
                store(y, c0 * y0 + c1 * y1 + c2 * y2 + c3 * y3, drop(value, bits_of(key, position), threshold, scale))
                i += threads
                c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
    return kernel


def walk_arguments(dims: list[tuple[int, ...]], step: int) -> tuple[np.int64, ...]:
    """Return the extents and strides that four-dimensional kernels take: n, n1 .. n3, t0 .. t3, each operand's strides.
    step: elements from one to the next of a thread, whose coordinates are t0 .. t3."""
    extents = [d[0] for d in dims]
    strides = [d[operand] for operand in range(1, len(dims[0])) for d in dims]
    total = int(np.prod(extents, dtype=np.int64))
    return integers(total, *extents[1:], *digits(step, [total + step, *extents[1:]]), *strides)


def outer(dims: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return, for each index of the dimensions outside the RANK innermost, the offset of every operand."""
    distances = [(0,) * (len(dims[0]) - 1)] if dims else []
    for n, *steps in dims[:-RANK]:
        distances = [tuple(d + i * s for d, s in zip(at, steps, strict=True)) for at in distances for i in range(n)]
    return distances


def over_elements(builder: Launches, y: View, *inputs: View, formula: str = "", form: str,
                  value: Argument | None = None) -> None:
    """Add launches: y = formula(inputs broadcast to y's shape). Up to four strided dimensions take one launch.

    An input may have another dtype than y, which decides the compute type: without a formula that is a cast. form: as
    in ``dense``; value: its number.
    """
    if y.size == 0:
        return
    wide = [a.expand(y.shape) for a in inputs]
    operands = [y, *wide, *[y] * (2 - len(wide))]  # operands that are not read may be any
    value = np.dtype(compute(y.dtype)).type(0) if value is None else value
    options: dict[str, Any] = {"dtypes": tuple(a.dtype.name for a in operands), "formula": formula, "form": form}
    dims = merged(y.shape, *[a.strides for a in operands])
    each = launch.THREADS * ITEMS
    if is_dense(dims):
        width = group_width(y.size, *operands) if is_on("elements") else 0
        if width:
            builder.launch(dense_groups, blocks_of(y.size // width, launch.THREADS * GROUPS), *operands, value,
                           *integers(y.size // width), width=width, **options)
            return
        builder.launch(dense, blocks_of(y.size, each), *operands, value, *integers(y.size), **options)
        return
    if is_on("elements") and over_repeated(builder, dims, y, wide, value, formula=formula, form=form):
        return
    inner = padded(dims[-RANK:], RANK, 3)
    arguments = walk_arguments(inner, launch.THREADS)
    narrow = bool(arguments[0] < 1 << 31)
    for distances in outer(dims):
        parts = [a.moved(d) for a, d in zip(operands, distances, strict=True)]
        builder.launch(strided, blocks_of(int(arguments[0]), each), *parts, value, *arguments, narrow=narrow, **options)


def _function(formula: str) -> Kernel:
    return Kernel(lambda builder, y, x: over_elements(builder, y, x, formula=formula, form="a"))


def _pair(formula: str) -> Kernel:
    return Kernel(lambda builder, y, a, b: over_elements(builder, y, a, b, formula=formula, form="a, b"))


def _cast(builder: Launches, y: View, x: View, *, dtype: DType) -> None:
    """Add launches: y = x, rounded to nearest if y's dtype is narrower."""
    over_elements(builder, y, x, form="a")


def _with_number(formula: str) -> Kernel:
    def plan(builder: Launches, y: View, x: View) -> None:
        over_elements(builder, y, x, formula=formula, form="a, number", value=Number("value", compute(x.dtype)))
    return Kernel(plan, numbers=lambda value: {"value": value})


def _dropout(builder: Launches, y: View, x: View) -> None:
    """Add launches: y = dropout of x, with the random number of each element's position in C order, mod 2^32."""
    if y.size == 0:
        return
    dims = merged(y.shape, y.strides, x.strides, row_major(y.shape))
    numbers = (Number("key", "int64"), Number("threshold", "int64"), Number("keep_scale", compute(x.dtype)),
               Number("start", "int64"))
    width = group_width(y.size, y, x) if is_dense(dims) and is_on("elements") else 0
    if width:
        builder.launch(dropout_groups, blocks_of(y.size // width, launch.THREADS * GROUPS), y, x, *numbers,
                       *integers(y.size // width), dtype=x.dtype.name, width=width)
        return
    arguments = walk_arguments(padded(dims[-RANK:], RANK, 3), launch.THREADS)
    for y_at, x_at, position in outer(dims) or [(0, 0, 0)]:
        builder.launch(dropout_elements, blocks_of(int(arguments[0]), launch.THREADS * ITEMS), y.moved(y_at),
                       x.moved(x_at), *numbers, np.int64(position), *arguments, dtype=x.dtype.name,
                       narrow=bool(arguments[0] < 1 << 31))


def _dropout_numbers(p: float, seed: int, start: int = 0) -> dict[str, Any]:
    return {"key": fold_seed(seed), "threshold": int(p * 2.0**32), "keep_scale": 1.0 / (1.0 - p), "start": start}


KERNELS: dict[str, Kernel] = {
    **{name: _pair(name) for name in ("add", "add_relu", "sub", "mul", "div", "sqrt_grad", "relu_grad", "tanh_grad",
                                      "sigmoid_grad", "silu_grad", "gelu_grad", "gelu_tanh_grad", "maximum",
                                      "minimum")},
    **{name: _function(name) for name in ("neg", "exp", "log", "sqrt", "relu", "tanh", "sigmoid", "silu", "softplus",
                                          "gelu", "gelu_tanh", "sign", "sin", "cos", "erf", "floor", "log1p",
                                          "expm1")},
    "abs": _function("absolute"), "pow": _pair("power"),
    "power": _with_number("power"),
    "scale": _with_number("mul"), "shift": _with_number("add"), "cast": Kernel(_cast), "cast_grad": Kernel(_cast),
    "dropout": Kernel(_dropout, numbers=_dropout_numbers),
}
