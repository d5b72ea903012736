"""Defines Logical: the record of a tensor in slices, or of a whole tensor that queued calls will compute.

A Logical takes the place of the Storage in a handle, and in a call's record for its gradient. Its parts are ordinary
storages, with bytes, lineage and status. The slicer runs operations on them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, cast

from minidl.errors import UserError
from minidl.memory.storage import Call, Status, Storage
from minidl.meta import Meta

if TYPE_CHECKING:
    from minidl.parts.slicing.joiner import Joiner


class Logical(Storage):
    """The record of a tensor in slices: what the program sees as one tensor.

    parts    the storages of the slices that this rank holds (all, if there are no ranks), by number; None for a slice
             that is still to be computed, or was released
    sizes    the number of rows of each slice, of all ranks; () for a tensor of the whole batch, which has one part
    waiting  how many queued calls read it or make it
    failed   why it has no value, if the calls that should have made it failed; else ""
    divided  True for a tensor of which each rank keeps its rows alone, such as an optimizer state: it is no batch, and
             joining it makes a copy
    owner    for a view: the tensor in slices whose elements it shows; else None
    until    a number that goes to ``saved_by`` of the parts: a part with a smaller one is needed longer. None: the
             parts are needed as long as a handle exists"""

    __slots__ = ("parts", "sizes", "waiting", "failed", "owner", "until", "divided")

    def __init__(self, meta: Meta, slicer: Joiner, sizes: tuple[int, ...], base: Logical | None = None, *,
                 divided: bool = False) -> None:
        self.meta = meta
        self.keeper = slicer
        self.call: Call | None = None
        self.siblings = ()
        self.requires_grad = False
        self.severed = None
        self.grad = None
        self.nbytes = meta.nbytes
        self.refs = 1
        self.saved = 0
        self.mutated_at = -1
        self.persistent = False
        self.me: weakref.ref[Storage] = weakref.ref(self)
        self.parts: list[Storage | None] = [None] * (len(slicer.held) if sizes else 1)
        self.sizes = sizes
        self.waiting = 0
        self.until: int | None = None
        self.failed = ""
        self.owner = base
        self.divided = divided

    @property
    def base(self) -> Storage:
        """The record of the tensor that an operation in place writes: for a view its ``owner``, else this one."""
        return self if self.owner is None else self.owner

    @property
    def pending(self) -> bool:
        """True if a part is still to be computed, and the tensor is still needed."""
        return None in self.parts and self.refs > 0

    @property
    def _first(self) -> Storage | None:
        return self.parts[0]

    # The fields of Listing 1 are those of the first slice.
    tensor_id = property(lambda self: -1 if self._first is None else self._first.base.tensor_id)
    status = property(lambda self: Status.RECOMPUTE if self._first is None else self._first.base.status)
    access_count = property(lambda self: 0 if self._first is None else self._first.base.access_count)
    timestamp = property(lambda self: 0.0 if self._first is None else self._first.base.timestamp)

    def retain(self) -> None:
        self.refs += 1

    def release(self) -> None:
        self.refs -= 1
        if not self.refs and not self.waiting:
            self.drop()

    def retain_saved(self, sequence: int) -> None:
        if not self.saved:
            self.keep_until(sequence)
        self.refs += 1
        self.saved += 1

    def take_saved(self) -> None:
        self.saved -= 1
        if not self.saved:
            self.keep_until(None)

    def keep_until(self, number: int | None) -> None:
        """Set ``until``, and count it in the parts: memory then knows how long they can serve a replay."""
        parts = list(self.parts)
        for i in range(len(parts)):
            self._take_part(i)
        self.until = number
        for i, part in enumerate(parts):
            if part is not None:
                self.put_part(i, part)

    def put_part(self, index: int, part: Storage) -> None:
        """Set the storage of slice ``index``. The use that the storage counts passes from the caller to this record."""
        self.parts[index] = part
        if self.until is not None:
            base = part.base
            base.saved_by = self.until if not base.saved else min(base.saved_by, self.until)
            base.saved += 1

    def _take_part(self, index: int) -> Storage | None:
        part, self.parts[index] = self.parts[index], None
        if part is not None and self.until is not None:
            part.base.saved -= 1
        return part

    def like(self) -> Logical:
        """Return a record without parts, of the same shape and slices."""
        slicer = cast("Joiner", self.keeper)
        return Logical(self.meta, slicer, self.sizes, divided=self.divided)

    def divide(self, sizes: tuple[int, ...], count: int) -> None:
        """Make this record of a whole tensor, still to be computed, one of a tensor divided among the ranks.
        sizes: the rows of each slice. count: how many of the slices this rank holds."""
        self.sizes, self.parts, self.divided = sizes, [None] * count, True

    def part(self, index: int) -> Storage:
        """Return the storage of slice ``index``. Raises UserError if it has none."""
        part = self.parts[index]
        if part is None:
            raise UserError(f"{self.named()} has no value: {self.failed or 'it was donated'}")
        return part

    def drop(self) -> None:
        """Release all parts."""
        for i in range(len(self.parts)):
            self.drop_part(i)

    def drop_part(self, index: int) -> None:
        """Release the storage of slice ``index``, if it has one."""
        part = self._take_part(index)
        if part is not None:
            part.release()

    def sever(self) -> None:
        if self.call is not None:
            self.severed = self.call.op.name
            self.call.forget()
            self.call = None

    def named(self) -> str:
        kind = f"in {len(self.sizes)} slices" if self.sizes else "of all slices"
        return f"tensor {self.tensor_id} ({self.meta}, {kind})"

    def __del__(self) -> None:
        self.drop()

    def __repr__(self) -> str:
        return f"Logical({self.meta}, {self.sizes or 'whole'}, refs {self.refs})"
