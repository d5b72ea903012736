"""PyTorch's samples with numbers at the edges in their tensors: zeros of both signs, ties, NaN, infinity, denormals.

Each sample of ``opinfo`` is tried once for each kind of ``numbers``. A result passes where it has PyTorch's value in
the same dtype, or the value of PyTorch's result in float64: of two ways to compute the same one may overflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from bench.support import opinfo
from bench.support.opinfo import Outcome, SampleInput

NAN, INF = float("nan"), float("inf")
NOT_FINITE = ("nan", "inf", "-inf")
# What differs on purpose: the beginnings of operations' names, the kinds of numbers (None: all), and why.
LISTED: list[tuple[tuple[str, ...], tuple[str, ...] | None, str]] = [
    (("max reduction_no_dim", "min reduction_no_dim", "amax", "amin", "norm inf"), None,
     "the first of equal extremes has the whole gradient; PyTorch divides it among them"),
    (("topk", "sort", "argsort", "msort"), None, "of equal elements the first comes first"),
    (("nn.functional.interpolate", "nn.functional.upsample"), NOT_FINITE,
     "resizing is a product with a matrix, through which NaN and infinity reach whole rows"),
    (("prod", "cumprod"), NOT_FINITE, "the gradient is the product of the others; PyTorch divides by the element"),
    (("clamp",), ("zeros", "ties"), "two equal bounds share the gradient"),
    (("nn.functional.hardtanh", "nn.functional.hardsigmoid", "nn.functional.relu6", "nn.functional.softshrink",
      "nn.functional.hardshrink", "nn.functional.threshold", "nn.functional.elu", "nn.functional.celu",
      "nn.functional.selu", "clamp", "cdist", "logit"), ("nan",),
     "the gradient with respect to an element that is NaN, whose result is NaN"),
    (("nn.functional.scaled_dot_product_attention",), (*NOT_FINITE, "largest"),
     "a row of scores with NaN gives NaN; PyTorch's fused attention gives 0 for some"),
    (("nn.functional.group_norm", "nn.functional.binary_cross_entropy_with_logits", "logaddexp", "nn.functional.mish"),
     ("inf", "-inf"), "infinity, where PyTorch's formula subtracts two infinities"),
    (("logit",), None, "outside of [0, 1], where the result is NaN, the gradient is not"),
    (("nn.functional.binary_cross_entropy",), ("zeros", "ties", "denormal"),
     "the gradient of a target is the bounded logarithm; PyTorch bounds the loss alone"),
    (("nn.functional.kl_div",), ("zeros",), "a target of 0 has no gradient; in PyTorch it is NaN"),
    (("logsumexp",), ("largest",), "the gradients of equal elements have the sum 1"),
    (("remainder", "__rmod__"), ("largest", "least", "denormal"), "quotients of too many digits are rounded"),
    (("nn.functional.normalize",), NOT_FINITE, "in bfloat16 a gradient of 0 is 0.125, as far from 0 as PyTorch's"),
]
OVERFLOW = re.compile(r"^(gradient: )?(-?inf|nan) for|for (-?inf|nan), in float64")


@cache
def numbers(dtype: torch.dtype) -> dict[str, list[float | None]]:
    """Return the numbers of each kind of edge; None stands for the sample's own value."""
    has = torch.finfo(dtype)
    small = has.smallest_normal / 8
    return {"zeros": [0.0, -0.0], "ties": [1.0], "halves": [0.5, -0.5, 1.5, 2.5, -2.5],
            "saturated": [100.0, -100.0, None, 30.0], "nan": [NAN], "inf": [INF], "-inf": [-INF],
            "largest": [has.max, None, -has.max], "least": [has.tiny, -has.tiny, None],
            "denormal": [small, None, -small]}


class Placing:
    """Puts numbers into the floating tensors of nested arguments, beginning elsewhere in each tensor."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.tensors = 0

    def __call__(self, value: Any) -> Any:
        """Return a copy of an argument with numbers in it."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value) if value.is_floating_point() and value.numel() else value
        if isinstance(value, torch.Size) or not isinstance(value, list | tuple | dict):
            return value
        if isinstance(value, dict):
            return {key: self(item) for key, item in value.items()}
        items = [self(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

    def _tensor(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.detach().clone().reshape(-1)
        values, count = numbers(x.dtype)[self.what], flat.numel()
        once = self.what in NOT_FINITE  # in one element of each tensor
        for i in [(3 * self.tensors + 1) % count] if once else range(count):
            number = values[(i + self.tensors) % len(values)]
            if number is not None:
                flat[i] = number
        self.tensors += 1
        return flat.reshape(x.shape).requires_grad_(x.requires_grad)


def listed(what: str, case: Outcome) -> bool:
    """Return True if a difference is on purpose, or an overflow on the way to the result, here or in PyTorch."""
    if what in ("largest", "least") and OVERFLOW.search(case.words):
        return True
    return any(case.op.startswith(names) and (kinds is None or what in kinds) for names, kinds, _ in LISTED)


def cases(most: int, dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16"),
          only: str | None = None) -> Iterator[tuple[str, Outcome]]:
    """Yield the kind of numbers and the outcome of ``most`` samples of each function, or method where there is none."""
    for key, op in opinfo.names().items():
        form = next((form for form in opinfo.forms(op) if form != "in place"), None)
        if form is None or only not in (None, op.name):
            continue
        for dtype in dtypes:
            for number, sample in opinfo.samples(op, dtype, most):
                if isinstance(sample.input, int | float):
                    continue
                for what in numbers(getattr(torch, dtype)):
                    x, args, options = Placing(what)([sample.input, tuple(sample.args), dict(sample.kwargs)])
                    edged = SampleInput(x, args=args, kwargs=options)
                    case = opinfo.outcome(key, form, op.name, dtype, number, edged, edge=True)
                    if case.kind == "wrong" and listed(what, case):
                        case = replace(case, kind="listed")
                    yield what, case
