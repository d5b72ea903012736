"""Saved tensors: what autograd keeps in their place. Decides nothing, and moves nothing.

    Item    a storage in one version. All saves of its views share it, so it is copied once.
    Handle  stands for a tensor that may leave: an item, how the tensor lies in it, and an alias without bytes that
            shares the tensor's version counter, so that a write in place is found as PyTorch finds it.
    Kept    stands for a tensor that stays.

What leaves is said by a ``Guide``; a ``Watch`` is told what happens.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from minidl.plan.plan import Action
from minidl.torch.backends import Copy

CONJUGATE, NEGATIVE = 1, 2  # the bits of a tensor whose values are to be read so


class Item:
    """A storage in one version. It is here (held or alive elsewhere), on the host, or to be made again."""

    __slots__ = ("__weakref__", "address", "alive", "copy", "device", "handles", "nbytes", "storage", "tensor_id",
                 "value", "version")

    def __init__(self, storage: Any, version: int) -> None:
        self.nbytes: int = storage.nbytes()
        self.address: int = storage._cdata
        self.device = storage.device
        self.version = version
        self.storage: Any = storage  # held by us; None when we have let go
        self.alive = weakref.ref(storage)
        self.copy: Copy | None = None
        self.value: Any = None  # how to make it again
        self.handles = 0
        self.tensor_id: int | None = None

    def take(self, storage: Any) -> None:
        """Hold a storage that has these bytes."""
        self.storage, self.alive = storage, weakref.ref(storage)

    @property
    def here(self) -> Any:
        """The storage, if there still is one with these bytes."""
        storage = self.storage if self.storage is not None else self.alive()
        return storage if storage is not None and storage.nbytes() == self.nbytes else None


class Handle:
    """What autograd keeps in place of a tensor that may leave."""

    __slots__ = ("__weakref__", "alias", "bits", "dtype", "forget", "item", "offset", "size", "stride", "version")

    def __init__(self, item: Item, tensor: torch.Tensor, alias: torch.Tensor, forget: Callable[[Item], None]) -> None:
        self.item, self.alias, self.forget = item, alias, forget
        self.version = tensor._version
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        self.dtype = tensor.dtype
        self.bits = CONJUGATE * tensor.is_conj() + NEGATIVE * tensor.is_neg()
        item.handles += 1

    def __del__(self) -> None:
        item = self.item
        item.handles -= 1
        if not item.handles:
            self.forget(item)


    def check(self) -> None:
        """Raise what PyTorch raises for a saved tensor that was written over."""
        check(self.alias, self.version)

    def tensor(self) -> torch.Tensor:
        """The tensor, over the item's storage, which is here."""
        tensor = torch.empty(0, dtype=self.dtype, device=self.item.device)
        tensor.set_(self.item.storage, self.offset, self.size, self.stride)
        if self.bits & CONJUGATE:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if self.bits & NEGATIVE else tensor


class Kept:
    """What autograd keeps in place of a tensor that stays."""

    __slots__ = ("__weakref__", "handle", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, version: int) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.version = version
        self.handle: Handle | None = None  # since a retreat


def check(tensor: torch.Tensor, version: int) -> None:
    """Raise what PyTorch raises for a saved tensor that was written over: one whose version is another."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: it is at "
            f"version {tensor._version}; expected version {version} instead.")


class Decision(NamedTuple):
    """How what is packed leaves (None: it stays), and the tensor of the plan that it is.

    retreat  the step is not the one that the plan was made for: what was kept in it so far leaves, too.
    """

    action: Action | None
    tensor_id: int | None = None
    retreat: bool = False


STAY, SWAP, RETREAT = Decision(None), Decision(Action.SWAP_OUT), Decision(Action.SWAP_OUT, None, True)


class Guide(Protocol):
    """Says what leaves, by the number of a pack in its step.

    staying  of the first packs of the step: shape and type of one that stays, if it has these; None: ``packed`` is
             asked.
    idle     whether no way back begins in this step.
    """

    staying: Sequence[Any]
    idle: bool

    def packed(self, number: int, tensor: torch.Tensor) -> Decision:
        """What is to become of what is packed."""
        ...

    def unpacked(self, number: int) -> tuple[int, ...]:
        """Tensors of the plan whose way back begins after this unpack."""
        ...


class Watch(Protocol):
    """Is told what happens to items, in a step that is recorded."""

    def saved(self, number: int, item: Item) -> None:
        """An item was packed, with this number."""
        ...

    def wanted(self, number: int, item: Item | None, *, returned: bool) -> None:
        """An unpack wants an item (None: what stays). returned: its bytes have come back for it."""
        ...

    def forgotten(self, item: Item) -> None:
        """No handle of an item is left."""
        ...
