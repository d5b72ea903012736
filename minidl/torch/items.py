"""The objects that autograd keeps in place of saved tensors. They decide nothing and copy nothing.

    Item    one version of a storage. All saves of its views share it, so it is copied once.
    Handle  stands for a tensor that may be evicted: an item, the tensor's layout in it, and an alias without bytes that
            shares the tensor's version counter, so that a write in place is detected as PyTorch detects it.
    Kept    stands for a tensor that stays on the device.
    Hold    keeps the bytes of an item that replays read, also after its last handle is gone.

A ``Guide`` decides which tensors are evicted; a ``Watch`` observes them.
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
    """One version of a storage: on the device (held here or alive elsewhere), on the host, or dropped.

    forget: called with the item when its last handle or hold is gone.
    """

    __slots__ = ("__weakref__", "address", "alive", "copy", "device", "forget", "handles", "nbytes", "storage",
                 "tensor_id", "value", "version")

    def __init__(self, storage: Any, version: int, forget: Callable[[Item], None]) -> None:
        self.forget = forget
        self.nbytes: int = storage.nbytes()
        self.address: int = storage._cdata
        self.device = storage.device
        self.version = version
        self.storage: Any = storage  # a strong reference; None once released
        self.alive = weakref.ref(storage)
        self.copy: Copy | None = None
        self.value: Any = None  # its recorded value, for replays
        self.handles = 0  # and holds
        self.tensor_id: int | None = None

    def take(self, storage: Any) -> None:
        """Hold a storage that contains these bytes."""
        self.storage, self.alive = storage, weakref.ref(storage)

    @property
    def here(self) -> Any:
        """The storage, if one with these bytes is still alive; else None."""
        storage = self.storage if self.storage is not None else self.alive()
        return storage if storage is not None and storage.nbytes() == self.nbytes else None


class Hold:
    """Keeps the bytes of an item as long as the hold lives."""

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
    """Autograd's stand-in for a tensor that may be evicted."""

    __slots__ = ("alias", "bits", "dtype", "offset", "size", "stride", "version")

    def __init__(self, item: Item, tensor: torch.Tensor, alias: torch.Tensor) -> None:
        super().__init__(item)
        self.alias = alias
        self.version = tensor._version
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        self.dtype = tensor.dtype
        self.bits = CONJUGATE * tensor.is_conj() + NEGATIVE * tensor.is_neg()

    def check(self) -> None:
        """Raise PyTorch's RuntimeError if the saved tensor was overwritten."""
        check(self.alias, self.version)

    def tensor(self) -> torch.Tensor:
        """Return the tensor as a view of the item's storage, which is on the device."""
        tensor = torch.empty(0, dtype=self.dtype, device=self.item.device)
        tensor.set_(self.item.storage, self.offset, self.size, self.stride)
        if self.bits & CONJUGATE:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if self.bits & NEGATIVE else tensor


class Kept:
    """Autograd's stand-in for a tensor that stays on the device."""

    __slots__ = ("__weakref__", "handle", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, version: int) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.version = version
        self.handle: Handle | None = None  # set when a retreat evicts the tensor


def check(tensor: torch.Tensor, version: int) -> None:
    """Raise PyTorch's RuntimeError for an overwritten saved tensor, if the tensor's version is not the one given."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: it is at "
            f"version {tensor._version}; expected version {version} instead.")


class Decision(NamedTuple):
    """How a packed tensor is evicted (None: it stays), and its id in the plan.

    retreat  True if the step departs from its plan: tensors that it has kept so far are swapped out, too.
    """

    action: Action | None
    tensor_id: int | None = None
    retreat: bool = False


STAY, SWAP, RETREAT = Decision(None), Decision(Action.SWAP_OUT), Decision(Action.SWAP_OUT, None, True)


class Guide(Protocol):
    """The interface that decides which tensors are evicted, by the number of a pack in its step.

    ahead    for the first packs of the step: the expected shape and dtype, and the decision about a tensor that has
             them. ``packed`` is asked about all others.
    idle     True if no prefetch starts in this step.
    """

    ahead: Sequence[tuple[Any, Decision]]
    idle: bool

    def packed(self, number: int, tensor: torch.Tensor) -> Decision:
        """Return the decision about the tensor of pack ``number``."""
        ...

    def unpacked(self, number: int) -> tuple[int, ...]:
        """Return the tensors of the plan whose swap-in starts after unpack ``number``."""
        ...


class Watch(Protocol):
    """The interface that observes saved tensors in a step that is recorded."""

    def saved(self, number: int, item: Item) -> None:
        """Called when pack ``number`` saves an item."""
        ...

    def wanted(self, number: int, item: Item | None, *, returned: bool) -> None:
        """Called when unpack ``number`` needs an item (None: a tensor that stayed). returned: it was evicted."""
        ...

    def forgotten(self, item: Item) -> None:
        """Called when the last handle of an item is gone."""
        ...
