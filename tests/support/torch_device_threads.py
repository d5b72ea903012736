"""A training whose backward pass runs in a thread of autograd's own, as it does on a GPU, with and without managing.

    python torch_device_threads.py

PyTorch's PrivateUse1 is a device of Python here, whose tensors wrap those of the CPU. Autograd has a thread for it. A
function of this device saves tensors of the CPU, which are managed, so they come back in that thread.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch_nets import forced, same

STEPS, SIDE = 5, 64


class Wrapped(torch.Tensor):
    """A tensor of the device, which contains one of the CPU."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        """Wrap ``inner``."""
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device="wrapped:0")
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU."""
        within = {name: "cpu" if name == "device" else value for name, value in (kwargs or {}).items()}
        result = func(*tree_map(_inner, args), **tree_map(_inner, within))
        return tree_map(lambda value: Wrapped(value) if isinstance(value, torch.Tensor) else value, result)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Wrapped) else value


backward_in: set[int] = set()  # the threads in which a backward pass has read saved tensors


class Through(torch.autograd.Function):
    """[n] on the device, [n, n] on the CPU -> [n] on the device: the sum over the rows of a product."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: torch.Tensor) -> Any:
        """Save the tensor of the CPU."""
        ctx.save_for_backward(y)
        ctx.inner = x.inner
        return Wrapped(x.inner * y.sum(0))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Read it again."""
        y, = ctx.saved_tensors
        backward_in.add(threading.get_ident())
        return Wrapped(gradient.inner * y.sum(0)), (gradient.inner * ctx.inner).expand(y.shape)


def trained(memory: Any = None) -> list[torch.Tensor]:
    """All that a training computes."""
    torch.manual_seed(0)
    weight, data = torch.randn(SIDE, SIDE, requires_grad=True), torch.randn(SIDE, SIDE)
    optimizer = torch.optim.SGD([weight], 0.1)
    found = []
    with memory if memory is not None else contextlib.nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            x = Wrapped(torch.randn(SIDE)).requires_grad_()
            y = (data @ weight).exp().sigmoid()
            (Through.apply(x, torch.dropout(y, 0.5, True) * 2) + Through.apply(x, (y * 3).sin())).sum().backward()
            optimizer.step()
            found.append(x.grad.inner.clone())
            x.grad = None
    return [*found, weight.detach(), torch.get_rng_state()]


def main() -> None:
    """Print a line for each kind of plan: its bits; whether it swapped, and recomputed; where tensors came back."""
    _setup_privateuseone_for_python_backend("wrapped")
    expected = trained()
    for how in ("keep", "swap", "mixed", "drop"):
        backward_in.clear()
        memory = forced(how)
        found = "same" if same(expected, trained(memory)) else "differs"
        report = memory.report()
        where = "elsewhere" if backward_in and threading.get_ident() not in backward_in else "here"
        print(how, found, report.out_bytes > 0, report.replayed_calls > 0, where, flush=True)


if __name__ == "__main__":
    main()
