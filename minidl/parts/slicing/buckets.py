"""Collects gradients into buckets, each of which the ranks sum in one exchange.

An exchange has a latency, and most gradients are small: those of biases and norms. A bucket is full when it has 1 MiB
or 64 gradients. A gradient of 1 MiB is sent alone, as soon as it is computed. Which gradients share a bucket
follows from the network alone, never from a plan or a budget: all ranks have the same buckets. The sum of an element
has the same order in every bucket, so buckets change no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minidl.memory.storage import Storage
from minidl.meta import DType
from minidl.parts.slicing.exchange import MOST_OF_A_BUCKET, SUM_RANKS, SUM_ROWS
from minidl.parts.slicing.logical import Logical

if TYPE_CHECKING:
    from minidl.executor import Executor
    from minidl.ranks.consensus import Alone

BUCKET_BYTES = 1 << 20


class Buckets:
    """The gradients that wait for their exchange: divided ones apart from the others, and each dtype apart.

    put         sets the value of a tensor: (record, its sum or this rank's rows of it)
    full_bytes  the bytes from which on a bucket is full"""

    full_bytes = BUCKET_BYTES

    def __init__(self, executor: Executor, consensus: Alone, put: Callable[[Logical, Storage], None]) -> None:
        self._executor, self._consensus, self._put = executor, consensus, put
        self._open: dict[tuple[bool, DType], list[tuple[Logical, tuple[Storage, ...]]]] = {}

    def add(self, y: Logical, parts: tuple[Storage, ...]) -> None:
        """Take the parts of y that this rank's slices have computed; start an exchange if the bucket is full."""
        key = (y.divided, y.meta.dtype)
        if y.nbytes >= self.full_bytes:
            self._exchange(key[0], [(y, parts)])
            return
        bucket = self._open.setdefault(key, [])
        bucket.append((y, parts))
        if len(bucket) == MOST_OF_A_BUCKET or sum(x.nbytes for x, _ in bucket) >= self.full_bytes:
            self._exchange(key[0], self._open.pop(key))

    def close(self) -> None:
        """Start the exchanges of all buckets that are not full."""
        for key in list(self._open):
            self._exchange(key[0], self._open.pop(key))

    def clear(self) -> None:
        """Forget all gradients that wait, as an error has ended their computation."""
        self._open.clear()

    def _exchange(self, divided: bool, bucket: list[tuple[Logical, tuple[Storage, ...]]]) -> None:
        parts = [x for of_slice in zip(*[parts for _, parts in bucket], strict=True) for x in of_slice]
        attrs = {"ranks": self._consensus.ranks, "each": len(bucket[0][1]), "turn": self._consensus.turn()}
        sums = self._executor.run(SUM_ROWS if divided else SUM_RANKS, tuple(parts), attrs, (1 << len(parts)) - 1)
        for x in parts:
            x.release()
        for (y, _), made in zip(bucket, sums, strict=True):
            self._put(y, made)
