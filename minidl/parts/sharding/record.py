"""Defines Sharded, the record of a tensor in shards: one tensor for the program, and one leaf per shard for the engine.

A Sharded takes the place of the Storage in a handle. No call has it as an input: the sharder runs each operation on its
shards instead, so autograd, optimizers and memory see only shards.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from minidl.memory.storage import Call, Storage
from minidl.meta import Meta
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from minidl.parts.sharding.sharder import Sharder


class Sharded(Storage):
    """The record of a tensor in shards: what the program sees as one tensor.

    shards   one handle for each shard; shards are consecutive ranges of rows along the first dimension."""

    __slots__ = ("shards",)

    def __init__(self, meta: Meta, sharder: Sharder, shards: tuple[Tensor, ...]) -> None:
        self.meta = meta
        self.keeper = sharder
        self.siblings = ()
        self.severed = None
        self.nbytes = meta.nbytes
        self.refs = 1
        self.saved = 0
        self.mutated_at = -1
        self.me: weakref.ref[Storage] = weakref.ref(self)
        self.shards = shards

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """For each shard, its first row and the row after its last."""
        found, start = [], 0
        for shard in self.shards:
            found.append((start, start + shard.shape[0]))
            start += shard.shape[0]
        return found

    @property
    def _first(self) -> Storage:
        return self.shards[0].storage

    # The fields of Listing 1, and the call that made it, are those of the first shard.
    tensor_id = property(lambda self: self._first.base.tensor_id)
    status = property(lambda self: self._first.base.status)
    access_count = property(lambda self: self._first.base.access_count)
    timestamp = property(lambda self: self._first.base.timestamp)
    persistent = property(lambda self: self._first.base.persistent)

    def _call(self) -> Call | None:
        return self._first.call if self.shards else None

    def _wants_grad(self) -> bool:
        return any(shard.storage.requires_grad for shard in self.shards)

    def _want_grad(self, value: bool) -> None:
        for shard in self.shards:
            shard.requires_grad = value

    def _grad(self) -> Tensor | None:
        return self._sharder.gradient(self)

    def _take_grad(self, value: Tensor | None) -> None:
        self._sharder.set_gradient(self, value)

    @property
    def _sharder(self) -> Sharder:
        sharder: Any = self.keeper
        return sharder  # type: ignore[no-any-return]

    call = property(_call)
    requires_grad = property(_wants_grad, _want_grad)
    grad = property(_grad, _take_grad)

    def retain(self) -> None:
        self.refs += 1

    def release(self) -> None:
        self.refs -= 1
        if not self.refs:
            self.shards = ()

    def sever(self) -> None:
        """Does nothing: each shard has a lineage of its own."""

    def named(self) -> str:
        return f"tensor {self.tensor_id} ({self.meta}, in {len(self.shards)} shards)"

    def __del__(self) -> None:
        """Does nothing: the handles of the shards end with this record, and free their bytes."""

    def __repr__(self) -> str:
        return f"Sharded({self.meta}, {len(self.shards)} shards, refs {self.refs})"
