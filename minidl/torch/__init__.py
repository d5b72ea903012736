"""Memory management inside unmodified eager PyTorch: a training keeps within a byte budget, with the same results.

    import minidl.torch

    with minidl.torch.managed("12GiB") as memory:
        train()
    print(memory.report())

This package imports PyTorch and minidl's planning, and nothing of minidl's own engine. Extra ``torch``.
"""

from minidl.errors import UserError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise UserError('minidl.torch takes PyTorch: pip install "minidl[torch]"') from None

from minidl.torch.budget import BudgetTooSmall
from minidl.torch.managed import managed
from minidl.torch.meter import Meter
from minidl.torch.replay import NotReplayable
from minidl.torch.reporting import Report
from minidl.torch.trainers import ForLightning, ForTransformers

__all__ = ["BudgetTooSmall", "ForLightning", "ForTransformers", "Meter", "NotReplayable", "Report", "managed"]
