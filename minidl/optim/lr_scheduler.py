"""PyTorch's learning-rate schedulers by epoch: ``step()`` after each epoch sets the rate of every parameter group.

``StepLR`` and ``CosineAnnealingLR`` compute a rate from the one before, with PyTorch's formulas. So several schedulers
of one optimizer combine, and a rate that is set by hand stays the base of later ones. ``LambdaLR`` computes a rate from
the initial one. minidl's own training uses ``Schedule`` instead, which goes by step and has a warm-up.
"""

from collections.abc import Callable, Sequence
from math import cos, pi
from typing import Any

import numpy as np

from minidl.errors import UserError
from minidl.optim.optimizer import Optimizer


class LRScheduler:
    """The base class of schedulers. A subclass computes rates from those before, and those of an epoch by itself.
    A group that is added later keeps its rate, or is multiplied as the others are (``StepLR``)."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # an earlier scheduler may have changed lr already
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = 0

    def rates(self) -> list[float]:
        """Return the rates of the current epoch, computed from the groups' rates in the epoch before."""
        raise NotImplementedError

    def rates_alone(self) -> list[float]:
        """Return the rates of the current epoch if no other scheduler or program has changed any."""
        raise NotImplementedError

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):  # groups may have been added
            group["lr"] = rate

    def step(self) -> None:
        """Advance to the next epoch and set its rates."""
        self.last_epoch += 1
        self._set(self.rates())

    def get_last_lr(self) -> list[float]:
        """Return the current rate of each group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch's number, and the groups' initial and current rates, but no function of the schedule."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs), "_last_lr": self.get_last_lr()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the epoch and the rates of a ``state_dict``; one of earlier versions has no current rates.
        If it does not fit, raise UserError and change nothing."""
        rates: Any = state.get("base_lrs")
        epoch, last, groups = state.get("last_epoch"), state.get("_last_lr", rates), len(self.optimizer.param_groups)
        if not isinstance(epoch, int | np.integer) or epoch < 0 or not all(
                isinstance(given, list | tuple) and all(isinstance(rate, int | float) and rate >= 0 for rate in given)
                for given in (rates, last)) or (len(rates), len(last)) != (len(self.base_lrs), groups):
            raise UserError(f"the state does not fit {type(self).__name__} of {groups} groups: last_epoch {epoch!r}, "
                            f"base_lrs {rates!r}, _last_lr {last!r}")
        self.last_epoch, self.base_lrs = int(epoch), [float(rate) for rate in rates]
        self._set([float(rate) for rate in last] if "_last_lr" in state else self.rates_alone())


class LambdaLR(LRScheduler):
    """A scheduler that sets each group's rate to its initial rate times ``lr_lambda(epoch)``, from epoch 0 on.
    A list has a function for each group; raises UserError for another number of functions."""

    def __init__(self, optimizer: Optimizer,
                 lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]]) -> None:
        super().__init__(optimizer)
        groups = len(self.base_lrs)
        self._factors = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self._factors) != groups:
            raise UserError(f"LambdaLR: {len(self._factors)} functions for {groups} groups")
        self._set(self.rates())

    def rates(self) -> list[float]:
        return [base * factor(self.last_epoch) for base, factor in zip(self.base_lrs, self._factors, strict=True)]

    def rates_alone(self) -> list[float]:
        return self.rates()


class StepLR(LRScheduler):
    """A scheduler that multiplies the rate by ``gamma`` after every ``step_size`` epochs.
    Raises UserError for a step size below 1."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        if step_size < 1:
            raise UserError(f"a step size of {step_size} epochs is below 1")
        super().__init__(optimizer)
        self.step_size, self.gamma = step_size, gamma

    def rates(self) -> list[float]:
        now = self.get_last_lr()
        return now if self.last_epoch % self.step_size else [rate * self.gamma for rate in now]

    def rates_alone(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """A scheduler that lowers the rate to ``eta_min`` in ``T_max`` epochs, along half a cosine.
    After these the rate rises again. The formula is equation 5 of SGDR (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:  # noqa: N803 - PyTorch's name
        super().__init__(optimizer)
        self.T_max, self.eta_min = T_max, eta_min

    def rates(self) -> list[float]:
        least, span, epoch = self.eta_min, self.T_max, self.last_epoch
        now = list(zip(self.base_lrs, self.get_last_lr(), strict=False))
        if (epoch - 1 - span) % (2 * span) == 0:  # the rate before was the least one
            return [rate + (base - least) * (1 - cos(pi / span)) / 2 for base, rate in now]
        return [(1 + cos(pi * epoch / span)) / (1 + cos(pi * (epoch - 1) / span)) * (rate - least) + least
                for _, rate in now]

    def rates_alone(self) -> list[float]:
        return [self.eta_min + (base - self.eta_min) * (1 + cos(pi * self.last_epoch / self.T_max)) / 2
                for base in self.base_lrs]
