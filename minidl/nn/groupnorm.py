"""Group normalisation (Wu & He 2018). All arithmetic is in minidl.ops."""

from minidl.nn import functional
from minidl.nn.layers import scale_and_shift
from minidl.nn.module import Module
from minidl.tensor import Tensor


class GroupNorm(Module):
    """Group normalisation: each example's groups of channels by their mean and variance. x: [N, num_channels, ...]."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *,
                 bias: bool = True) -> None:
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps = eps
        self.weight, self.bias = scale_and_shift((num_channels,), affine, bias)

    def forward(self, x: Tensor) -> Tensor:
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"
