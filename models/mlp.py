"""A multilayer perceptron: the 28x28-300-100-10 network of LeCun, Bottou, Bengio & Haffner 1998, III.C.


The layers are fully connected, with ReLU between them (Glorot, Bordes & Bengio, "Deep Sparse Rectifier Neural
Networks", AISTATS 2011, section 3) instead of the original's sigmoid.
"""

from collections.abc import Sequence
from itertools import pairwise

from minidl import nn
from minidl.tensor import Tensor


class MLP(nn.Module):
    """The perceptron: [N, in_channels, image_size, image_size] -> [N, num_classes], with layers of ``hidden`` units."""

    def __init__(self, *, num_classes: int = 10, in_channels: int = 1, image_size: int = 28,
                 hidden: Sequence[int] = (300, 100)) -> None:
        widths = (in_channels * image_size**2, *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for ins, outs in pairwise(widths):
            layers += [nn.Linear(ins, outs), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
