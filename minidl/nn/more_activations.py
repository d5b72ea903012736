"""Further activations as layers, with the names of torch.nn. All arithmetic is in minidl.ops."""

from collections.abc import Callable

from minidl.nn.module import Module
from minidl.nn.parameters import Parameter
from minidl.ops import activations
from minidl.ops.inplace import written
from minidl.ops.update import full
from minidl.tensor import Tensor


class _Function(Module):
    """The base class of activation layers; with ``inplace`` the result replaces x."""

    inplace = False
    function: Callable[[Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return written(x, self.compute) if self.inplace else self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        """Return the activation of x."""
        return type(self).function(x)


class LeakyReLU(_Function):
    """Leaky ReLU: x where x > 0, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope, self.inplace = negative_slope, inplace

    def compute(self, x: Tensor) -> Tensor:
        return activations.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """Parametric ReLU: x where x > 0, weight * x elsewhere, with one trained weight or one per channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.weight = Parameter(full((num_parameters,), init))

    def forward(self, x: Tensor) -> Tensor:
        return activations.prelu(x, self.weight)


class ELU(_Function):
    """ELU: x where x > 0, alpha * expm1(x) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha, self.inplace = alpha, inplace

    def compute(self, x: Tensor) -> Tensor:
        return activations.elu(x, self.alpha)


class CELU(ELU):
    """CELU: x where x > 0, alpha * expm1(x / alpha) elsewhere."""

    def compute(self, x: Tensor) -> Tensor:
        return activations.celu(x, self.alpha)


class Hardtanh(_Function):
    """Hard tanh: x limited to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def compute(self, x: Tensor) -> Tensor:
        return activations.hardtanh(x, self.min_val, self.max_val)


class _InPlace(_Function):
    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace


class SELU(_InPlace):
    """SELU: elu(x, alpha) * factor, with constants that preserve mean 0 and variance 1."""

    function = staticmethod(activations.selu)


class ReLU6(_InPlace):
    """ReLU6: min(max(x, 0), 6)."""

    function = staticmethod(activations.relu6)


class Hardsigmoid(_InPlace):
    """Hard sigmoid: min(max(x + 3, 0), 6) / 6."""

    function = staticmethod(activations.hardsigmoid)


class Hardswish(_InPlace):
    """Hard swish: x * min(max(x + 3, 0), 6) / 6."""

    function = staticmethod(activations.hardswish)


class Mish(_InPlace):
    """Mish: x * tanh(softplus(x))."""

    function = staticmethod(activations.mish)


class LogSigmoid(_Function):
    """Log-sigmoid: log(sigmoid(x)), without overflow."""

    function = staticmethod(activations.logsigmoid)


class Softsign(_Function):
    """Softsign: x / (1 + |x|)."""

    function = staticmethod(activations.softsign)


class Tanhshrink(_Function):
    """Tanh-shrink: x - tanh(x)."""

    function = staticmethod(activations.tanhshrink)


class Softplus(_Function):
    """Softplus: log(1 + exp(beta * x)) / beta; x itself where beta * x is above ``threshold``."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def compute(self, x: Tensor) -> Tensor:
        return activations.softplus_of(x, self.beta, self.threshold)


class Softshrink(_Function):
    """Soft shrinkage: x moved towards 0 by ``lambd``; 0 where |x| <= lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def compute(self, x: Tensor) -> Tensor:
        return activations.softshrink(x, self.lambd)


class Hardshrink(Softshrink):
    """Hard shrinkage: x where |x| > lambd, 0 elsewhere."""

    def compute(self, x: Tensor) -> Tensor:
        return activations.hardshrink(x, self.lambd)


class Threshold(_Function):
    """Threshold: x where x > threshold, ``value`` elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def compute(self, x: Tensor) -> Tensor:
        return activations.threshold(x, self.threshold, self.value)


class GLU(_Function):
    """Gated linear unit: a * sigmoid(b) for the halves a and b of x along a dimension."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def compute(self, x: Tensor) -> Tensor:
        return activations.glu(x, self.dim)


class Softmin(GLU):
    """Softmin: the softmax of -x along the dimension ``dim``, by default the last."""

    def compute(self, x: Tensor) -> Tensor:
        return activations.softmin(x, self.dim)
