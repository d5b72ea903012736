"""What a call leaves behind for its gradient, what no call in place may take away, and what none may have. Knows
records; runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from minidl.errors import ShapeError, UserError
from minidl.memory.storage import Call, Storage, View
from minidl.meta import Meta
from minidl.op import Op

_requires_grad = attrgetter("requires_grad")


def needs_of(op: Op, inputs: tuple[Storage, ...]) -> tuple[bool, ...]:
    """Which inputs want a gradient through a call; () if none does."""
    if op.vjp is None:
        return ()
    needs = tuple(map(_requires_grad, inputs))
    return needs if True in needs else ()


def keep(call: Call, outputs: tuple[Storage, ...], needs: tuple[bool, ...], saved: tuple[int, ...]) -> None:
    """Keep for a call's gradient what its formula names."""
    call.needs = needs
    call.saved = saved
    outputs[0].requires_grad = True
    inputs = call.inputs
    count = len(inputs)
    for index in saved:
        (inputs[index] if index < count else outputs[index - count]).retain_saved(call.sequence)
    if len(outputs) > 1:
        # An output that is saved lives as long as the first one, through which gradients come.
        outputs[0].siblings = tuple([s for i, s in enumerate(outputs) if i and count + i in saved])


def refuse_to_write(op: Op, inputs: tuple[Storage, ...], written: Sequence[Storage], *, differentiates: bool) -> None:
    """Raise UserError for a write that would lose a gradient, or whose elements overlap."""
    _refuse_to_overlap(op, inputs, written)
    if differentiates:
        _refuse_to_lose_gradients(op, inputs, written)


def _refuse_to_lose_gradients(op: Op, inputs: tuple[Storage, ...], written: Sequence[Storage]) -> None:
    """No operation in place has a gradient: raise UserError where one would flow through what it writes or reads."""
    for storage in written:
        if storage.base.requires_grad and storage.base.call is not None:
            raise UserError(f"{op.name} would write over a value that a gradient flows through, "
                            f"{storage.base.named()}: use the operation that returns a new tensor")
    for storage in () if op.update else inputs:
        if storage.requires_grad and storage not in written:
            raise UserError(f"{op.name} would lose the gradient of {storage.named()}: use the operation that returns a "
                            "new tensor, detach(), or no_grad()")


def _refuse_to_overlap(op: Op, inputs: tuple[Storage, ...], written: Sequence[Storage]) -> None:
    """Raise ShapeError where an element that is written lies where another one is written or read: what would be there
    afterwards depends on the order in which a kernel goes through them."""
    for storage in written:
        meta = storage.meta
        if meta.contiguous or not meta.size:
            continue
        if any(n > 1 and not stride for n, stride in zip(meta.shape, meta.strides, strict=True)):
            raise ShapeError(f"{op.name} would write several elements of {storage.named()} to one place, as it was "
                             "expanded: use contiguous()")
    if len(set(inputs)) == len(inputs) and View not in map(type, inputs):
        return  # no two have a base in common
    for storage in written:
        for other in inputs:
            if other.base is storage.base and other.meta is not storage.meta and _share_bytes(storage.meta, other.meta):
                raise ShapeError(f"{op.name} would write over what it reads: {other.meta} and {storage.named()} are "
                                 "parts of one tensor that overlap: use contiguous()")


def _share_bytes(one: Meta, other: Meta) -> bool:
    """Whether two descriptions of parts of one tensor have bytes in common."""
    import numpy as np  # which only counts here

    class At:
        def __init__(self, meta: Meta) -> None:
            size = meta.dtype.itemsize
            self.__array_interface__ = {
                "version": 3, "typestr": f"|V{size}", "shape": meta.shape,
                "strides": tuple([stride * size for stride in meta.strides]), "data": (1 + meta.offset * size, True)}

    return np.shares_memory(np.asarray(At(one)), np.asarray(At(other)))


def stranger(op_name: str, storage: Storage, device_name: str) -> UserError:
    """What to raise for an operand that the memory of another runtime than the current one keeps."""
    return UserError(f"{op_name}: {storage.named()} is of another runtime than the current one on {device_name}: "
                     "bring it here with runtime.tensor(x.numpy())")
