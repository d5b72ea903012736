"""Adadelta (Zeiler 2012, Algorithm 1), with a learning rate as in PyTorch. The kernel computes the formula.

    v = rho v + (1 - rho) g^2;   d = sqrt(u + eps) / sqrt(v + eps) g;   u = rho u + (1 - rho) d^2;   p -= lr d
"""

from collections.abc import Callable
from typing import Any

from minidl.errors import UserError
from minidl.op import Attrs
from minidl.ops import update
from minidl.optim.groups import Parameters, require_at_least_zero
from minidl.optim.optimizer import Optimizer
from minidl.tensor import Tensor


class Adadelta(Optimizer):
    """Adadelta: steps are gradients times rms(steps) / rms(gradients), running root mean squares; two states."""

    def __init__(self, params: Parameters, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
                 weight_decay: float = 0.0, *, decays: Callable[[Tensor], bool] | None = None) -> None:
        """Create the states, as zeros. decays: returns True if weight decay applies to a parameter; default: to all.
        Raises UserError if lr, eps or weight_decay is negative or NaN, rho not in [0, 1], or as ``Optimizer`` does."""
        super().__init__(params, rates={"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay},
                         op=update.ADADELTA, states=("square_avg", "acc_delta"), decays=decays)

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        require_at_least_zero(eps=group["eps"])
        if not 0.0 <= group["rho"] <= 1.0:
            raise UserError(f"Adadelta's rho must be in [0, 1], not {group['rho']}")

    def attributes(self, index: int = 0) -> Attrs:
        rates = self.rates(index)
        return super().attributes(index) | {"rho": float(rates["rho"]), "eps": float(rates["eps"])}
