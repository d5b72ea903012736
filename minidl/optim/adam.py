"""Adam (Kingma & Ba 2015, Algorithm 1) and AdamW (Loshchilov & Hutter 2019, Algorithm 2), computed by one kernel.

    Adam:  g = grad + weight_decay * p                      AdamW:  g = grad;    p -= lr * weight_decay * p
    m = beta1 m + (1 - beta1) g;    v = beta2 v + (1 - beta2) g^2
    p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

Both are the operation ``adam_``; its attribute ``decoupled`` is True for AdamW.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minidl.errors import UserError
from minidl.op import Attrs
from minidl.ops import update
from minidl.ops.elementwise import add, div, neg, scale, shift, sqrt
from minidl.ops.library import maximum
from minidl.optim.composed import Composed, States, kept_in, mean_square
from minidl.optim.groups import Parameters, require_at_least_zero
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

STEP = "step"


def _fresh_name() -> str:
    """Return a new name for an optimizer, under which its runtime keeps the counts of steps."""
    return f"adam.{sum(key.endswith(f'.{STEP}') for key in current_runtime().counters)}"


class Adam(Composed):
    """Adam, with two states per parameter, or three with ``amsgrad`` (Reddi, Kale & Kumar 2018).

    A parameter's t counts, from 1, its steps with a gradient. With ``amsgrad`` or ``maximize`` an update is composed of
    several operations; otherwise it is one.
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, fused: bool | None = None,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """Create the states, as zeros. decays: returns True if weight decay applies to a parameter; default: to all.
        ``foreach`` and ``fused`` have no effect. Raises UserError if lr, eps or weight_decay is negative or NaN, if a
        beta is not in [0, 1), or as ``Optimizer`` does."""
        self._plain = not (amsgrad or maximize)
        rates = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
                 "maximize": maximize}
        super().__init__(params, rates=rates, op=update.ADAM, states=("m", "v", "v_max") if amsgrad else ("m", "v"),
                         decays=decays)
        # The runtime holds the counters, so that it can undo the steps of a dry run. One counts all calls of ``step``;
        # further ones count for each parameter the calls without a gradient, if there were any.
        counters = current_runtime().counters
        self._name = _fresh_name()
        counters[f"{self._name}.{STEP}"] = 0

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        require_at_least_zero(eps=group["eps"])
        if not all(0.0 <= beta < 1.0 for beta in group["betas"]):
            raise UserError(f"Adam's betas must be in [0, 1), not {group['betas']}")

    def check_states(self, group: dict[str, Any]) -> None:
        if group["amsgrad"] and "v_max" not in self._states:
            raise UserError(f"{type(self).__name__} was made without amsgrad, and so without v_max: give it to the "
                            "constructor")
        self.refuse_on_host(group, "maximize")

    def attributes(self, index: int = 0) -> Attrs:
        rates = self.rates(index)
        beta1, beta2 = rates["betas"]
        return super().attributes(index) | {"beta1": float(beta1), "beta2": float(beta2), "eps": float(rates["eps"]),
                                            "step": self._steps(index) + 1}

    decoupled = False  # True: weight decay does not enter the moments (AdamW)

    def _update(self, chunk: list[int]) -> None:
        self._update_plain(chunk, "maximize")

    def direction(self, index: int, p: Tensor, gradient: Tensor, states: States) -> Tensor:
        rates, t = self.rates(index), self._steps(index) + 1
        beta1, beta2 = map(float, rates["betas"])
        g = (neg(gradient) if rates["maximize"] else gradient) if self.decoupled else self.decayed(index, p, gradient)
        m = kept_in(states["m"], add(scale(states["m"], beta1), scale(g, 1.0 - beta1)))
        v = mean_square(states["v"], g, beta2)
        if rates["amsgrad"]:
            v = kept_in(states["v_max"], maximum(states["v_max"], v))
        root = shift(scale(sqrt(v), (1.0 - beta2**t) ** -0.5), float(rates["eps"]))
        way = div(scale(m, 1.0 / (1.0 - beta1**t)), root)
        decay = float(rates["weight_decay"]) if self.decoupled and self._decays[index] else 0.0
        return add(way, scale(p, decay)) if decay else way

    def kind(self, index: int) -> tuple[int, bool, int]:
        group, decays, _ = super().kind(index)
        return group, decays, self._steps(index)

    def _steps(self, index: int) -> int:
        """Return the number of steps that parameter number ``index`` has taken."""
        counters = current_runtime().counters
        return counters[f"{self._name}.{STEP}"] - counters.get(f"{self._name}.missed.{index}", 0)

    def stepped(self, updated: set[int]) -> None:
        """Count one step for the parameters with the numbers ``updated``, and none for the others."""
        if updated:
            counters = current_runtime().counters
            counters[f"{self._name}.{STEP}"] += 1
            for index in range(len(self.parameters)):
                if index not in updated:
                    missed = f"{self._name}.missed.{index}"
                    counters[missed] = counters.get(missed, 0) + 1

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        first = len(self.parameters)
        super().add_param_group(param_group)
        counters = current_runtime().counters
        if counters[f"{self._name}.{STEP}"]:
            for index in range(first, len(self.parameters)):
                counters[f"{self._name}.missed.{index}"] = counters[f"{self._name}.{STEP}"]

    def __deepcopy__(self, memo: dict[int, Any]) -> Adam:
        """Return an optimizer of the copied parameters, with copies of states and counters."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        made._name = _fresh_name()
        counters = current_runtime().counters
        for key in [key for key in counters if key.startswith(f"{self._name}.")]:
            counters[made._name + key.removeprefix(self._name)] = counters[key]
        return made

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies on the host of the moments, and in ``step`` the number of steps of each parameter."""
        return super().state_dict() | {STEP: np.array([self._steps(i) for i in range(len(self.parameters))], np.int64)}

    def load_state_dict(self, arrays: Mapping[str, Any]) -> None:
        """Overwrite the moments and the numbers of steps; if they do not fit, raise UserError and write nothing.
        A single number of steps applies to all parameters."""
        moments = dict(arrays)
        if STEP not in moments:
            raise UserError(f"the state does not fit {type(self).__name__}: {STEP} is missing")
        steps = np.asarray(moments.pop(STEP))
        if steps.shape not in ((), (len(self.parameters),)):
            raise UserError(f"the state does not fit {type(self).__name__}: {STEP} is {list(steps.shape)} and must be "
                            f"[{len(self.parameters)}]")
        if steps.dtype.kind not in "biuf" or not (np.isfinite(steps) & (steps >= 0) & (steps == np.floor(steps))).all():
            raise UserError(f"the state does not fit {type(self).__name__}: {STEP} must have whole numbers >= 0, not "
                            f"{steps.tolist()}")
        steps = steps.astype(np.int64)
        super().load_state_dict(moments)
        counters, most = current_runtime().counters, int(steps.max())
        counters[f"{self._name}.{STEP}"] = most
        for index, done in enumerate(np.broadcast_to(steps, len(self.parameters)).tolist()):
            missed = f"{self._name}.missed.{index}"
            counters.pop(missed, None)
            if done < most:
                counters[missed] = most - done


class AdamW(Adam):
    """Adam with decoupled weight decay: p is multiplied by 1 - lr * weight_decay, and the decay does not enter moments.
    ``decays=lambda p: p.ndim > 1`` exempts biases and norms, as is usual."""

    def __init__(self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.01, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, fused: bool | None = None,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decays=decays)

    decoupled = True

    def attributes(self, index: int = 0) -> Attrs:
        return super().attributes(index) | {"decoupled": True}
