"""Inception-v4: Szegedy, Ioffe, Vanhoucke & Alemi, "Inception-v4, Inception-ResNet ...", AAAI 2017, section 3.1.


The network of Figure 9: a branching stem (Figure 3), four modules at 35x35 (Figure 4), seven at 17x17 (Figure 5), three
at 8x8 (Figure 6), reductions between them (Figures 7 and 8), and dropout of 0.2. Batch normalisation and ReLU follow
every convolution; averages of pooling branches leave padding out. Parameters are named as in timm, where ``features``
holds the modules in order. Images have 299x299 pixels (at least 75x75).
"""

from minidl import nn
from minidl.models.inception_v3 import ConvNorm
from minidl.ops import concat
from minidl.tensor import Tensor

ROW, COLUMN = (1, 7), (7, 1)  # windows of a factored 7x7 convolution
ALONG, DOWN = (0, 3), (3, 0)  # and their paddings


class Mixed3a(nn.Module):
    """The first branching of Figure 3, which halves the maps: 64 -> 64 + 96 channels."""

    def __init__(self) -> None:
        self.maxpool = nn.MaxPool2d(3, 2)
        self.conv = ConvNorm(64, 96, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return concat([self.maxpool(x), self.conv(x)])


class Mixed4a(nn.Module):
    """The second branching of Figure 3: 160 -> 96 + 96 channels."""

    def __init__(self) -> None:
        self.branch0 = nn.Sequential(ConvNorm(160, 64, 1), ConvNorm(64, 96, 3))
        self.branch1 = nn.Sequential(ConvNorm(160, 64, 1), ConvNorm(64, 64, ROW, padding=ALONG),
                                     ConvNorm(64, 64, COLUMN, padding=DOWN), ConvNorm(64, 96, 3))

    def forward(self, x: Tensor) -> Tensor:
        return concat([self.branch0(x), self.branch1(x)])


class Mixed5a(nn.Module):
    """The third branching of Figure 3, which halves the maps: 192 -> 192 + 192 channels."""

    def __init__(self) -> None:
        self.conv = ConvNorm(192, 192, 3, 2)
        self.maxpool = nn.MaxPool2d(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return concat([self.conv(x), self.maxpool(x)])


class _Branches(nn.Module):
    """Branches of one input, concatenated: branch0, branch1, ..."""

    def __init__(self, *branches: nn.Module) -> None:
        for number, branch in enumerate(branches):
            setattr(self, f"branch{number}", branch)

    def forward(self, x: Tensor) -> Tensor:
        return concat([branch(x) for branch in self.children()])


def _pooled(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), ConvNorm(in_channels, out_channels, 1))


class InceptionA(_Branches):
    """The module of Figure 4, at 35x35: 384 -> 4 x 96 channels."""

    def __init__(self) -> None:
        super().__init__(
            ConvNorm(384, 96, 1),
            nn.Sequential(ConvNorm(384, 64, 1), ConvNorm(64, 96, 3, padding=1)),
            nn.Sequential(ConvNorm(384, 64, 1), ConvNorm(64, 96, 3, padding=1), ConvNorm(96, 96, 3, padding=1)),
            _pooled(384, 96))


class ReductionA(_Branches):
    """The reduction of Figure 7 (k, l, m, n = 192, 224, 256, 384), 35x35 -> 17x17: 384 -> 384 + 256 + 384 channels."""

    def __init__(self) -> None:
        super().__init__(
            ConvNorm(384, 384, 3, 2),
            nn.Sequential(ConvNorm(384, 192, 1), ConvNorm(192, 224, 3, padding=1), ConvNorm(224, 256, 3, 2)),
            nn.MaxPool2d(3, 2))


class InceptionB(_Branches):
    """The module of Figure 5, at 17x17: 1024 -> 384 + 256 + 256 + 128 channels."""

    def __init__(self) -> None:
        super().__init__(
            ConvNorm(1024, 384, 1),
            nn.Sequential(ConvNorm(1024, 192, 1), ConvNorm(192, 224, ROW, padding=ALONG),
                          ConvNorm(224, 256, COLUMN, padding=DOWN)),
            nn.Sequential(ConvNorm(1024, 192, 1), ConvNorm(192, 192, COLUMN, padding=DOWN),
                          ConvNorm(192, 224, ROW, padding=ALONG), ConvNorm(224, 224, COLUMN, padding=DOWN),
                          ConvNorm(224, 256, ROW, padding=ALONG)),
            _pooled(1024, 128))


class ReductionB(_Branches):
    """The reduction of Figure 8, 17x17 -> 8x8: 1024 -> 192 + 320 + 1024 channels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Sequential(ConvNorm(1024, 192, 1), ConvNorm(192, 192, 3, 2)),
            nn.Sequential(ConvNorm(1024, 256, 1), ConvNorm(256, 256, ROW, padding=ALONG),
                          ConvNorm(256, 320, COLUMN, padding=DOWN), ConvNorm(320, 320, 3, 2)),
            nn.MaxPool2d(3, 2))


class InceptionC(nn.Module):
    """The module of Figure 6, at 8x8, where 3x3 splits into 1x3 beside 3x1: 1536 -> 6 x 256 channels."""

    def __init__(self) -> None:
        self.branch0 = ConvNorm(1536, 256, 1)
        self.branch1_0 = ConvNorm(1536, 384, 1)
        self.branch1_1a = ConvNorm(384, 256, (1, 3), padding=(0, 1))
        self.branch1_1b = ConvNorm(384, 256, (3, 1), padding=(1, 0))
        self.branch2_0 = ConvNorm(1536, 384, 1)
        self.branch2_1 = ConvNorm(384, 448, (3, 1), padding=(1, 0))
        self.branch2_2 = ConvNorm(448, 512, (1, 3), padding=(0, 1))
        self.branch2_3a = ConvNorm(512, 256, (1, 3), padding=(0, 1))
        self.branch2_3b = ConvNorm(512, 256, (3, 1), padding=(1, 0))
        self.branch3 = _pooled(1536, 256)

    def forward(self, x: Tensor) -> Tensor:
        once = self.branch1_0(x)
        twice = self.branch2_2(self.branch2_1(self.branch2_0(x)))
        return concat([
            self.branch0(x),
            self.branch1_1a(once), self.branch1_1b(once),
            self.branch2_3a(twice), self.branch2_3b(twice),
            self.branch3(x),
        ])


class InceptionV4(nn.Module):
    """Inception-v4: [N, in_channels, H, W] -> [N, num_classes]."""

    def __init__(self, *, num_classes: int = 1000, in_channels: int = 3) -> None:
        self.features = nn.Sequential(
            ConvNorm(in_channels, 32, 3, 2), ConvNorm(32, 32, 3), ConvNorm(32, 64, 3, padding=1),
            Mixed3a(), Mixed4a(), Mixed5a(),
            *(InceptionA() for _ in range(4)), ReductionA(),
            *(InceptionB() for _ in range(7)), ReductionB(),
            *(InceptionC() for _ in range(3)))
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head_drop = nn.Dropout(0.2)
        self.last_linear = nn.Linear(1536, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.global_pool(x)
        x = self.head_drop(x)
        return self.last_linear(x)
