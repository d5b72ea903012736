"""A watch for the first operation whose result is no number.

Every result is read when it is made, so the host waits for each operation: a step takes several times as long. The
values themselves, and what memory management does, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from minidl.context import current
from minidl.errors import UserError
from minidl.memory.storage import IN, Storage


class Anomaly(UserError):
    """An operation made NaN: its name is ``op``."""

    def __init__(self, message: str, *, op: str) -> None:
        super().__init__(message)
        self.op = op


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Inside, an operation of the current runtime that makes NaN raises Anomaly with its name, its inputs and how many
    values of its result are NaN. On a device without values nothing is looked at."""
    executor = current()
    if not executor.device.has_values:
        yield
        return

    def inspect(op: str, inputs: tuple[Storage, ...], results: tuple[Storage, ...]) -> None:
        for result in results:
            if not result.meta.dtype.floating:
                continue
            value = executor.device.read(result)
            wrong = int(np.isnan(value).sum())
            if wrong:
                given = ", ".join(map(described, inputs))
                raise Anomaly(f"{op} made NaN: {wrong} of the {value.size} values of {result.meta}; it was operation "
                              f"{executor.tracker.sequence - executor.tracker.iteration_start + 1} of its iteration; "
                              f"its inputs: {given or 'none'}", op=op)

    def described(storage: Storage) -> str:
        # What the operation wrote over, or was allowed to write over, is no longer there to be looked at.
        if storage.base.status is not IN or not storage.meta.dtype.floating:
            return f"{storage.meta}"
        value = executor.device.read(storage)
        with np.errstate(invalid="ignore"):
            return f"{storage.meta} from {value.min():.4g} to {value.max():.4g}" if value.size else f"{storage.meta}"

    before, executor.inspect = executor.inspect, inspect
    try:
        yield
    finally:
        executor.inspect = before
