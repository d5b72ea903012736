"""minidl under PyTorch's name: a program imports ``minidl.as_torch as torch`` instead of ``torch``.

Later imports (``import torch.nn as nn``, ``from torch.utils.data import DataLoader``) then find minidl, too, in this
process; so PyTorch itself must not have been imported before. This import opens the runtime in which the program runs.
Environment variables describe the runtime:

    MINIDL_DEVICE   cpu by default; any name that ``Runtime(device=...)`` takes
    MINIDL_MEMORY   the memory budget, 4GiB by default
    MINIDL_POLICY   auto by default
    MINIDL_SEED     0 by default
"""

import atexit
import os
import sys
from types import ModuleType
from typing import Any

import minidl
from minidl import autograd, cuda, nn, optim
from minidl.as_torch import data, distributions
from minidl.as_torch.places import autocast, compile, device, dtype
from minidl.as_torch.tensors import Tensor
from minidl.checkpoint.objects import load, save
from minidl.errors import UserError
from minidl.runtime import Runtime

__all__ = ["Size", "Tensor", "autocast", "compile", "device", "dtype", "load", "runtime", "save"]
Size: Any = tuple

if "torch" in sys.modules and not getattr(sys.modules["torch"], "minidl_is_here", False):
    raise UserError("minidl.as_torch: PyTorch has been imported already; import minidl.as_torch before what imports it")

minidl_is_here = True
runtime = Runtime(os.environ.get("MINIDL_DEVICE", "cpu"), memory_budget=os.environ.get("MINIDL_MEMORY", "4GiB"),
                  policy=os.environ.get("MINIDL_POLICY", "auto"), seed=int(os.environ.get("MINIDL_SEED", "0")))
runtime.__enter__()
atexit.register(runtime.__exit__, None, None, None)


def _module(name: str, **content: Any) -> ModuleType:
    """Return a module ``torch.NAME`` with this content."""
    made = ModuleType(f"torch.{name}")
    vars(made).update(content)
    return made


utils = _module("utils", data=data)
amp = _module("amp", autocast=autocast)
backends = _module("backends", cudnn=_module("backends.cudnn", benchmark=False, deterministic=True),
                   mps=_module("backends.mps", is_available=lambda: False))


def __getattr__(name: str) -> Any:
    """Return minidl's object of this name. Raises AttributeError if there is none."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(minidl, name)
    except AttributeError:
        raise AttributeError(f"minidl has no torch.{name}") from None


_HERE = {"": sys.modules[__name__], "nn": nn, "nn.functional": nn.functional, "nn.init": nn.init, "nn.utils": nn.utils,
         "nn.modules": nn, "nn.parameter": nn, "optim": optim, "optim.lr_scheduler": optim.lr_scheduler,
         "autograd": autograd, "cuda": cuda, "utils": utils, "utils.data": data, "distributions": distributions,
         "amp": amp, "backends": backends, "backends.cudnn": backends.cudnn}
for _name, _place in _HERE.items():
    sys.modules[f"torch.{_name}" if _name else "torch"] = _place
