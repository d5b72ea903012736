"""The two records of the engine: ``Storage`` describes one tensor and where its bytes are (the paper's Tensor, Listing
1); ``Call`` describes one operation on storages, and is lineage, tape and trace entry at once. No arrays.

A storage's status is IN (on the device), SWAPPING_OUT, OUT (on the host), SWAPPING_IN or RECOMPUTE (no bytes; its
lineage can compute them again). ``set_status`` changes it, along a legal edge. Only a new result goes from RECOMPUTE to
IN without it.

The record lives while a handle or a descendant's record refers to it. The bytes live while ``refs`` counts a handle, or
a call that saved the tensor. A leaf has no lineage, so it keeps its bytes as long as its record: its descendants may
have to be recomputed from it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from minidl.meta import Meta
from minidl.op import Attrs, Op, Signature

if TYPE_CHECKING:
    from minidl.device.clock import Extents
    from minidl.memory.bytes.block import Block
    from minidl.memory.neighbourhood import Region
    from minidl.memory.tracker import Tracker

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
    (RECOMPUTE, IN),            # computed or recomputed
    (IN, RECOMPUTE),            # dropped, freed, or donated to an output
    (IN, SWAPPING_OUT),
    (IN, OUT),                  # evicted while the host copy is still valid
    (SWAPPING_OUT, OUT),
    (SWAPPING_OUT, IN),         # wanted again, and its block is still its own
    (SWAPPING_OUT, RECOMPUTE),  # freed
    (OUT, SWAPPING_IN),
    (OUT, RECOMPUTE),           # freed
    (SWAPPING_IN, IN),
    (SWAPPING_IN, RECOMPUTE),   # freed
})


class Keeper(Protocol):
    """The object that frees a storage's bytes."""

    tracker: Tracker  # numbers calls, and knows when they started

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Free bytes that have no use any more."""
        ...


class Storage:
    """The record of one tensor. The executor makes it with one use, which passes to the first handle.

    Listing 1 has tensor_id, access_count, timestamp, status, inputs and operation (here ``operation_name``).
    """

    __slots__ = ("meta", "keeper", "call", "siblings", "requires_grad", "severed", "grad", "nbytes", "tensor_id",
                 "refs", "saved", "saved_by", "status", "block", "host", "persistent", "residency", "access_count",
                 "first_access", "last_access", "replays", "replayed_at", "mutated_at", "missing_readers", "copied_out",
                 "copied_in", "me", "__weakref__")

    def __init__(self, meta: Meta, keeper: Keeper, tensor_id: TensorId) -> None:
        self.meta = meta
        self.keeper = keeper
        self.tensor_id = tensor_id
        self.status = RECOMPUTE
        self.access_count = 0  # in this iteration
        self.first_access = self.last_access = -1  # sequence numbers of calls
        self.call: Call | None = None  # its lineage; None for a leaf
        self.severed: str | None = None  # the operation of an ended iteration that made it: no gradient flows through
        self.requires_grad = False
        self.grad: Any = None  # a leaf's gradient (a Tensor)
        self.siblings: tuple[Storage, ...] = ()  # later outputs of the same call that its gradient needs
        self.persistent = False
        self.nbytes = meta.nbytes
        self.refs = 1
        self.saved = 0  # how many of the refs are calls that saved it for their gradient
        self.saved_by = 0  # the first of these calls: its gradient is taken last
        self.block: Block | None = None  # its bytes on the device
        self.host: Extents | None = None  # a valid copy of the bytes on the host
        self.residency = 0  # the number of its stay on the device in this iteration; a survivor's first stay is 1
        self.copied_out = self.copied_in = 0  # positions of its last copies on the two copy streams
        self.mutated_at = -1  # the last call that wrote it in place
        self.replays = 0  # how many replays have computed it
        self.replayed_at = -1  # the last call of the program before which a replay computed or read it
        self.missing_readers: dict[weakref.ref[Call], None] | None = None  # dropped calls that read it
        self.me: weakref.ref[Storage] = weakref.ref(self)

    @property
    def base(self) -> Storage:
        """The storage that has the bytes. A property, as an object that held itself would never be freed."""
        return self

    # The fields of Listing 1 that are not stored --------------------------------------------------------------
    @property
    def timestamp(self) -> float:
        """Start of its last access, in seconds on this iteration's stall-free timeline."""
        return self.keeper.tracker.time_of(self.last_access)

    @property
    def inputs(self) -> tuple[Storage, ...]:
        """The storages that it was computed from in this iteration."""
        return self.call.inputs if self.call is not None and self.severed is None else ()

    @property
    def operation_name(self) -> str:
        """The operation that computed it in this iteration; "" for a leaf."""
        return self.call.op.name if self.call is not None and self.severed is None else ""

    def set_status(self, status: Status) -> None:
        """Change the status. Raises AssertionError for an edge that is not legal."""
        if (self.status, status) not in LEGAL:
            raise AssertionError(f"storage {self.tensor_id} cannot go from {self.status.name} to {status.name}")
        self.status = status

    # Uses of the bytes ---------------------------------------------------------------------------------------
    def retain(self) -> None:
        """Count one more use of the bytes."""
        self.refs += 1

    def release(self) -> None:
        """Count one use less. The last one frees the bytes, unless it is a leaf."""
        self.refs -= 1
        if not self.refs and self.call is not None:
            self.keeper.deallocate(self)

    def retain_saved(self, sequence: int) -> None:
        """Count a call, by its number, that saves the bytes for its gradient."""
        if not self.saved:
            self.saved_by = sequence
        self.refs += 1
        self.saved += 1

    def take_saved(self) -> None:
        """A call's gradient is being taken: its use becomes an ordinary one."""
        self.saved -= 1

    def release_saved(self) -> None:
        """A call does not need the bytes for its gradient any more."""
        self.take_saved()
        self.release()

    def sever(self) -> None:
        """No gradient flows through it any more: release the tensors that its call saved."""
        if self.call is not None:
            self.severed = self.call.op.name
            self.call.forget()

    def named(self) -> str:
        """Its name in an error."""
        return f"tensor {self.base.tensor_id} ({self.meta})"

    def __del__(self) -> None:
        # A leaf may have uses left, and so may the output of a call that saved it. A storage that is RECOMPUTE without
        # a call was never placed.
        if self.status is not RECOMPUTE or (self.refs and self.call is not None):
            self.keeper.deallocate(self, record_gone=True)

    def __repr__(self) -> str:
        return f"Storage({self.tensor_id}, {self.meta}, {self.base.status.name}, refs {self.base.refs})"


class View(Storage):
    """Another description of a base's bytes. Bytes, uses and accesses are the base's; a view has only the fields that
    every call reads from its operands."""

    __slots__ = ("base",)

    def __init__(self, meta: Meta, base: Storage) -> None:
        self.meta = meta
        self.keeper = base.keeper
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
        """A view has no bytes to free."""


class _Taken(tuple[int, ...]):
    """Replaces a call's ``saved`` once its gradient has been taken."""


TAKEN = _Taken()


class Call:
    """The record of one call: lineage, tape and trace entry at once.

    inputs    storages, held: their records live as long as this one.
    outputs   weak references: an output's record holds its call, never the reverse, so there is no cycle.
    saved     indices into inputs + outputs: tensors whose bytes are kept until the gradient has been taken.
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
        self.region: Region | None = None  # the connected dropped calls around it (``neighbourhood``)

    def save(self, outputs: Sequence[Storage], needs: tuple[bool, ...], saved: tuple[int, ...]) -> None:
        """Keep the tensors that the gradient's formula names. needs: the inputs that want a gradient."""
        self.needs = needs
        self.saved = saved
        outputs[0].requires_grad = True
        inputs = self.inputs
        count = len(inputs)
        for index in saved:
            (inputs[index] if index < count else outputs[index - count]).retain_saved(self.sequence)
        if len(outputs) > 1:
            # Gradients arrive through the first output, so it holds the later ones that are saved.
            outputs[0].siblings = tuple([s for i, s in enumerate(outputs) if i and count + i in saved])

    def saved_storage(self, index: int) -> Storage | None:
        """The storage behind one index of ``saved``; None if an output's record is gone."""
        n = len(self.inputs)
        return self.inputs[index] if index < n else self.outputs[index - n]()

    def forget(self) -> None:
        """Release the saved tensors: the gradient cannot be taken from now on."""
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
