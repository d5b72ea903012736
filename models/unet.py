"""U-Net: Ronneberger, Fischer & Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015.


Section 2 and Figure 1: the image is halved four times, doubling the channels each time; four transposed convolutions
enlarge it again, each joined with the maps of equal size from the way down. Two usual departures: 3x3 convolutions are
padded, so that the result has the image's size and no maps are cropped, and batch normalisation follows each (section
3.1 of Cicek et al., "3D U-Net", MICCAI 2016). Parameters are named as in github.com/milesial/Pytorch-UNet.
"""

from functools import partial

from minidl import nn
from minidl.errors import ShapeError
from minidl.ops import concat, cross_entropy
from minidl.tensor import Tensor

HALVINGS = 4


class DoubleConv(nn.Module):
    """Twice a 3x3 convolution, batch normalisation and ReLU: [N, in_channels, H, W] -> [N, out_channels, H, W]."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False), nn.BatchNormReLU2d(out_channels),
            nn.Identity(),  # keeps the ReLU's number
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False), nn.BatchNormReLU2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Down(nn.Module):
    """A step down: [N, width, H, W] -> [N, 2 width, H / 2, W / 2]."""

    def __init__(self, width: int) -> None:
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width))

    def forward(self, x: Tensor) -> Tensor:
        return self.maxpool_conv(x)


class Up(nn.Module):
    """A step up: [N, 2 width, H / 2, W / 2] and maps from the way down [N, width, H, W] -> [N, width, H, W]."""

    def __init__(self, width: int) -> None:
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.conv = DoubleConv(2 * width, width)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        x = concat([skip, x])
        return self.conv(x)


class OutConv(nn.Module):
    """The output layer: [N, width, H, W] -> scores per class and pixel, [N, num_classes, H, W]."""

    def __init__(self, width: int, num_classes: int) -> None:
        self.conv = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class UNet(nn.Module):
    """U-Net: [N, in_channels, H, W] -> scores [N, num_classes, H, W]. Raises ShapeError unless 16 divides H and W."""

    def __init__(self, *, num_classes: int = 2, in_channels: int = 3, width: int = 64) -> None:
        self.inc = DoubleConv(in_channels, width)
        self.down1 = Down(width)
        self.down2 = Down(2 * width)
        self.down3 = Down(4 * width)
        self.down4 = Down(8 * width)
        self.up1 = Up(8 * width)
        self.up2 = Up(4 * width)
        self.up3 = Up(2 * width)
        self.up4 = Up(width)
        self.outc = OutConv(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # section 3: a standard deviation of sqrt(2 / fan_in)
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2**HALVINGS or x.shape[3] % 2**HALVINGS:
            raise ShapeError(f"unet halves an image {HALVINGS} times: its sides must be multiples of {2**HALVINGS}, "
                             f"not {x.shape[2]} x {x.shape[3]}")
        skips = []
        x = self.inc(x)
        for down in (self.down1, self.down2, self.down3, self.down4):
            skips.append(x)
            x = down(x)
        for up in (self.up1, self.up2, self.up3, self.up4):
            x = up(x, skips.pop())
        return self.outc(x)


unet_small = partial(UNet, width=16)  # a sixteenth of the weights, for minutes of training on a laptop


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the pixels (section 3, without weights).

    images: [N, C, H, W]; labels: [N, H, W].
    """
    scores = model(images)
    rows = scores.permute((0, 2, 3, 1)).reshape((-1, scores.shape[1]))
    del scores
    return cross_entropy(rows, labels.reshape((-1,)))
