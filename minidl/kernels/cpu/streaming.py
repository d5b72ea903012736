"""Copies of many bytes that leave the caches to the kernels: their stores bypass the caches.

An ordinary copy first reads the memory that it will overwrite, and evicts the kernels' data from the caches. Small
copies are ordinary ones.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from minidl.outside.numba_cache import njit

LINE = 64           # bytes of one store, aligned to that size
STREAMED = 1 << 18  # bytes of the smallest copy for which this is worth it


@intrinsic
def _store_line(context: Any, to: Any, origin: Any) -> Any:
    """Copy a cache line from address ``origin`` to the aligned address ``to``, bypassing the caches."""
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
    """Make all stores before this point visible to other threads before any later store."""
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@njit(nogil=True)
def _stream(to: int, origin: int, nbytes: int) -> None:
    """Copy ``nbytes`` bytes, whole cache lines, between addresses; ``to`` is aligned to a line."""
    for at in range(0, nbytes, LINE):
        _store_line(to + at, origin + at)  # type: ignore[call-arg]  # Numba passes the context
    _fence()  # type: ignore[call-arg]


def copy(to: np.ndarray, origin: np.ndarray) -> None:
    """Copy bytes between two arrays of the same size that do not overlap; from STREAMED bytes on without the GIL."""
    if to.size < STREAMED:
        to[:] = origin
        return
    head = -to.ctypes.data % LINE
    end = head + (to.size - head) // LINE * LINE
    to[:head] = origin[:head]
    _stream(to.ctypes.data + head, origin.ctypes.data + head, end - head)
    to[end:] = origin[end:]
