"""Keeps the optimizer's state on the host between steps, and on the device while its optimizer steps.

Between steps ``optimizer.state`` contains tensors in host memory with the state's values, the same tensors every time.
So a program, ``state_dict()`` or pickle finds the state there, and the next step starts from the values or tensors that
the program puts there. An optimizer that allows it steps in parts, and a part's state is on the device only while that
part steps. Small tensors, state that is not stored by parameter and key, and tensors that anything else holds stay.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minidl.torch.backends import Backend, Copy, on_host, quiet
from minidl.torch.eligible import LEAST_BYTES
from minidl.torch.optimizers import Part, closure_then, parts_of, state_of, step_in_parts


class Waiting:
    """One tensor of optimizer state. host: the host tensor for its values; away: True while they are only there."""

    __slots__ = ("away", "copy", "device", "host", "named", "nbytes")

    def __init__(self, tensor: torch.Tensor, copy: Copy) -> None:
        self.copy, self.device, self.nbytes, self.away = copy, tensor.device, copy.nbytes, False
        self.host = _like(tensor, copy.buffer)
        self.named = weakref.ref(tensor)  # the tensor in ``optimizer.state`` while it is on the device


class States:
    """Moves optimizer state between the device and the host.

    on        False: all state stays on the device.
    staying   the share of each optimizer's parts (parameters that step together) whose state stays on the device.
    whole     True: an optimizer whose state stays on the device steps in one piece, not part by part.
    brought   called with each tensor that has come to the device, the number of its part, and the number of parts.
    stuck     how many tensors could not leave so far, since the program holds them besides its optimizer.
    moved_bytes bytes moved to the host and back so far.
    """

    def __init__(self, backend: Backend, device_type: str, *, on: bool) -> None:
        self.backend, self.device_type, self.on = backend, device_type, on
        self.staying, self.whole = 0.0, False
        self.brought: Callable[[torch.Tensor, int, int], None] | None = None
        self.moved_bytes = self.stuck = 0
        self._away = 0  # number of tensors on the host now
        # For each optimizer, by parameter's state and key; None: something else holds it, too.
        self._known: dict[weakref.ref[torch.optim.Optimizer], dict[tuple[int, Any], Waiting | None]] = {}
        self._whole: list[tuple[dict[str, Any], list[torch.Tensor]]] = []  # groups to restore after a step in parts

    # Around the step of an optimizer ---------------------------------------------------------------------------------
    def before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
               ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Bring an optimizer's state to the device for its step; return the step's new arguments (None: unchanged).
        An optimizer that steps in parts has stepped when this returns; its own step then finds no parameters. With a
        closure (which the new arguments replace) the state may come only when the closure has returned."""
        self._restore()
        if not self.on or (self.staying == 1.0 and self.whole and not self._away):
            return None
        parts = parts_of(optimizer)
        step = step_in_parts(optimizer, args, kwargs)
        if step is None or len(parts) < 2 or (self.staying == 1.0 and self.whole):
            def bring() -> None:
                for number, part in enumerate(parts):
                    self._bring(optimizer, part, number, len(parts))
            later = closure_then(optimizer, args, kwargs, bring)
            if later is None:
                bring()
            return later
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
        return None

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Restore an optimizer's parameter groups after its step; send the state that does not stay to the host."""
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
        """Send the state of an optimizer to the host: of the parts that do not stay, or of all (``all_of_it``)."""
        if self.on and (all_of_it or self.staying < 1.0):
            self._bury()
            self._prune(optimizer)
            parts = parts_of(optimizer)
            for number, part in enumerate(parts):
                if all_of_it or not self._stays(number, len(parts)):
                    self._send(optimizer, part)

    def _prune(self, optimizer: torch.optim.Optimizer) -> None:
        """Stop managing state that the optimizer has replaced, for instance by ``load_state_dict``."""
        known = self._known.setdefault(weakref.ref(optimizer), {})
        there = {id(state) for state in optimizer.state.values()}
        for key in [key for key in known if key[0] not in there]:
            waiting = known.pop(key)
            if waiting is not None:
                self._forget(waiting)

    def _bury(self) -> None:
        """Stop managing the state of optimizers that no longer exist."""
        for ref in [ref for ref in self._known if ref() is None]:
            for waiting in self._known.pop(ref).values():
                if waiting is not None:
                    self._forget(waiting)

    def all_away(self, *, all_of_it: bool = True) -> None:
        """Send every optimizer's state to the host; with ``all_of_it=False`` only that of parts that do not stay."""
        for ref in list(self._known):
            optimizer = ref()
            if optimizer is not None:
                self.away(optimizer, all_of_it=all_of_it)

    def home(self) -> None:
        """Bring all optimizer state back to the device, and release its host memory; the optimizers stay registered."""
        self._restore()
        for ref, known in self._known.items():
            optimizer = ref()
            if optimizer is not None:
                self._bring(optimizer, [list(optimizer.state)])  # also of parameters that have left their group
            for waiting in known.values():
                if waiting is not None:
                    self._forget(waiting)
        self._known = {ref: {} for ref in self._known if ref() is not None}

    def waits(self, tensor: torch.Tensor) -> bool:
        """True if a tensor holds, in host memory, optimizer state that is away from the device."""
        return tensor.untyped_storage()._cdata in on_host

    @property
    def there_bytes(self) -> int:
        """Bytes of state on the device that can leave it."""
        return sum(waiting.nbytes for known in self._known.values() for waiting in known.values()
                   if waiting is not None and not waiting.away)

    def others_bytes(self, optimizers: Sequence[torch.optim.Optimizer]) -> int:
        """Return the bytes of state, of all optimizers but these, that this object moves to the host and back."""
        return sum(waiting.nbytes for ref, known in self._known.items() if ref() not in (None, *optimizers)
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
        known = self._known.get(weakref.ref(optimizer), {})
        with quiet():
            for state, key, value in self._named(optimizer, part):
                waiting = known.get((id(state), key))
                if waiting is None or not waiting.away or value is not waiting.host:
                    continue  # the program has put another tensor there, which stays where it is
                storage = self.backend.into(waiting.copy, waiting.device)
                self.backend.arrived(waiting.copy)
                self.moved_bytes += waiting.nbytes
                state[key] = tensor = _like(value, storage)
                waiting.away, waiting.named = False, weakref.ref(tensor)
                self._away -= 1
                if self.brought is not None:
                    self.brought(tensor, number, parts)

    def _send(self, optimizer: torch.optim.Optimizer, part: Part) -> None:
        """Copy a part's state to the host, and free it on the device. A tensor that anything else holds stays there."""
        known = self._known.setdefault(weakref.ref(optimizer), {})
        shared = _shared(optimizer)
        with quiet():
            left = [self._left(known, shared, *each) for each in self._named(optimizer, part)]
            self.backend.settle()
        for state, key, waiting, tensor, storage in filter(None, left):
            held = storage()
            if held is None:
                continue
            # Something else holds the device's bytes, so a copy of them could become outdated.
            there = tensor()
            state[key] = _like(waiting.host, held) if there is None else there
            self._forget(waiting)
            known[id(state), key] = None
            self.stuck += 1

    def _left(self, known: dict[tuple[int, Any], Waiting | None], shared: set[int], state: Any, key: Any,
              value: torch.Tensor) -> tuple[Any, Any, Waiting, Any, Any] | None:
        """Start to copy one tensor to the host, and put a host tensor into ``state``; return None if it has to stay."""
        if (id(state), key) in known and known[id(state), key] is None:
            return None  # something else holds it
        if not self._may_leave(value) or value.untyped_storage()._cdata in shared:
            return None
        waiting = self._copied(value, known.get((id(state), key)))
        if waiting is None:
            return None  # the host pool is full
        known[id(state), key], state[key] = waiting, waiting.host
        return state, key, waiting, weakref.ref(value), weakref.ref(value.untyped_storage())

    def _copied(self, tensor: torch.Tensor, waiting: Waiting | None) -> Waiting | None:
        storage = tensor.untyped_storage()
        if waiting is not None and (waiting.named() is not tensor or waiting.nbytes != storage.nbytes()):
            self._forget(waiting)  # the program has put another tensor there; the old host tensor stays valid
            waiting = None
        copy = self.backend.out(storage, None if waiting is None else waiting.copy)
        if copy is None:
            return None
        if waiting is None:
            waiting = Waiting(tensor, copy)
            on_host[copy.buffer._cdata] = copy.buffer
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
        """Stop managing a tensor of state. Its host memory now belongs to the program, if that uses the host tensor."""
        self._away -= waiting.away
        waiting.away = False
        on_host.pop(waiting.copy.buffer._cdata, None)
        self.backend.disown(waiting.copy)


def _shared(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the addresses of the storages that several tensors of an optimizer's state share."""
    every = [tensor.untyped_storage()._cdata for tensor in state_of(optimizer) if tensor.layout is torch.strided]
    return {address for address, count in Counter(every).items() if count > 1}


def _like(tensor: torch.Tensor, storage: Any) -> torch.Tensor:
    """Return a tensor with the dtype and layout of ``tensor`` in another storage."""
    made = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
