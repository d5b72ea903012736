"""Lets optimizers of bitsandbytes and torchao step on fake tensors, with the states that they have on a GPU.

bitsandbytes steps by operations of PyTorch, but its tables of 256 numbers are computed with values. torchao compiles
the steps of its 8-bit, 4-bit and FP8 optimizers, and its ``CPUOffloadOptimizer`` asks for a GPU. So one call stands for
such a step: it reads the gradient, and writes the parameter and its states, as the compiled step does. The library
itself says which states it allocates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.optim import Optimizer

NOT_TIMED = "states on the host; the copies and the step there are not timed"


def _optimizer_step(grad: torch.Tensor, written: list[torch.Tensor]) -> None:
    """The call that stands for an optimizer's step of one parameter. written: the parameter, and its states."""


optimizer_step: Any = torch.library.custom_op("minidl::optimizer_step", _optimizer_step, mutates_args={"written"})


def _quantized(self: Any, closure: Callable[[], Any] | None = None) -> None:
    """The step of torchao's quantized optimizers: their ``_new_buffer`` says which tensors a state consists of."""
    for group in self.param_groups:
        for parameter in (each for each in group["params"] if each.grad is not None):
            state = self.state[parameter]
            if not state:
                for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[:3 if group["amsgrad"] else 2]:
                    with unset_fake_temporarily():
                        like = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                        made = self._new_buffer(like, name == "exp_avg")
                    flat = getattr(made, "__tensor_flatten__", None)
                    parts = {"": made} if flat is None else {f" {part}": getattr(made, part) for part in flat()[0]}
                    state |= {name + part: torch.empty(each.shape, dtype=each.dtype) for part, each in parts.items()}
            optimizer_step(parameter.grad, [parameter.detach(), *state.values()])


def _offload(self: Any, params: Any, optimizer_class: Any = torch.optim.AdamW, *, offload_gradients: bool = False,
             minimal_size: int = 4096, **settings: Any) -> None:
    """Make torchao's ``CPUOffloadOptimizer``: only parameters of few elements have states on the device."""
    Optimizer.__init__(self, params, {})
    learning = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
    small = [p for p in learning if p.numel() < minimal_size]
    self.d_opt = optimizer_class(small, **settings) if small else None  # the library's names, which its methods read
    self.param_d2h_map = {p: None for p in learning if p.numel() >= minimal_size}
    for parameter in self.param_d2h_map if offload_gradients else ():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))


def _offloaded(self: Any, closure: Callable[[], Any] | None = None) -> None:
    """The step of ``CPUOffloadOptimizer`` on the device: parameters come back from the host."""
    if self.d_opt is not None:
        self.d_opt.step()
    for parameter in self.param_d2h_map:
        optimizer_step(parameter if parameter.grad is None else parameter.grad, [parameter.detach()])


def _with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    def computed(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return computed


@contextmanager
def known_optimizers() -> Iterator[None]:
    """Return a context in which these optimizers step on fake tensors, also if their library is imported inside."""
    with ExitStack() as inside:
        def adapt(kind: Any) -> None:
            name = f"{kind.__module__}.{kind.__name__}"
            functions: Any = sys.modules.get("bitsandbytes.functional")
            if name == "bitsandbytes.optim.optimizer.Optimizer8bit" and functions is not None:
                inside.enter_context(patch.object(functions, "create_dynamic_map",
                                                  _with_values(functions.create_dynamic_map)))
            elif name == "torchao.optim.adam._AdamBase":
                inside.enter_context(patch.object(kind, "step", _quantized))
            elif name == "torchao.optim.cpu_offload.CPUOffloadOptimizer":
                inside.enter_context(patch.multiple(kind, __init__=_offload, step=_offloaded, param_groups=None,
                                                    assumed=NOT_TIMED, create=True))

        def begins(kind: Any, /, **_: Any) -> None:
            adapt(kind)

        for kind in _subclasses(Optimizer):
            adapt(kind)
        inside.enter_context(patch.object(Optimizer, "__init_subclass__", classmethod(begins), create=True))
        yield


def _subclasses(kind: Any) -> list[Any]:
    return [each for direct in kind.__subclasses__() for each in (direct, *_subclasses(direct))]
