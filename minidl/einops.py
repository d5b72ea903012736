"""minidl's tensors in einops: ``rearrange``, ``reduce``, ``repeat``, ``einsum``, ``pack`` and ``unpack`` take them.

``import minidl`` loads this file if einops is installed, before or after it. einops searches the subclasses of its
backends for one whose library is loaded; minidl has PyTorch's names, so its backend is PyTorch's with another module.
"""

import sys
from importlib import import_module
from typing import Any

from einops._backends import TorchBackend


class MinidlBackend(TorchBackend):
    """How einops calls minidl."""

    framework_name = "minidl"

    def __init__(self) -> None:
        self.torch = sys.modules["minidl"]  # all that the methods of TorchBackend name

    def layers(self) -> Any:
        """Return the module that has the layers ``Rearrange``, ``Reduce`` and ``EinMix``."""
        return import_module("minidl.nn.einops")
