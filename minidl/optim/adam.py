"""Adam (Kingma & Ba 2015, Algorithm 1) and AdamW (Loshchilov & Hutter 2019, Algorithm 2). The kernel has the formula.

    Adam:  g = grad + weight_decay * p                      AdamW:  g = grad;    p -= lr * weight_decay * p
    m = beta1 m + (1 - beta1) g;    v = beta2 v + (1 - beta2) g^2
    p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

Both are one operation, ``adam_``: AdamW's is the attribute ``decoupled``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from minidl.errors import UserError
from minidl.op import Attrs
from minidl.ops import update
from minidl.optim.optimizer import Optimizer, require_at_least_zero
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

STEP = "step"


class Adam(Optimizer):
    """Adam with two states a parameter. The number of the step, t, is one for all parameters, from 1."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, *,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """``decays`` says which parameters the weight decay is for; all by default."""
        require_at_least_zero(eps=eps)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise UserError(f"Adam's betas must be in [0, 1), and are {betas}")
        self.betas = betas
        self.eps = eps
        super().__init__(params, lr=lr, weight_decay=weight_decay, op=update.ADAM, states=("m", "v"), decays=decays)
        # The count lives with the runtime, which can then take back the steps of a dry run.
        counters = current_runtime().counters
        self._counter = f"adam.{sum(key.startswith('adam.') for key in counters)}.{STEP}"
        counters[self._counter] = 0

    def attributes(self) -> Attrs:
        beta1, beta2 = self.betas
        return super().attributes() | {"beta1": float(beta1), "beta2": float(beta2), "eps": float(self.eps),
                                       "step": current_runtime().counters[self._counter]}

    def step(self) -> None:
        """Update every parameter that has a gradient; counts as a step even if none has."""
        current_runtime().counters[self._counter] += 1
        super().step()

    def state_dict(self) -> dict[str, np.ndarray]:
        """A copy on the host of both moments, and of the number of steps done as ``step``."""
        return super().state_dict() | {STEP: np.asarray(current_runtime().counters[self._counter], np.int64)}

    def load_state_dict(self, arrays: Mapping[str, Any]) -> None:
        """Overwrite the moments and the number of steps; nothing is written if it raises UserError."""
        moments = dict(arrays)
        if STEP not in moments:
            raise UserError(f"the state does not fit {type(self).__name__}: {STEP} is missing")
        step = int(moments.pop(STEP))
        super().load_state_dict(moments)
        current_runtime().counters[self._counter] = step


class AdamW(Adam):
    """Adam whose weight decay does not pass through the moments: p shrinks by the factor 1 - lr * weight_decay.

    It is usual to leave biases and norms alone: ``decays=lambda p: p.ndim > 1``.
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.01, *,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, decays=decays)

    def attributes(self) -> Attrs:
        return super().attributes() | {"decoupled": True}
