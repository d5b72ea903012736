"""ResNet: He, Zhang, Ren & Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.


Sections 3.3 and 4.1, Table 1 and Figure 5: each block adds its input to the result of two 3x3 convolutions (or 1x1,
3x3, 1x1 with four times the channels); if the shape changes, the input passes a 1x1 convolution (option B). One usual
departure ("v1.5"): a bottleneck halves the image in its 3x3 convolution, not in its first 1x1 one. Parameters are named
as in torchvision. Images must have at least 32x32 pixels.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from functools import partial
from typing import ClassVar

from minidl import nn
from minidl.tensor import Tensor


class BasicBlock(nn.Module):
    """The basic block (Figure 5, left): [N, in_channels, H, W] -> [N, width, H / stride, W / stride]."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(in_channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x)  # first, so that x need not be kept during the longer branch
        y = self.conv1(x)
        y = self.bn1(y, relu=True)
        y = self.conv2(y)
        return self.bn2(y, residual=shortcut, relu=True)


class Bottleneck(nn.Module):
    """The bottleneck block (Figure 5, right): [N, in_channels, H, W] -> [N, 4 width, H / stride, W / stride].
    groups, group_width: of the 3x3 convolution, which has groups * group_width channels where the width is 64."""

    expansion = 4
    groups: ClassVar[int] = 1
    group_width: ClassVar[int] = 64

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        inner = width * self.group_width // 64 * self.groups
        self.conv1 = nn.Conv2d(in_channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=self.groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = _shortcut(in_channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x)
        y = self.conv1(x)
        y = self.bn1(y, relu=True)
        y = self.conv2(y)
        y = self.bn2(y, relu=True)
        y = self.conv3(y)
        return self.bn3(y, residual=shortcut, relu=True)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


class ResNet(nn.Module):
    """ResNet: [N, in_channels, H, W] -> [N, num_classes]. depths: blocks of the four stages, a column of Table 1."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, int, int, int], *,
                 num_classes: int = 1000, in_channels: int = 3) -> None:
        self.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = _stage(block, 64, 64, depths[0], 1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], 2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], 2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = self.bn1(x, relu=True)
        x = self.maxpool(x)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = self.avgpool(x)
        return self.fc(self.flatten(x))


class SmallResNet(nn.Module):
    """ResNet for 32x32 images (section 4.2): three stages of ``depth`` basic blocks with 16, 32 and 64 channels.
    [N, in_channels, H, W] -> [N, num_classes]. Shortcuts are those of the large networks (option B)."""

    def __init__(self, depth: int, *, num_classes: int = 10, in_channels: int = 3) -> None:
        self.conv1 = nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(BasicBlock, 16, 16, depth, 1)
        self.layer2 = _stage(BasicBlock, 16, 32, depth, 2)
        self.layer3 = _stage(BasicBlock, 32, 64, depth, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(64, num_classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = self.bn1(x, relu=True)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.avgpool(x)
        return self.fc(self.flatten(x))


def _initialise(network: nn.Module) -> None:
    """Initialise convolutions by He et al. 2015, "Delving Deep into Rectifiers", with the fan of the gradient."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _stage(block: type[BasicBlock] | type[Bottleneck], in_channels: int, width: int, depth: int,
           stride: int) -> nn.Sequential:
    """Return a stage: blocks of one width, of which the first may halve the image."""
    rest = (block(width * block.expansion, width, 1) for _ in range(depth - 1))
    return nn.Sequential(block(in_channels, width, stride), *rest)


resnet20 = partial(SmallResNet, 3)
resnet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
resnet34 = partial(ResNet, BasicBlock, (3, 4, 6, 3))
resnet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3))
resnet101 = partial(ResNet, Bottleneck, (3, 4, 23, 3))
resnet152 = partial(ResNet, Bottleneck, (3, 8, 36, 3))
