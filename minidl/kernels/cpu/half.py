"""bfloat16 and float16 (16-bit floats, here called halves) as storage formats: converted to float32 to compute.

Results are rounded to nearest, ties to even. Numba does not compute in these formats on a CPU, so their arrays are
viewed as uint16. The conversion needs no special instructions, only those of integers and, for float16, of float32; its
loops become vector instructions.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numba import prange

from minidl.kernels.cpu.compiled import PieceLoop, compiled

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
Array = np.ndarray[Any, Any]
_CHUNK = 1 << 14  # elements


@compiled
def bf16_to_f32(bits: int) -> Any:
    """Return the float32 with the same value as bfloat16 bits (uint16)."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@compiled
def f32_to_bf16(x: Any) -> Any:
    """Return the bits (uint16) of the bfloat16 nearest to a float32; NaN stays NaN."""
    bits = np.float32(x).view(np.uint32)
    # Add half a unit, less one if the last bit that remains is even: a tie then rounds to even.
    rounded = np.uint32((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
    quiet = np.uint32((bits >> np.uint32(16)) | np.uint32(0x40))
    return np.uint16(rounded if x == x else quiet)


@compiled
def f16_to_f32(bits: int) -> Any:
    """Return the float32 with the same value as float16 bits (uint16)."""
    sign = np.uint32((np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16))
    size = np.uint32((np.uint32(bits) & np.uint32(0x7FFF)) << np.uint32(13))
    # After a shift by 13 bits the exponent is too small by 127 - 15; a product corrects it and normalises subnormals.
    scaled = np.uint32(size).view(np.float32) * np.float32(2.0**112)
    special = np.uint32(size | np.uint32(0x7F800000))
    value = special if size >= np.uint32(0x0F800000) else np.float32(scaled).view(np.uint32)
    return np.uint32(value | sign).view(np.float32)


@compiled
def f32_to_f16(x: Any) -> Any:
    """Return the bits (uint16) of the float16 nearest to a float32: infinity from 65520 on, NaN stays NaN."""
    bits = np.float32(x).view(np.uint32)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    odd = (size >> np.uint32(13)) & np.uint32(1)
    normal = np.uint32((size + np.uint32(0xFFF) + odd - np.uint32(0x38000000)) >> np.uint32(13))
    # Below 2^-14 the addition of 0.5 shifts the remaining bits to the lowest place, and rounds them.
    shifted = np.float32(np.uint32(size).view(np.float32) + np.float32(0.5)).view(np.uint32)
    tiny = np.uint32(shifted - np.uint32(0x3F000000))
    value = tiny if size < np.uint32(0x38800000) else normal
    value = np.uint32(0x7C00) if size >= np.uint32(0x477FF000) else value
    value = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else value
    return np.uint16(value | sign)


@PieceLoop
def _decode_bfloat16(out: Array, bits: Array) -> None:
    for chunk in prange((bits.size + _CHUNK - 1) // _CHUNK):
        target, source = out[chunk * _CHUNK:(chunk + 1) * _CHUNK], bits[chunk * _CHUNK:(chunk + 1) * _CHUNK]
        for i in range(source.size):
            target[i] = bf16_to_f32(source[i])


@PieceLoop
def _encode_bfloat16(bits: Array, x: Array) -> None:
    for chunk in prange((bits.size + _CHUNK - 1) // _CHUNK):
        target, source = bits[chunk * _CHUNK:(chunk + 1) * _CHUNK], x[chunk * _CHUNK:(chunk + 1) * _CHUNK]
        for i in range(source.size):
            target[i] = f32_to_bf16(source[i])


@PieceLoop
def _decode_float16(out: Array, bits: Array) -> None:
    for chunk in prange((bits.size + _CHUNK - 1) // _CHUNK):
        target, source = out[chunk * _CHUNK:(chunk + 1) * _CHUNK], bits[chunk * _CHUNK:(chunk + 1) * _CHUNK]
        for i in range(source.size):
            target[i] = f16_to_f32(source[i])


@PieceLoop
def _encode_float16(bits: Array, x: Array) -> None:
    for chunk in prange((bits.size + _CHUNK - 1) // _CHUNK):
        target, source = bits[chunk * _CHUNK:(chunk + 1) * _CHUNK], x[chunk * _CHUNK:(chunk + 1) * _CHUNK]
        for i in range(source.size):
            target[i] = f32_to_f16(source[i])


def is_half(dtype: np.dtype[Any]) -> bool:
    """Return True if a NumPy dtype is bfloat16 or float16."""
    return dtype in (BFLOAT16, FLOAT16)


def decode(half: Array) -> Array:
    """Return the values of a bfloat16 or float16 array as a new contiguous float32 array of its shape."""
    source = np.ascontiguousarray(half).reshape(-1)
    values = np.empty(half.shape, np.float32)
    kernel = _decode_bfloat16 if half.dtype == BFLOAT16 else _decode_float16
    kernel(source.size, values.reshape(-1), source.view(np.uint16))
    return values


def encode(half: Array, values: Array) -> None:
    """Round float32 values into a contiguous bfloat16 or float16 array of the same size."""
    kernel = _encode_bfloat16 if half.dtype == BFLOAT16 else _encode_float16
    kernel(half.size, half.reshape(-1).view(np.uint16), values.reshape(-1))
