"""What a call leaves behind for its gradient, what no call in place may take away, and what none may have. Knows
records; runs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from minidl.errors import UserError
from minidl.memory.storage import Call, Storage
from minidl.op import Op


def needs_of(op: Op, inputs: tuple[Storage, ...]) -> tuple[bool, ...]:
    """Which inputs want a gradient through a call; () if none does."""
    if op.vjp is None:
        return ()
    needs = tuple([s.requires_grad for s in inputs])
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


def refuse_to_lose_gradients(op: Op, inputs: tuple[Storage, ...], written: Sequence[Storage]) -> None:
    """No operation in place has a gradient: raise UserError where one would flow through what it writes or reads."""
    for storage in written:
        if storage.base.requires_grad and storage.base.call is not None:
            raise UserError(f"{op.name} would write over a value that a gradient flows through, "
                            f"{storage.base.named()}: use the operation that returns a new tensor")
    for storage in inputs:
        if storage.requires_grad and storage not in written and not op.update:
            raise UserError(f"{op.name} would lose the gradient of {storage.named()}: use the operation that returns a "
                            "new tensor, detach(), or no_grad()")


def stranger(op_name: str, storage: Storage, device_name: str) -> UserError:
    """What to raise for an operand that the memory of another runtime than the current one keeps."""
    return UserError(f"{op_name}: {storage.named()} is of another runtime than the current one on {device_name}: "
                     "bring it here with runtime.tensor(x.numpy())")
