"""The copies that undo views. Knows arrays; no tensors, no devices."""

import numpy as np

from minidl.kernels.cpu.blocks import Array
from minidl.meta import Shape


def contiguous(y: Array, x: Array) -> None:
    np.copyto(y, x)


def concat(y: Array, *xs: Array, axis: int) -> None:
    start = 0
    for x in xs:
        stop = start + x.shape[axis]
        np.copyto(y[(slice(None),) * axis + (slice(start, stop),)], x)
        start = stop


def narrow_grad(dx: Array, dy: Array, *, shape: Shape, axis: int, start: int) -> None:
    """dy at [start, start + its extent) along the axis, zeros elsewhere."""
    lead, stop = (slice(None),) * axis, start + dy.shape[axis]
    dx[(*lead, slice(0, start))] = 0
    dx[(*lead, slice(start, stop))] = dy
    dx[(*lead, slice(stop, None))] = 0
