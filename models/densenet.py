"""DenseNet: Huang, Liu, van der Maaten & Weinberger, "Densely Connected Convolutional Networks", CVPR 2017.


Section 3 and Table 1, the variant BC: a layer reads the concatenation of all earlier outputs of its block, reduces it
to four times the growth rate by a 1x1 convolution, and adds GROWTH channels by a 3x3 convolution; transitions between
the blocks halve the channels and the image. Parameters are named as in torchvision. Images must have at least 32x32
pixels.

Memory: each layer's concatenation is a copy that its batch normalisation keeps, so memory grows with the square of a
block's depth. Replaying a dropped concatenation costs one copy and one normalisation (Pleiss et al., "Memory-Efficient
Implementation of DenseNets", 2017); a policy may choose that.
"""

from collections import OrderedDict
from functools import partial

from minidl import nn
from minidl.ops import concat
from minidl.tensor import Tensor

GROWTH = 32  # channels that a layer adds
NARROWED = 4 * GROWTH


class DenseLayer(nn.Module):
    """One layer: the block's earlier outputs, a list that adds up to [N, in_channels, H, W] -> [N, GROWTH, H, W]."""

    def __init__(self, in_channels: int) -> None:
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, NARROWED, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(NARROWED)
        self.conv2 = nn.Conv2d(NARROWED, GROWTH, 3, padding=1, bias=False)

    def forward(self, pieces: list[Tensor]) -> Tensor:
        x = concat(pieces)
        x = self.norm1(x, relu=True)
        x = self.conv1(x)
        x = self.norm2(x, relu=True)
        return self.conv2(x)


class DenseBlock(nn.Module):
    """A block of layers denselayer1, denselayer2, ...: [N, in_channels, H, W] -> [N, in_channels + depth GROWTH, H, W].
    """

    def __init__(self, in_channels: int, depth: int) -> None:
        for number in range(depth):
            setattr(self, f"denselayer{number + 1}", DenseLayer(in_channels + number * GROWTH))

    def forward(self, x: Tensor) -> Tensor:
        pieces = [x]
        for layer in self.children():
            pieces.append(layer(pieces))
        return concat(pieces)


class Transition(nn.Module):
    """The reduction between blocks: [N, in_channels, H, W] -> [N, in_channels / 2, H / 2, W / 2]."""

    def __init__(self, in_channels: int) -> None:
        self.norm = nn.BatchNorm2d(in_channels)
        self.conv = nn.Conv2d(in_channels, in_channels // 2, 1, bias=False)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x, relu=True)
        x = self.conv(x)
        return self.pool(x)


class DenseNet(nn.Module):
    """DenseNet: [N, in_channels, H, W] -> [N, num_classes]; ``depths``: layers of the four blocks, a column of Table 1.
    """

    def __init__(self, depths: tuple[int, int, int, int], *, num_classes: int = 1000, in_channels: int = 3) -> None:
        channels = 2 * GROWTH
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(in_channels, channels, 7, 2, 3, bias=False), norm0=nn.BatchNormReLU2d(channels),
            pool0=nn.MaxPool2d(3, 2, 1))
        for number, depth in enumerate(depths, 1):
            layers[f"denseblock{number}"] = DenseBlock(channels, depth)
            channels += depth * GROWTH
            if number < len(depths):
                layers[f"transition{number}"] = Transition(channels)
                channels //= 2
        layers["norm5"] = nn.BatchNormReLU2d(channels)
        self.features = nn.Sequential(layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        assert self.classifier.bias is not None
        nn.init.constant_(self.classifier.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        return self.classifier(self.flatten(x))


densenet121 = partial(DenseNet, (6, 12, 24, 16))
densenet169 = partial(DenseNet, (6, 12, 32, 32))
densenet201 = partial(DenseNet, (6, 12, 48, 32))
