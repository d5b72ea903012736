"""Inception-v3: Szegedy, Vanhoucke, Ioffe, Shlens & Wojna, "Rethinking the Inception Architecture", CVPR 2016.


Section 6, Table 1 and Figures 5 to 7 and 10, with section 4's auxiliary classifier as an option. A module concatenates
branches of one input; a 5x5 window becomes two 3x3, and an n x n window a 1 x n and an n x 1. Widths that the paper
does not give are those of the authors' released network; parameters are named as in torchvision. Departures, as in
torchvision: the first module keeps a 5x5 branch, and pooling branches average over zero padding, too.
Images have 299x299 pixels (at least 75x75). torchvision's trained weights expect images normalised to [-1, 1].
"""

from functools import partial

from minidl import nn
from minidl.ops import concat, cross_entropy
from minidl.ops.conv import Pair
from minidl.tensor import Tensor

AUXILIARY_WEIGHT = 0.4  # of the second classifier's loss, as in the released network; section 4 names no number


class ConvNorm(nn.Module):
    """Convolution, batch normalisation, ReLU: [N, in_channels, H, W] -> [N, out_channels, P, Q]."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Pair, stride: int = 1,
                 padding: int | Pair = 0) -> None:
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.bn(x, relu=True)


class InceptionA(nn.Module):
    """The module of Figure 5, at 35x35: 1x1, 5x5, double 3x3 and pooled -> 64 + 64 + 96 + pooled channels."""

    def __init__(self, in_channels: int, pooled: int) -> None:
        self.branch1x1 = ConvNorm(in_channels, 64, 1)
        self.branch5x5_1 = ConvNorm(in_channels, 48, 1)
        self.branch5x5_2 = ConvNorm(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = ConvNorm(in_channels, 64, 1)
        self.branch3x3dbl_2 = ConvNorm(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = ConvNorm(96, 96, 3, padding=1)
        self.branch_pool = ConvNorm(in_channels, pooled, 1)
        self.pool = nn.AvgPool2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return concat([
            self.branch1x1(x),
            self.branch5x5_2(self.branch5x5_1(x)),
            self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x))),
            self.branch_pool(self.pool(x)),
        ])


class InceptionB(nn.Module):
    """The reduction of Figure 10, 35x35 -> 17x17: 3x3, double 3x3, pooled, at stride 2 -> 384 + 96 + in_channels."""

    def __init__(self, in_channels: int) -> None:
        self.branch3x3 = ConvNorm(in_channels, 384, 3, 2)
        self.branch3x3dbl_1 = ConvNorm(in_channels, 64, 1)
        self.branch3x3dbl_2 = ConvNorm(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = ConvNorm(96, 96, 3, 2)
        self.pool = nn.MaxPool2d(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return concat([
            self.branch3x3(x),
            self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x))),
            self.pool(x),
        ])


class InceptionC(nn.Module):
    """The module of Figure 6, n = 7, at 17x17: 1x1, 7x7, double 7x7, pooled -> 4 x 192; ``width``: inner channels."""

    def __init__(self, in_channels: int, width: int) -> None:
        self.branch1x1 = ConvNorm(in_channels, 192, 1)
        self.branch7x7_1 = ConvNorm(in_channels, width, 1)
        self.branch7x7_2 = ConvNorm(width, width, (1, 7), padding=(0, 3))
        self.branch7x7_3 = ConvNorm(width, 192, (7, 1), padding=(3, 0))
        self.branch7x7dbl_1 = ConvNorm(in_channels, width, 1)
        self.branch7x7dbl_2 = ConvNorm(width, width, (7, 1), padding=(3, 0))
        self.branch7x7dbl_3 = ConvNorm(width, width, (1, 7), padding=(0, 3))
        self.branch7x7dbl_4 = ConvNorm(width, width, (7, 1), padding=(3, 0))
        self.branch7x7dbl_5 = ConvNorm(width, 192, (1, 7), padding=(0, 3))
        self.branch_pool = ConvNorm(in_channels, 192, 1)
        self.pool = nn.AvgPool2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return concat([
            self.branch1x1(x),
            self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x))),
            self.branch7x7dbl_5(self.branch7x7dbl_4(self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x))))),
            self.branch_pool(self.pool(x)),
        ])


class InceptionD(nn.Module):
    """A reduction like Figure 10, 17x17 -> 8x8: 3x3, 7x7 then 3x3, and pooled -> 320 + 192 + in_channels."""

    def __init__(self, in_channels: int) -> None:
        self.branch3x3_1 = ConvNorm(in_channels, 192, 1)
        self.branch3x3_2 = ConvNorm(192, 320, 3, 2)
        self.branch7x7x3_1 = ConvNorm(in_channels, 192, 1)
        self.branch7x7x3_2 = ConvNorm(192, 192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = ConvNorm(192, 192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = ConvNorm(192, 192, 3, 2)
        self.pool = nn.MaxPool2d(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return concat([
            self.branch3x3_2(self.branch3x3_1(x)),
            self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))),
            self.pool(x),
        ])


class InceptionE(nn.Module):
    """The module of Figure 7, at 8x8, where 3x3 splits into 1x3 beside 3x1: 320 + 2 x 384 + 2 x 384 + 192 channels."""

    def __init__(self, in_channels: int) -> None:
        self.branch1x1 = ConvNorm(in_channels, 320, 1)
        self.branch3x3_1 = ConvNorm(in_channels, 384, 1)
        self.branch3x3_2a = ConvNorm(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = ConvNorm(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = ConvNorm(in_channels, 448, 1)
        self.branch3x3dbl_2 = ConvNorm(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = ConvNorm(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = ConvNorm(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = ConvNorm(in_channels, 192, 1)
        self.pool = nn.AvgPool2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        once = self.branch3x3_1(x)
        twice = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        return concat([
            self.branch1x1(x),
            self.branch3x3_2a(once), self.branch3x3_2b(once),
            self.branch3x3dbl_3a(twice), self.branch3x3dbl_3b(twice),
            self.branch_pool(self.pool(x)),
        ])


class Auxiliary(nn.Module):
    """Section 4's second classifier on the last 17x17 maps, with the batch normalisation that Table 3 finds best."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        self.pool = nn.AvgPool2d(5, 3)
        self.conv0 = ConvNorm(in_channels, 128, 1)
        self.conv1 = ConvNorm(128, 768, 5)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(768, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(x)
        x = self.conv0(x)
        x = self.conv1(x)
        x = self.avgpool(x)
        return self.fc(self.flatten(x))


class InceptionV3(nn.Module):
    """Inception-v3: [N, in_channels, H, W] -> scores [N, num_classes].

    In training with ``aux_logits`` it returns a pair with the auxiliary classifier's scores, whose 5x5 convolution
    needs the 17x17 maps of 299x299 images.
    """

    def __init__(self, *, num_classes: int = 1000, in_channels: int = 3, aux_logits: bool = False) -> None:
        self.Conv2d_1a_3x3 = ConvNorm(in_channels, 32, 3, 2)
        self.Conv2d_2a_3x3 = ConvNorm(32, 32, 3)
        self.Conv2d_2b_3x3 = ConvNorm(32, 64, 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(3, 2)
        self.Conv2d_3b_1x1 = ConvNorm(64, 80, 1)
        self.Conv2d_4a_3x3 = ConvNorm(80, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, 2)
        self.Mixed_5b = InceptionA(192, 32)
        self.Mixed_5c = InceptionA(256, 64)
        self.Mixed_5d = InceptionA(288, 64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, 128)
        self.Mixed_6c = InceptionC(768, 160)
        self.Mixed_6d = InceptionC(768, 160)
        self.Mixed_6e = InceptionC(768, 192)
        self.AuxLogits = Auxiliary(768, num_classes) if aux_logits else None
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(2048, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        layer: nn.Module
        for layer in (self.Conv2d_1a_3x3, self.Conv2d_2a_3x3, self.Conv2d_2b_3x3, self.maxpool1, self.Conv2d_3b_1x1,
                      self.Conv2d_4a_3x3, self.maxpool2, self.Mixed_5b, self.Mixed_5c, self.Mixed_5d, self.Mixed_6a,
                      self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e):
            x = layer(x)
        auxiliary = self.AuxLogits(x) if self.AuxLogits is not None and self.training else None
        for layer in (self.Mixed_7a, self.Mixed_7b, self.Mixed_7c, self.avgpool, self.dropout, self.flatten):
            x = layer(x)
        x = self.fc(x)
        return x if auxiliary is None else (x, auxiliary)


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, plus AUXILIARY_WEIGHT times that of the auxiliary classifier if there is one."""
    scores = model(images)
    if isinstance(scores, Tensor):
        return cross_entropy(scores, labels)
    return cross_entropy(scores[0], labels) + cross_entropy(scores[1], labels) * AUXILIARY_WEIGHT


inception_v3 = InceptionV3
inception_v3_aux = partial(InceptionV3, aux_logits=True)
