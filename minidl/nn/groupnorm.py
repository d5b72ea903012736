"""Group normalisation (Wu & He 2018). All arithmetic is in minidl.ops."""

from minidl.nn import functional, init
from minidl.nn.module import Module
from minidl.runtime import parameter
from minidl.tensor import Tensor


class GroupNorm(Module):
    """Group normalisation by mean and variance of each group of channels of an example. x: [N, num_channels, ...]."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        self.num_groups = num_groups
        self.eps = eps
        self.weight = parameter((num_channels,))
        self.bias = parameter((num_channels,))
        init.constant_(self.weight, 1.0)
        init.constant_(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.weight.shape[0]}, eps={self.eps}"
