"""The hooks on saved tensors: they let go of storages and bring them back.

Only what autograd alone holds leaves, and it leaves by letting go of it: a storage that anything else holds stays as it
is, and is taken again when it is wanted. No storage is ever emptied. Decides nothing: a ``Guide`` says what leaves.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

import torch

from minidl.plan.plan import Action
from minidl.torch.backends import Backend, quiet
from minidl.torch.items import SWAP, Decision, Guide, Handle, Item, Kept, Watch, check

LEAST_BYTES = 4096  # smaller storages stay: they are too many for what they hold


class Saved:
    """The hooks. ``packs`` and ``unpacks`` count since ``begin``.

    lineage    is told of each new item and whether it is to be dropped, and gives the value by which it is made again;
               None if it has to be swapped. recompute: makes its storage again from that. forward: is told of each
               pack (True) and unpack (False). before: is called before the next pack outside of a backward pass.
    early      is told of each tensor that is packed. retreating: is called when a step has left its plan.
    idle       in this step an unpack of what stays has nothing else to do.
    """

    def __init__(self, backend: Backend, device_type: str, guide: Guide) -> None:
        self.backend, self.device_type, self.guide = backend, device_type, guide
        self.watch: Watch | None = None
        self.lineage: Callable[[Item, bool], Any] | None = None
        self.recompute: Callable[[Item], Any] | None = None
        self.forward: Callable[[bool], None] | None = None
        self.before: Callable[[], None] | None = None
        self.early: Callable[[torch.Tensor], None] | None = None
        self.retreating: Callable[[], None] | None = None
        self.idle = False
        self.lock = Lock()  # a backward pass may run in another thread, and each device has one
        self._gone: deque[Item] = deque()  # without handles: let go of as soon as the lock is free
        self.packs = self.unpacks = 0
        self.late = self.refused = 0
        self.late_ids: dict[int, int] = {}
        self._items: dict[int, weakref.ref[Item]] = {}  # by the address of the storage
        self._by_tensor: dict[int, weakref.ref[Item]] = {}
        self._kept: list[weakref.ref[Kept]] = []
        self._empty: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def begin(self) -> None:
        """A new step."""
        with self.lock:
            self._let_go()
            self.packs = self.unpacks = self.late = self.refused = 0
            self.late_ids = {}
            self.idle = self.guide.idle and self.forward is None and self.watch is None
            self._items = {at: ref for at, ref in self._items.items() if ref() is not None}
            self._by_tensor, self._kept = {}, []

    def manages(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may leave at all: an ordinary one on the device, large enough, and no parameter."""
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized or (
                tensor.device.type != self.device_type or tensor._is_zerotensor()):  # zeros that have no bytes at all
            return False
        of = tensor if tensor._base is None else tensor._base
        return not (of.is_leaf and of.requires_grad) and tensor.untyped_storage().nbytes() >= LEAST_BYTES

    # Forward ---------------------------------------------------------------------------------------------------------
    def pack(self, tensor: torch.Tensor) -> Kept | Handle:
        """The hook by which autograd saves a tensor."""
        number, staying = self.packs, self.guide.staying
        if number < len(staying) and staying[number] == (tensor.shape, tensor.dtype) and self.forward is None:
            self.packs = number + 1  # most stay, and there are hundreds a step: nothing more is done for these
            kept = Kept(tensor if tensor.grad_fn is None else tensor.detach(), tensor._version)  # as ``_stays``
            self._kept.append(weakref.ref(kept))
            return kept
        if self.before is not None and torch._C._current_graph_task_id() == -1:
            self.before()
        if self.early is not None:
            self.early(tensor)
        with self.lock:
            if self._gone:
                self._let_go()
            self.packs += 1
            decision = self.guide.packed(self.packs, tensor)
            self.idle = self.idle and self.guide.idle
            if decision.retreat:
                self._retreat()
            if self.forward is not None:
                self.forward(True)
            # What says itself how it is computed with is asked before the dispatcher is silenced.
            if decision.action is None or not self.manages(tensor):
                return self._stays(tensor)
            with quiet():
                item = self._item(tensor, decision)
                if self.watch is not None:
                    self.watch.saved(self.packs, item)
                return Handle(item, tensor, self._alias(tensor), self.forget)

    def _stays(self, tensor: torch.Tensor) -> Kept:
        # Without its node: autograd would keep what keeps it, and neither would ever end.
        kept = Kept(tensor if tensor.grad_fn is None else tensor.detach(), tensor._version)
        self._kept.append(weakref.ref(kept))
        return kept

    def _item(self, tensor: torch.Tensor, decision: Decision) -> Item:
        storage, version = tensor.untyped_storage(), tensor._version
        known = self._items.get(storage._cdata)
        item = known() if known is not None else None
        # An address comes again when its storage is gone, and so do versions.
        alive = item.alive() if item is not None else None
        if item is not None and item.version == version and alive is not None and alive._cdata == storage._cdata:
            return item
        item = Item(storage, version)
        item.tensor_id = decision.tensor_id
        self._items[storage._cdata] = weakref.ref(item)
        if item.tensor_id is not None:
            self._by_tensor[item.tensor_id] = weakref.ref(item)
        if self.lineage is not None:
            item.value = self.lineage(item, decision.action is Action.DROP)
        if item.value is None:
            item.copy = self.backend.out(storage)
            self.refused += item.copy is None
            if self.watch is not None:
                self.backend.settle()  # a step is measured as if copies took no time: what leaves has left
        if item.value is not None or item.copy is not None:
            item.storage = None
        return item

    def _alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor without bytes that has the tensor's version counter."""
        key = tensor.dtype, tensor.device
        if key not in self._empty:
            self._empty[key] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        alias = tensor.detach()
        alias.data = self._empty[key]
        return alias

    def _retreat(self) -> None:
        """What was kept in this step leaves, too."""
        if self.retreating is not None:
            self.retreating()
        for ref in self._kept:
            kept = ref()
            tensor = kept.tensor if kept is not None else None
            if kept is None or tensor is None or not self.manages(tensor) or tensor._version != kept.version:
                continue
            with quiet():
                item = self._item(tensor, SWAP)
                kept.handle, kept.tensor = Handle(item, tensor, self._alias(tensor), self.forget), None
        self._kept = []

    # Backward --------------------------------------------------------------------------------------------------------
    def unpack(self, kept: Kept | Handle) -> torch.Tensor:
        """The hook by which autograd wants a tensor back. Raises what PyTorch raises for one that was written over."""
        if type(kept) is Kept and self.idle and kept.tensor is not None:
            self.unpacks += 1
            if kept.tensor._version != kept.version:
                check(kept.tensor, kept.version)
            return kept.tensor
        with self.lock:
            if self._gone:
                self._let_go()
            self.unpacks += 1
            if self.forward is not None:
                self.forward(False)
            if isinstance(kept, Kept):
                if kept.handle is None:
                    tensor = kept.tensor
                    assert tensor is not None
                    check(tensor, kept.version)
                    if self.watch is not None:
                        self.watch.wanted(self.unpacks, None, returned=False)
                    self._ahead()
                    return tensor
                kept = kept.handle
            kept.check()
            with quiet():
                item = kept.item
                returned = self._bring(item)
                if self.watch is not None:
                    self.watch.wanted(self.unpacks, item, returned=returned)
                tensor = kept.tensor()
                self._ahead()
            return tensor

    def _bring(self, item: Item) -> bool:
        """Make an item's storage be here, held until its last handle has gone; whether it was not."""
        here = item.here
        if here is not None:
            if item.copy is not None and item.storage is not None:
                self.backend.arrived(item.copy)  # its way back may have begun ahead
            item.storage = here
            return False
        self.late += 1
        if item.tensor_id is not None:
            self.late_ids[item.tensor_id] = self.late_ids.get(item.tensor_id, 0) + 1
        self._start(item)
        if item.copy is not None:
            self.backend.arrived(item.copy)
        return True

    def _start(self, item: Item) -> None:
        if item.copy is not None:
            item.take(self.backend.into(item.copy, item.device))
        else:
            assert self.recompute is not None
            item.take(self.recompute(item))
            item.value = None  # it is held to its end: what it was made from may go

    def fetch(self, item: Item) -> Any:
        """The storage of an item that a replay reads, held from now on."""
        self._bring(item)
        return item.storage

    def _ahead(self) -> None:
        for tensor_id in self.guide.unpacked(self.unpacks):
            ref = self._by_tensor.get(tensor_id)
            item = ref() if ref is not None else None
            if item is not None and item.copy is not None and item.here is None:
                with quiet():
                    self._start(item)

    def forget(self, item: Item) -> None:
        """The last handle of an item has gone. Where that happens while the lock is held it is seen to later: Python
        may collect garbage anywhere."""
        self._gone.append(item)
        if self.lock.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self.lock.release()

    def _let_go(self) -> None:
        while self._gone:
            item = self._gone.popleft()
            if item.handles:
                continue  # it was saved again meanwhile
            if self.watch is not None:
                self.watch.forgotten(item)
            if item.copy is not None:
                self.backend.free(item.copy)
            item.copy = item.storage = item.value = None
            known = self._items.get(item.address)
            if known is not None and known() is item:
                del self._items[item.address]
