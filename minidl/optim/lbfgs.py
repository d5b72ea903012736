"""L-BFGS (Nocedal 1980; Liu & Nocedal 1989) with PyTorch's names and arguments, without a line search.

    d = -H g, with H from the last changes of parameters (s) and gradients (y) by the two-loop recursion;   p += t d
"""

from collections.abc import Callable, Iterable
from typing import Any

from minidl.autograd import enable_grad, no_grad
from minidl.errors import UserError
from minidl.ops.elementwise import add, mul, neg, scale, sub
from minidl.ops.elementwise import sum as sum_
from minidl.ops.library import absolute
from minidl.ops.parts import cat, split
from minidl.ops.ranking import amax
from minidl.ops.shape import reshape
from minidl.ops.update import SGD as STEP
from minidl.ops.update import full
from minidl.optim.optimizer import Optimizer
from minidl.tensor import Tensor


def _number(x: Tensor) -> float:
    return float(x.item())


class LBFGS(Optimizer):
    """L-BFGS: ``step(closure)`` evaluates the closure, which computes loss and gradients, several times.
    There is one group of parameters. The host reads losses and scalar products, so a step waits for the device. Raises
    UserError for a ``line_search_fn``, which is not supported, and for ``step()`` without a closure."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1.0, max_iter: int = 20, max_eval: int | None = None,
                 tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
                 line_search_fn: str | None = None) -> None:
        if line_search_fn is not None:
            raise UserError(f"LBFGS: line_search_fn must be None, not {line_search_fn!r}")
        rates = {"lr": lr, "weight_decay": 0.0, "max_iter": max_iter, "history_size": history_size,
                 "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval, "tolerance_grad": tolerance_grad,
                 "tolerance_change": tolerance_change}
        super().__init__(params, rates=rates, op=STEP)
        if len(self.param_groups) != 1:
            raise UserError(f"LBFGS takes one group of parameters, not {len(self.param_groups)}")
        self._changes: list[tuple[Tensor, Tensor, float]] = []  # s, y and 1 / (s y), the oldest first
        self._last: tuple[Tensor, Tensor, float, float] | None = None  # d, the gradient before it, t, H's diagonal
        self._steps = 0

    def _gradient(self) -> Tensor:
        parts = [full((p.numel(),), 0.0, p.dtype) if p.grad is None else reshape(p.grad, (-1,))
                 for p in self.parameters]
        return cat(parts).clone()

    def _move(self, t: float, d: Tensor) -> None:
        parts = split(d, [p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p.add_(scale(reshape(part, p.shape), t))

    def _direction(self, g: Tensor) -> tuple[Tensor, float]:
        """Store the last changes s and y, if s y > 1e-10. Return d = -H g, H the estimated inverse Hessian, and h.
        The recursion for H begins with h I."""
        if self._last is None:
            return neg(g), 1.0
        d, before, t, diagonal = self._last
        s, y = scale(d, t), sub(g, before)
        product = _number(sum_(mul(y, s)))
        if product > 1e-10:
            self._changes = [*self._changes, (s, y, 1.0 / product)][-self.param_groups[0]["history_size"]:]
            diagonal = product / _number(sum_(mul(y, y)))
        q, shares = neg(g), []
        for s, y, rho in reversed(self._changes):
            share = _number(sum_(mul(s, q))) * rho
            shares.append(share)
            q = add(q, scale(y, -share))
        r = scale(q, diagonal)
        for (s, y, rho), share in zip(self._changes, reversed(shares), strict=True):
            r = add(r, scale(s, share - _number(sum_(mul(y, r))) * rho))
        return r, diagonal

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters up to ``max_iter`` times; return the first loss. Raises UserError without a closure."""
        if closure is None:
            raise UserError("LBFGS: step(closure) needs a function that computes the loss and its gradients")
        group = self.param_groups[0]
        with enable_grad():
            first = closure()
        loss, evaluations = _number(first), 1
        with no_grad():
            g = self._gradient()
            if _number(amax(absolute(g))) <= group["tolerance_grad"]:
                return first
            for iteration in range(1, group["max_iter"] + 1):
                self._steps += 1
                d, diagonal = self._direction(g)
                lr = float(group["lr"])
                t = min(1.0, 1.0 / _number(sum_(absolute(g)))) * lr if self._steps == 1 else lr
                slope = _number(sum_(mul(g, d)))
                self._last = d, g, t, diagonal
                if slope > -group["tolerance_change"]:
                    break
                self._move(t, d)
                before = loss
                if iteration < group["max_iter"]:
                    with enable_grad():
                        loss = _number(closure())
                    g = self._gradient()
                    evaluations += 1
                still = _number(amax(absolute(g))) <= group["tolerance_grad"]
                moved = _number(amax(absolute(d))) * abs(t)
                if evaluations >= group["max_eval"] or still or min(moved, abs(loss - before)) <= (
                        group["tolerance_change"]):
                    break
        return first

    def state_dict(self) -> dict[str, Any]:
        """Raise UserError: the history of changes cannot be saved."""
        raise UserError("LBFGS: its history cannot be saved; a new optimizer starts without it")
