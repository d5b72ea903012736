"""Replays: recomputes dropped values by running the missing calls of their lineage again, in program order.

A call reads values that are still in memory, that saved items hold, or that earlier calls of the replay made. It writes
in place to scratch memory alone. Other dropped tensors that a replay recomputes are kept, since they are needed soon.
During a call the random generator has the state of the original call, and afterwards its present state again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from minidl.errors import Unrecoverable
from minidl.torch.backends import announce, empty_storage
from minidl.torch.lineage import Call, Ref, Value
from minidl.torch.schemas import tensors_in


class NotReplayable(Unrecoverable):
    """The error for a dropped tensor that cannot be recomputed exactly."""


def missing(value: Value, *, later: bool = False) -> list[Call]:
    """Return the calls that a replay of a value runs, in program order. Raises NotReplayable if it is impossible.
    later: True for a replay at any later time: it reads only values that will certainly be in memory then."""
    calls: set[Call] = set()
    wanted = [value]
    while wanted:
        each = wanted.pop()
        if each is not value and (stays_there(each) if later else is_there(each)):
            continue
        if each.made is None:
            raise NotReplayable(
                f"a dropped tensor of {value.nbytes} bytes cannot be recomputed, since an input of {each.nbytes} bytes "
                "was overwritten between forward and backward; managed(..., recompute=False) swaps instead")
        if each.made not in calls:
            calls.add(each.made)
            wanted += each.made.reads
    return sorted(calls, key=lambda call: call.order)


def is_there(value: Value) -> bool:
    """True if a value is on the device or the host now, so that it can be read without a replay."""
    item = value.item() if value.item is not None else None
    return value.here is not None or (item is not None and (item.here is not None or item.copy is not None))


def stays_there(value: Value) -> bool:
    """True if a value will stay on the device or the host as long as a recorded call that reads it is kept."""
    return value.hold is not None or (value.made is None and value.here is not None)


@dataclass
class _State:
    """The state of one replay. readers: value -> the number of calls that still read the value.
    made: computed value -> its storage. scratch: value -> the storage that the current call writes in its place."""

    readers: dict[Value, int]
    made: dict[Value, Any] = field(default_factory=dict)
    scratch: dict[Value, Any] = field(default_factory=dict)


class Replay:
    """Computes dropped values by running recorded calls again. ``calls``: the number of calls run so far.

    bring  called with an ``Item``, brings its storage to the device and returns the storage (``Saved.fetch``).
    """

    def __init__(self, bring: Any) -> None:
        self.bring = bring
        self.calls = 0

    def again(self, value: Value) -> Any:
        """Recompute a value; return a new storage that contains it. Raises NotReplayable if that is impossible."""
        todo = missing(value)
        state = _State({value: 1})
        for call in todo:
            for read in call.reads:
                state.readers[read] = state.readers.get(read, 0) + 1
        with _as_before(), torch.no_grad():
            for call in todo:
                self._carry_out(call, state)
                self.calls += 1
        return state.made[value]

    def _carry_out(self, call: Call, state: _State) -> None:
        state.scratch.clear()
        args = [self._thaw(argument, state) for argument in call.args]
        kwargs = {name: self._thaw(argument, state) for name, argument in call.kwargs.items()}
        with _drawing(call.drawn), torch.set_grad_enabled(call.grad):
            result = call.func(*args, **kwargs)
        del args, kwargs
        tensors = tensors_in(result if isinstance(result, (tuple, list)) else (result,))
        for output, tensor in zip(call.outputs, tensors, strict=True):
            announce(tensor.untyped_storage())
            self._keep(output() if output is not None else None, tensor.untyped_storage(), state)
        for old, changed in call.changed:
            new = changed()
            # Running statistics are not computed again: the scratch in their place does not contain them.
            if old in state.scratch and new is not None and new.made is call:
                self._keep(new, state.scratch[old], state)
        state.scratch.clear()
        for read in call.reads:
            state.readers[read] -= 1
            if not state.readers[read]:
                state.made.pop(read, None)

    def _thaw(self, argument: Any, state: _State) -> Any:
        """Return a recorded argument with tensors in place of its ``Ref`` objects, also inside a list or tuple."""
        if type(argument) is Ref:
            return argument.over(self._storage(argument, state))
        if type(argument) in (list, tuple):
            return type(argument)([self._thaw(each, state) for each in argument])
        return argument

    def _storage(self, ref: Ref, state: _State) -> Any:
        value = ref.value
        if value in state.scratch:
            return state.scratch[value]
        if ref.scratch:
            state.scratch[value] = empty_storage(value.nbytes, ref.device)
            state.scratch[value].fill_(0)
            return state.scratch[value]
        storage = state.made.get(value)
        item = value.item() if value.item is not None else None
        own = storage is not None and (item is None or item.storage is not storage)
        if storage is None:
            storage = value.here
        if storage is None:
            storage = self.bring(item)
        if not ref.written:
            return storage
        if not own:  # else the replay made it for itself, and all its earlier readers have run
            copy = empty_storage(value.nbytes, ref.device)
            copy.copy_(storage)
            storage = copy
        state.scratch[value] = storage
        return storage

    def _keep(self, value: Value | None, storage: Any, state: _State) -> None:
        if value is None:
            return
        if storage.nbytes() != value.nbytes:
            raise NotReplayable(f"a replay made a storage of {storage.nbytes()} bytes instead of {value.nbytes}")
        if state.readers.get(value, 0):
            state.made[value] = storage
        item = value.item() if value.item is not None else None
        if item is not None and item.handles and item.copy is None and item.here is None:
            item.take(storage)
            value.kept_by(item)
            item.value = None


@contextmanager
def _drawing(drawn: Any) -> Iterator[None]:
    """Inside, ``drawn``'s generator has the state that it had before the original call; None: nothing changes."""
    if drawn is None:
        yield
        return
    generator, state = drawn
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)


@contextmanager
def _as_before() -> Iterator[None]:
    """Inside the ``with`` block autocast is off: recorded calls already have the dtypes that autocast chose."""
    with torch._C._DisableAutocast():
        yield
