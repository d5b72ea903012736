"""Calls operations on tensors: every operation that a program or a gradient formula names passes through ``_run``."""

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
    Gradient formulas donate the tensors that they use for the last time."""
    tensor.donated = True
    return tensor


def replaced(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Make the handle x stand for function(x), as an in-place layer does, and return x. x is donated to the function.
    Raises UserError for a leaf that requires a gradient: the program would have no handle to read its gradient by."""
    if x.requires_grad and not x.operation_name:
        raise UserError(f"{x.storage.named()} is a leaf that requires a gradient: no layer may work on it in place")
    result = function(donate(x))
    x.storage, x.donated, result.storage = result.storage, False, GONE
    return x


def exchange(x: Tensor, other: Tensor) -> None:
    """Let the handle x stand for the tensor of ``other`` from now on; ``other`` must not be used again."""
    old, x.storage, other.storage = x.storage, other.storage, GONE
    old.release()


def apply_all(op: Op, *tensors: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
    """Run an operation on tensors and return all its outputs. attrs: its attributes, such as ``axis``.
    Raises UserError for an operand that is no tensor or is another runtime's, else the errors of ``Executor.run``."""
    return tuple([Tensor(storage) for storage in _run(op, tensors, attrs)])


def apply(op: Op, *tensors: Tensor, **attrs: Any) -> Tensor:
    """Run an operation on tensors and return its first output. attrs: its attributes, such as ``axis``.
    Raises UserError for an operand that is no tensor or is another runtime's, else the errors of ``Executor.run``."""
    return Tensor(_run(op, tensors, attrs)[0])


def _run(op: Op, tensors: tuple[Tensor, ...], attrs: Attrs) -> tuple[Storage, ...]:
    """Run an operation on the storages of tensors; return its outputs, and release the handles that were donated."""
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
    """Choose which keeper of tensors in parts (slices or shards) runs a call; None if no operand so far is in parts.
    storage: the next operand. other: the choice for the operands before. Raises UserError for another runtime's."""
    if storage.keeper in executor.keepers:
        return other
    if storage.keeper not in executor.part_keepers:
        raise executor.stranger(op.name, storage)
    return next(keeper for keeper in executor.part_keepers if keeper is storage.keeper or keeper is other)
