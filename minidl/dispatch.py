"""Calling operations on tensors: the only way from a formula to the executor."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from minidl.context import current, entered
from minidl.errors import UserError
from minidl.memory.storage import Storage
from minidl.op import Attrs, Op
from minidl.tensor import GONE, Tensor

if TYPE_CHECKING:
    from minidl.executor import Executor
    from minidl.parts.keeper import PartKeeper


def donate(tensor: Tensor) -> Tensor:
    """Mark the next use of this handle as its last: the operation may overwrite its bytes, and the handle ends.

    Gradient formulas donate the tensors that they use for the last time.
    """
    tensor.donated = True
    return tensor


def replaced(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """x = function(x), for the handle itself: it stands for the result, which may have overwritten its bytes.

    Raises UserError for a leaf that requires a gradient, which would have no leaf to arrive at.
    """
    if x.requires_grad and not x.operation_name:
        raise UserError(f"{x.storage.named()} is a leaf that requires a gradient: no layer may work on it in place")
    result = function(donate(x))
    x.storage, x.donated, result.storage = result.storage, False, GONE
    return x


def exchange(x: Tensor, other: Tensor) -> None:
    """Let the handle x stand for another tensor's bytes from now on; the other handle is gone."""
    old, x.storage, other.storage = x.storage, other.storage, GONE
    old.release()


def apply_all(op: Op, *tensors: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
    """Run an operation on tensors and return its outputs. Raises ShapeError, OutOfMemory and what its kernel raises."""
    return tuple([Tensor(storage) for storage in _run(op, tensors, attrs)])


def apply(op: Op, *tensors: Tensor, **attrs: Any) -> Tensor:
    """Run an operation on tensors and return its first output; raises as ``apply_all``."""
    return Tensor(_run(op, tensors, attrs)[0])


def _run(op: Op, tensors: tuple[Tensor, ...], attrs: Attrs) -> tuple[Storage, ...]:
    """Take the storages of the operands, run the call, and end the handles that were donated."""
    stack = entered()
    executor = stack[-1] if stack and stack[-1].thread == get_ident() else current()  # which raises
    own = executor.keeper
    donated = 0
    parts: PartKeeper | None = None  # runs the call if an operand is in parts
    inputs: list[Storage] = []
    try:
        for tensor in tensors:
            if tensor.donated:
                donated |= 1 << len(inputs)
            storage = tensor.storage
            if storage.keeper is not own:
                parts = _part_keeper(executor, op, storage, parts)
            inputs.append(storage)
    except AttributeError as error:  # a test of each operand's type would take longer
        if isinstance(tensor, Tensor):
            raise
        kind = type(tensor).__name__
        raise UserError(f"{op.name}: a {kind} is not a tensor; runtime.tensor(x) converts it") from error
    try:
        if op.volatile or parts is not None:
            op.refuse_tensors(attrs)  # the executor does so for each new signature
        if op.mutates is not None:
            for keeper in executor.part_keepers:
                keeper.before_write(op, inputs)
        results = (executor if parts is None else parts).run(op, tuple(inputs), attrs, donated)
    except BaseException:
        for tensor in tensors:  # the call was not made, so its operands still belong to the caller
            tensor.donated = False
        raise
    if donated:
        for tensor in tensors:
            if tensor.donated and tensor.storage is not GONE:
                # As Tensor.release does, and kept flat: every second operation has a donated operand.
                storage, tensor.storage = tensor.storage, GONE
                storage.release()
    return results


def _part_keeper(executor: Executor, op: Op, storage: Storage, other: PartKeeper | None) -> PartKeeper | None:
    """The keeper that runs a call with this operand, and perhaps one of another keeper: the first of the executor's;
    None if all are whole. Raises UserError for an operand of another runtime."""
    if storage.keeper in executor.keepers:
        return other
    if storage.keeper not in executor.part_keepers:
        raise executor.stranger(op.name, storage)
    return next(keeper for keeper in executor.part_keepers if keeper is storage.keeper or keeper is other)
