"""Lets a PyTorch program that asks for a GPU run without one, on fake tensors that lie on the CPU.

``cuda`` in any call means the CPU; ``.cuda()`` changes nothing; autocast for ``cuda`` is that of the CPU, which casts
nearly the same operations. So a program whose optimizer lies on the CPU on purpose counts as if all lay on the GPU.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.amp.autocast_mode import autocast
from torch.overrides import TorchFunctionMode

GPU = "cuda"
Convert = Callable[[Any], Any]


class OnCpu(TorchFunctionMode):
    """The function mode that replaces the device ``cuda`` by ``cpu`` in the arguments of each PyTorch call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a PyTorch function on the CPU; return its result."""
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        return func(*map(_moved, args), **{name: _moved(value) for name, value in (kwargs or {}).items()})


def _moved(value: Any) -> Any:
    """Return the CPU if the value is a CUDA device, or the name of one; any other value unchanged."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == GPU else value
    return "cpu" if isinstance(value, str) and value.split(":")[0] == GPU else value


def converted(module: Any, convert: Convert, recurse: bool = True) -> Any:
    """Call ``convert`` on the parameters and buffers of a module, as ``Module._apply`` does; return the module.
    Unlike ``Module._apply`` it works on fake tensors. Parameters that modules share stay shared."""
    done: dict[int, Any] = {}
    for each in module.modules() if recurse else [module]:
        for name, tensor in each._parameters.items():
            if tensor is not None:
                if id(tensor) not in done:
                    with torch.no_grad():
                        made = convert(tensor)
                    same = made is tensor or made.dtype == tensor.dtype and made.shape == tensor.shape
                    done[id(tensor)] = tensor if same else torch.nn.Parameter(made, tensor.requires_grad)
                each._parameters[name] = done[id(tensor)]
        for name, tensor in each._buffers.items():
            if tensor is not None:
                each._buffers[name] = convert(tensor)
    return module


@contextmanager
def as_on_gpu(noted: Callable[[torch.dtype], object] = lambda dtype: None) -> Iterator[None]:
    """Return a context in which a program may ask for a GPU. noted: called with the dtype of each autocast."""
    begin = autocast.__init__

    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
             cache_enabled: bool | None = None) -> None:
        if dtype is None:
            dtype = torch.float16 if device_type == GPU else torch.bfloat16
        if enabled:
            noted(dtype)
        begin(self, "cpu", dtype, enabled, cache_enabled)

    with ExitStack() as inside:
        inside.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # that there is no GPU
        inside.enter_context(patch.object(autocast, "__init__", init))
        inside.enter_context(patch.object(torch.nn.Module, "_apply", converted))
        inside.enter_context(patch.object(torch.cuda, "synchronize", lambda *_: None))
        inside.enter_context(OnCpu())
        yield
