"""ConvNeXt: Liu, Mao, Wu, Feichtenhofer, Darrell & Xie, "A ConvNet for the 2020s", CVPR 2022.


Section 2 and Figure 4: blocks of a depthwise 7x7 convolution, layer normalisation of the channels, and two linear
layers per pixel with GELU between them. Parameters are named as in torchvision. Images must have at least 32x32 pixels.
On GPUs, depthwise convolutions are composed of 49 products here (``nn.convolving``): exact, and slow.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from functools import partial

from minidl import nn
from minidl.dispatch import donate
from minidl.models.squeezing import StochasticDepth
from minidl.ops import mul, permute
from minidl.tensor import Tensor

EPSILON, LAYER_SCALE, INITIAL_STD = 1e-6, 1e-6, 0.02


class ToPixels(nn.Module):
    """A view with the channels last: [N, C, H, W] -> [N, H, W, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return permute(x, (0, 2, 3, 1))


class ToChannels(nn.Module):
    """A view with the channels first: [N, H, W, C] -> [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return permute(x, (0, 3, 1, 2))


class LayerNorm2d(nn.LayerNorm):
    """Layer normalisation of each pixel's channels: [N, C, H, W] -> the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return permute(super().forward(permute(x, (0, 2, 3, 1))), (0, 3, 1, 2))


class Block(nn.Module):
    """A block: x + layer_scale * block(x): [N, C, H, W] -> the same shape."""

    def __init__(self, channels: int, dropped: float) -> None:
        self.layer_scale = nn.parameter((channels, 1, 1))
        nn.init.constant_(self.layer_scale, LAYER_SCALE)
        self.block = nn.Sequential(nn.Conv2d(channels, channels, 7, padding=3, groups=channels), ToPixels(),
                                   nn.LayerNorm(channels, EPSILON), nn.Linear(channels, 4 * channels), nn.GELU(),
                                   nn.Linear(4 * channels, channels), ToChannels())
        self.stochastic_depth = StochasticDepth(dropped)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        y = mul(y, nn.lowered(self.layer_scale))
        y = self.stochastic_depth(y)
        return donate(y) + x


class ConvNeXt(nn.Module):
    """ConvNeXt: [N, in_channels, H, W] -> [N, num_classes].
    depths, widths: blocks and channels of the four stages; dropped: the last block's probability of stochastic depth.
    """

    def __init__(self, depths: tuple[int, ...], widths: tuple[int, ...], dropped: float, *, num_classes: int = 1000,
                 in_channels: int = 3) -> None:
        layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(in_channels, widths[0], 4, 4), LayerNorm2d(widths[0]))]
        number, last = 0, sum(depths) - 1
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            layers.append(nn.Sequential(*(Block(width, dropped * (number + n) / last) for n in range(depth))))
            number += depth
            if stage + 1 < len(depths):
                layers.append(nn.Sequential(LayerNorm2d(width), nn.Conv2d(width, widths[stage + 1], 2, 2)))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(widths[-1]), nn.Flatten(), nn.Linear(widths[-1], num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.normal_(module.weight, 0.0, INITIAL_STD)
                assert module.bias is not None
                nn.init.constant_(module.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        return self.classifier(x)


convnext_tiny = partial(ConvNeXt, (3, 3, 9, 3), (96, 192, 384, 768), 0.1)
convnext_small = partial(ConvNeXt, (3, 3, 27, 3), (96, 192, 384, 768), 0.4)
convnext_base = partial(ConvNeXt, (3, 3, 27, 3), (128, 256, 512, 1024), 0.5)
