"""EfficientNet: Tan & Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019.


Table 1 for B0, and section 3.3 for the larger ones: inverted bottlenecks with depthwise convolutions and
squeeze-and-excitation, whose widths and depths grow together with the image. Parameters are named as in torchvision.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from functools import partial
from math import ceil

from minidl import nn
from minidl.dispatch import donate
from minidl.models.squeezing import (
    ConvNormActivation,
    SqueezeExcitation,
    StochasticDepth,
    divisible,
    initialise,
)
from minidl.tensor import Tensor

# Table 1, stages 2 to 8: expansion, kernel, stride, channels, layers.
STAGES = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
          (6, 3, 1, 320, 1))
DROPPED = 0.2  # the probability of stochastic depth behind the last block


class MBConv(nn.Module):
    """An inverted bottleneck: [N, in_channels, H, W] -> [N, out_channels, H / stride, W / stride]."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, kernel: int, stride: int,
                 dropped: float) -> None:
        inner = in_channels * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(ConvNormActivation(in_channels, inner, 1, activation=nn.SiLU))
        layers += [ConvNormActivation(inner, inner, kernel, stride, groups=inner, activation=nn.SiLU),
                   SqueezeExcitation(inner, max(1, in_channels // 4), nn.SiLU(), nn.Sigmoid()),
                   ConvNormActivation(inner, out_channels, 1)]
        self.block = nn.Sequential(*layers)
        self.adds = stride == 1 and in_channels == out_channels
        self.stochastic_depth = StochasticDepth(dropped)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        if not self.adds:
            return y
        y = self.stochastic_depth(y)
        return donate(y) + x


class EfficientNet(nn.Module):
    """EfficientNet: [N, in_channels, H, W] -> [N, num_classes]. wide, deep: factors of B0's channels and layers."""

    def __init__(self, wide: float, deep: float, dropout: float, *, num_classes: int = 1000,
                 in_channels: int = 3) -> None:
        channels = divisible(32 * wide)
        layers: list[nn.Module] = [ConvNormActivation(in_channels, channels, 3, 2, activation=nn.SiLU)]
        number, blocks = 0, sum(ceil(deep * depth) for *_, depth in STAGES)
        for expansion, kernel, stride, width, depth in STAGES:
            stage: list[nn.Module] = []
            for n in range(ceil(deep * depth)):
                outs = divisible(width * wide)
                stage.append(MBConv(channels, outs, expansion, kernel, 1 if n else stride, DROPPED * number / blocks))
                channels, number = outs, number + 1
            layers.append(nn.Sequential(*stage))
        layers.append(ConvNormActivation(channels, 4 * channels, 1, activation=nn.SiLU))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(nn.Dropout(dropout, inplace=True), nn.Linear(4 * channels, num_classes))
        initialise(self, linear_std=num_classes ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        return self.classifier(self.flatten(x))


efficientnet_b0 = partial(EfficientNet, 1.0, 1.0, 0.2)
efficientnet_b2 = partial(EfficientNet, 1.1, 1.2, 0.3)
efficientnet_b4 = partial(EfficientNet, 1.4, 1.8, 0.4)
