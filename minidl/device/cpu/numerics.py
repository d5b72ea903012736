"""Memory and computation on the CPU: the bytes of an arena and of a host pool, and kernels and copies on them.

Kernels and copies are functions that run at once, on places: offsets in the arena with metas. This module knows no
time, no stream and no storage.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minidl.device.clock import Extents
from minidl.device.contract import Place
from minidl.device.cpu.exchange import EXCHANGES
from minidl.device.spill import SpillFile
from minidl.kernels.cpu import ALGORITHMS, KERNELS, streaming
from minidl.kernels.empty import SUMS
from minidl.meta import ALIGNMENT, Algorithm

POISON = 0xFF  # every float of these bytes is NaN, every integer absurd
# One kernel at a time in the whole process, for all runtimes and threads: a kernel uses all cores, and Numba's thread
# layer aborts when two parallel regions run at once. Copies do not use that layer, so they need no lock.
_one_kernel = Lock()


def _unlock() -> None:
    """Replace the lock in the child of a fork, where the worker that may hold it does not exist."""
    global _one_kernel
    _one_kernel = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)

VARIANTS = {op: {a.name: a for a in variants} for op, variants in ALGORITHMS.items()}


def aligned_bytes(nbytes: int) -> np.ndarray:
    """Return a byte array that starts at a multiple of the alignment, so that arena offsets alone decide alignment."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + nbytes]


def _add(total: np.ndarray, one: np.ndarray, other: np.ndarray) -> None:
    """Write one + other to total, rounded as the operation ``add`` rounds."""
    with _one_kernel:
        KERNELS["add"](total, one, other)


# Optimizer steps on states that are arrays of the host: the kernels of the steps on the device.
HOST_STEPS = {f"host_{name}": KERNELS[name] for name in ("sgd_momentum_", "adam_", "adadelta_")}


def _step_on_host(step: Callable[..., None], /, *tensors: np.ndarray, states: Sequence[np.ndarray],
                  **numbers: Any) -> None:
    """Run a step in place. tensors: parameters, then gradients; states: all of the first kind, then of the next."""
    count = len(tensors) // 2
    step(*tensors[:count], *states, *tensors[count:], **numbers)


class Numerics:
    """The bytes of an arena and of a host pool (sizes in bytes), with kernels and copies that run at once.

    error    of the first kernel that failed. Later ones do not run, as they may need its results; copies go on
    skipped  True if there was a later one
    """

    def __init__(self, budget_bytes: int, host_bytes: int) -> None:
        self.error: Exception | None = None
        self.skipped = False
        self._arena = aligned_bytes(budget_bytes)
        self._host = np.empty(host_bytes, np.uint8)  # the system allocates a page at its first write
        self.spill: SpillFile | None = None  # holds the host offsets from host_bytes on

    def run(self, op_name: str, algorithm: Algorithm, places: Sequence[Place], attrs: dict[str, Any],
            workspace: int, made: int) -> None:
        """Run a kernel on the operands at ``places``, of which the first ``made`` are outputs. Its error is kept."""
        if self.error is not None:
            self.skipped = True
            return
        try:
            arrays = [self.array(at) for at in places]
            if made and not all(array.size for array in arrays) and self._is_trivial(op_name, arrays, made):
                return
            if op_name in HOST_STEPS:
                with _one_kernel:
                    _step_on_host(HOST_STEPS[op_name], *arrays, **attrs)
            elif op_name in EXCHANGES:  # without the lock: it waits for ranks that may be threads of this process
                EXCHANGES[op_name](*arrays, add=_add, **attrs)
            else:
                with _one_kernel:
                    if algorithm.name:
                        scratch = self._arena[workspace:workspace + algorithm.workspace]
                        VARIANTS[op_name][algorithm.name].run(*arrays, workspace=scratch, **attrs)
                    else:
                        KERNELS[op_name](*arrays, **attrs)
        except Exception as error:
            error.add_note(f"in the kernel of {op_name}")
            self.error = error

    def _is_trivial(self, op_name: str, arrays: Sequence[np.ndarray], made: int) -> bool:
        """Return True if a call on empty arrays needs no kernel: outputs are empty, or sums of nothing (set to 0)."""
        if op_name in SUMS:
            for y in arrays[:made]:
                y.fill(0)
            return True
        return not any(y.size for y in arrays[:made])

    def move(self, to: int, origin: int, nbytes: int) -> None:
        """Copy within the arena; the ranges may overlap."""
        assert max(to, origin) + nbytes <= self._arena.size
        start = self._arena.ctypes.data
        ctypes.memmove(start + to, start + origin, nbytes)  # 8 times as fast as an overlapping NumPy assignment

    def copy_out(self, host: Extents, offset: int) -> None:
        """Copy from the arena to pieces of the host pool. Raises DeviceError if the disk fails."""
        for at, size in host:
            piece = self._arena[offset:offset + size]
            if at >= self._host.size and self.spill is not None:
                self.spill.write(at - self._host.size, piece)
            else:
                streaming.copy(self._host[at:at + size], piece)
            offset += size

    def copy_in(self, offset: int, host: Extents) -> None:
        """Copy from pieces of the host pool to the arena. Raises DeviceError if the disk fails."""
        for at, size in host:
            piece = self._arena[offset:offset + size]
            if at >= self._host.size and self.spill is not None:
                self.spill.read(at - self._host.size, piece)
            else:
                streaming.copy(piece, self._host[at:at + size])
            offset += size

    def poison(self, offset: int, nbytes: int) -> None:
        """Overwrite bytes of the arena with NaN."""
        self._arena[offset:offset + nbytes].fill(POISON)

    def array(self, at: Place) -> np.ndarray:
        """Return the tensor at a place, as a view of the arena."""
        start, meta = at
        itemsize = meta.dtype.itemsize
        first = start + meta.offset * itemsize
        if meta.contiguous:  # True for every tensor without elements
            return self._arena[first:first + meta.nbytes].view(meta.dtype.name).reshape(meta.shape)
        extent = 1 + sum((d - 1) * s for d, s in zip(meta.shape, meta.strides, strict=True))
        flat = self._arena[first:first + extent * itemsize].view(meta.dtype.name)
        return as_strided(flat, meta.shape, tuple(s * itemsize for s in meta.strides))
