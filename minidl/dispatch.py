"""Calling operations on tensors: the only way from a formula to the executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minidl.context import current
from minidl.errors import UserError, WrongKind
from minidl.memory.storage import Storage
from minidl.op import Attrs, Op
from minidl.saved_tensors import stranger
from minidl.tensor import GONE, Tensor

if TYPE_CHECKING:
    from minidl.parts.sharding.seam import Sharding
    from minidl.parts.slicing.seam import Slicing


def give(tensor: Tensor) -> Tensor:
    """Mark the next use of this handle as its last: the operation may write over its bytes, and frees them after.

    Gradient formulas hand over what they use for the last time; the handle is dead once the operation has run.
    """
    tensor.given = True
    return tensor


def replaced(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """x = function(x), where the handle itself goes on with the result, which may have been written over its bytes.

    Raises UserError for a leaf that requires a gradient, as there would be nothing left for it to arrive at.
    """
    if x.requires_grad and not x.operation_name:
        raise UserError(f"{x.storage.named()} is a leaf that requires a gradient: no layer may work on it in place")
    result = function(give(x))
    x.storage, x.given, result.storage = result.storage, False, GONE
    return x


def exchange(x: Tensor, other: Tensor) -> None:
    """Let the handle x stand for another tensor's bytes from now on; the other handle is gone."""
    old, x.storage, other.storage = x.storage, other.storage, GONE
    old.release()


def apply_all(op: Op, *tensors: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
    """Run an operation on tensors and return its outputs. Raises ShapeError, OutOfMemory and what its kernel raises."""
    return tuple([Tensor(storage) for storage in _run(op, tensors, attrs)])


def apply(op: Op, *tensors: Tensor, **attrs: Any) -> Tensor:
    """Run an operation on tensors and return its first output; raises what ``apply_all`` does."""
    return Tensor(_run(op, tensors, attrs)[0])


def _run(op: Op, tensors: tuple[Tensor, ...], attrs: Attrs) -> tuple[Storage, ...]:
    """The only way from a formula to the executor."""
    executor = current()
    memory, slicer, sharder = executor.memory, executor.slicer, executor.sharder
    given = 0
    keeper: Slicing | Sharding | None = None  # of an operand that is not one storage; one in shards comes first
    inputs: list[Storage] = []
    if attrs:
        for name, value in attrs.items():
            if value.__class__ is Tensor:
                raise WrongKind(f"{op.name} takes a number for {name}, not a tensor, whose gradient would be lost: "
                                "x.item() reads one")
    try:
        for tensor in tensors:
            if tensor.given:
                given |= 1 << len(inputs)
            storage = tensor.storage
            if storage.memory is not memory and storage.memory not in executor.memories:
                if storage.memory is sharder:
                    keeper = sharder
                elif slicer is None or storage.memory is not slicer:
                    raise stranger(op.name, storage, executor.device.name)
                elif keeper is None:
                    keeper = slicer
            inputs.append(storage)
    except AttributeError as error:  # not asked of each, as there are many
        if isinstance(tensor, Tensor):
            raise
        kind = type(tensor).__name__
        raise UserError(f"{op.name}: a {kind} is not a tensor; runtime.tensor(x) converts it") from error
    try:
        if op.mutates is not None:
            if sharder is not None:
                sharder.refuse_copies(op, inputs)
            if slicer is not None and keeper is None and slicer.pending:
                slicer.flush()  # what waits reads what is written here as it is now
        results = (executor if keeper is None else keeper).run(op, tuple(inputs), attrs, given)
    except BaseException:
        for tensor in tensors:  # the call was not made: what it was given is still the caller's
            tensor.given = False
        raise
    if given:
        for tensor in tensors:
            if tensor.given and tensor.storage is not GONE:
                # As Tensor.release does, and kept flat: every second operation is given something.
                storage, tensor.storage = tensor.storage, GONE
                storage.release()
    return results
