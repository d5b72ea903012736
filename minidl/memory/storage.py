"""The two records of the engine, for tensors and for calls. Neither holds an array.

``Storage`` describes one tensor and where its bytes are (the paper's Tensor, Listing 1). ``Call`` describes one
executed operation, its inputs and its outputs.

A storage's status is IN (on the device), SWAPPING_OUT, OUT (on the host), SWAPPING_IN or RECOMPUTE (no bytes; its
lineage can compute them again). ``set_status`` changes it, along a legal edge. Only a new result goes from RECOMPUTE to
IN without it.

A Storage object lives while a handle of its tensor, or the record of a tensor computed from it, refers to it. Its bytes
live while ``refs`` is above 0: ``refs`` counts handles, and calls that saved the tensor for their gradient. A leaf has
no lineage, so it keeps its bytes as long as its Storage object: tensors computed from it may have to be recomputed."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from minidl.meta import Meta
from minidl.op import Attrs, Op, Signature

if TYPE_CHECKING:
    from minidl.device.clock import Extents
    from minidl.memory.bytes.block import Block
    from minidl.memory.neighbourhood import Region
    from minidl.memory.tracker import Tracker

TensorId = int


class Status(Enum):
    """Where a storage's bytes are: on the device (IN), the host (OUT), on the way, or nowhere (RECOMPUTE)."""

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
    """The object that frees the bytes of a storage. Each storage names its own in the field ``keeper``."""

    tracker: Tracker  # numbers calls, and knows when they started

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Free a storage's bytes, which have no use any more. record_gone: the Storage object itself ends too."""


class Storage:
    """The record of one tensor, with the six fields of Capuchin's Listing 1; some are properties.

    A new record has ``refs`` 1, which stands for its first handle."""

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
        self.severed: str | None = None  # the name of the operation that made it, once no gradient flows through it
        self.requires_grad = False
        self.grad: Any = None  # a leaf's gradient (a Tensor)
        self.siblings: tuple[Storage, ...] = ()  # later outputs of the same call that its gradient needs
        self.persistent = False
        self.nbytes = meta.nbytes
        self.refs = 1
        self.saved = 0  # how many of the refs are calls that saved it for their gradient
        self.saved_by = 0  # the number of the first of these calls, whose gradient is taken last
        self.block: Block | None = None  # its bytes on the device
        self.host: Extents | None = None  # a valid copy of the bytes on the host
        self.residency = 0  # the number of its stay on the device in this iteration; a survivor's first stay is 1
        self.copied_out = self.copied_in = 0  # positions of its last copies on the two copy streams
        self.mutated_at = -1  # the number of the last call that wrote it in place
        self.replays = 0  # how many replays have computed it
        self.replayed_at = -1  # the number of the program's latest call when a replay last computed or read it
        self.missing_readers: dict[weakref.ref[Call], None] | None = None  # calls that read it, with a dropped output
        self.me: weakref.ref[Storage] = weakref.ref(self)

    @property
    def base(self) -> Storage:
        """The storage that owns the bytes: this one itself; for a ``View`` its base's."""  # a field would be a cycle
        return self

    # The fields of Listing 1 that are not stored --------------------------------------------------------------
    @property
    def timestamp(self) -> float:
        """The start of its last access, in seconds from the iteration's start, without stalls."""
        return self.keeper.tracker.time_of(self.last_access)

    @property
    def inputs(self) -> tuple[Storage, ...]:
        """The storages that this one was computed from in the current iteration; empty for a leaf or an older one."""
        return self.call.inputs if self.call is not None and self.severed is None else ()

    @property
    def operation_name(self) -> str:
        """The name of the operation that computed this storage in the current iteration; "" for a leaf."""
        return self.call.op.name if self.call is not None and self.severed is None else ""

    def set_status(self, status: Status) -> None:
        """Change ``status``. Raises AssertionError if ``LEGAL`` does not have the change (old, new)."""
        if (self.status, status) not in LEGAL:
            raise AssertionError(f"storage {self.tensor_id} cannot go from {self.status.name} to {status.name}")
        self.status = status

    # Uses of the bytes ---------------------------------------------------------------------------------------
    def retain(self) -> None:
        """Count one more use of the bytes: a new handle, for instance."""
        self.refs += 1

    def release(self) -> None:
        """Count one use less. When none is left, free the bytes, unless the storage is a leaf."""
        self.refs -= 1
        if not self.refs and self.call is not None:
            self.keeper.deallocate(self)

    def retain_saved(self, sequence: int) -> None:
        """Count one more use: call number ``sequence`` saves this tensor for its gradient."""
        if not self.saved:
            self.saved_by = sequence
        self.refs += 1
        self.saved += 1

    def take_saved(self) -> None:
        """Count one saving call less, as its gradient is being taken. Its use stays in ``refs`` until ``release``."""
        self.saved -= 1

    def release_saved(self) -> None:
        """Count one saving call and its use less: that call does not need the bytes for its gradient any more."""
        self.take_saved()
        self.release()

    def sever(self) -> None:
        """Detach this tensor from the autograd graph, and release the tensors that the call that made it has saved."""
        if self.call is not None:
            self.severed = self.call.op.name
            self.call.forget()

    def named(self) -> str:
        """Return the words for this tensor in an error message: its id, shape and dtype."""
        return f"tensor {self.base.tensor_id} ({self.meta})"

    def __del__(self) -> None:
        # A leaf may have uses left, and so may the output of a call that saved it. A storage that is RECOMPUTE without
        # a call was never placed.
        if self.status is not RECOMPUTE or (self.refs and self.call is not None):
            self.keeper.deallocate(self, record_gone=True)

    def __repr__(self) -> str:
        return f"Storage({self.tensor_id}, {self.meta}, {self.base.status.name}, refs {self.base.refs})"


class View(Storage):
    """The record of a view: another shape of its base's bytes. Its id, status, block and uses are the base's."""

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
    """The value of a call's ``saved`` once its gradient has been taken: an empty tuple, told apart by identity."""


TAKEN = _Taken()


class Call:
    """The record of one executed operation. Replays and autograd both read it.

    inputs    the storages that the call read; the call keeps their records alive.
    outputs   weak references to the storages that it made. An output holds its call, so there is no cycle.
    sequence  the number of the call; numbers rise from call to call and never restart.
    needs     for each input, whether it wants a gradient.
    saved     indices into inputs + outputs: tensors whose bytes are kept until the call's gradient has been taken."""

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
        self.region: Region | None = None  # if its output is dropped: the dropped calls connected with it

    def save(self, outputs: Sequence[Storage], needs: tuple[bool, ...], saved: tuple[int, ...]) -> None:
        """Keep the tensors that the gradient's formula reads until it is taken; ``outputs[0]`` now requires a gradient.
        needs: for each input, whether it wants a gradient. saved: indices into inputs + outputs."""
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
        """The storage of one index into inputs + outputs; None if it is an output whose Storage object is gone."""
        n = len(self.inputs)
        return self.inputs[index] if index < n else self.outputs[index - n]()

    def forget(self) -> None:
        """Release the saved tensors. After this the call's gradient cannot be taken."""
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
