"""Reads and writes elements of flat arrays in compiled code; 16-bit floats are converted to float32 when they are read.

An array of 16-bit floats is passed as integers, whose type tells the format: uint16 is bfloat16, int16 is float16 (see
flat.py). Other types are passed unchanged.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from minidl.kernels.cpu.half import bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16

HALVES = (types.uint16, types.int16)


def read(array: Any, i: int) -> Any:
    """Return element i as a number."""
    raise NotImplementedError("only in compiled code")


def write(array: Any, i: int, value: Any) -> None:
    """Set element i, rounded to the array's type."""
    raise NotImplementedError("in compiled code alone")


def room(array: Any, buffer: Any, straight: bool) -> Any:
    """Return the array for results: ``array`` if ``straight`` (never for 16-bit floats), else ``buffer``."""
    raise NotImplementedError("in compiled code alone")


def operand(a: Any, at: int, row: int, column: int, buffer: Any, buffer_at: int, m: int, k: int) -> Any:
    """Return a matrix [m, k] to compute with as (array, first element, elements to the next row, to the next column).

    It is ``a`` itself; for 16-bit floats its float32 copy in the buffer, from element ``buffer_at`` on.
    """
    raise NotImplementedError("in compiled code alone")


@overload(read, strict=False)
def _read(array: Any, i: Any) -> Callable[..., Any]:
    if array.dtype == types.uint16:
        return lambda array, i: bf16_to_f32(array[i])
    if array.dtype == types.int16:
        return lambda array, i: f16_to_f32(np.uint16(array[i]))
    return lambda array, i: array[i]


@overload(write, strict=False)
def _write(array: Any, i: Any, value: Any) -> Callable[..., Any]:
    def to_bf16(array: Any, i: Any, value: Any) -> None:
        array[i] = f32_to_bf16(np.float32(value))

    def to_f16(array: Any, i: Any, value: Any) -> None:
        array[i] = np.int16(f32_to_f16(np.float32(value)))

    def plain(array: Any, i: Any, value: Any) -> None:
        array[i] = value
    return to_bf16 if array.dtype == types.uint16 else to_f16 if array.dtype == types.int16 else plain


@overload(room, strict=False)
def _room(array: Any, buffer: Any, straight: Any) -> Callable[..., Any]:
    if array.dtype in HALVES:
        return lambda array, buffer, straight: buffer
    return lambda array, buffer, straight: array if straight else buffer


@overload(operand, strict=False)
def _operand(a: Any, at: Any, row: Any, column: Any, buffer: Any, buffer_at: Any, m: Any, k: Any) -> Callable[..., Any]:
    def decoded(a: Any, at: Any, row: Any, column: Any, buffer: Any, buffer_at: Any, m: Any, k: Any) -> Any:
        for j in range(k):
            for i in range(m):
                buffer[buffer_at + j * m + i] = read(a, at + i * row + j * column)
        return buffer, buffer_at, 1, m

    def itself(a: Any, at: Any, row: Any, column: Any, buffer: Any, buffer_at: Any, m: Any, k: Any) -> Any:
        return a, at, row, column
    return decoded if a.dtype in HALVES else itself
