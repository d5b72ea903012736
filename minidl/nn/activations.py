"""Activations as layers without parameters, with the names of torch.nn. All arithmetic is in minidl.ops."""

from minidl.dispatch import replaced
from minidl.errors import UserError
from minidl.nn.module import Module
from minidl.ops import attention, elementwise, functions
from minidl.tensor import Tensor


class ReLU(Module):
    """ReLU: max(x, 0), element by element. With ``inplace`` the result replaces x, whose bytes may be overwritten."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return replaced(x, elementwise.relu) if self.inplace else elementwise.relu(x)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Tanh(Module):
    """The hyperbolic tangent of every element."""

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.tanh(x)


class Sigmoid(Module):
    """The logistic function 1 / (1 + exp(-x)) of every element."""

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.sigmoid(x)


class GELU(Module):
    """GELU: x * Phi(x) with the normal distribution function Phi (Hendrycks & Gimpel 2016).
    ``approximate``: "none" is exact, "tanh" the approximation by tanh."""

    def __init__(self, approximate: str = "none") -> None:
        if approximate not in ("none", "tanh"):
            raise UserError(f"GELU: approximate must be none or tanh, not {approximate!r}")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.gelu(x) if self.approximate == "none" else elementwise.gelu_tanh(x)

    def extra_repr(self) -> str:
        return "" if self.approximate == "none" else f"approximate={self.approximate!r}"


class SiLU(Module):
    """SiLU: x * sigmoid(x), element by element; with ``inplace`` the result replaces x."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return replaced(x, functions.silu) if self.inplace else functions.silu(x)


class Softmax(Module):
    """Softmax: exp(x) / sum(exp(x)) over one dimension; with a mask, softmax of x + mask over the last dimension."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return functions.softmax(x, self.dim) if mask is None else attention.softmax(x, mask)


class LogSoftmax(Module):
    """Log-softmax: log(softmax(x)) over one dimension."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functions.log_softmax(x, self.dim)
