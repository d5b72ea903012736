"""Elementwise arithmetic, activations and dropout: loops over the formulas of ``scalar``, on NumPy arrays.

An output may share exactly the bytes of an input that the operation donates: each element is read before it is written.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import prange

from minidl.kernels import scalar
from minidl.kernels.cpu.blocks import Array, index_blocks, is_plain, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop, compiled
from minidl.kernels.cpu.half import encode, is_half
from minidl.kernels.random import fold_seed, random_bits

CHUNK = 1 << 14  # elements of a piece of work
STRIP = 1 << 11  # elements of it that stay in the first-level cache

Formula = Callable[..., Any]


# The compiler emits vector instructions only for arrays that do not overlap: it does not know that an output in the
# bytes of its input is harmless. So a strip is first copied and then computed in place, or, with two inputs, computed
# in a temporary.
@compiled
def bring(to: Array, origin: Array) -> None:
    """Copy ``origin`` to ``to``, unless they are the same array."""
    if to.ctypes.data != origin.ctypes.data:
        for i in range(to.size):
            to[i] = origin[i]


def _one(formula: Formula) -> PieceLoop:
    def one(y: Array, x: Array) -> None:
        for chunk in prange((y.size + CHUNK - 1) // CHUNK):
            for start in range(chunk * CHUNK, min(y.size, (chunk + 1) * CHUNK), STRIP):
                part = y[start:start + STRIP]
                bring(part, x[start:start + STRIP])
                for i in range(part.size):
                    part[i] = formula(part[i])
    return PieceLoop(one)


def _two(formula: Formula) -> PieceLoop:
    def two(y: Array, a: Array, b: Array) -> None:
        apart = y.ctypes.data != a.ctypes.data and y.ctypes.data != b.ctypes.data
        for chunk in prange((y.size + CHUNK - 1) // CHUNK):
            results = np.empty(STRIP, y.dtype)
            for start in range(chunk * CHUNK, min(y.size, (chunk + 1) * CHUNK), STRIP):
                part, a_part, b_part = y[start:start + STRIP], a[start:start + STRIP], b[start:start + STRIP]
                target = part if apart else results[:part.size]
                for i in range(target.size):
                    target[i] = formula(a_part[i], b_part[i])
                bring(part, target)
    return PieceLoop(two)


def _with_number(formula: Formula) -> PieceLoop:
    def with_number(y: Array, x: Array, value: float) -> None:
        number = x.dtype.type(value)
        for chunk in prange((y.size + CHUNK - 1) // CHUNK):
            for start in range(chunk * CHUNK, min(y.size, (chunk + 1) * CHUNK), STRIP):
                part = y[start:start + STRIP]
                bring(part, x[start:start + STRIP])
                for i in range(part.size):
                    part[i] = formula(part[i], number)
    return PieceLoop(with_number)


def _repeating(formula: Formula) -> PieceLoop:
    """Return a kernel that computes y[r, i] = formula(a[r, i], b[i])."""
    def repeating(y: Array, a: Array, b: Array) -> None:
        rows = max(1, CHUNK // b.size)
        for chunk in prange((y.shape[0] + rows - 1) // rows):
            for r in range(chunk * rows, min(y.shape[0], (chunk + 1) * rows)):
                for start in range(0, b.size, STRIP):
                    part, b_part = y[r, start:start + STRIP], b[start:start + STRIP]
                    bring(part, a[r, start:start + STRIP])
                    for i in range(part.size):
                        part[i] = formula(part[i], b_part[i])
    return PieceLoop(repeating)


@PieceLoop
def _dropout(y: Array, x: Array, key: int, threshold: int, keep_scale: float, first: int) -> None:
    factor = x.dtype.type(keep_scale)
    for chunk in prange((y.size + CHUNK - 1) // CHUNK):
        for start in range(chunk * CHUNK, min(y.size, (chunk + 1) * CHUNK), STRIP):
            part = y[start:start + STRIP]
            bring(part, x[start:start + STRIP])
            for i in range(part.size):
                bits = random_bits(np.uint32(key), np.uint32(first + start + i))
                part[i] = scalar.dropout(part[i], bits, threshold, factor)


def over_elements(kernel: Callable[..., None], y: Array, *inputs: Array, numbers: tuple[Any, ...] = ()) -> None:
    """Run a kernel of flat arrays on y and the inputs, broadcast to y's shape: at once, or on copied pieces.
    numbers: the kernel's further arguments."""
    shape = y.shape
    if all(a.shape == shape and is_plain(a) for a in (y, *inputs)):
        kernel(y.size, y.reshape(-1), *[a.reshape(-1) for a in inputs], *numbers)
        return
    wide = [a if a.shape == shape else np.broadcast_to(a, shape) for a in inputs]
    for index in index_blocks(shape, 4):
        part = y[index]
        results = room(part)
        kernel(part.size, results.reshape(-1), *[source(a[index]).reshape(-1) for a in wide], *numbers)
        settle(part, results)


def _function(formula: Formula) -> Callable[[Array, Array], None]:
    kernel = _one(formula)

    def run(y: Array, x: Array) -> None:
        over_elements(kernel, y, x)
    return run


def _gradient(formula: Formula) -> Callable[[Array, Array, Array], None]:
    kernel = _two(formula)

    def run(dx: Array, dy: Array, saved: Array) -> None:
        over_elements(kernel, dx, dy, saved)
    return run


def _operator(formula: Formula) -> Callable[[Array, Array, Array], None]:
    """Return a function (y, a, b) that computes y = formula(a, b), with a and b broadcast to y's shape.
    Operands may be copied, but if all are plain and a has y's shape, b is not: neither a ``b`` of that shape, nor one
    that repeats along the leading dimensions."""
    kernel, repeating = _two(formula), _repeating(formula)

    def run(y: Array, a: Array, b: Array) -> None:
        if (a.shape == y.shape != b.shape and b.size > 0 and b.shape == y.shape[y.ndim - b.ndim:]
                and is_plain(y) and is_plain(a) and is_plain(b)):
            rows = (-1, b.size)
            repeating(y.size, y.reshape(rows), a.reshape(rows), b.reshape(-1))
        else:
            over_elements(kernel, y, a, b)
    return run


add, sub, mul, div = map(_operator, (scalar.add, scalar.sub, scalar.mul, scalar.div))
neg, sqrt, exp = map(_function, (scalar.neg, scalar.sqrt, scalar.exp))
relu, tanh, sigmoid = map(_function, (scalar.relu, scalar.tanh, scalar.sigmoid))
gelu, gelu_tanh = map(_function, (scalar.gelu, scalar.gelu_tanh))
sqrt_grad, relu_grad, tanh_grad = map(_gradient, (scalar.sqrt_grad, scalar.relu_grad, scalar.tanh_grad))
sigmoid_grad, gelu_grad = map(_gradient, (scalar.sigmoid_grad, scalar.gelu_grad))
gelu_tanh_grad = _gradient(scalar.gelu_tanh_grad)
_scale, _shift = _with_number(scalar.mul), _with_number(scalar.add)


def scale(y: Array, x: Array, *, value: float) -> None:
    """y = x * value."""
    over_elements(_scale, y, x, numbers=(float(value),))


def shift(y: Array, x: Array, *, value: float) -> None:
    """y = x + value."""
    over_elements(_shift, y, x, numbers=(float(value),))


def cast(y: Array, x: Array, **_: Any) -> None:
    """y = x, rounded to nearest if y's type is narrower."""
    if is_half(y.dtype) and y.flags.c_contiguous and x.dtype == np.float32 and x.flags.c_contiguous:
        encode(y, x)
    else:
        over_elements(lambda _, y_part, x_part: np.copyto(y_part, x_part, casting="same_kind"), y, x)


def log(y: Array, x: Array) -> None:
    """y = the natural logarithm of x, by NumPy, which has vector instructions for it."""
    over_elements(lambda _, y_part, x_part: np.log(x_part, out=y_part), y, x)


def dropout(y: Array, x: Array, *, p: float, seed: int, start: int = 0) -> None:
    """y = x / (1 - p) where the element's 32 random bits are at least p * 2^32, else 0.

    Positions of elements count in C order from ``start`` on, mod 2^32.
    """
    key, threshold, keep_scale = fold_seed(seed), int(p * 2.0**32), 1.0 / (1.0 - p)
    start %= 1 << 32

    def run(work: int, y_part: Array, x_part: Array) -> None:
        nonlocal start
        _dropout(work, y_part, x_part, key, threshold, keep_scale, start)
        start += work
    over_elements(run, y, x)
