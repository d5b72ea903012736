"""The two records: Storage, of one tensor and of where its bytes are (the paper's Tensor, Listing 1); and Call, of one
operation on storages, which is lineage, tape and trace entry at once. No arrays.

States: IN (on the device), SWAPPING_OUT, OUT (on the host), SWAPPING_IN, RECOMPUTE (no bytes anywhere; its lineage
can make them again, as long as someone may ask). A state changes in ``become`` only, along a legal edge, but
for the first, from no bytes to IN, when a result is placed.

A record lives while a handle, or a descendant's record, refers to it. Its bytes live while someone may ask for them:
``refs`` counts handles and calls that saved it; at zero they are freed. A leaf (no lineage) keeps its bytes as long
as its record, since what was computed from it may have to be computed again.
"""

from __future__ import annotations

import weakref
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from minidl.meta import Meta
from minidl.op import Attrs, Op, Signature

if TYPE_CHECKING:
    from minidl.device.clock import Extents
    from minidl.memory.bytes.block import Block
    from minidl.memory.neighbourhood import Region

TensorId = int
meta_of, me_of = attrgetter("meta"), attrgetter("me")  # of a storage: to map over operands, in C


class Status(Enum):
    """Where a storage's bytes are."""

    IN = "in"
    SWAPPING_OUT = "swapping out"
    OUT = "out"
    SWAPPING_IN = "swapping in"
    RECOMPUTE = "recompute"

    __hash__ = object.__hash__  # members are single objects: hash by identity, in C


IN, SWAPPING_OUT, OUT, SWAPPING_IN, RECOMPUTE = Status
LEGAL = frozenset({
    (RECOMPUTE, IN),            # produced, or produced again
    (IN, RECOMPUTE),            # dropped, freed, or written over by the output it was donated to
    (IN, SWAPPING_OUT),
    (IN, OUT),                  # evicted while the host copy is still valid
    (SWAPPING_OUT, OUT),
    (SWAPPING_OUT, IN),         # the copy is made or under way, the bytes were not given away: wanted again
    (SWAPPING_OUT, RECOMPUTE),  # freed
    (OUT, SWAPPING_IN),
    (OUT, RECOMPUTE),           # freed
    (SWAPPING_IN, IN),
    (SWAPPING_IN, RECOMPUTE),   # freed
})


class Keeper(Protocol):
    """What a storage asks of the memory that keeps its bytes."""

    @property
    def tracker(self) -> Clock:
        """Knows when calls started."""
        ...

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Nobody can ask for these bytes any more."""
        ...


class Clock(Protocol):
    """Tells when a call started."""

    def time_of(self, sequence: int) -> float:
        """Seconds on the stall-free timeline of this iteration."""
        ...


class Storage:
    """The record of one tensor. Made by the executor with one use, which the first handle takes over."""

    __slots__ = ("meta", "memory", "call", "siblings", "requires_grad", "severed", "grad", "nbytes", "tensor_id",
                 "refs", "saved", "saved_by", "status", "block", "host", "persistent", "residency", "access_count",
                 "first_access", "last_access", "replays", "replayed_at", "mutated_at", "missing_readers", "copied_out",
                 "copied_in", "me", "__weakref__")

    def __init__(self, meta: Meta, memory: Keeper, tensor_id: TensorId) -> None:
        self.meta = meta
        self.memory = memory
        self.call: Call | None = None
        self.siblings: tuple[Storage, ...] = ()  # later outputs of the same call that its gradient needs
        self.requires_grad = False
        self.severed: str | None = None  # the operation that made it, in an iteration that has ended: its graph is gone
        self.grad: Any = None  # a leaf's gradient (a Tensor)
        self.nbytes = meta.nbytes
        self.tensor_id = tensor_id
        self.refs = 1
        self.saved = 0  # how many of the refs are calls that need it for their gradient
        self.saved_by = 0  # the first of these, whose gradient is taken last: until then it is there
        self.status = RECOMPUTE
        self.block: Block | None = None
        self.host: Extents | None = None  # a valid copy of the bytes on the host
        self.persistent = False
        self.residency = 0  # how often it has got a block in this iteration, if it was made in it; else one more
        self.access_count = 0
        self.first_access = -1  # sequence numbers of calls
        self.last_access = -1
        self.replays = 0  # how often it has been made again
        self.replayed_at = -1  # the last call before which a replay has made or read it: no access of the program
        self.mutated_at = -1
        self.missing_readers: dict[weakref.ref[Call], None] | None = None  # that read it; once missing
        self.copied_out = 0  # positions of its last copy on the copy-out and the copy-in stream
        self.copied_in = 0
        self.me: weakref.ref[Storage] = weakref.ref(self)

    @property
    def base(self) -> Storage:
        """The storage whose bytes these are. A property: an object that held itself would never be freed."""
        return self

    def become(self, status: Status) -> None:
        """Change state. Raises AssertionError for an edge that does not exist."""
        if (self.status, status) not in LEGAL:
            raise AssertionError(f"storage {self.tensor_id} cannot go from {self.status.name} to {status.name}")
        self.status = status

    def retain(self) -> None:
        """Count one more use of the bytes."""
        self.refs += 1

    def release(self) -> None:
        """One use less. The last one frees the bytes; a leaf's go with its record."""
        self.refs -= 1
        if not self.refs and self.call is not None:
            self.memory.deallocate(self)

    def retain_saved(self, sequence: int) -> None:
        """Count a call, by its number, that needs the bytes for its gradient."""
        if not self.saved:
            self.saved_by = sequence
        self.refs += 1
        self.saved += 1

    def take_saved(self) -> None:
        """A call's gradient is being taken: its use goes on without it."""
        self.saved -= 1

    def release_saved(self) -> None:
        """A call's gradient has been taken, or will never be."""
        self.take_saved()
        self.release()

    @property
    def is_leaf(self) -> bool:
        """Nothing can compute it again."""
        return self.call is None

    @property
    def timestamp(self) -> float:
        """When its last access began, in seconds on this iteration's stall-free timeline (Listing 1)."""
        return self.memory.tracker.time_of(self.last_access)

    def named(self) -> str:
        """How an error names it."""
        return f"tensor {self.base.tensor_id} ({self.meta})"

    def sever(self) -> None:
        """Its iteration has ended: no gradient flows through it any more, and what was kept for that is released."""
        if self.call is not None:
            self.severed = self.call.op.name
            self.call.forget()

    @property
    def inputs(self) -> tuple[Storage, ...]:
        """What it was computed from (Listing 1), in this iteration."""
        return self.call.inputs if self.call is not None and self.severed is None else ()

    @property
    def operation_name(self) -> str:
        """The operation that made it in this iteration; "" of a leaf (Listing 1)."""
        return self.call.op.name if self.call is not None and self.severed is None else ""

    def __del__(self) -> None:
        # Uses may remain: a leaf keeps its bytes, and a call that saved its own output cannot release it any more.
        # Without bytes or a call it was never placed, and nobody has it on a list.
        if self.status is not RECOMPUTE or (self.refs and self.call is not None):
            self.memory.deallocate(self, record_gone=True)

    def __repr__(self) -> str:
        return f"Storage({self.tensor_id}, {self.meta}, {self.base.status.name}, refs {self.base.refs})"


class View(Storage):
    """Another description of a base's bytes: all about bytes, uses and accesses is the base's. What every call asks of
    its operands can be asked of either; the rest a view does not have."""

    __slots__ = ("base",)

    def __init__(self, meta: Meta, base: Storage) -> None:
        self.meta = meta
        self.memory = base.memory
        self.call = None
        self.siblings = ()
        self.requires_grad = False
        self.severed = None
        self.grad = None
        self.nbytes = meta.nbytes
        self.me = weakref.ref(self)
        self.base = base  # type: ignore[misc] # the slot replaces the property
        base.refs += 1

    tensor_id = property(lambda self: self.base.tensor_id)
    status = property(lambda self: self.base.status)
    block = property(lambda self: self.base.block)

    def retain(self) -> None:
        self.base.retain()

    def release(self) -> None:
        self.base.release()

    def retain_saved(self, sequence: int) -> None:
        self.base.retain_saved(sequence)

    def take_saved(self) -> None:
        self.base.take_saved()

    def release_saved(self) -> None:
        self.base.release_saved()

    def __del__(self) -> None:
        """A view has no bytes of its own."""


class _Taken(tuple[int, ...]):
    """In the place of what a call has saved for its gradient: it has been taken."""


TAKEN = _Taken()


class Call:
    """The record of one call: lineage, tape and trace entry at once. ``saved`` goes from full to TAKEN, once.

    inputs    storages, held, so that their own records live as long as this one.
    outputs   weak references: an output's record holds its call, never the reverse, so no cycle needs collecting.
    saved     indices into inputs + outputs whose bytes are kept until the gradient has been taken.
    """

    __slots__ = ("op", "inputs", "attrs", "outputs", "sequence", "signature", "needs", "saved", "region",
                 "__weakref__")

    def __init__(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, outputs: tuple[weakref.ref[Storage], ...],
                 sequence: int, signature: Signature) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.outputs = outputs
        self.sequence = sequence
        self.signature = signature
        self.needs: tuple[bool, ...] = ()
        self.saved: tuple[int, ...] = ()
        self.region: Region | None = None  # the missing calls that it hangs together with (``neighbourhood``)

    def saved_storage(self, index: int) -> Storage | None:
        """The storage behind one index of ``saved``; None if an output's record is gone."""
        n = len(self.inputs)
        return self.inputs[index] if index < n else self.outputs[index - n]()

    def forget(self) -> None:
        """Stop keeping bytes for the gradient, which cannot be taken from now on."""
        self.needs = ()
        saved, self.saved = self.saved, ()
        for index in saved:
            storage = self.saved_storage(index)
            if storage is not None:
                storage.release_saved()

    def __del__(self) -> None:
        if self.saved:
            self.forget()

    def __repr__(self) -> str:
        return f"Call({self.sequence}: {self.op.name})"
