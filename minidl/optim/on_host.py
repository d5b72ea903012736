"""Optimizer states that live in host memory, and updates that run there (as in ZeRO-Offload, Ren et al. 2021).

An update on the host is one call. Its operands on the device are the parameters, which it writes, and the gradients;
the states are arrays of the host, which it gets as an attribute. It copies gradients to the host, updates there, and
copies the parameters back. On a simulated GPU it takes as long as the slowest of these three, since pieces of one call
overlap, and the compute stream waits for it. On the CPU, whose device memory is host memory, it is the device's own
kernel on the same numbers, so its bits are those of an update on the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from minidl.context import current
from minidl.meta import Cost, DType, Meta, Shape
from minidl.op import Attrs, Op
from minidl.ops import update
from minidl.tensor import Tensor


class HostArray:
    """An optimizer state in host memory, at first zeros; it never comes to the device. Its bytes count in the runtime's
    host memory, like a swapped-out tensor's. Raises OutOfMemory if there is no room for them."""

    def __init__(self, shape: Shape, dtype: DType) -> None:
        executor = current()
        self.shape, self.dtype = shape, dtype
        nbytes = int(np.prod(shape)) * dtype.itemsize
        free = executor.memory.keep_on_host(nbytes)
        self.array = np.zeros(shape, dtype.name) if executor.device.has_values else None
        weakref.finalize(self, free)

    def numpy(self) -> np.ndarray:
        """Return a copy, after all updates so far; NaN on a device without values."""
        current().finish()
        return np.full(self.shape, np.nan, self.dtype.name) if self.array is None else self.array.copy()

    def write(self, values: np.ndarray) -> None:
        """Overwrite the values, after all updates so far."""
        current().finish()
        if self.array is not None:
            self.array[...] = values

    def __deepcopy__(self, memo: dict[int, Any]) -> HostArray:
        made = memo[id(self)] = HostArray(self.shape, self.dtype)
        made.write(self.numpy())
        return made


def write(target: Tensor | HostArray, values: np.ndarray) -> None:
    """Overwrite a tensor, on the device or on the host, with the values of an array of its shape."""
    if isinstance(target, HostArray):
        target.write(values)
    else:
        update.upload_(target, values)


def _cost(groups: int) -> Any:
    def cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
        written = sum(m.nbytes for m in inputs) / 2  # the parameters: as many bytes go each way over the link
        return Cost(written * groups, written * (2 * groups - 1), "host", link_bytes=written)
    return cost


def _on_host(op: Op, groups: int) -> Op:
    return Op(f"host_{op.name}", update._groups(2), _cost(groups), mutates=update._group_mutates(2), update=True,
              volatile=(*op.volatile, "states"))


# Updates that can run on the host: by the name of the operation on the device.
HOST_UPDATES = {op.name: _on_host(op, groups) for op, groups in (
    (update.SGD_MOMENTUM, 3), (update.ADAM, 4), (update.ADADELTA, 4))}
