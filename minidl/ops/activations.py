"""Activations of PyTorch's that are composed of other operations. Where one has a kink its gradient is PyTorch's."""

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

SAFE = 20.0  # beyond it softplus is x but for the last digits


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x above 0, ``negative_slope`` x elsewhere (Maas, Hannun & Ng 2013)."""
    return where(compare(x, 0, ">"), x, scale(x, negative_slope))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight x elsewhere (He et al. 2015): one weight, or one for each channel, the second dimension."""
    channels = (-1, *(1,) * (x.ndim - 2)) if weight.numel() > 1 else ()
    weight = reshape(weight, channels)
    return where(compare(x, 0, ">"), x, mul(x, weight))


def _below(x: Tensor) -> Tensor:
    """exp(x) - 1 below 0, 0 elsewhere."""
    return expm1(clamp(x, max=0.0))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha (exp(x) - 1) elsewhere (Clevert, Unterthiner & Hochreiter 2016)."""
    return where(compare(x, 0, ">"), x, scale(_below(x), alpha))


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha (exp(x / alpha) - 1) elsewhere (Barron 2017)."""
    return where(compare(x, 0, ">"), x, scale(_below(scale(x, 1.0 / alpha)), alpha))


def selu(x: Tensor) -> Tensor:
    """elu, with the scale and alpha that keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    return scale(elu(x, 1.6732632423543772848170429916717), 1.0507009873554804934193349852946)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x kept between two bounds; the gradient at a bound is 0."""
    if not x.dtype.floating:
        min_val, max_val = int(min_val), int(max_val)
    inside = clamp(x, min_val, max_val)
    inside = masked_fill(inside, compare(x, min_val, "<="), min_val)
    return masked_fill(inside, compare(x, max_val, ">="), max_val)


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6 (Howard et al. 2019)."""
    return scale(relu6(shift(x, 3.0)), 1.0 / 6.0)


def hardswish(x: Tensor) -> Tensor:
    """x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019)."""
    return mul(x, hardsigmoid(x))


def logsigmoid(x: Tensor) -> Tensor:
    """log(1 / (1 + exp(-x))), without overflow."""
    return neg(softplus(neg(x)))


def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x)) (Misra 2019)."""
    return mul(x, tanh(softplus(x)))


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return div(x, shift(absolute(x), 1.0))


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return sub(x, tanh(x))


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by ``lambd``, 0 where it would pass it."""
    return sub(relu(shift(x, -lambd)), relu(shift(neg(x), -lambd)))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, but 0 where |x| is at most ``lambd``."""
    return masked_fill(x, compare(absolute(x), lambd, "<="), 0.0)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x where it is above the threshold, ``value`` elsewhere."""
    return masked_fill(x, compare(x, threshold, "<="), value)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """a sigmoid(b) of the halves a and b of x along a dimension (Dauphin et al. 2017). Raises ShapeError."""
    if not x.ndim or x.shape[dim] % 2:
        raise ShapeError(f"glu needs a dimension of an even extent, not {dim} of {list(x.shape)}")
    a, b = chunk(x, 2, dim)
    return mul(a, sigmoid(b))


def softmin(x: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """softmax of -x, computed in ``dtype``, if there is one."""
    return softmax(neg(x), dim, dtype)


def softplus_of(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""
    y = softplus(x) if beta == 1 else scale(softplus(scale(x, beta)), 1.0 / beta)
    return y if threshold >= SAFE else where(compare(scale(x, beta), threshold, ">"), x, y)


__all__ = ["celu", "elu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
           "leaky_relu", "logsigmoid", "mish", "prelu", "relu6", "selu", "softmin",
           "softplus_of", "softshrink", "softsign", "tanhshrink", "threshold"]
