"""Random networks, small enough for a thousand runs a minute: branches, joins, views, shared layers, statistics."""

from __future__ import annotations

import random
from collections.abc import Callable

from minidl import nn
from minidl.ops.shape import concat
from minidl.tensor import Tensor


class Residual(nn.Module):
    """x + body(x)"""

    def __init__(self, body: nn.Module) -> None:
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + x


class Join(nn.Module):
    """Two branches of one input, concatenated."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        return concat([self.left(x), self.right(x)])


class Gate(nn.Module):
    """x times a number per channel, computed from x."""

    def __init__(self, channels: int) -> None:
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class Halves(nn.Module):
    """The sum of both halves of the batch, concatenated with itself: views, and a broadcast by concatenation."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[0] // 2
        both = x.narrow(0, 0, half) * 0.5 + x.narrow(0, half, half)
        return concat([both, both], axis=0)


class Twice(nn.Module):
    """One layer applied twice: its parameters get two gradients."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


def _convolution(draw: random.Random, channels: int, width: int) -> nn.Module:
    kernel = draw.choice([1, 3])
    layers: list[nn.Module] = [nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=draw.random() < 0.5)]
    if draw.random() < 0.5:
        layers.append(nn.BatchNorm2d(width))
    if draw.random() < 0.7:
        layers.append(nn.ReLU(inplace=draw.random() < 0.7))
    return nn.Sequential(*layers)


class Network(nn.Module):
    """[N, *shape] -> [N, classes]: two to six random layers and a linear one.

    Sizes are multiples of 4 bytes for any N that is a multiple of 4.
    """

    def __init__(self, draw: random.Random, classes: int) -> None:
        channels, side = draw.choice([2, 3]), draw.choice([4, 6])
        self.shape = (channels, side, side)
        layers: list[nn.Module] = [_convolution(draw, channels, width := draw.choice([3, 4, 6]))]
        channels = width
        for _ in range(draw.randint(1, 5)):
            kind = draw.choice(["convolution", "convolution", "residual", "join", "gate", "halves", "twice", "max",
                                "average", "dropout", "tanh", "gelu"])
            if kind in ("max", "average") and side < 4:
                kind = "tanh"
            match kind:
                case "convolution":
                    layers.append(_convolution(draw, channels, width := draw.choice([3, 4, 6])))
                    channels = width
                case "residual":
                    layers.append(Residual(_convolution(draw, channels, channels)))
                case "join":
                    layers.append(Join(_convolution(draw, channels, 2), _convolution(draw, channels, 3)))
                    channels = 5
                case "gate":
                    layers.append(Gate(channels))
                case "halves":
                    layers.append(Halves())
                case "twice":
                    layers.append(Twice(_convolution(draw, channels, channels)))
                case "max" | "average":
                    layers.append(nn.MaxPool2d(2) if kind == "max" else nn.AvgPool2d(2))
                    side //= 2
                case "dropout":
                    layers.append(nn.Dropout(0.3))
                case _:
                    layers.append({"tanh": nn.Tanh, "gelu": nn.GELU}[kind]())
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(channels * side * side, classes)

    def forward(self, x: Tensor, after: Callable[[int, Tensor], None] = lambda layer, x: None,
                before: Callable[[int, Tensor], Tensor] = lambda layer, x: x) -> Tensor:
        """after: called with each layer's number and output; before: maps each layer's input, the head's too."""
        for number, layer in enumerate(self.layers):
            x = layer(before(number, x))
            after(number, x)
        return self.head(before(len(self.layers), x).flatten(1))
