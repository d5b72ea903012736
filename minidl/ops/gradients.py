"""``minidl.autograd.grad``, which returns gradients instead of adding them to the ``grad`` of leaves."""

from collections.abc import Sequence
from functools import partial

from minidl.autograd import HookHandle, backward
from minidl.errors import UserError
from minidl.memory.storage import Storage
from minidl.tensor import Tensor


def grad(outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor],
         grad_outputs: Tensor | Sequence[Tensor | None] | None = None, *, retain_graph: bool = False,
         create_graph: bool = False, allow_unused: bool = False) -> tuple[Tensor | None, ...]:
    """Return the gradients of the sum of ``outputs`` with respect to each of ``inputs``; no ``grad`` of a leaf changes.
    ``grad_outputs``: the factors of the outputs' elements; an output of one element needs none. For an input that no
    output depends on, return None with ``allow_unused``, else raise UserError. Raises UserError for ``create_graph``,
    because there are no second derivatives."""
    if create_graph:
        raise UserError("grad: there are no second derivatives (create_graph)")
    made = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs or [None] * len(made))
    found: dict[Storage, Tensor] = {}
    asked = {x.storage for x in wanted}
    leaves = list(_leaves(made))
    kept = {leaf: leaf.grad for leaf in leaves}
    handles = [HookHandle(s, partial(_note, found, s)) for s in asked if s.call is not None]
    try:
        for leaf in leaves:
            leaf.grad = None
        for i, (y, gradient) in enumerate(zip(made, given, strict=True)):
            backward(y, gradient, retain_graph=retain_graph or i < len(made) - 1)
        found.update({leaf: leaf.grad for leaf in leaves if leaf in asked and leaf.grad is not None})
    finally:
        for handle in handles:
            handle.remove()
        for leaf, before in kept.items():
            leaf.grad = before
    missing = [x for x in wanted if x.storage not in found]
    if missing and not allow_unused:
        raise UserError(f"grad: no output was computed from {missing[0].storage.named()}; allow_unused=True gives None")
    return tuple(found.get(x.storage) for x in wanted)


def _note(found: dict[Storage, Tensor], storage: Storage, gradient: Tensor) -> None:
    found[storage] = gradient.clone()


def _leaves(outputs: Sequence[Tensor]) -> set[Storage]:
    """Return the leaves that require a gradient and from which the outputs were computed."""
    leaves: set[Storage] = set()
    seen: set[int] = set()
    waiting = [y.storage for y in outputs]
    while waiting:
        storage = waiting.pop()
        call = storage.call
        if call is None:
            if storage.requires_grad:
                leaves.add(storage)
        elif id(call) not in seen:
            seen.add(id(call))
            waiting += [s for s, need in zip(call.inputs, call.needs, strict=False) if need]
    return leaves
