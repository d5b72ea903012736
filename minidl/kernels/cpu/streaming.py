"""Copies of many bytes that leave the processors' caches to the kernels: stores go past them, straight to memory.

An ordinary copy first reads what it is about to overwrite, and drives what kernels work on out of the caches. Knows
bytes; a small copy is an ordinary one.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from minidl.outside.numba_cache import njit

LINE = 64           # bytes: what is stored at once, at a multiple of it
STREAMED = 1 << 18  # bytes of a copy from which on this is worth it


@intrinsic
def _store_line(context: Any, to: Any, origin: Any) -> Any:
    """Copy a line from any address to an aligned one, past the caches."""
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(64), LINE // 8)
        value = builder.load(builder.inttoptr(arguments[1], line.as_pointer()))
        value.align = 1
        store = builder.store(value, builder.inttoptr(arguments[0], line.as_pointer()))
        store.align = LINE
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def _fence(context: Any) -> Any:
    """Such stores are seen by other threads before anything that comes after."""
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@njit(nogil=True)
def _stream(to: int, origin: int, nbytes: int) -> None:
    """Copy whole lines between addresses, the first of which is aligned."""
    for at in range(0, nbytes, LINE):
        _store_line(to + at, origin + at)  # type: ignore[call-arg]  # Numba gives it its context
    _fence()  # type: ignore[call-arg]


def copy(to: np.ndarray, origin: np.ndarray) -> None:
    """Copy bytes between two arrays of as many that do not overlap, without the interpreter's lock."""
    if to.size < STREAMED:
        to[:] = origin
        return
    head = -to.ctypes.data % LINE
    end = head + (to.size - head) // LINE * LINE
    to[:head] = origin[:head]
    _stream(to.ctypes.data + head, origin.ctypes.data + head, end - head)
    to[end:] = origin[end:]
