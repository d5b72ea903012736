"""LeNet-5: LeCun, Bottou, Bengio & Haffner, "Gradient-Based Learning Applied to Document Recognition", 1998, II.B.

Three departures, all usual today: subsampling is a plain average without weights of its own, every C3 map sees every S2
map (Table I connects some only), and the output layer is linear, for a softmax, not of radial basis functions.
"""

from minidl import nn
from minidl.errors import UserError
from minidl.tensor import Tensor

FRAME = 32  # pixels a side that C1 sees


class LeNet(nn.Module):
    """[N, in_channels, image_size, image_size] -> [N, num_classes]; layers have the names of the paper.

    ``image_size`` is 32, or 28 or 30: smaller images get a border of zeros up to 32, by the padding of C1. An 8x8 digit
    has to be enlarged first. Raises UserError for other sizes.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 1, image_size: int = FRAME) -> None:
        if image_size not in (28, 30, 32):
            raise UserError(f"lenet needs images of 28, 30 or 32 pixels a side, not {image_size}")
        self.C1 = nn.Conv2d(in_channels, 6, 5, padding=(FRAME - image_size) // 2)
        self.S2 = nn.AvgPool2d(2)
        self.C3 = nn.Conv2d(6, 16, 5)
        self.S4 = nn.AvgPool2d(2)
        self.C5 = nn.Conv2d(16, 120, 5)  # on 5x5 maps: fully connected
        self.flatten = nn.Flatten()
        self.F6 = nn.Linear(120, 84)
        self.output = nn.Linear(84, num_classes)
        self.tanh = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        x = self.S2(self.tanh(self.C1(x)))
        x = self.S4(self.tanh(self.C3(x)))
        x = self.flatten(self.tanh(self.C5(x)))
        x = self.tanh(self.F6(x))
        return self.output(x)
