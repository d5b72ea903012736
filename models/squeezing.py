"""Parts of networks for images that MobileNetV3, EfficientNet and ConvNeXt share; named as in torchvision.

Squeeze-and-excitation: Hu, Shen & Sun, CVPR 2018. Stochastic depth: Huang et al., "Deep Networks with Stochastic
Depth", ECCV 2016.
"""

from collections.abc import Callable

from minidl import nn
from minidl.ops import dropout, full, mul
from minidl.runtime import current_runtime
from minidl.tensor import Tensor


def divisible(channels: float, divisor: int = 8) -> int:
    """Return channels rounded to a multiple of ``divisor``, but not below 90% of them (as in MobileNetV2's code)."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor


class ConvNormActivation(nn.Sequential):
    """A convolution that keeps the image's size (divided by ``stride``), batch normalisation, and an activation.
    norm: makes the normalisation of some channels; activation: makes the activation; None: there is none."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1,
                 norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
                 activation: Callable[[], nn.Module] | None = None) -> None:
        super().__init__(nn.Conv2d(in_channels, out_channels, kernel, stride, (kernel - 1) // 2, groups=groups,
                                   bias=False), norm(out_channels), *([activation()] if activation else []))


class SqueezeExcitation(nn.Module):
    """A factor per image and channel, from the channels' means: [N, C, H, W] -> the same shape."""

    def __init__(self, channels: int, squeezed: int, activation: nn.Module, gate: nn.Module) -> None:
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.activation, self.gate = activation, gate

    def forward(self, x: Tensor) -> Tensor:
        y = self.avgpool(x)
        y = self.fc1(y)
        y = self.activation(y)
        y = self.fc2(y)
        return mul(x, self.gate(y))


class StochasticDepth(nn.Module):
    """In training, zero whole examples with probability p and divide the rest by 1 - p: [N, ...]."""

    def __init__(self, p: float) -> None:
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        ones = full((x.shape[0], *(1,) * (x.ndim - 1)), 1.0, x.dtype)
        return mul(x, dropout(ones, self.p, current_runtime().next_seed()))


def initialise(network: nn.Module, linear_std: float = 0.01) -> None:
    """Initialise convolutions by He et al. 2015 with the fan of the gradient, linear layers by narrow normals."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, linear_std)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.constant_(module.bias, 0.0)
