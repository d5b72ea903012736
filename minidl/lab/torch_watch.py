"""A dispatch mode that records the calls of a PyTorch program, and which tensors each call keeps for its gradient.

Autograd saves the inputs of a call right before the call, and its results right after it. So a saved tensor belongs to
the next call, unless the last call has made it and the last call's gradient needs its results.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minidl.meta import Algorithm
from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor


@dataclass
class SavedValue:
    """A tensor that autograd saves. position: index of the call for whose gradient it is saved; None until known."""

    tensor_id: TensorId | None
    tensor: Any
    position: int | None = None


class CallWatch(TorchDispatchMode):
    """The dispatch mode that records the calls of one iteration, from ``begin`` on while ``on`` is true."""

    def __init__(self, price: Callable[[Any, Any, Any, Any, float], float],
                 place: Callable[[], object] = lambda: None) -> None:
        """price: called with (function, args, kwargs, result, seconds taken), returns the seconds of a call.
        place: returns the current place in the program, such as a module; ``places`` lists it for each call."""
        super().__init__()
        self.place = place
        self.places: list[Any] = []
        self.price = price
        self.calls: list[dict[str, Any]] = []
        self.bytes: dict[TensorId, int] = {}
        self.lasting: set[TensorId] = set()
        self.on = False
        self._known: dict[int, tuple[weakref.ref[Any], TensorId]] = {}
        self._takes: list[int] = []
        self._pending: list[SavedValue] = []  # saved for the gradient of the call that comes next
        self._next = 0
        self._differentiable = False  # the last call

    def begin(self, lasting: list[Any]) -> None:
        """Begin to record. lasting: tensors that outlive iterations: parameters, buffers, the optimizer's state."""
        for tensor in lasting:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                tensor_id = -1 - len(self.lasting)
                self.lasting.add(tensor_id)
                self._know(storage, tensor_id)
        self.on = True

    def _know(self, storage: Any, tensor_id: TensorId) -> None:
        self.bytes[tensor_id] = storage.size() if storage.device.type != "meta" else storage.nbytes()
        self._known[storage._cdata] = weakref.ref(storage, partial(self._ended, storage._cdata, tensor_id)), tensor_id

    def known(self, tensor: Any) -> TensorId | None:
        """Return the id of a tensor's storage; None if no call has used it and ``begin`` did not get it."""
        found = self._known.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def _ended(self, place: int, tensor_id: TensorId, _: object) -> None:
        known = self._known.get(place)
        if known is not None and known[1] == tensor_id:
            del self._known[place]
        if self.on and self.calls and tensor_id not in self.lasting:
            self.calls[-1]["frees"].append(tensor_id)

    def _id(self, tensor: Any) -> tuple[TensorId, bool]:
        """Return the id of a tensor's storage, and True if the storage was not known before."""
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None and known[0]() is not None:
            return known[1], False
        tensor_id, self._next = self._next, self._next + 1
        self._know(storage, tensor_id)
        return tensor_id, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record it if recording is on; return its result."""
        began = perf_counter()
        result = func(*args, **(kwargs or {}))
        took = perf_counter() - began
        if self.on:
            self._note(func, args, kwargs or {}, result, took)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, took: float) -> None:
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        inputs = list(dict.fromkeys(self._id(t)[0] for t in read))
        found = [self._id(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        outputs = list(dict.fromkeys(i for i, new in found if new))
        writes = _written(func, args, kwargs)
        written = list(dict.fromkeys(self._id(t)[0] for t in writes))
        if not outputs and not written:
            return  # a view, or a look at a shape
        self.places.append(self.place())
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        self.calls.append({
            "op": func._schema.name.removeprefix("aten::"), "inputs": inputs, "outputs": outputs,
            "seconds": self.price(func, args, kwargs, result, took), "frees": [], "writes": written, "saves": [],
            "takes": self._takes, "replayable": not seeded})
        self._takes = []
        self._differentiable = any(t.requires_grad for t in read)
        operands = {*inputs, *written}
        for kept in self._pending:
            if kept.tensor_id in operands:
                self._book(kept, len(self.calls) - 1)
        self._pending = [kept for kept in self._pending if kept.position is None]

    def _book(self, kept: SavedValue, position: int) -> None:
        kept.position = position
        self.calls[position]["saves"].append(kept.tensor_id)

    def save(self, tensor: Any) -> SavedValue:
        """Autograd's pack hook: record which call saves a tensor, and return the record, which autograd keeps instead.
        It is the last call if the tensor is its result and saved for its own gradient, else the next call."""
        on = self.on
        with _without(self):
            kept = SavedValue(self._id(tensor)[0] if on else None, tensor.detach())
        tensor_id = kept.tensor_id
        if on and tensor_id is not None:
            last = self.calls[-1] if self.calls else None
            if last is not None and tensor_id in (*last["outputs"], *last["writes"]) and (
                    tensor_id not in last["saves"]) and self._kept_by_its_maker(tensor.grad_fn):
                self._book(kept, len(self.calls) - 1)
            else:
                self._pending.append(kept)
        return kept

    def _kept_by_its_maker(self, node: Any) -> bool:
        """True if the last call's result is saved for the call's own gradient. node: the result's ``grad_fn``.
        A result without a node (a mask) counts as saved if the call has a gradient."""
        kind: Any = type(node)
        return self._differentiable if node is None else _keeps_results(kind)

    def take(self, kept: SavedValue) -> Any:
        """Autograd's unpack hook: note that the next call needs a saved tensor, and return the tensor."""
        if self.on and kept.position is not None and kept.position not in self._takes:
            self._takes.append(kept.position)
        return kept.tensor

    def trace(self) -> Trace:
        """Return the trace of the calls recorded so far."""
        calls, taken = [], set[int]()
        for note in self.calls:
            takes = tuple(at for at in note.pop("takes") if at not in taken)
            taken.update(takes)
            seconds = note.pop("seconds")
            operands = {*note["inputs"], *note["outputs"]}
            note["frees"].sort()  # PyTorch frees what one call held in any order
            saves = tuple(i for i in dict.fromkeys(note.pop("saves")) if i in operands)
            rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in note.items()}
            calls.append(TraceCall(seconds=seconds, algorithms=(Algorithm(note["op"], seconds),), takes=takes,
                                   saves=saves, **rest))
        used = {i for call in calls for i in (*call.inputs, *call.outputs, *call.frees)} | self.lasting
        return Trace(tuple(calls), {i: TraceTensor(i, self.bytes[i], i in self.lasting) for i in sorted(used)})


@contextmanager
def _without(watch: CallWatch) -> Iterator[None]:
    before, watch.on = watch.on, False
    try:
        yield
    finally:
        watch.on = before


@cache
def _keeps_results(kind: Any) -> bool:
    return any(name.startswith(("_saved_result", "_saved_output")) for name in dir(kind))


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors among an operation's arguments that it writes in place, as its schema says."""
    found = []
    for n, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[n] if n < len(args) else kwargs.get(argument.name)
            found += [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return found
