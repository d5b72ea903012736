"""The objects that autograd keeps in place of saved tensors. They decide nothing and copy nothing.

    Item    the contents of a storage as autograd saved them. Saved views of one storage share it: it is copied once.
    Handle  stands for a tensor that may be evicted: an item, the tensor's layout in it, and an alias without bytes that
            shares the tensor's version counter, so that a write in place is detected as PyTorch detects it.
    Kept    stands for a tensor that stays on the device.
    Hold    keeps an item whose bytes a replay reads, also after the item's last handle is gone.

A ``Guide`` decides which tensors are evicted; a ``Watch`` records when tensors are saved, needed and released.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from minidl.plan.plan import Action
from minidl.torch.backends import Copy

CONJUGATE, NEGATIVE = 1, 2  # flags of lazily conjugated and negated tensors


class Item:
    """The contents of a storage as autograd saved them: on the device, on the host, or dropped.

    forget: called with the item when no ``Handle`` and no ``Hold`` refers to it any more.
    counter: a tensor without bytes that has the version counter of the saved tensor, which PyTorch raises at each write
    in place. version: what it counted when the tensor was saved.
    """

    __slots__ = ("__weakref__", "address", "alive", "copy", "counter", "device", "forget", "handles", "nbytes",
                 "storage", "tensor_id", "value", "version")

    def __init__(self, storage: Any, counter: torch.Tensor, forget: Callable[[Item], None]) -> None:
        self.forget = forget
        self.counter, self.version = counter, counter._version
        self.nbytes: int = storage.nbytes()
        self.address: int = storage._cdata
        self.device = storage.device
        self.storage: Any = storage  # a strong reference; None once released
        self.alive = weakref.ref(storage)
        self.copy: Copy | None = None
        self.value: Any = None  # its recorded value, for replays
        self.handles = 0  # and holds
        self.tensor_id: int | None = None

    def take(self, storage: Any) -> None:
        """Store a reference to ``storage``, which contains the item's bytes, so that they stay on the device."""
        self.storage, self.alive = storage, weakref.ref(storage)

    @property
    def here(self) -> Any:
        """The storage on the device that contains the item's bytes; None if there is none any more."""
        storage = self.storage if self.storage is not None else self.alive()
        return storage if storage is not None and storage.nbytes() == self.nbytes else None


class Hold:
    """A counted reference to an item; the item is released with its last ``Hold``."""

    __slots__ = ("__weakref__", "item")

    def __init__(self, item: Item) -> None:
        self.item = item
        item.handles += 1

    def __del__(self) -> None:
        item = self.item
        item.handles -= 1
        if not item.handles:
            item.forget(item)


class Handle(Hold):
    """The object that autograd keeps in place of a tensor that may be evicted.
    alias: a tensor without bytes that shares the tensor's version counter; it shows if the tensor was overwritten."""

    __slots__ = ("alias", "bits", "offset", "size", "stride", "version")

    def __init__(self, item: Item, tensor: torch.Tensor, alias: torch.Tensor) -> None:
        self.item, self.alias = item, alias  # without ``super()``: hundreds are made in a step
        item.handles += 1
        self.version = tensor._version
        self.size, self.stride, self.offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        self.bits = CONJUGATE * tensor.is_conj() + NEGATIVE * tensor.is_neg()

    def tensor(self) -> torch.Tensor:
        """Return the saved tensor, as a view of the item's storage. The storage must be on the device."""
        tensor = self.alias.data  # a new tensor of the right type, in a third of the time of ``torch.empty``
        tensor.set_(self.item.storage, self.offset, self.size, self.stride)
        if not self.bits:
            return tensor
        if self.bits & CONJUGATE:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if self.bits & NEGATIVE else tensor


class Kept:
    """The object that autograd keeps in place of a tensor that stays on the device.
    version: the tensor's version counter when it was saved; number: its number among the saved tensors of the step."""

    __slots__ = ("__weakref__", "handle", "number", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, number: int) -> None:
        # Detached: a tensor with its node would be in a reference cycle with autograd's graph.
        self.tensor: torch.Tensor | None = tensor if tensor.is_leaf else tensor.detach()
        self.version, self.number = tensor._version, number
        self.handle: Handle | None = None  # set when the tensor is evicted later


class Aliases:
    """Makes tensors without bytes that have the version counters of other tensors, so that writes are noticed."""

    def __init__(self) -> None:
        self._empty: dict[torch.dtype, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor without bytes that has ``tensor``'s version counter, dtype and device."""
        empty = self._empty.get(tensor.dtype)
        if empty is None or empty.device != tensor.device:
            empty = self._empty[tensor.dtype] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        alias = tensor.detach()
        alias.data = empty
        return alias


def share_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors have one version counter, so that a write to either raises the version of both.
    Tensors of one storage may have several, for instance the results of ``unsafe_chunk``."""
    version = other._version
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(one):
        torch.autograd.graph.increment_version(one)
        return other._version != version


def check(tensor: torch.Tensor, version: int) -> None:
    """Raise the RuntimeError of PyTorch's own check if a tensor was written after it had version ``version``."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: it is at "
            f"version {tensor._version}; expected version {version} instead.")


class Decision(NamedTuple):
    """The decision about a tensor that autograd saves: how it is evicted (None: it stays), and its id in the plan.

    retreat  True if the step departs from its plan: saved tensors that have stayed so far are swapped out, too.
    """

    action: Action | None
    tensor_id: int | None = None
    retreat: bool = False


STAY, SWAP, RETREAT = Decision(None), Decision(Action.SWAP_OUT), Decision(Action.SWAP_OUT, None, True)


class Guide(Protocol):
    """The interface of objects that decide which saved tensors are evicted, by their numbers in the step (1, 2, ...).

    ahead    for the step's first saved tensors: the expected shape and dtype, and the decision about a tensor with
             these. ``packed`` is called for all other tensors.
    idle     True if no prefetch starts in this step.
    """

    ahead: Sequence[tuple[Any, Decision]]
    idle: bool

    def packed(self, number: int, packed: Any, unpacks: int) -> Decision:
        """Return the decision about the ``number``-th tensor that autograd saves in this step.
        packed: its shape and dtype (``known.packed_of``). unpacks: how often autograd has read a saved tensor so far.
        """

    def unpacked(self, number: int) -> tuple[int, ...]:
        """Return the ids of the tensors whose swap-in starts after autograd's read ``number``, from 1 on."""


class Watch(Protocol):
    """The interface of objects that are told about saved tensors while a step is recorded."""

    def saved(self, number: int, item: Item) -> None:
        """Called when autograd saves its ``number``-th tensor of the step, part of ``item``."""

    def wanted(self, number: int, item: Item | None, *, returned: bool) -> None:
        """Called when autograd's ``number``-th read needs an item (None: it stayed). returned: it had been evicted."""

    def forgotten(self, item: Item) -> None:
        """Called when neither autograd nor a replay needs an item any more."""
