"""ResNeXt: Xie, Girshick, Dollar, Tu & He, "Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017.


Section 3 and Table 1: a ResNet whose 3x3 convolutions have 32 or 64 groups of channels ("cardinality"), and more
channels in all. Parameters are named as in torchvision. Images must have at least 32x32 pixels.
"""

from functools import partial

from minidl.models.resnet import Bottleneck, ResNet


class Block32x4(Bottleneck):
    """A bottleneck block with 32 groups, of 4 channels in the first stage."""

    groups, group_width = 32, 4


class Block32x8(Bottleneck):
    """A bottleneck block with 32 groups, of 8 channels in the first stage."""

    groups, group_width = 32, 8


class Block64x4(Bottleneck):
    """A bottleneck block with 64 groups, of 4 channels in the first stage."""

    groups, group_width = 64, 4


def _network(block: type[Bottleneck], depths: tuple[int, int, int, int], *, num_classes: int = 1000,
             in_channels: int = 3) -> ResNet:
    return ResNet(block, depths, num_classes=num_classes, in_channels=in_channels)


resnext50_32x4d = partial(_network, Block32x4, (3, 4, 6, 3))
resnext101_32x8d = partial(_network, Block32x8, (3, 4, 23, 3))
resnext101_64x4d = partial(_network, Block64x4, (3, 4, 23, 3))
