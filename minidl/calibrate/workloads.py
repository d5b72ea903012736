"""The networks that a machine is measured with: the operations that training uses most, at sizes that differ.

A workload is a function that makes a model in the current runtime and returns one training step of it.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from minidl import nn
from minidl.dispatch import donate
from minidl.meta import int64
from minidl.ops import cross_entropy, gather_rows, linear_, tanh
from minidl.optim import SGD, AdamW
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

Step = Callable[[], None]
Workload = partial[Step]

CLASSES = 100
STAGES = 4


class Residual(nn.Module):
    """A ResNet basic block with a projection, then a bottleneck block, of ``inner`` to ``outer`` channels.
    So there are 3x3 and 1x1 windows, strides of 1 and ``stride``, and normalisation with and without a fused ReLU."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        narrow = outer // 4
        self.basic = nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer),
                                   nn.ReLU(inplace=True), nn.Conv2d(outer, outer, 3, 1, 1, bias=False))
        self.norm = nn.BatchNorm2d(outer)
        self.projection = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.bottleneck = nn.Sequential(nn.Conv2d(outer, narrow, 1, bias=False), nn.BatchNormReLU2d(narrow),
                                        nn.Conv2d(narrow, narrow, 3, 1, 1, bias=False), nn.BatchNormReLU2d(narrow),
                                        nn.Conv2d(narrow, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.basic(x)
        x = self.norm(y, residual=self.projection(x), relu=True)
        y = self.bottleneck(x)
        x = donate(y) + donate(x)
        return self.relu(x)


def residual(width: int, image: int, batch: int) -> Step:
    """Return a training step of a residual network whose stages have 1, 2, 4 and 8 times ``width`` channels.
    image: the side of the images in pixels."""
    widths = [width, *(width << stage for stage in range(STAGES))]
    return _images(nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        *(Residual(inner, outer, 1 if inner == outer else 2) for inner, outer in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES)), image, batch)


def plain(width: int, image: int, batch: int) -> Step:
    """Return a training step of a chain of 3x3 convolutions with bias and ReLU, then linear layers with dropout."""
    widths = [3, *(width << stage for stage in range(STAGES))]
    convolutions = [layer for inner, outer in pairwise(widths)
                    for layer in (nn.ConvReLU2d(inner, outer, 3, 1, 1), nn.MaxPool2d(2))]
    features = widths[-1] * (image >> STAGES) ** 2
    return _images(nn.Sequential(
        *convolutions, nn.Flatten(), nn.Linear(features, 8 * width), nn.ReLU(inplace=True), nn.Dropout(0.5),
        nn.Linear(8 * width, CLASSES)), image, batch)


def _images(model: nn.Module, image: int, batch: int) -> Step:
    optimizer = SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    values = np.random.default_rng(0).standard_normal((batch, 3, image, image), np.float32)
    labels = np.arange(batch) % CLASSES

    def step() -> None:
        runtime = current_runtime()
        optimizer.zero_grad()
        loss = cross_entropy(model(runtime.tensor(values)), runtime.tensor(labels, dtype=int64))
        loss.backward()
        optimizer.step()
    return step


class Layer(nn.Module):
    """A layer of a transformer's encoder: attention and a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        self.attention = nn.MultiHeadAttention(width, heads, 0.1)
        self.output, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width),
                                          nn.Dropout(0.1, inplace=True))
        self.last_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.output(self.attention(x, mask))
        x = self.norm(donate(y) + donate(x))
        y = self.feed_forward(x)
        return self.last_norm(donate(y) + donate(x))


def transformer(width: int, heads: int, length: int, batch: int, vocabulary: int, layers: int = 2) -> Step:
    """Return a training step of an encoder that predicts words at an eighth of the positions, as BERT does."""
    words, positions = nn.Embedding(vocabulary, width), nn.Embedding(2 * length, width)
    encoder = nn.ModuleList(Layer(width, heads) for _ in range(layers))
    pooler, bias = nn.Linear(width, width), nn.parameter((vocabulary,))
    nn.init.constant_(bias, 0.0)
    optimizer = AdamW([bias, *(p for module in (words, positions, encoder, pooler) for p in module.parameters())],
                      lr=1e-4)
    rng = np.random.default_rng(0)
    ids = rng.integers(vocabulary, size=(batch, length))
    predicted = np.sort(rng.permuted(np.tile(np.arange(length), (batch, 1)), axis=1)[:, :length // 8])
    labels, classes = rng.integers(vocabulary, size=predicted.size), np.arange(batch) % width

    def step() -> None:
        runtime = current_runtime()
        optimizer.zero_grad()
        mask = ((runtime.tensor(np.ones((batch, length), np.float32)) - 1.0) * 1e4).reshape((batch, 1, 1, length))
        x = words(runtime.tensor(ids, dtype=int64))
        x = donate(x) + positions.weight.narrow(0, 0, length)
        for layer in encoder:
            x = layer(x, mask)
        first = tanh(pooler(x.narrow(1, 0, 1).reshape((batch, width))))
        x = gather_rows(donate(x), runtime.tensor(predicted, dtype=int64))
        loss = cross_entropy(linear_(donate(x), words.weight, bias), runtime.tensor(labels, dtype=int64))
        loss = loss + cross_entropy(donate(first), runtime.tensor(classes, dtype=int64))
        loss.backward()
        optimizer.step()
    return step


QUICK: tuple[Workload, ...] = (
    partial(residual, 16, 32, 4), partial(plain, 16, 32, 4), partial(transformer, 64, 2, 32, 4, 1000, 1))
THOROUGH: tuple[Workload, ...] = (
    partial(residual, 24, 64, 16), partial(residual, 40, 112, 8), partial(residual, 80, 80, 16),
    partial(residual, 96, 48, 32), partial(plain, 24, 96, 16), partial(plain, 48, 48, 32), partial(plain, 80, 64, 16),
    partial(transformer, 192, 3, 64, 16, 8_000), partial(transformer, 384, 6, 160, 16, 16_000),
    partial(transformer, 640, 10, 96, 16, 24_000))
