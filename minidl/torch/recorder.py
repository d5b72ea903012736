"""A dispatch mode below autograd that records which values each call reads, makes and writes.

    Value  the contents of a storage between two writes. A write in place makes a new value.
    Call   one call: its function and arguments, with values in place of tensors; kept where lineage is wanted.

The mode is at the bottom of the stack of modes, so that modes which a program enters and leaves keep their own order.
While recording is off it passes every call on. It decides nothing and moves nothing.
"""

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch

from minidl.torch.beneath import Beneath
from minidl.torch.eligible import is_foreign
from minidl.torch.lineage import Value, frozen
from minidl.torch.schemas import UNFILLED, schema_of, tensors_in, written_by
from minidl.torch.there import has_own_dispatch

PASSED_THROUGH = ("FakeTensor", "FunctionalTensor")  # tensors without values, while a compiler traces


class Listener(Protocol):
    """The interface of objects to which a ``Recorder`` reports calls and freed storages, to make a trace of them."""

    def called(self, name: str, reads: list[Value], made: list[Value], written: list[tuple[Value, Value]],
               seconds: float, again: bool, workspace: int) -> None:
        """Called after each call with the values that the call read and made, and (old, new) pairs of those it wrote.
        again: True if the call can be repeated. workspace: bytes of scratch memory that it needed besides these."""

    def died(self, value: Value) -> None:
        """Called when the storage of a value is freed."""


class Recorder(Beneath):
    """The dispatch mode that records calls between ``enter`` and ``leave``, while ``on`` is true.

    listener  is told about every recorded call; None: there is no listener.
    lineage   True: values keep the calls that computed them. Overwrites are then noticed even while ``on`` is false.
    only      the calls whose lineage is kept, by their numbers in the step; None: all calls.
    allocator  the module that counts the bytes in use (``torch.cuda``); None: workspaces count as 0 bytes.
    spent     seconds that recording has taken in this step, without the calls themselves; order: calls in it so far.
    unfit     the name of a call in this step whose gradient has other bits under a dispatch mode; "": there is none.
    before_write  called with a value that no recorded call made and a replay may read, before it is overwritten.
    """

    def __init__(self, device_type: str, clock: Callable[[], float]) -> None:
        super().__init__()
        self.device_type, self.clock = device_type, clock
        self.before_write: Callable[[Value], None] = lambda value: None
        self.listener: Listener | None = None
        self.allocator: Any = None
        self.on = self.lineage = False
        self.order = 0
        self.only: frozenset[int] | None = None
        self.spent = 0.0
        self.unfit = ""
        self._died: list[Value] | None = None  # while a call runs: the values that ended in it
        # Address of a storage -> the storage, and the value that it contains.
        self._holds: dict[int, tuple[weakref.ref[Any], Callable[[], Value | None]]] = {}

    def leave(self) -> None:
        """Stop recording, and remove this mode from PyTorch's stack of dispatch modes, wherever in the stack it is."""
        self.on = False
        super().leave()

    def begin(self, lasting: Iterable[torch.Tensor] = (), storages: Iterable[Any] = ()) -> list[Value]:
        """Begin a step: forget all values, and return new ones for the tensors and storages that exist before it."""
        self._holds.clear()
        self.order, self.spent, self.unfit = 0, 0.0, ""
        every = [*(tensor.untyped_storage() for tensor in lasting if self.sees(tensor)), *storages]
        return list(dict.fromkeys(self.held(storage) or self.hold(storage, None) for storage in every))

    # Values ----------------------------------------------------------------------------------------------------------
    def sees(self, tensor: torch.Tensor) -> bool:
        """True if a tensor's bytes are on the device that this object observes (strided layout only)."""
        return tensor.layout is torch.strided and tensor.device.type == self.device_type

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Return the ``Value`` that a tensor's storage contains; an unknown storage gets a new one."""
        return self.held(tensor.untyped_storage()) or self.hold(tensor.untyped_storage(), None)

    def held(self, storage: Any) -> Value | None:
        """Return the ``Value`` that a storage contains, or None if the storage is not known."""
        known = self._holds.get(storage._cdata)
        return known[1]() if known is not None and known[0]() is not None else None

    def hold(self, storage: Any, value: Value | None) -> Value:
        """Note that a storage contains ``value`` from now on (None: make a new one); return the value."""
        if value is None:
            value = Value(storage.nbytes())
        address = storage._cdata
        value.storage = weakref.ref(storage)
        self._holds[address] = weakref.ref(storage, partial(self._ended, address)), lambda: value
        return value

    def hold_weakly(self, storage: Any, value: Value) -> None:
        """Refer to the value in ``storage`` weakly, since its guard keeps the storage: else neither would be freed."""
        known = self._holds.get(storage._cdata)
        if known is not None and known[1]() is value:
            self._holds[storage._cdata] = known[0], weakref.ref(value)

    def _ended(self, address: int, ref: object) -> None:
        known = self._holds.get(address)
        if known is None or known[0] is not ref:
            return
        del self._holds[address]
        value = known[1]()
        if value is None:
            return
        value.storage = None
        if self._died is not None:
            self._died.append(value)
        elif self.on and self.listener is not None:
            self.listener.died(value)

    # Calls -----------------------------------------------------------------------------------------------------------
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call, and record it if recording is on."""
        kwargs = kwargs or {}
        if not self.on and not self.lineage:
            return func(*args, **kwargs)
        for kind in types:
            if kind not in (torch.Tensor, torch.nn.Parameter) and has_own_dispatch(kind):
                return func(*args, **kwargs) if kind.__name__ in PASSED_THROUGH else NotImplemented
        schema = schema_of(func)
        if schema.view:
            return func(*args, **kwargs)
        if schema.other_gradient(args):
            self.unfit = schema.name
        entered = self.clock()
        written = [t for t in written_by(schema, args, kwargs) if self.sees(t)]
        self.order += 1
        if not self.on or self.only is not None and self.order not in self.only:
            self._overwrite(written)
            return func(*args, **kwargs)
        if self.lineage:
            self._announce(written)
        scratch = {id(args[n]) for n in schema.statistics(args)}
        operands = [t for t in tensors_in(args, kwargs) if self.sees(t) and id(t) not in scratch]
        reads = list({id(v): v for v in map(self.value_of, operands)}.values())
        again = schema.again_on(self.device_type) and not any(self._filled_unseen(t, written) for t in operands)
        call = frozen(self, schema, func, args, kwargs, written) if self.lineage and again else None
        if self.allocator is not None:
            self.allocator.reset_peak_memory_stats()
        began = self.clock()
        died = self._died = list[Value]()  # another thread of autograd may replace the attribute meanwhile
        try:
            result = func(*args, **kwargs)
        finally:
            self._died = None
        seconds = self.clock() - began
        workspace = 0
        if self.allocator is not None:
            workspace = max(0, self.allocator.max_memory_allocated() - self.allocator.memory_allocated())
        made, outputs = self._made(result, reads)
        if schema.name in UNFILLED:
            for value in made:
                value.unfilled = True
        changed = self._changed(written)
        if call is not None:
            call.finish(outputs, changed)
        if self.listener is not None:
            told = self._changed_beside(changed, [t for t in written if id(t) in scratch])
            self.listener.called(schema.name, reads, made, told, seconds, again and all(old.fresh for old, _ in told),
                                 workspace)
            for value in died:
                self.listener.died(value)
        self.spent += self.clock() - entered - seconds
        return result

    def _filled_unseen(self, tensor: torch.Tensor, written: list[torch.Tensor]) -> bool:
        """True if a call reads contents that no call has made, so that a replay would find others."""
        if self.value_of(tensor).unfilled and not any(tensor is each for each in written):
            return True
        # A parameter that others write has a wrong gradient without minidl, too.
        return is_foreign(tensor.untyped_storage()) and not tensor.requires_grad

    def _made(self, result: Any, reads: list[Value]) -> tuple[list[Value], list[Value | None]]:
        """Return the values that a call made, and per tensor of its result the new value, or None if it was read."""
        known, made = {id(v) for v in reads}, []
        outputs: list[Value | None] = []
        for tensor in tensors_in(result if isinstance(result, (tuple, list)) else (result,)):
            value = self.value_of(tensor) if self.sees(tensor) else None
            if value is None or id(value) in known:
                outputs.append(None)
                continue
            known.add(id(value))
            value.fresh = True
            made.append(value)
            outputs.append(value)
        return made, outputs

    def _changed(self, written: list[torch.Tensor]) -> list[tuple[Value, Value]]:
        """Give each written storage a new value; return the (old, new) pair of each storage."""
        changed: dict[int, tuple[Value, Value]] = {}
        for tensor in written:
            storage = tensor.untyped_storage()
            if storage._cdata not in changed:
                old = self.value_of(tensor)
                old.storage = None
                new = self.hold(storage, None)
                new.fresh = old.fresh
                changed[storage._cdata] = old, new
        return list(changed.values())

    def _changed_beside(self, changed: list[tuple[Value, Value]], scratch: list[torch.Tensor]
                        ) -> list[tuple[Value, Value]]:
        """Return the (old, new) pairs without those of ``scratch``:
        tensors such as running statistics, whose old contents affect no result."""
        aside = {id(self.value_of(tensor)) for tensor in scratch}
        for old, new in changed:
            if id(new) in aside:
                new.number, new.item = old.number, old.item
        return [(old, new) for old, new in changed if id(new) not in aside]

    def _announce(self, written: list[torch.Tensor]) -> None:
        """Call ``before_write`` for each value of ``written`` that a replay may read and that no recorded call made."""
        for tensor in written:
            value = self.held(tensor.untyped_storage())
            if value is not None and value.guard is not None and value.made is None:
                self.before_write(value)

    def _overwrite(self, written: list[torch.Tensor]) -> None:
        """Call ``_announce``, then forget the values in ``written``, which an unrecorded call is about to overwrite."""
        if not self._holds:
            return
        self._announce(written)
        for tensor in written:
            known = self._holds.pop(tensor.untyped_storage()._cdata, None)
            value = known[1]() if known is not None else None
            if value is not None:
                value.storage = None
