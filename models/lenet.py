"""LeNet-5: LeCun, Bottou, Bengio & Haffner, "Gradient-Based Learning Applied to Document Recognition", 1998, II.B.

Three usual departures: subsampling is a plain average without weights; every C3 map reads every S2 map (Table I
connects only some); the output layer is linear, for a softmax, instead of radial basis functions.
"""

from minidl import nn
from minidl.errors import UserError
from minidl.tensor import Tensor

FRAME = 32  # height and width, in pixels, of the input of C1 with its padding


class LeNet(nn.Module):
    """LeNet-5: [N, in_channels, image_size, image_size] -> [N, num_classes]; layers have the paper's names.

    ``image_size`` is 28, 30 or 32; the padding of C1 enlarges smaller images to 32. Enlarge 8x8 digits before. Raises
    UserError for other sizes.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 1, image_size: int = FRAME) -> None:
        if image_size not in (28, 30, 32):
            raise UserError(f"lenet needs images of 28x28, 30x30 or 32x32 pixels, not {image_size}x{image_size}")
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
