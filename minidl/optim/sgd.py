"""Stochastic gradient descent, with momentum as PyTorch defines it. The kernel has the formula.

    d = grad + weight_decay * p;    buf = momentum * buf + d;    p -= lr * buf
"""

from collections.abc import Callable, Mapping
from typing import Any

from minidl.op import Attrs
from minidl.ops import update
from minidl.optim.optimizer import Optimizer, Parameters, require_at_least_zero
from minidl.tensor import Tensor


class SGD(Optimizer):
    """p -= lr * (grad + weight_decay * p), through a running sum if ``momentum`` is not zero (one state a parameter).

    The sum starts at zero, so the first step needs no case of its own.
    """

    def __init__(self, params: Parameters, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, *,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """``decays`` says which parameters the weight decay is for; all by default."""
        params = params if isinstance(params, Tensor) else list(params)  # type: ignore[assignment]
        groups = [] if isinstance(params, Tensor) else [group for group in params if isinstance(group, Mapping)]
        keeps = bool(momentum) or any(group.get("momentum") for group in groups)
        super().__init__(params, rates={"lr": lr, "momentum": momentum, "weight_decay": weight_decay},
                         op=update.SGD_MOMENTUM if keeps else update.SGD, states=("momentum",) if keeps else (),
                         decays=decays)

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        require_at_least_zero(momentum=group["momentum"])

    def attributes(self, index: int = 0) -> Attrs:
        own = {"momentum": float(self.rates(index)["momentum"])} if self._states else {}
        return super().attributes(index) | own
