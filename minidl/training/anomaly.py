"""Detection of the first operation whose result contains NaN.

The host reads every result as soon as it is computed, so a step takes several times as long. Values and the decisions
of memory management do not change.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from minidl.context import current
from minidl.errors import UserError
from minidl.memory.storage import IN, Storage


class Anomaly(UserError):
    """The error for an operation that made NaN; ``op`` is the operation's name."""

    def __init__(self, message: str, *, op: str) -> None:
        super().__init__(message)
        self.op = op


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Inside, an operation that makes NaN raises Anomaly with its name, its inputs and the number of NaN values.
    It applies to the current runtime; on a device without values it does nothing."""
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
        # A donated or evicted input has no bytes on the device to read.
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
