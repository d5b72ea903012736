"""The optimizer's state between steps: it waits on the host, and is on the device while its optimizer steps.

Between steps ``optimizer.state`` names tensors in host memory which hold the state's values, the same tensors every
time: what a program, ``state_dict()`` or pickle finds there is the state, and what is written into it or put in its
place is what the next step starts from. Where an optimizer allows it, it steps in parts, and a part's state is on the
device only while that part steps. Small tensors, what the optimizer does not name by parameter and key, and what
anything else holds stay where they are.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minidl.torch.backends import Backend, Copy, on_host, quiet
from minidl.torch.optimizers import Part, parts_of, state_of, step_in_parts
from minidl.torch.saved import LEAST_BYTES


class Waiting:
    """One tensor of a state. host: its values, between steps; away: whether that is where they are."""

    __slots__ = ("away", "copy", "device", "host", "named", "nbytes")

    def __init__(self, tensor: torch.Tensor, copy: Copy) -> None:
        self.copy, self.device, self.nbytes, self.away = copy, tensor.device, copy.nbytes, False
        self.host = _like(tensor, copy.buffer)
        self.named = weakref.ref(tensor)  # what the optimizer names while it is on the device


class States:
    """Brings states and sends them away.

    on        whether any may wait.
    staying   the share of each optimizer's parts whose state stays on the device.
    whole     whether an optimizer whose state all stays steps at once.
    brought   is told of each tensor that has come back, the number of its part, and how many parts there are.
    """

    def __init__(self, backend: Backend, device_type: str, *, on: bool) -> None:
        self.backend, self.device_type, self.on = backend, device_type, on
        self.staying, self.whole = 0.0, False
        self.brought: Callable[[torch.Tensor, int, int], None] | None = None
        self.moved_bytes = 0
        self._away = 0  # how many tensors wait now
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[tuple[int, Any], Waiting | None]] = (
            weakref.WeakKeyDictionary())  # None: others hold it, too
        self._whole: list[tuple[dict[str, Any], list[torch.Tensor]]] = []  # groups that are to be restored

    # Around the step of an optimizer ---------------------------------------------------------------------------------
    def before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer is about to step. One that steps in parts has stepped when this returns, and does no more."""
        self._restore()
        if not self.on or (self.staying == 1.0 and self.whole and not self._away):
            return
        parts = parts_of(optimizer)
        step = step_in_parts(optimizer, args, kwargs)
        if step is None or len(parts) < 2 or (self.staying == 1.0 and self.whole):
            for number, part in enumerate(parts):
                self._bring(optimizer, part, number, len(parts))
            return
        self._whole = [(group, group["params"]) for group in optimizer.param_groups]
        done = False
        try:
            for number, part in enumerate(parts):
                for (group, _), chosen in zip(self._whole, part, strict=True):
                    group["params"] = chosen
                self._bring(optimizer, part, number, len(parts))
                step()
                if not self._stays(number, len(parts)):
                    self._send(optimizer, part)
            done = True
        finally:
            if not done:
                self._restore()
        for group, _ in self._whole:
            group["params"] = []

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped."""
        self._restore()
        self.away(optimizer)

    def _stays(self, number: int, parts: int) -> bool:
        return number < round(self.staying * parts)

    def _restore(self) -> None:
        for group, parameters in self._whole:
            group["params"] = parameters
        self._whole = []

    # Between steps ---------------------------------------------------------------------------------------------------
    def away(self, optimizer: torch.optim.Optimizer, *, all_of_it: bool = False) -> None:
        """Send away the parts that do not stay; or all of them."""
        if self.on and (all_of_it or self.staying < 1.0):
            self._prune(optimizer)
            parts = parts_of(optimizer)
            for number, part in enumerate(parts):
                if all_of_it or not self._stays(number, len(parts)):
                    self._send(optimizer, part)

    def _prune(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget a state in whose place another was loaded."""
        known = self._known.setdefault(optimizer, {})
        there = {id(state) for state in optimizer.state.values()}
        for key in [key for key in known if key[0] not in there]:
            waiting = known.pop(key)
            if waiting is not None:
                self._forget(waiting)

    def all_away(self) -> None:
        """The state of every known optimizer leaves."""
        for optimizer in list(self._known):
            self.away(optimizer, all_of_it=True)

    def home(self) -> None:
        """All come back, and nothing waits any more."""
        self._restore()
        for optimizer, known in list(self._known.items()):
            self._bring(optimizer, [list(optimizer.state)])  # what is in no group any more, too
            for waiting in known.values():
                if waiting is not None:
                    self._forget(waiting)
        self._known.clear()

    def waits(self, tensor: torch.Tensor) -> bool:
        """True if a tensor lies in host memory in place of one on the device."""
        return tensor.untyped_storage()._cdata in on_host

    def others_bytes(self, optimizer: torch.optim.Optimizer | None) -> int:
        """Bytes of the states of all other optimizers, as far as they may wait."""
        return sum(waiting.nbytes for other, known in self._known.items() if other is not optimizer
                   for waiting in known.values() if waiting is not None)

    # Copies ----------------------------------------------------------------------------------------------------------
    def _named(self, optimizer: torch.optim.Optimizer, part: Part) -> Iterator[tuple[Any, Any, torch.Tensor]]:
        for group in part:
            for p in group:
                state = optimizer.state.get(p)
                if isinstance(state, dict):
                    yield from ((state, key, value) for key, value in list(state.items())
                                if isinstance(value, torch.Tensor))

    def _bring(self, optimizer: torch.optim.Optimizer, part: Part, number: int = 0, parts: int = 1) -> None:
        known = self._known.get(optimizer, {})
        with quiet():
            for state, key, value in self._named(optimizer, part):
                waiting = known.get((id(state), key))
                if waiting is None or not waiting.away or value is not waiting.host:
                    continue  # what the program has put in its place is where the program wants it
                storage = self.backend.into(waiting.copy, waiting.device)
                self.backend.arrived(waiting.copy)
                self.moved_bytes += waiting.nbytes
                state[key] = tensor = _like(value, storage)
                waiting.away, waiting.named = False, weakref.ref(tensor)
                self._away -= 1
                if self.brought is not None:
                    self.brought(tensor, number, parts)

    def _send(self, optimizer: torch.optim.Optimizer, part: Part) -> None:
        """Copy to the host, and let go. What something else holds comes back into its place."""
        known = self._known.setdefault(optimizer, {})
        shared = _shared(optimizer)
        with quiet():
            left = [self._left(known, shared, *each) for each in self._named(optimizer, part)]
            self.backend.settle()
        for state, key, waiting, tensor, storage in filter(None, left):
            held = storage()
            if held is None:
                continue
            # Its values would live in two places from now on.
            there = tensor()
            state[key] = _like(waiting.host, held) if there is None else there
            self._forget(waiting)
            known[id(state), key] = None

    def _left(self, known: dict[tuple[int, Any], Waiting | None], shared: set[int], state: Any, key: Any,
              value: torch.Tensor) -> tuple[Any, Any, Waiting, Any, Any] | None:
        """One tensor on its way out, its copy in its place; None if it stays."""
        if (id(state), key) in known and known[id(state), key] is None:
            return None  # others hold it
        if not self._may_leave(value) or value.untyped_storage()._cdata in shared:
            return None
        waiting = self._copied(value, known.get((id(state), key)))
        if waiting is None:
            return None  # there is no room on the host
        known[id(state), key], state[key] = waiting, waiting.host
        return state, key, waiting, weakref.ref(value), weakref.ref(value.untyped_storage())

    def _copied(self, tensor: torch.Tensor, waiting: Waiting | None) -> Waiting | None:
        storage = tensor.untyped_storage()
        if waiting is not None and (waiting.named() is not tensor or waiting.nbytes != storage.nbytes()):
            self._forget(waiting)  # the program has put another in its place: those who hold the old one keep it
            waiting = None
        copy = self.backend.out(storage, None if waiting is None else waiting.copy)
        if copy is None:
            return None
        if waiting is None:
            waiting = Waiting(tensor, copy)
            on_host.add(waiting.host.untyped_storage()._cdata)
        self._away += not waiting.away
        waiting.away = True
        self.moved_bytes += waiting.nbytes
        return waiting

    def _may_leave(self, tensor: torch.Tensor) -> bool:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.requires_grad:
            return False
        storage = tensor.untyped_storage()
        return (tensor.device.type == self.device_type and storage.nbytes() >= LEAST_BYTES and not self.waits(tensor)
                and not tensor.is_conj() and not tensor.is_neg())

    def _forget(self, waiting: Waiting) -> None:
        """Its host memory belongs to those who still hold the tensor in it."""
        self._away -= waiting.away
        waiting.away = False
        on_host.discard(waiting.host.untyped_storage()._cdata)
        self.backend.disown(waiting.copy)


def _shared(optimizer: torch.optim.Optimizer) -> set[int]:
    """Addresses of storages that several tensors of a state lie in."""
    every = [tensor.untyped_storage()._cdata for tensor in state_of(optimizer) if tensor.layout is torch.strided]
    return {address for address, count in Counter(every).items() if count > 1}


def _like(tensor: torch.Tensor, storage: Any) -> torch.Tensor:
    """A tensor that lies in another storage as this one does in its own."""
    made = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
