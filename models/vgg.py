"""VGG: Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015.


Section 2.1 and Table 1: stacks of 3x3 convolutions with ReLU, each ending with a 2x2 max-pooling, then three fully
connected layers with dropout on the first two (section 3.1). A 7x7 average pooling before these admits image sizes
other than 224 (at least 32). The "_bn" variants have batch normalisation (Ioffe & Szegedy, ICML 2015) between each
convolution and its ReLU. Parameters are named as in torchvision.
"""

from functools import partial

from minidl import nn
from minidl.tensor import Tensor

# Table 1, by column: channels of each convolution, "M" for a max-pooling.
COLUMNS: dict[str, tuple[int | str, ...]] = {
    "A": (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "B": (64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "D": (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"),
    "E": (64, 64, "M", 128, 128, "M", *(256,) * 4, "M", *(512,) * 4, "M", *(512,) * 4, "M"),
}


class VGG(nn.Module):
    """VGG: [N, in_channels, H, W] -> [N, num_classes], for one column of Table 1."""

    def __init__(self, column: str, *, num_classes: int = 1000, in_channels: int = 3, normalised: bool = False) -> None:
        self.features = _features(COLUMNS[column], in_channels, normalised=normalised)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
            nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
            nn.Linear(4096, num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
            if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
                nn.init.constant_(module.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        x = self.flatten(x)
        return self.classifier(x)


def _features(column: tuple[int | str, ...], channels: int, *, normalised: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for entry in column:
        if isinstance(entry, str):
            layers.append(nn.MaxPool2d(2))
        else:
            if normalised:
                layers += [nn.Conv2d(channels, entry, 3, padding=1), nn.BatchNormReLU2d(entry)]
            else:
                layers.append(nn.ConvReLU2d(channels, entry, 3, padding=1))
            layers.append(nn.Identity())  # keeps the number of the ReLU, which is fused into the previous layer
            channels = entry
    return nn.Sequential(*layers)


vgg11 = partial(VGG, "A")
vgg13 = partial(VGG, "B")
vgg16 = partial(VGG, "D")
vgg19 = partial(VGG, "E")
vgg11_bn = partial(VGG, "A", normalised=True)
vgg13_bn = partial(VGG, "B", normalised=True)
vgg16_bn = partial(VGG, "D", normalised=True)
vgg19_bn = partial(VGG, "E", normalised=True)
