"""Initialisation of tensors in place on the device, with seeds derived from the runtime's seed.
Each function returns its tensor, except ``default_``; a tensor without elements stays as it is.

A fan is the number of products summed into one output (fan_in) or one gradient (fan_out): for a weight
[out, in, *window], fan_in = in * window and fan_out = out * window.
"""

from math import prod, sqrt

from minidl.errors import UserError
from minidl.ops import update
from minidl.runtime import current_runtime
from minidl.tensor import Tensor


def fans(tensor: Tensor) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight [out, in, *window]. Raises UserError for fewer than two dimensions."""
    if tensor.ndim < 2:
        raise UserError(f"fan_in and fan_out need a tensor of at least two dimensions, not {list(tensor.shape)}")
    window = prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def gain(nonlinearity: str, a: float = 0.0) -> float:
    """Return the factor that preserves the scale of activations through a nonlinearity; ``a`` is leaky_relu's slope.
    Raises UserError for an unknown nonlinearity."""
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": sqrt(2.0), "leaky_relu": sqrt(2.0 / (1 + a * a))}
    if nonlinearity not in gains:
        raise UserError(f"no gain is known for {nonlinearity!r}; known are {', '.join(gains)}")
    return gains[nonlinearity]


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill a tensor with one value."""
    update.fill_(tensor, val)
    return tensor


def zeros_(tensor: Tensor) -> Tensor:
    """Fill a tensor with 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill a tensor with 1."""
    return constant_(tensor, 1.0)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill a tensor with normal values of this mean and standard deviation."""
    update.normal_(tensor, seed=current_runtime().next_seed(), mean=mean, std=std)
    return tensor


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill a tensor with uniform values in [a, b)."""
    update.uniform_(tensor, seed=current_runtime().next_seed(), low=a, high=b)
    return tensor


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill with uniform values in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010, eq. 16).
    Raises UserError for fewer than two dimensions."""
    bound = gain * sqrt(6.0 / (sum(fans(tensor)) or 1))
    return uniform_(tensor, -bound, bound)


def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Fill with uniform values in +-gain sqrt(3 / fan); mode: "fan_in" or "fan_out".
    Raises UserError for another mode, an unknown nonlinearity, or fewer than two dimensions."""
    bound = sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Fill with normal values of standard deviation gain / sqrt(fan) (He et al. 2015, equations 10 and 14).
    Raises UserError for another mode, an unknown nonlinearity, or fewer than two dimensions."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))


def default_(weight: Tensor, bias: Tensor | None) -> None:
    """Fill weight and bias as PyTorch does by default: uniformly in +-1/sqrt(fan_in)."""
    kaiming_uniform_(weight, a=sqrt(5.0))
    if bias is not None:
        fan = fans(weight)[0]
        bound = 1.0 / sqrt(fan) if fan else 0.0
        uniform_(bias, -bound, bound)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise UserError(f"mode must be fan_in or fan_out, not {mode!r}")
    fan = fans(tensor)[("fan_in", "fan_out").index(mode)]
    return gain(nonlinearity, a) / sqrt(fan or 1)  # without a product there is no element to fill
