"""The record of a tensor in slices along its batch, or of a value that is still to be united from all slices.

It replaces a Storage: a handle, and a call's record for its gradient, count its uses and ask for its shape. Its parts
are ordinary storages, which have the bytes, lineage and status. The slicer applies operations to them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from minidl.errors import UserError
from minidl.memory.storage import Call, Status, Storage
from minidl.meta import Meta

if TYPE_CHECKING:
    from minidl.parts.slicing.slicer import Slicer


class Logical(Storage):
    """A whole tensor as its program sees it.

    parts    its storages, in order: those of the slices that this rank holds, which are all if there are no ranks.
             None for one that is still to be computed, or is not needed any more.
    sizes    the extents of all slices along the first dimension; () for one value of the whole batch.
    waiting  how many queued operations read it.
    until    how long the parts are kept, as ``Storage.saved_by`` (less is longer); None: as long as a handle.
    """

    __slots__ = ("parts", "sizes", "waiting", "failed", "owner", "until")

    def __init__(self, meta: Meta, slicer: Slicer, sizes: tuple[int, ...], base: Logical | None = None) -> None:
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
        self.failed = ""  # why it will never have a value
        self.owner = base  # of a view: whose elements these are

    @property
    def base(self) -> Storage:
        """The record that an operation in place writes to."""
        return self if self.owner is None else self.owner

    @property
    def pending(self) -> bool:
        """True if a part is still to be computed."""
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
        """Set how long the parts are kept: as long their descendants can be recomputed."""
        parts = list(self.parts)
        for i in range(len(parts)):
            self._take_part(i)
        self.until = number
        for i, part in enumerate(parts):
            if part is not None:
                self.put_part(i, part)

    def put_part(self, index: int, part: Storage) -> None:
        """Take over the use of a part."""
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

    def part(self, index: int) -> Storage:
        """One of the parts. Raises UserError if it is gone."""
        part = self.parts[index]
        if part is None:
            raise UserError(f"{self.named()} has no value: {self.failed or 'it was donated'}")
        return part

    def drop(self) -> None:
        """Release all parts."""
        for i in range(len(self.parts)):
            self.drop_part(i)

    def drop_part(self, index: int) -> None:
        """Release one part."""
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
