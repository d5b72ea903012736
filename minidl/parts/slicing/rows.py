"""Ranges of rows of a storage: views of them, and copies that a rank keeps of a divided tensor."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from minidl.memory.storage import Storage
from minidl.ops.shape import CONTIGUOUS, NARROW
from minidl.parts.slicing.logical import Logical

if TYPE_CHECKING:
    from collections.abc import Iterator

    from minidl.executor import Executor


@contextmanager
def ungraded(executor: Executor) -> Iterator[None]:
    """Disable gradients in a ``with`` block: autograd records the call on whole tensors, not the calls on slices."""
    enabled, executor.grad_enabled = executor.grad_enabled, False
    try:
        yield
    finally:
        executor.grad_enabled = enabled


def narrowed(executor: Executor, whole: Storage, start: int, size: int) -> Storage:
    """Return a view of the rows from ``start`` to before ``start + size``; the caller releases it."""
    return executor.run(NARROW, (whole,), {"axis": 0, "start": start, "stop": start + size})[0]


def put_rows(executor: Executor, held: range, y: Logical, made: Storage) -> None:
    """Set the parts of y, which is divided: the slices with the numbers ``held``.
    made: the rows of these slices, or the whole tensor, from which they are copied. This function releases it."""
    rows = [y.sizes[index] for index in held]
    if made.meta.shape[0] == sum(rows) and len(rows) == 1:
        y.put_part(0, made)
        return
    whole = made.meta.shape[0] > sum(rows)
    start = sum(y.sizes[:held.start]) if whole else 0
    with ungraded(executor):
        for at, size in enumerate(rows):
            part = narrowed(executor, made, start, size)
            start += size
            if whole:
                y.put_part(at, executor.run(CONTIGUOUS, (part,), {})[0])
                executor.make_leaf(y.part(at))  # a replay would need the other rows
                part.release()
            else:
                y.put_part(at, part)
    made.release()
