"""Finds all objects of a class in the process, and the tensors that are on the device, also those that no step reads.

Python's garbage collector lists them. It lists no tensor that only code in C++ holds.
"""

import gc
from typing import Any

import torch

from minidl.torch.backends import on_host


def kinds(kind: type) -> set[type]:
    """Return a class and all classes derived from it."""
    return {kind}.union(*map(kinds, kind.__subclasses__()))


def all_of(some: set[type]) -> list[Any]:
    """Return all objects of the process whose class is in ``some``."""
    return [each for each in gc.get_objects() if type(each) in some]  # ``issubclass`` takes ten times as long


def has_own_dispatch(kind: Any) -> bool:
    """True if a class of tensors answers PyTorch's calls itself. Its tensors wrap others or have no bytes."""
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl and (
        kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)


def on_device(device_type: str) -> list[torch.Tensor]:
    """Return the tensors, also gradients, whose bytes are on a device of this type. Garbage is freed before.
    Tensors that hold optimizer state on the host are not among them, even if a test takes a CPU for a GPU."""
    gc.collect()
    found = []
    with torch._C.DisableTorchFunctionSubclass():
        tensors = all_of({kind for kind in kinds(torch.Tensor) if not has_own_dispatch(kind)})
        for tensor in tensors + [t.grad for t in tensors if t.is_leaf and t.grad is not None]:
            try:
                if tensor.layout is torch.strided and tensor.device.type == device_type and (
                        tensor.untyped_storage()._cdata not in on_host and not tensor._is_zerotensor()):
                    found.append(tensor)
            except (NotImplementedError, RuntimeError):  # a wrapper without a storage, as in torch.func
                continue
    return found
