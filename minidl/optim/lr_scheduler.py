"""PyTorch's learning-rate schedulers by epoch: ``step()`` after each epoch sets the rate of every parameter group.

A group's rate in an epoch depends only on its initial rate and the epoch's number. minidl's own training uses
``Schedule`` instead, which goes by step and has a warm-up.
"""

from collections.abc import Callable
from math import cos, pi
from typing import Any

import numpy as np

from minidl.errors import UserError
from minidl.optim.optimizer import Optimizer


class LambdaLR:
    """A scheduler that sets each group's rate to its initial rate times ``lr_lambda(epoch)``, from epoch 0 on."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        self.optimizer = optimizer
        self.base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self.last_epoch = 0
        self._factor = lr_lambda
        self._set()

    def _set(self) -> None:
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = self.rate(base)

    def rate(self, base: float) -> float:
        """Return the current epoch's learning rate for a group whose initial rate is ``base``."""
        return base * self._factor(self.last_epoch)

    def step(self) -> None:
        """Advance to the next epoch and set its rates."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """Return the current rate of each group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch's number and the groups' initial rates, but not the function or numbers of the schedule."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the epoch and the initial rates of a ``state_dict``, and set the groups' rates.
        If it does not fit, raise UserError and change nothing."""
        epoch, rates = state.get("last_epoch"), state.get("base_lrs")
        groups = len(self.optimizer.param_groups)
        if not isinstance(epoch, int | np.integer) or epoch < 0 or not isinstance(rates, list | tuple) or (
                len(rates) != groups) or not all(isinstance(rate, int | float) and rate >= 0 for rate in rates):
            raise UserError(f"the state does not fit {type(self).__name__} of {groups} groups: last_epoch {epoch!r}, "
                            f"base_lrs {rates!r}")
        self.last_epoch, self.base_lrs = int(epoch), [float(rate) for rate in rates]
        self._set()


class StepLR(LambdaLR):
    """A scheduler that multiplies the rate by ``gamma`` after every ``step_size`` epochs.
    Raises UserError for a step size below 1."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        if step_size < 1:
            raise UserError(f"a step size of {step_size} epochs is below 1")
        super().__init__(optimizer, lambda epoch: gamma ** (epoch // step_size))


class CosineAnnealingLR(LambdaLR):
    """A scheduler that lowers the rate to ``eta_min`` in ``T_max`` epochs, along half a cosine.
    After these the rate rises again. The formula is equation 5 of SGDR (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:  # noqa: N803 - PyTorch's name
        self._least = eta_min
        super().__init__(optimizer, lambda epoch: 0.5 * (1.0 + cos(pi * epoch / T_max)))

    def rate(self, base: float) -> float:
        return self._least + (base - self._least) * self._factor(self.last_epoch)
