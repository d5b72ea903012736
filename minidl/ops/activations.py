"""PyTorch's activations that are composed of other operations. At kinks, gradients are PyTorch's."""

from __future__ import annotations

from minidl.errors import ShapeError
from minidl.meta import DType
from minidl.ops.arithmetic import compare, div, mul, sub
from minidl.ops.choose import masked_fill, where
from minidl.ops.elementwise import neg, relu, scale, shift, sigmoid, tanh
from minidl.ops.functions import clamp, softmax, softplus
from minidl.ops.library import absolute, expm1
from minidl.ops.parts import chunk
from minidl.ops.shape import reshape
from minidl.tensor import Tensor

SAFE = 20.0  # above it, softplus(x) is x except for the last digits


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where x > 0, negative_slope * x elsewhere (Maas, Hannun & Ng 2013)."""
    return where(compare(x, 0, ">"), x, scale(x, negative_slope))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return x where x > 0, weight * x elsewhere (He et al. 2015).
    weight: one number, or one per channel (dimension 1).
    """
    channels = (-1, *(1,) * (x.ndim - 2)) if weight.numel() > 1 else ()
    weight = reshape(weight, channels)
    return where(compare(x, 0, ">"), x, mul(x, weight))


def _expm1_below_zero(x: Tensor) -> Tensor:
    """Return expm1(min(x, 0)): exp(x) - 1 where x < 0, 0 elsewhere."""
    return expm1(clamp(x, max=0.0))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where x > 0, alpha * expm1(x) elsewhere (Clevert, Unterthiner & Hochreiter 2016)."""
    return where(compare(x, 0, ">"), x, scale(_expm1_below_zero(x), alpha))


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where x > 0, alpha * expm1(x / alpha) elsewhere (Barron 2017)."""
    return where(compare(x, 0, ">"), x, scale(_expm1_below_zero(scale(x, 1.0 / alpha)), alpha))


def selu(x: Tensor) -> Tensor:
    """Return elu(x, alpha) * factor, with constants that preserve mean 0 and variance 1 (Klambauer et al. 2017)."""
    return scale(elu(x, 1.6732632423543772848170429916717), 1.0507009873554804934193349852946)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return x limited to [min_val, max_val]; the gradient is 0 outside of the bounds and at them."""
    if not x.dtype.floating:
        min_val, max_val = int(min_val), int(max_val)
    inside = clamp(x, min_val, max_val)
    inside = masked_fill(inside, compare(x, min_val, "<="), min_val)
    return masked_fill(inside, compare(x, max_val, ">="), max_val)


def relu6(x: Tensor) -> Tensor:
    """Return min(max(x, 0), 6)."""
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: Tensor) -> Tensor:
    """Return min(max(x + 3, 0), 6) / 6 (Howard et al. 2019)."""
    return scale(relu6(shift(x, 3.0)), 1.0 / 6.0)


def hardswish(x: Tensor) -> Tensor:
    """Return x * min(max(x + 3, 0), 6) / 6 (Howard et al. 2019)."""
    return mul(x, hardsigmoid(x))


def logsigmoid(x: Tensor) -> Tensor:
    """Return log(sigmoid(x)), computed without overflow."""
    return neg(softplus(neg(x)))


def mish(x: Tensor) -> Tensor:
    """Return x * tanh(softplus(x)) (Misra 2019)."""
    return mul(x, tanh(softplus(x)))


def softsign(x: Tensor) -> Tensor:
    """Return x / (1 + |x|)."""
    return div(x, shift(absolute(x), 1.0))


def tanhshrink(x: Tensor) -> Tensor:
    """Return x - tanh(x)."""
    return sub(x, tanh(x))


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x moved towards 0 by ``lambd``; 0 where |x| <= lambd."""
    return sub(relu(shift(x, -lambd)), relu(shift(neg(x), -lambd)))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x where |x| > lambd, 0 elsewhere."""
    return masked_fill(x, compare(absolute(x), lambd, "<="), 0.0)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """Return x where x > threshold, ``value`` elsewhere."""
    return masked_fill(x, compare(x, threshold, "<="), value)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Return a * sigmoid(b) for the halves a and b of x along ``dim`` (Dauphin et al. 2017).
    Raises ShapeError for a dimension of odd size."""
    if not x.ndim or x.shape[dim] % 2:
        raise ShapeError(f"glu needs a dimension of even size, not {dim} of {list(x.shape)}")
    a, b = chunk(x, 2, dim)
    return mul(a, sigmoid(b))


def softmin(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """Return the softmax of -x, computed in ``dtype``, if given."""
    return softmax(neg(x), dim, dtype)


def softplus_of(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    y = softplus(x) if beta == 1 else scale(softplus(scale(x, beta)), 1.0 / beta)
    return y if threshold >= SAFE else where(compare(scale(x, beta), threshold, ">"), x, y)


__all__ = ["celu", "elu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
           "leaky_relu", "logsigmoid", "mish", "prelu", "relu6", "selu", "softmin",
           "softplus_of", "softshrink", "softsign", "tanhshrink", "threshold"]
