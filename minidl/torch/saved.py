"""The saved-tensor hooks: they evict the storages of saved tensors, and bring them back.

Only a storage that autograd alone holds leaves the device: the hooks release it, and its memory is freed. A storage
that anything else holds stays as it is, and is used again. No storage is ever emptied. A ``Guide`` makes the
decisions.
"""

import weakref
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

import torch

from minidl.plan.plan import Action
from minidl.torch.backends import Backend, quiet
from minidl.torch.eligible import Eligible
from minidl.torch.items import STAY, SWAP, Aliases, Decision, Guide, Handle, Item, Kept, Watch, check, share_counter
from minidl.torch.known import packed_of

_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # the number of dispatch modes now


class Saved:
    """The saved-tensor hooks ``pack`` and ``unpack``; ``packs`` and ``unpacks`` count their calls in this step.
    late    reads in this step for which a tensor had to come back (``late_ids``: by id); refused: tensors that the
            full host refused.

    lineage    called with each new ``Item`` and True if it is to be dropped; returns the value for its replay, or None
               if it has to be swapped. recompute: replays an item; returns its storage. forward: called at each pack
               (True) and unpack (False). before: called before the next pack that is not in a backward pass.
    early      called with each packed tensor. retreating: called when a step has departed from its plan.
    idle       True if ``unpack`` may return a tensor that stayed at once, since it has nothing else to do in this step.
    """

    def __init__(self, backend: Backend, device_type: str, guide: Guide) -> None:
        self.backend, self.guide = backend, guide
        self.manages = Eligible(device_type)
        self.watch: Watch | None = None
        self.lineage: Callable[[Item, bool], Any] | None = None
        self.recompute: Callable[[Item], Any] | None = None
        self.forward: Callable[[bool], None] | None = None
        self.before: Callable[[], None] | None = None
        self.early: Callable[[torch.Tensor], None] | None = None
        self.retreating: Callable[[], None] | None = None
        self.idle = False
        self.lock = Lock()  # a backward pass may run in another thread, and each device has one
        self._gone: deque[Item] = deque()  # without handles: released as soon as the lock is free
        self.packs = self.unpacks = self.late = self.refused = 0
        self.late_ids: dict[int, int] = {}
        self._items: dict[int, weakref.ref[Item]] = {}  # the latest by the address of its storage
        self._every: list[weakref.ref[Item]] = []  # also those whose address another storage has got
        self._by_tensor: dict[int, weakref.ref[Item]] = {}
        self._kept: list[weakref.ref[Kept]] = []
        self._unfilled: deque[tuple[int, weakref.ref[Kept], Decision]] = deque()  # the oldest first
        self._alias = Aliases().of

    def begin(self) -> None:
        """Begin a new step: set the counts to 0, and forget the tensors that the last step kept on the device."""
        with self.lock:
            self._let_go()
            self.packs = self.unpacks = self.late = self.refused = 0
            self.idle = self.guide.idle and self.watch is None
            self._items = {at: ref for at, ref in self._items.items() if ref() is not None}
            self._every = [ref for ref in self._every if ref() is not None]
            self.late_ids, self._by_tensor, self._kept = {}, {}, []
            self._unfilled.clear()

    def holds(self) -> bool:
        """True if autograd has saved tensors in this step and still holds some: a backward pass may follow."""
        return bool(self.packs) and (any(ref() is not None for ref in self._kept) or any(
            item.handles for item in self._alive()))

    def there(self) -> list[Any]:
        """Return the storages on the device that this object holds for graphs which are still alive."""
        return [item.storage for item in self._alive() if item.storage is not None]

    def _alive(self) -> list[Item]:
        return [item for item in (ref() for ref in self._every) if item is not None]

    # Forward ---------------------------------------------------------------------------------------------------------
    def pack(self, tensor: torch.Tensor) -> Kept | Handle:
        """The pack hook: return the object that autograd keeps in place of a tensor that it saves."""
        number, ahead = self.packs, self.guide.ahead
        if self._unfilled and self._unfilled[0][0] < number:
            self._evict_filled(number)
        packed = packed_of(tensor)
        if number < len(ahead) and ahead[number][0] == packed:  # as planned, hundreds a step
            self.packs = number + 1
            if self.forward is not None:
                self.forward(True)
            decision = ahead[number][1]
            if decision is STAY or not self.manages(tensor):
                return self._stays(tensor)
            with self.lock:
                if self._gone:
                    self._let_go()
                if not _modes():
                    return self._evicted(tensor, decision)
                with quiet():
                    return self._evicted(tensor, decision)
        if self.before is not None and torch._C._current_graph_task_id() == -1:
            self.before()
        if self.early is not None:
            self.early(tensor)
        with self.lock:
            if self._gone:
                self._let_go()
            self.packs += 1
            decision = self.guide.packed(self.packs, packed, self.unpacks)
            self.idle = self.idle and self.guide.idle
            if decision.retreat:
                self.retreat()
            if self.forward is not None:
                self.forward(True)
            # ``manages`` comes before ``quiet``, since tensor subclasses answer through their dispatch.
            if decision.action is None or not self.manages(tensor):
                return self._stays(tensor)
            with quiet():
                return self._evicted(tensor, decision)

    def _stays(self, tensor: torch.Tensor) -> Kept:
        kept = Kept(tensor, self.packs)
        self._kept.append(weakref.ref(kept))
        return kept

    def _evicted(self, tensor: torch.Tensor, decision: Decision) -> Kept | Handle:
        if tensor._version == 0 and tensor.is_leaf:
            # The call that saves a tensor may still have to fill it, as ``rrelu`` does with its noise. Such a call
            # saves at most one tensor more before it runs.
            kept = self._stays(tensor)
            self._unfilled.append((self.packs, weakref.ref(kept), decision))
            return kept
        return self._handle(tensor, decision, self.packs)

    def _handle(self, tensor: torch.Tensor, decision: Decision, number: int) -> Handle:
        alias = self._alias(tensor)
        item = self._item(tensor, alias, decision)
        if self.watch is not None:
            self.watch.saved(number, item)
        return Handle(item, tensor, alias)

    def _evict_filled(self, before: int) -> None:
        """Evict the tensors that waited for the end of the call that saved them: those whose numbers are smaller."""
        with self.lock, quiet():
            while self._unfilled and self._unfilled[0][0] < before:
                _, ref, decision = self._unfilled.popleft()
                self._evict_kept(ref(), decision)

    def _evict_kept(self, kept: Kept | None, decision: Decision) -> None:
        tensor = kept.tensor if kept is not None else None
        if kept is not None and tensor is not None and self.manages(tensor) and tensor._version == kept.version:
            kept.handle, kept.tensor = self._handle(tensor, decision, kept.number), None

    def _item(self, tensor: torch.Tensor, alias: torch.Tensor, decision: Decision) -> Item:
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self._items.get(address)
        item = known() if known is not None else None
        # Addresses and versions recur once a storage is gone.
        alive = item.alive() if item is not None else None
        if item is not None and item.version == alias._version and alive is not None and alive._cdata == address and (
                share_counter(item.counter, alias)):
            return item
        item = Item(storage, alias, self.forget)
        self._items[address] = ref = weakref.ref(item)
        self._every.append(ref)
        if decision.tensor_id is not None:
            item.tensor_id = decision.tensor_id
            self._by_tensor[decision.tensor_id] = ref
        if self.lineage is not None:
            item.value = self.lineage(item, decision.action is Action.DROP)
        if item.value is None:
            item.copy = self.backend.out(storage)
            self.refused += item.copy is None
            if self.watch is not None:
                self.backend.settle()  # a recorded step sees each copy end at once
        if item.value is not None or item.copy is not None:
            item.storage = None
        return item

    def retreat(self) -> None:
        """Swap out the tensors that this step has kept so far, since it departs from its plan."""
        if self.retreating is not None:
            self.retreating()
        kept, self._kept = self._kept, []
        for ref in kept:
            each = ref()
            if each is not None and each.number + 1 >= self.packs:  # as in ``_evicted``
                self._unfilled.append((each.number, ref, SWAP))
                continue
            with quiet():
                self._evict_kept(each, SWAP)

    # Backward --------------------------------------------------------------------------------------------------------
    def unpack(self, kept: Kept | Handle) -> torch.Tensor:
        """The unpack hook: return the tensor that was saved as ``kept``. Raises RuntimeError if it was overwritten."""
        if self._unfilled:
            self._evict_filled(self.packs + 1)
        if type(kept) is Kept and self.idle and kept.tensor is not None:
            self.unpacks += 1
            if self.forward is not None:
                self.forward(False)
            if kept.tensor._version != kept.version:
                check(kept.tensor, kept.version)
            return kept.tensor
        with self.lock:
            if self._gone:
                self._let_go()
            self.unpacks += 1
            if self.forward is not None:
                self.forward(False)
            if type(kept) is Kept:
                if kept.handle is None:
                    tensor = kept.tensor
                    assert tensor is not None
                    check(tensor, kept.version)
                    if self.watch is not None:
                        self.watch.wanted(self.unpacks, None, returned=False)
                    self._ahead()
                    return tensor
                kept = kept.handle
            assert type(kept) is Handle
            if kept.alias._version != kept.version:
                check(kept.alias, kept.version)
            if not _modes():
                return self._returned(kept)
            with quiet():
                return self._returned(kept)

    def _returned(self, handle: Handle) -> torch.Tensor:
        returned = self._bring(handle.item)
        if self.watch is not None:
            self.watch.wanted(self.unpacks, handle.item, returned=returned)
        tensor = handle.tensor()
        if not self.idle:
            self._ahead()
        return tensor

    def _bring(self, item: Item) -> bool:
        """Bring an item's storage to the device unless it is there, and hold it; return True if it was brought."""
        here = item.here
        if here is not None:
            if item.copy is not None and item.storage is not None:
                self.backend.arrived(item.copy)  # a prefetch may have started
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
            item.value = None  # the storage stays now, so its lineage may go

    def fetch(self, item: Item) -> Any:
        """Return the storage of an item, which a replay reads. An evicted item is brought to the device and stays."""
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
        """Free the buffer and the storage of an item to which no handle refers, now or when the lock is free.
        Garbage collection may call this at any point, even in a method of this object that holds the lock."""
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
