"""Lineage: the calls that computed a value, recorded below autograd with their arguments and random generator states.

    Value  the contents of a storage between two writes.   Call  a recorded call.
    Ref    stands for a tensor among a call's arguments.   Guard  tells if a value was overwritten after a call read it.

It is independent of autograd and of plans. ``replay`` runs the calls again.
"""

import weakref
from typing import Any, NamedTuple

import torch

from minidl.torch.backends import quiet
from minidl.torch.items import Hold, Item
from minidl.torch.schemas import Schema, tensors_in


class Guard(NamedTuple):
    """Tells if a tensor was overwritten: a detached alias, with the same version counter, and its earlier value.
    The alias keeps the bytes alive only for a leaf; else its data are empty."""

    tensor: torch.Tensor
    version: int

    @property
    def intact(self) -> bool:
        """True if the tensor has not been written since this guard was made."""
        return self.tensor._version == self.version


class Value:
    """The contents of a storage between two writes.

    made    the call that computed the value; None: it existed before the step, or it cannot be recomputed (a leaf).
    fresh   True if a call of this step computed it; unfilled: True if that call has only allocated it.
    storage a weak reference to the storage that contains the value now.
    guard   tells if the value was overwritten; None until a call reads it. A leaf's guard keeps the bytes alive, too.
    item    a weak reference to the ``Item`` by which autograd has saved the value.
    hold    keeps that item, since replays read it; None if they do not, or if the item is dropped.
    number  the value's tensor id in a trace.
    """

    __slots__ = ("__weakref__", "fresh", "guard", "hold", "item", "made", "nbytes", "number", "storage",
                 "unfilled")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.made: Call | None = None
        self.fresh = self.unfilled = False
        self.storage: Any = None
        self.guard: Guard | None = None
        self.item: Any = None
        self.hold: Hold | None = None
        self.number: int | None = None

    def kept_by(self, item: Item) -> None:
        """Let replays read this value from ``item``, whose bytes are on the device or on the host.
        The value's guard no longer keeps the bytes alive. Nothing is done for a value that no call has read."""
        if self.guard is not None:
            self.guard.tensor.data = torch.empty(0, dtype=self.guard.tensor.dtype, device=self.guard.tensor.device)
            self.hold = Hold(item)

    @property
    def here(self) -> Any:
        """The storage with the value; None if it is gone, may have been overwritten, or was not read by a call."""
        storage = self.storage() if self.storage is not None else None
        if storage is None or storage.nbytes() != self.nbytes or self.guard is None or not self.guard.intact:
            return None
        return storage


class Ref(NamedTuple):
    """Stands for a tensor argument of a recorded call: a value, and the tensor's layout in its storage.
    written: the call writes the tensor; scratch: no result of the call depends on the tensor's contents."""

    value: Value
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    conjugate: bool
    negative: bool
    written: bool
    scratch: bool

    def over(self, storage: Any) -> torch.Tensor:
        """Return the tensor as a view of ``storage``, which contains the value."""
        tensor = torch.empty(0, dtype=self.dtype, device=self.device)
        tensor.set_(storage, self.offset, self.size, self.stride)
        if self.conjugate:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if self.negative else tensor


class Call:
    """A recorded call that a replay can run again.

    outputs  for each result tensor a weak reference to its value; None if the value is not new.
    changed  pairs: a value that the call overwrote, and a weak reference to the new value.
    drawn    the random generator that the call used, and that generator's state before; None if it used none.
    grad     True if gradients were enabled: some calls depend on that. order: the number of the call in its step.
    """

    __slots__ = ("__weakref__", "args", "changed", "drawn", "func", "grad", "kwargs", "order", "outputs", "reads")

    def __init__(self, func: Any, order: int, args: tuple[Any, ...], kwargs: dict[str, Any], *, drawn: Any, grad: bool
                 ) -> None:
        self.func, self.order, self.args, self.kwargs, self.drawn, self.grad = func, order, args, kwargs, drawn, grad
        self.reads = list({id(r.value): r.value for r in refs_in(args, kwargs) if not r.scratch}.values())
        self.outputs: list[Any] = []
        self.changed: list[tuple[Value, Any]] = []

    def finish(self, outputs: list[Value | None], changed: list[tuple[Value, Value]]) -> None:
        """Store the results of the call after it has run: new values, and pairs (old, new) of those it overwrote."""
        scratch = {id(r.value) for r in refs_in(self.args, self.kwargs) if r.scratch}
        for value in outputs:
            if value is not None:
                value.made = self
        for old, new in changed:
            if old.fresh and id(old) not in scratch:
                new.made = self
        self.outputs = [weakref.ref(value) if value is not None else None for value in outputs]
        self.changed = [(old, weakref.ref(new)) for old, new in changed]


def refs_in(args: Any, kwargs: dict[str, Any]) -> list[Ref]:
    """Return the ``Ref`` objects among the arguments of a recorded call, also those in its lists and tuples."""
    found: list[Ref] = []
    for value in (*args, *kwargs.values()):
        if type(value) is Ref:
            found.append(value)
        elif type(value) in (list, tuple):
            found += [each for each in value if type(each) is Ref]
    return found


def frozen(recorder: Any, schema: Schema, func: Any, args: Any, kwargs: dict[str, Any], written: list[torch.Tensor]
           ) -> Call | None:
    """Return the record of a call that is about to run; None if a replay could not repeat the call exactly.
    The recorded arguments have a ``Ref`` in place of each tensor. recorder: the ``Recorder`` that knows the values.
    written: the tensors that the call writes."""
    for tensor in tensors_in(args, kwargs):
        # A one-element tensor may be on another device. Inference tensors have no version counter.
        number = tensor.layout is torch.strided and tensor.numel() == 1
        if tensor.is_inference() or not (recorder.sees(tensor) or number):
            return None
    wrote, scratch = {id(t) for t in written}, {id(args[n]) for n in schema.statistics(args)}
    grad = torch.is_grad_enabled()
    with quiet():
        drawn = None
        if schema.seeded:
            generator = kwargs.get("generator") or _generator(args, kwargs)
            drawn = generator, generator.get_state()
        return Call(func, recorder.order, tuple(_freeze(a, recorder, wrote, scratch) for a in args),
                    {k: _freeze(v, recorder, wrote, scratch) for k, v in kwargs.items()}, drawn=drawn, grad=grad)


def _freeze(value: Any, recorder: Any, wrote: set[int], scratch: set[int]) -> Any:
    if isinstance(value, torch.Tensor):
        if not recorder.sees(value):
            return value.detach().clone()  # a one-element tensor
        return _ref(recorder, value, id(value) in wrote, id(value) in scratch)
    if type(value) in (list, tuple):
        return type(value)([_freeze(each, recorder, wrote, scratch) for each in value])
    return value


def _ref(recorder: Any, tensor: torch.Tensor, written: bool, scratch: bool) -> Ref:
    value = recorder.value_of(tensor)
    if value.guard is None and not scratch:
        # Below autograd an alias gets its own version counter, unless this dispatch key is active again.
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
            alias = tensor.detach()
        value.guard = Guard(alias, tensor._version)
        item = value.item() if value.item is not None else None
        if item is not None and item.value is None:
            value.kept_by(item)
        elif value.made is not None:
            alias.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        else:
            recorder.hold_weakly(tensor.untyped_storage(), value)
    return Ref(value, tensor.size(), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, tensor.device,
               tensor.is_conj(), tensor.is_neg(), written, scratch)


def _generator(args: Any, kwargs: dict[str, Any]) -> torch.Generator:
    """Return PyTorch's default random generator of the device on which a call with these arguments runs."""
    device = kwargs.get("device") or next((t.device for t in tensors_in(args, kwargs)), torch.device("cpu"))
    device = torch.device(device)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator: torch.Generator = torch.cuda.default_generators[index]
        return generator
    return torch.default_generator
