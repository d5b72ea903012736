"""Stochastic gradient descent, with momentum as PyTorch defines it. The kernel computes the formula.

    d = grad + weight_decay * p;    buf = momentum * buf + d;    p -= lr * buf
    nesterov: p -= lr * (d + momentum * buf)        (Sutskever, Martens, Dahl & Hinton 2013)
"""

from collections.abc import Callable, Mapping
from typing import Any

from minidl.errors import UserError
from minidl.op import Attrs
from minidl.ops import update
from minidl.ops.elementwise import add, scale
from minidl.optim.composed import Composed, States, kept_in
from minidl.optim.groups import Parameters, require_at_least_zero
from minidl.tensor import Tensor

COMPOSED = ("nesterov", "maximize")  # with these an update is several operations


class SGD(Composed):
    """SGD: p -= lr * (grad + weight_decay * p), with a momentum buffer per parameter if ``momentum`` is not zero.

    The buffer starts at zero, so the first step is not special. With ``nesterov`` or ``maximize`` an update is composed
    of several operations; otherwise it is one.
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, fused: bool | None = None,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """Create the states, as zeros. decays: returns True if weight decay applies to a parameter; default: to all.
        ``foreach`` and ``fused`` have no effect. Raises UserError if lr, momentum or weight_decay is negative or NaN,
        if dampening is not 0, for nesterov without a momentum above 0, or as ``Optimizer`` does."""
        params = params if isinstance(params, Tensor) else list(params)  # type: ignore[assignment]
        groups = [] if isinstance(params, Tensor) else [group for group in params if isinstance(group, Mapping)]
        keeps = bool(momentum) or any(group.get("momentum") for group in groups)
        self._plain = not any(given.get(name) for given in ({"nesterov": nesterov, "maximize": maximize}, *groups)
                              for name in COMPOSED)
        rates = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                 "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, rates=rates, op=update.SGD_MOMENTUM if keeps else update.SGD,
                         states=("momentum",) if keeps else (), decays=decays)

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        require_at_least_zero(momentum=group["momentum"])
        if group["dampening"]:
            raise UserError(f"SGD has no dampening: it must be 0, not {group['dampening']}")

    def check_states(self, group: dict[str, Any]) -> None:
        if group["momentum"] and not self._states:
            raise UserError(f"SGD was made without a momentum, and so without buffers for {group['momentum']}: give "
                            "one to the constructor")
        if group["nesterov"] and not group["momentum"] > 0:
            raise UserError("SGD: nesterov needs a momentum above 0")
        self.refuse_on_host(group, *COMPOSED)

    def attributes(self, index: int = 0) -> Attrs:
        own = {"momentum": float(self.rates(index)["momentum"])} if self._states else {}
        return super().attributes(index) | own

    def _update(self, chunk: list[int]) -> None:
        self._update_plain(chunk, *COMPOSED)

    def direction(self, index: int, p: Tensor, gradient: Tensor, states: States) -> Tensor:
        rates, d = self.rates(index), self.decayed(index, p, gradient)
        momentum = float(rates["momentum"])
        if not momentum:
            return d
        buffer = kept_in(states["momentum"], add(scale(states["momentum"], momentum), d))
        return add(d, scale(buffer, momentum)) if rates["nesterov"] else buffer
