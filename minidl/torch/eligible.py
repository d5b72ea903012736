"""Which tensors may be evicted, by properties that they have in every step."""

from typing import Any

import torch

LEAST_BYTES = 4096  # smaller storages stay: there are many, and they hold few bytes


def is_foreign(storage: Any) -> bool:
    """True if others may write a storage's memory unseen: that of a NumPy array, a mapped file, or given to NumPy."""
    return not storage.resizable() and not storage.is_shared()  # shared: by processes, such as a loader's batches


class Eligible:
    """True for a tensor that may be evicted: ordinary, on the device, large enough, no parameter or view of one.
    Ordinary: not sparse, nested or quantized, of no subclass of Tensor. Large enough: 4,096 bytes of storage."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self._device: torch.device | None = None  # of the tensor that was managed last

    def __call__(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor may be evicted."""
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized or (
                tensor.is_nested or tensor._is_zerotensor()):  # zeros without any bytes
            return False
        device = tensor.device
        if device != self._device:  # equal devices: comparing names would take five times as long
            if device.type != self.device_type:
                return False
            self._device = device
        of = tensor._base
        if of is None:
            of = tensor
        return not (of.is_leaf and of.requires_grad) and tensor.untyped_storage().nbytes() >= LEAST_BYTES
