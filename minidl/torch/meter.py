"""Measures the peak of the bytes in a device's storages, with a dispatch mode. It moves nothing.

It counts storages that pass the dispatcher or that ``managed`` brings back, not what kernels allocate internally.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from minidl.torch.backends import on_host, unseen
from minidl.torch.beneath import Beneath
from minidl.torch.schemas import tensors_in


class Meter(Beneath):
    """A dispatch mode that counts the bytes of a device's storages. ``bytes``: now; ``peak``: the maximum so far.
    Storages within code of ``torch.compile`` do not count."""

    def __init__(self, known: Iterable[torch.Tensor] = (), device_type: str = "cpu") -> None:
        """Start the count with the tensors of ``known``, which exist already, such as the model's parameters."""
        super().__init__()
        self.device_type = device_type
        self.bytes = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self.see(tensor)

    def see(self, tensor: torch.Tensor) -> None:
        """Count the bytes of a tensor's storage, if it is on the meter's device, until the storage is freed."""
        if tensor.layout is not torch.strided or tensor.device.type != self.device_type:
            return
        self._count(tensor.untyped_storage())

    def _count(self, storage: Any) -> None:
        address = storage._cdata
        if address in on_host:
            return  # on a CPU a copy on the host has the device's type, but does not count
        known = self._seen.get(address)
        if known is not None and known() is not None:
            return
        nbytes = storage.nbytes()
        self._seen[address] = weakref.ref(storage, partial(self._ended, address, nbytes))
        self.bytes += nbytes
        self.peak = max(self.peak, self.bytes)

    def _ended(self, address: int, nbytes: int, ref: object) -> None:
        self.bytes -= nbytes
        if self._seen.get(address) is ref:
            del self._seen[address]

    def __enter__(self) -> Meter:
        unseen.append(self._count)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        unseen.remove(self._count)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call, and count the storages of its arguments and results."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view:
            for tensor in tensors_in(args, kwargs):
                self.see(tensor)
            for tensor in tensors_in(result if isinstance(result, (tuple, list)) else (result,)):
                self.see(tensor)
        return result
