"""Optimizers without a fused kernel: operations compute a direction, and ``sgd_`` moves the parameter along it.

Each parameter, or piece of a large one, is updated on its own, so that only its gradient, its states and a few
intermediates of their size are needed at once.
"""

from collections.abc import Callable
from typing import Any

from minidl.autograd import no_grad
from minidl.context import current
from minidl.dispatch import apply_all
from minidl.errors import UserError
from minidl.ops.elementwise import add, div, mul, neg, scale, shift, sqrt, sub
from minidl.ops.update import SGD, copy_
from minidl.optim.groups import Parameters, require_at_least_zero
from minidl.optim.optimizer import Optimizer, rows_of_piece
from minidl.tensor import Tensor

States = dict[str, Tensor]


class Composed(Optimizer):
    """The base class of optimizers whose subclasses compute a parameter's step and update its states by operations."""

    def direction(self, index: int, p: Tensor, gradient: Tensor, states: States) -> Tensor:
        """Update the states, and return the direction d of the step p -= lr * d. ``p``: parameter number ``index``, or
        some rows of it. Raises OutOfMemory if a call does not fit; then ``p`` is not moved."""
        raise NotImplementedError

    _began = False  # True once the current step has updated a parameter

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self._began = False
        return super().step(closure)

    def _update(self, chunk: list[int]) -> None:
        for number in chunk:
            if self._began:
                current().tracker.updated = False  # the optimizer's step, and so the iteration, goes on
            self._began = True
            piece = self._pieces[number]
            index, gradient = piece.owner, self.parameters[piece.owner].grad
            assert gradient is not None
            with no_grad():
                p, gradient = (rows_of_piece(x, piece) for x in (self.parameters[index], gradient))
                way = self.direction(index, p, gradient, {name: made[number] for name, made in self._states.items()})
            apply_all(SGD, p, way, lr=float(self.rates(index)["lr"]), weight_decay=0.0)

    def _update_plain(self, chunk: list[int], *composed: str) -> None:
        """Update pieces of one group in one call, unless their group sets a rate that is among ``composed``."""
        rates = self.rates(self._pieces[chunk[0]].owner)
        if self._plain and not any(rates[name] for name in composed):
            super()._update(chunk)
            self._began = True
        else:
            Composed._update(self, chunk)

    def refuse_on_host(self, group: dict[str, Any], *composed: str) -> None:
        """Raise UserError if a group sets a rate among ``composed``, and the states are in host memory."""
        wrong = [name for name in composed if group[name]]
        if wrong and self._host_op is not None:
            raise UserError(f"{type(self).__name__}: with host_update {wrong[0]} must be an argument of the "
                            "constructor")

    def decayed(self, index: int, p: Tensor, gradient: Tensor) -> Tensor:
        """Return p's gradient (negated with ``maximize``) plus weight_decay * p, for parameter number ``index``."""
        rates = self.rates(index)
        gradient = neg(gradient) if rates.get("maximize") else gradient
        decay = float(rates["weight_decay"]) if self._decays[index] else 0.0
        return add(gradient, scale(p, decay)) if decay else gradient


def kept_in(state: Tensor, value: Tensor) -> Tensor:
    """Overwrite a state with a value; return the state."""
    copy_(state, value)
    return state


def mean_square(state: Tensor, x: Tensor, share: float) -> Tensor:
    """Set state = share * state + (1 - share) * x^2 in place; return the state."""
    return kept_in(state, add(scale(state, share), scale(mul(x, x), 1.0 - share)))


class RMSprop(Composed):
    """RMSprop: divides gradients by the root of their running mean square (Hinton 2012, lecture 6e).

        v = alpha v + (1 - alpha) g^2;   d = g / (sqrt(v) + eps);   buf = momentum buf + d;   p -= lr buf


    ``centered`` subtracts the square of the running mean of g from v (Graves 2013).
    """

    def __init__(self, params: Parameters, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False, *, maximize: bool = False,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """Create the states, as zeros. decays: returns True if weight decay applies to a parameter; default: to all.
        Raises UserError if lr, alpha, eps, weight_decay or momentum is negative or NaN, or as ``Optimizer`` does."""
        states = ("square_avg", *(("grad_avg",) if centered else ()), *(("momentum_buffer",) if momentum else ()))
        super().__init__(params, rates={"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay,
                                        "momentum": momentum, "maximize": maximize}, op=SGD, states=states,
                         decays=decays)

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        require_at_least_zero(eps=group["eps"], momentum=group["momentum"], alpha=group["alpha"])

    def check_states(self, group: dict[str, Any]) -> None:
        for rate, state in (("momentum", "momentum_buffer"), ("centered", "grad_avg")):
            if group.get(rate) and state not in self._states:
                raise UserError(f"RMSprop was made without {rate}, and so without {state}: give it to the constructor")

    def direction(self, index: int, p: Tensor, gradient: Tensor, states: States) -> Tensor:
        rates = self.rates(index)
        g, alpha = self.decayed(index, p, gradient), float(rates["alpha"])
        v = mean_square(states["square_avg"], g, alpha)
        if "grad_avg" in states:
            mean = kept_in(states["grad_avg"], add(scale(states["grad_avg"], alpha), scale(g, 1.0 - alpha)))
            v = sub(v, mul(mean, mean))
        d = div(g, shift(sqrt(v), float(rates["eps"])))
        if "momentum_buffer" in states:
            buffer = states["momentum_buffer"]
            d = kept_in(buffer, add(scale(buffer, float(rates["momentum"])), d))
        return d


class Adagrad(Composed):
    """Adagrad: divides gradients by the root of the sum of their squares (Duchi, Hazan & Singer 2011).

        s = s + g^2;   p -= lr g / (sqrt(s) + eps)
    """

    def __init__(self, params: Parameters, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
                 initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False,
                 decays: Callable[[Tensor], bool] | None = None) -> None:
        """Create the states, as zeros. decays: returns True if weight decay applies to a parameter; default: to all.
        Raises UserError if lr or weight_decay is negative or NaN, unless ``lr_decay`` and ``initial_accumulator_value``
        are 0, or as ``Optimizer`` does."""
        if lr_decay or initial_accumulator_value:
            raise UserError("Adagrad: lr_decay and initial_accumulator_value must be 0; use "
                            "optim.lr_scheduler.LambdaLR to change the rate")
        super().__init__(params, rates={"lr": lr, "eps": eps, "weight_decay": weight_decay, "maximize": maximize},
                         op=SGD, states=("sum",), decays=decays)

    def direction(self, index: int, p: Tensor, gradient: Tensor, states: States) -> Tensor:
        g = self.decayed(index, p, gradient)
        total = kept_in(states["sum"], add(states["sum"], mul(g, g)))
        return div(g, shift(sqrt(total), float(self.rates(index)["eps"])))
