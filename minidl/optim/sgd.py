"""Stochastic gradient descent, with momentum as PyTorch defines it. The kernel has the formula.

    d = grad + weight_decay * p;    buf = momentum * buf + d;    p -= lr * buf
"""

from collections.abc import Callable, Iterable

from minidl.op import Attrs
from minidl.ops import update
from minidl.optim.optimizer import Optimizer, require_at_least_zero
from minidl.tensor import Tensor


class SGD(Optimizer):
    """p -= lr * (grad + weight_decay * p), through a running sum if ``momentum`` is not zero (one state a parameter).

    The sum starts at zero, so the first step needs no case of its own.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0, *,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """``decays`` says which parameters the weight decay is for; all by default."""
        require_at_least_zero(momentum=momentum)
        self.momentum = momentum
        super().__init__(params, lr=lr, weight_decay=weight_decay, op=update.SGD_MOMENTUM if momentum else update.SGD,
                         states=("momentum",) if momentum else (), decays=decays)

    def attributes(self, index: int = 0) -> Attrs:
        own = {"momentum": float(self.momentum)} if self._states else {}
        return super().attributes(index) | own
