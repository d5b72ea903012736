"""Reverse-mode differentiation: visits the calls that computed a tensor, newest first, in a loop without recursion.

There is no tape: the lineage that replays use is the graph of calls, and each operation's ``vjp`` computes its gradient
by operations. The tensors that a call saved are released as soon as its gradient has been taken, unless the program
asks to retain the graph; a second backward() over a call that has lost its saved tensors is an error. There are no
second derivatives: gradients have no graph of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from minidl.context import current
from minidl.dispatch import apply, donate
from minidl.errors import ShapeError, UserError, WrongKind
from minidl.memory.storage import TAKEN, Call, Storage, View
from minidl.op import Op
from minidl.ops.elementwise import add
from minidl.ops.grad_modes import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from minidl.ops.shape import CONTIGUOUS
from minidl.ops.update import add_, full
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from minidl.executor import Executor

__all__ = ["HookHandle", "backward", "enable_grad", "grad", "inference_mode", "is_grad_enabled", "no_grad",
           "register_hook", "set_grad_enabled"]

Queue = list[tuple[int, Call]]
Hook = Callable[[Tensor], Tensor | None]
# The hooks of each storage: functions that are called with its gradient, and may return another gradient.
_hooks: WeakKeyDictionary[Storage, dict[object, Hook]] = WeakKeyDictionary()


class HookHandle:
    """The handle that ``register_hook`` returns; ``remove()`` ends the hook.

    made: True once a program has registered any hook; until then backward() looks for none."""

    made = False

    def __init__(self, storage: Storage, hook: Hook) -> None:
        HookHandle.made = True
        self._hooks = _hooks.setdefault(storage, {})
        self._key = object()  # lives as long as the hook, as the id of a dropped handle would not
        self._hooks[self._key] = hook

    def remove(self) -> None:
        """End the hook: it is not called any more."""
        self._hooks.pop(self._key, None)


def register_hook(x: Tensor, hook: Hook) -> HookHandle:
    """Call ``hook(gradient)`` when backward() has the gradient of x; a tensor that it returns replaces the gradient.

    A leaf that is read several times gets several gradients, which are added up; the hook is called with each. Raises
    UserError for a tensor that requires no gradient."""
    if not x.requires_grad:
        raise UserError(f"{x.storage.named()} requires no gradient: a hook would never be called")
    return HookHandle(x.storage, hook)


def _hooked(hooks: dict[object, Hook], gradient: Tensor) -> Tensor:
    for hook in list(hooks.values()):
        other = hook(gradient.alias())  # a hook may keep what it sees, while formulas donate the handle that they get
        if other is None:
            continue
        if not isinstance(other, Tensor):
            raise WrongKind(f"a hook returns a gradient or None, not a {type(other).__name__}")
        if other.shape != gradient.shape or other.dtype is not gradient.dtype:
            raise ShapeError(f"a hook returned {other.dtype.name}{list(other.shape)} for a gradient "
                             f"{gradient.dtype.name}{list(gradient.shape)}: both have one shape and dtype")
        gradient = other.alias()
    return gradient


@cache
def _arguments(op: Op) -> tuple[tuple[str, str, int], ...]:
    """Say where each argument of an op's ``vjp`` comes from: (name, source, index), as ``Op.vjp`` defines the names.
    source: "input", "output", "gradient", "shape", "dtype", "partial" (of number ``index``), "shapes", "attribute"."""
    found = []
    for name in op.vjp_names[1:]:
        if name[0] == "d" and name[1:] in op.outputs:
            found.append((name, "gradient", op.outputs.index(name[1:])))
        elif name in op.inputs:
            found.append((name, "input", op.inputs.index(name)))
        elif name in op.outputs:
            found.append((name, "output", op.outputs.index(name)))
        elif name == "input_shapes":
            found.append((name, "shapes", 0))
        elif name.endswith("_partial") and name[:-8] in op.inputs:
            found.append((name, "partial", op.inputs.index(name[:-8])))
        elif name.endswith("_shape") and name[:-6] in op.inputs:
            found.append((name, "shape", op.inputs.index(name[:-6])))
        elif name.endswith("_dtype") and name[:-6] in op.inputs:
            found.append((name, "dtype", op.inputs.index(name[:-6])))
        else:
            found.append((name, "attribute", 0))
    return tuple(found)


def _take_saved(call: Call, retain_graph: bool) -> dict[int, Tensor]:
    """Return handles on the tensors that a call saved, by their index into its inputs + outputs.
    Without ``retain_graph`` the call has no saved tensors after this. Raises UserError if one was written in place."""
    taken: dict[int, Storage] = {}
    inputs, outputs, count = call.inputs, call.outputs, len(call.inputs)
    for index in call.saved:  # as ``Call.saved_storage``, and kept flat
        storage = inputs[index] if index < count else outputs[index - count]()
        assert storage is not None  # the first output holds the saved ones
        if (storage if type(storage) is Storage else storage.base).mutated_at > call.sequence:
            raise UserError(f"the gradient of {call.op.name} needs a tensor of shape {list(storage.meta.shape)} that "
                            "was written in place since")
        taken[index] = storage
    for storage in taken.values():
        if retain_graph:
            storage.retain()
        else:
            storage.take_saved()
    if not retain_graph:
        call.saved = TAKEN
        if taken:  # a call that has saved nothing, such as a parameter's view, may be visited again
            call.needs = ()
    return {index: Tensor(storage) for index, storage in taken.items()}


def _arrive_at_leaf(leaf: Storage, gradient: Tensor) -> None:
    if HookHandle.made and (hooks := _hooks.get(leaf)):
        gradient = _hooked(hooks, gradient)
    keeper, executor = gradient.storage.keeper, current()
    if executor.part_keepers and keeper in executor.part_keepers:
        keeper.deliver(gradient, leaf, partial(_add_to_leaf, executor, leaf))
    else:
        _add_to_leaf(executor, leaf, gradient)


def _add_to_leaf(executor: Executor, leaf: Storage, gradient: Tensor) -> None:
    if leaf.grad is not None:
        add_(leaf.grad, gradient)
        return
    storage = gradient.storage
    if type(storage) is View or storage.refs > 1:
        gradient = apply(CONTIGUOUS, gradient)  # its bytes are shared: it must have its own to be added to
    executor.make_leaf(gradient.storage)
    leaf.grad = gradient


def backward(loss: Tensor, gradient: Tensor | None = None, *, retain_graph: bool = False) -> None:
    """Add d loss / d leaf to the ``grad`` of every leaf that requires a gradient.
    loss: a tensor of one element; or of any shape, if ``gradient`` is given: d loss / d loss, of its shape and dtype.
    retain_graph: keep the tensors that calls have saved, so that backward() can run over the same calls again.
    Raises UserError if loss requires no gradient, if ``gradient`` does not fit, or if the saved tensors are gone."""
    if not loss.requires_grad:
        raise UserError("backward() of a tensor that does not depend on anything that requires a gradient")
    if gradient is None and loss.numel() != 1:
        raise UserError(f"backward() of shape {list(loss.shape)} needs a gradient of that shape")
    if gradient is not None and gradient.shape != loss.shape:
        raise UserError(f"backward(): gradient {list(gradient.shape)} does not fit {list(loss.shape)}")
    if gradient is not None and gradient.dtype is not loss.dtype:
        raise UserError(f"backward(): a gradient of {gradient.dtype.name} does not fit a value of {loss.dtype.name}")
    with no_grad():
        gradients: dict[Storage, Tensor] = {}
        queue: Queue = []
        seed = full(loss.shape, 1.0, loss.dtype) if gradient is None else gradient.alias()
        _deliver(loss.storage, seed, gradients, queue)
        del seed, gradient
        while queue:
            _differentiate(heappop(queue)[1], gradients, queue, retain_graph)
        for keeper in current().part_keepers:
            keeper.flush()


def _deliver(storage: Storage, gradient: Tensor, gradients: dict[Storage, Tensor], queue: Queue) -> None:
    """Add a gradient to the sum of those that have arrived at a storage, and queue the call that made the storage.
    At a leaf, add it to ``grad``. gradients: the sums so far. queue: calls whose gradient is still to be taken."""
    if storage.severed is not None:
        raise UserError(f"backward() reached {storage.named()}, made by {storage.severed}, whose graph is "
                        "gone: its iteration has ended, or it was written in place; call backward() in the iteration "
                        "that computes it, or use its detach()")
    call = storage.call
    if call is None:
        _arrive_at_leaf(storage, gradient)
        return
    other = gradients.get(storage)
    if other is not None:
        gradients[storage] = add(donate(other), donate(gradient))
        return
    gradients[storage] = gradient
    # Only the first output is differentiable, so a call is queued once.
    heappush(queue, (-call.sequence, call))


def _differentiate(call: Call, gradients: dict[Storage, Tensor], queue: Queue, retain_graph: bool) -> None:
    op, needs = call.op, call.needs
    if not needs or op.vjp is None:
        raise UserError(f"the gradient of {op.name} has been taken already, and its saved tensors are freed. For a "
                        "second backward() over the same graph the first one must have retain_graph=True")
    dys = [None if (s := ref()) is None else gradients.pop(s, None) for ref in call.outputs]
    if HookHandle.made:
        dys = [_after_hooks(ref(), dy) for ref, dy in zip(call.outputs, dys, strict=True)]
    saved = _take_saved(call, retain_graph)
    inputs = call.inputs
    arguments: dict[str, Any] = {}
    partial = set()
    for name, source, index in _arguments(op):
        if source == "input":
            arguments[name] = saved.get(index) if index < len(inputs) else None  # one that may be left out
        elif source == "gradient":
            arguments[name] = dys[index]
        elif source == "attribute":
            arguments[name] = call.attrs[name]
        elif source == "output":
            arguments[name] = saved.get(len(inputs) + index)
        elif source == "shape":
            arguments[name] = inputs[index].meta.shape
        elif source == "dtype":
            arguments[name] = inputs[index].meta.dtype
        elif source == "shapes":
            arguments[name] = tuple(s.meta.shape for s in inputs)
        else:  # partial
            storage = inputs[index]
            arguments[name] = gradients.pop(storage, None) if needs[index] else None
            if arguments[name] is not None:
                partial.add(storage)
    del saved, dys
    results = op.vjp(needs, **arguments)
    arguments.clear()  # handles that the formula did not donate end here
    arrivals: list[tuple[Storage, Tensor]] = []
    seen: set[int] = set()
    for storage, need, result in zip(inputs, needs, results, strict=True):
        if need:
            if result is None:
                raise UserError(f"{op.name} has no gradient for {storage.named()}")
            # One gradient for two inputs: each gets a handle of its own, before either can be donated.
            arrivals.append((storage, result.alias() if id(result) in seen else result))
            seen.add(id(result))
    del results, result
    while arrivals:
        storage, gradient = arrivals.pop(0)
        if storage in partial:
            gradients[storage] = gradient  # it is the sum already, and its call is queued
        else:
            _deliver(storage, gradient, gradients, queue)
        del gradient


def _after_hooks(storage: Storage | None, gradient: Tensor | None) -> Tensor | None:
    """Return the complete gradient of a call's output after the output's hooks have been called with it."""
    hooks = _hooks.get(storage) if storage is not None else None
    return _hooked(hooks, gradient) if hooks and gradient is not None else gradient


def grad(*arguments: Any, **options: Any) -> tuple[Tensor | None, ...]:
    """Return d outputs / d inputs, as ``torch.autograd.grad`` does; ``create_graph`` raises UserError.
    Arguments: outputs, inputs, grad_outputs=None, *, retain_graph=False, create_graph=False, allow_unused=False."""
    from minidl.ops.gradients import grad as of  # that module imports this one
    return of(*arguments, **options)


def __getattr__(name: str) -> Any:
    """Return ``Function``, imported only now, as its module imports this one. AttributeError for any other name."""
    if name == "Function":
        from minidl.ops.custom import Function
        return Function
    raise AttributeError(f"minidl.autograd has no {name!r}")


setattr(Tensor, "backward", backward)  # noqa: B010 - the methods belong to this module, not to tensor.py
setattr(Tensor, "register_hook", register_hook)  # noqa: B010
