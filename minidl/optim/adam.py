"""Adam (Kingma & Ba 2015, Algorithm 1) and AdamW (Loshchilov & Hutter 2019, Algorithm 2). The kernel has the formula.

    Adam:  g = grad + weight_decay * p                      AdamW:  g = grad;    p -= lr * weight_decay * p
    m = beta1 m + (1 - beta1) g;    v = beta2 v + (1 - beta2) g^2
    p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

Both are one operation, ``adam_``: AdamW's is the attribute ``decoupled``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minidl.errors import UserError
from minidl.op import Attrs
from minidl.ops import update
from minidl.optim.optimizer import Optimizer, Parameters, require_at_least_zero
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

STEP = "step"


class Adam(Optimizer):
    """Adam with two states a parameter. Each parameter's steps, t, are counted from its first gradient on, from 1."""

    def __init__(self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, *,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """``decays`` says which parameters the weight decay is for; all by default."""
        super().__init__(params, rates={"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
                         op=update.ADAM, states=("m", "v"), decays=decays)
        # The counts live with the runtime, which can then take back the steps of a dry run: all calls of ``step``, and
        # for each parameter how many of them found no gradient. Most have none, so most have no such count.
        counters = current_runtime().counters
        own = f"adam.{sum(key.endswith(f'.{STEP}') for key in counters)}"
        self._counter, self._missed = f"{own}.{STEP}", [f"{own}.missed.{i}" for i in range(len(self.parameters))]
        counters[self._counter] = 0

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        require_at_least_zero(eps=group["eps"])
        if not all(0.0 <= beta < 1.0 for beta in group["betas"]):
            raise UserError(f"Adam's betas must be in [0, 1), and are {group['betas']}")

    def attributes(self, index: int = 0) -> Attrs:
        rates = self.rates(index)
        beta1, beta2 = rates["betas"]
        return super().attributes(index) | {"beta1": float(beta1), "beta2": float(beta2), "eps": float(rates["eps"]),
                                            "step": self._steps(index)}

    def kind(self, index: int) -> tuple[int, bool, int]:
        group, decays, _ = super().kind(index)
        return group, decays, self._steps(index)

    def _steps(self, index: int) -> int:
        """How many steps a parameter has taken."""
        counters = current_runtime().counters
        return counters[self._counter] - counters.get(self._missed[index], 0)

    def step(self) -> None:
        """Update every parameter that has a gradient; for the others this is no step."""
        counters = current_runtime().counters
        counters[self._counter] += 1
        for tensor, missed in zip(self.parameters, self._missed, strict=True):
            if tensor.grad is None:
                counters[missed] = counters.get(missed, 0) + 1
        super().step()

    def state_dict(self) -> dict[str, np.ndarray]:
        """A copy on the host of both moments, and as ``step`` of the number of steps that each parameter has taken."""
        return super().state_dict() | {STEP: np.array([self._steps(i) for i in range(len(self.parameters))], np.int64)}

    def load_state_dict(self, arrays: Mapping[str, Any]) -> None:
        """Overwrite the moments and the numbers of steps; nothing is written if it raises UserError.

        One number stands for all parameters.
        """
        moments = dict(arrays)
        if STEP not in moments:
            raise UserError(f"the state does not fit {type(self).__name__}: {STEP} is missing")
        steps = np.asarray(moments.pop(STEP))
        if steps.shape not in ((), (len(self.parameters),)):
            raise UserError(f"the state does not fit {type(self).__name__}: {STEP} is {list(steps.shape)} and must be "
                            f"[{len(self.parameters)}]")
        super().load_state_dict(moments)
        counters, most = current_runtime().counters, int(steps.max())
        counters[self._counter] = most
        for missed, done in zip(self._missed, np.broadcast_to(steps, len(self.parameters)).tolist(), strict=True):
            counters.pop(missed, None)
            if done < most:
                counters[missed] = most - done


class AdamW(Adam):
    """Adam whose weight decay does not pass through the moments: p shrinks by the factor 1 - lr * weight_decay.

    It is usual to leave biases and norms alone: ``decays=lambda p: p.ndim > 1``.
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.01, *,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, decays=decays)

    def attributes(self, index: int = 0) -> Attrs:
        return super().attributes(index) | {"decoupled": True}
