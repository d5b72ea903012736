"""MobileNetV3: Howard et al., "Searching for MobileNetV3", ICCV 2019.


Tables 1 and 2: inverted bottlenecks with depthwise convolutions, some with squeeze-and-excitation, with ReLU in the
first and hard-swish in the later ones. Parameters are named as in torchvision. Images must have at least 32x32 pixels.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from minidl import nn
from minidl.dispatch import donate
from minidl.models.squeezing import ConvNormActivation, SqueezeExcitation, divisible, initialise
from minidl.tensor import Tensor

NORM = partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)
DROPOUT = 0.2  # before the last layer


class Row(NamedTuple):
    """A row of Tables 1 and 2: kernel, expanded channels, channels, squeeze-and-excitation, hard-swish, stride."""

    kernel: int
    inner: int
    channels: int
    squeezes: bool
    hard_swish: bool
    stride: int


LARGE = (Row(3, 16, 16, False, False, 1), Row(3, 64, 24, False, False, 2), Row(3, 72, 24, False, False, 1),
         Row(5, 72, 40, True, False, 2), Row(5, 120, 40, True, False, 1), Row(5, 120, 40, True, False, 1),
         Row(3, 240, 80, False, True, 2), Row(3, 200, 80, False, True, 1), Row(3, 184, 80, False, True, 1),
         Row(3, 184, 80, False, True, 1), Row(3, 480, 112, True, True, 1), Row(3, 672, 112, True, True, 1),
         Row(5, 672, 160, True, True, 2), Row(5, 960, 160, True, True, 1), Row(5, 960, 160, True, True, 1))
SMALL = (Row(3, 16, 16, True, False, 2), Row(3, 72, 24, False, False, 2), Row(3, 88, 24, False, False, 1),
         Row(5, 96, 40, True, True, 2), Row(5, 240, 40, True, True, 1), Row(5, 240, 40, True, True, 1),
         Row(5, 120, 48, True, True, 1), Row(5, 144, 48, True, True, 1), Row(5, 288, 96, True, True, 2),
         Row(5, 576, 96, True, True, 1), Row(5, 576, 96, True, True, 1))


class InvertedResidual(nn.Module):
    """An inverted bottleneck: [N, in_channels, H, W] -> [N, channels, H / stride, W / stride]."""

    def __init__(self, in_channels: int, row: Row) -> None:
        activation: Callable[[], nn.Module] = nn.Hardswish if row.hard_swish else nn.ReLU
        layers: list[nn.Module] = []
        if row.inner != in_channels:
            layers.append(ConvNormActivation(in_channels, row.inner, 1, norm=NORM, activation=activation))
        layers.append(ConvNormActivation(row.inner, row.inner, row.kernel, row.stride, groups=row.inner, norm=NORM,
                                         activation=activation))
        if row.squeezes:
            layers.append(SqueezeExcitation(row.inner, divisible(row.inner // 4), nn.ReLU(), nn.Hardsigmoid()))
        layers.append(ConvNormActivation(row.inner, row.channels, 1, norm=NORM))
        self.block = nn.Sequential(*layers)
        self.adds = row.stride == 1 and in_channels == row.channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return donate(y) + x if self.adds else y


class MobileNetV3(nn.Module):
    """MobileNetV3: [N, in_channels, H, W] -> [N, num_classes]; ``hidden``: the width of the classifier."""

    def __init__(self, rows: tuple[Row, ...], hidden: int, *, num_classes: int = 1000, in_channels: int = 3) -> None:
        layers: list[nn.Module] = [ConvNormActivation(in_channels, 16, 3, 2, norm=NORM, activation=nn.Hardswish)]
        channels = 16
        for row in rows:
            layers.append(InvertedResidual(channels, row))
            channels = row.channels
        layers.append(ConvNormActivation(channels, 6 * channels, 1, norm=NORM, activation=nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(nn.Linear(6 * channels, hidden), nn.Hardswish(), nn.Dropout(DROPOUT),
                                        nn.Linear(hidden, num_classes))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        return self.classifier(self.flatten(x))


mobilenet_v3_large = partial(MobileNetV3, LARGE, 1280)
mobilenet_v3_small = partial(MobileNetV3, SMALL, 1024)
