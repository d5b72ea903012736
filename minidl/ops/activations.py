"""PyTorch's activations that are composed of other operations. At kinks, gradients are PyTorch's."""

from minidl.errors import ShapeError
from minidl.meta import DType
from minidl.ops.arguments import axis_of
from minidl.ops.arithmetic import compare, div, mul, sub
from minidl.ops.choose import masked_fill, where
from minidl.ops.elementwise import neg, relu, scale, shift, sigmoid, tanh
from minidl.ops.functions import clamp, softmax, softplus
from minidl.ops.library import absolute, expm1
from minidl.ops.parts import chunk
from minidl.ops.shape import reshape
from minidl.tensor import Tensor

SAFE = 20.0  # above it, softplus(x) is x except for the last digits, and tanh(x) is 1


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return input where input > 0, negative_slope * input elsewhere (Maas, Hannun & Ng 2013)."""
    return where(compare(input, 0, ">"), input, scale(input, negative_slope))


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Return input where input > 0, weight * input elsewhere (He et al. 2015).
    weight: one number, or one per channel (dimension 1)."""
    channels = (-1, *(1,) * (input.ndim - 2)) if weight.numel() > 1 else ()
    weight = reshape(weight, channels)
    above = compare(input, 0, ">")
    return where(above, input, mul(masked_fill(input, above, 0.0), weight))


def _expm1_below_zero(x: Tensor) -> Tensor:
    """Return expm1(min(x, 0)): exp(x) - 1 where x < 0, 0 elsewhere."""
    return expm1(clamp(x, max=0.0))


def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Return input where input > 0, alpha * expm1(input) elsewhere (Clevert, Unterthiner & Hochreiter 2016)."""
    return where(compare(input, 0, ">"), input, scale(_expm1_below_zero(input), alpha))


def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Return input where input > 0, alpha * expm1(input / alpha) elsewhere (Barron 2017)."""
    return where(compare(input, 0, ">"), input, scale(_expm1_below_zero(scale(input, 1.0 / alpha)), alpha))


def selu(input: Tensor) -> Tensor:
    """Return elu(input, alpha) * factor, with constants that preserve mean 0 and variance 1 (Klambauer et al. 2017)."""
    return scale(elu(input, 1.6732632423543772848170429916717), 1.0507009873554804934193349852946)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return input limited to [min_val, max_val]; the gradient is 0 outside of the bounds and at them."""
    if not input.dtype.floating:
        min_val, max_val = int(min_val), int(max_val)
    inside = clamp(input, min_val, max_val)
    inside = masked_fill(inside, compare(input, min_val, "<="), min_val)
    return masked_fill(inside, compare(input, max_val, ">="), max_val)


def relu6(input: Tensor) -> Tensor:
    """Return min(max(input, 0), 6)."""
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input: Tensor) -> Tensor:
    """Return min(max(input + 3, 0), 6) / 6 (Howard et al. 2019)."""
    return scale(relu6(shift(input, 3.0)), 1.0 / 6.0)


def hardswish(input: Tensor) -> Tensor:
    """Return input * min(max(input + 3, 0), 6) / 6 (Howard et al. 2019)."""
    return mul(input, hardsigmoid(input))


def logsigmoid(input: Tensor) -> Tensor:
    """Return log(sigmoid(input)), computed without overflow."""
    return neg(softplus(neg(input)))


def mish(input: Tensor) -> Tensor:
    """Return input * tanh(softplus(input)) (Misra 2019); where input is above 20, input itself."""
    large = compare(input, SAFE, ">")
    small = masked_fill(input, large, 0.0)
    return where(large, input, mul(small, tanh(softplus(small))))


def softsign(input: Tensor) -> Tensor:
    """Return input / (1 + |input|)."""
    return div(input, shift(absolute(input), 1.0))


def tanhshrink(input: Tensor) -> Tensor:
    """Return input - tanh(input)."""
    return sub(input, tanh(input))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return input moved towards 0 by ``lambd``; 0 where |input| <= lambd."""
    return sub(relu(shift(input, -lambd)), relu(shift(neg(input), -lambd)))


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return input where |input| > lambd, 0 elsewhere."""
    return masked_fill(input, compare(absolute(input), lambd, "<="), 0.0)


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """Return input where input > threshold, ``value`` elsewhere."""
    return masked_fill(input, compare(input, threshold, "<="), value)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Return a * sigmoid(b) for the halves a and b of input along ``dim`` (Dauphin et al. 2017).
    Raises ShapeError for a dimension of odd size or out of range."""
    if input.shape[axis_of("glu", input.shape, dim)] % 2:
        raise ShapeError(f"glu needs a dimension of even size, not {dim} of {list(input.shape)}")
    a, b = chunk(input, 2, dim)
    return mul(a, sigmoid(b))


def softmin(input: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """Return the softmax of -input over ``dim``, computed in ``dtype``, if given."""
    return softmax(neg(input), dim, dtype)


def softplus_of(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta * input)) / beta; input itself where beta * input is above the threshold."""
    y = softplus(input) if beta == 1 else scale(softplus(scale(input, beta)), 1.0 / beta)
    return y if threshold >= SAFE else where(compare(scale(input, beta), threshold, ">"), input, y)


__all__ = ["celu", "elu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
           "leaky_relu", "logsigmoid", "mish", "prelu", "relu6", "selu", "softmin",
           "softplus_of", "softshrink", "softsign", "tanhshrink", "threshold"]
