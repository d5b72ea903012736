"""Well-known networks in PyTorch, eager, written with its own layers and no more than these; and steps on noise."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from minidl.models.text import Text

CLASSES = 1000
LEARNING_RATE = 1e-3
STAGES = (64, 128, 256, 512)


class Residual(nn.Module):
    """A residual block: relu(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if (inner, stride) == (outer, 1) else nn.Sequential(
            nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def _convolution(inner: int, outer: int, window: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, window, stride, window // 2, bias=False), nn.BatchNorm2d(outer)]


def _basic(inner: int, outer: int, stride: int) -> nn.Module:
    return Residual(nn.Sequential(*_convolution(inner, outer, 3, stride), nn.ReLU(inplace=True),
                                  *_convolution(outer, outer, 3)), inner, outer, stride)


def _bottleneck(inner: int, outer: int, stride: int) -> nn.Module:
    narrow = outer // 4
    return Residual(nn.Sequential(*_convolution(inner, narrow, 1), nn.ReLU(inplace=True),
                                  *_convolution(narrow, narrow, 3, stride), nn.ReLU(inplace=True),
                                  *_convolution(narrow, outer, 1)), inner, outer, stride)


def _resnet(block: Callable[[int, int, int], nn.Module], blocks: tuple[int, ...], expansion: int) -> nn.Module:
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for number, (width, count) in enumerate(zip(STAGES, blocks, strict=True)):
        for position in range(count):
            layers.append(block(channels, width * expansion, 2 if number and not position else 1))
            channels = width * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def _vgg(convolutions: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, count in zip((64, 128, 256, 512, 512), convolutions, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(),
                         nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
                         nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4096, CLASSES))


class Layer(nn.Module):
    """A layer of BERT; attention by PyTorch's fused function, the fastest that it has."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.last_norm = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (linear(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
                   for linear in (self.query, self.key, self.value))
        y: torch.Tensor = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.1).transpose(1, 2).flatten(2)
        x = self.norm(x + F.dropout(self.output(y), 0.1))
        y = self.last_norm(x + F.dropout(self.narrow(F.gelu(self.wide(x))), 0.1))
        return y


class Bert(nn.Module):
    """BERT with both heads of its pre-training; the decoder shares the weight of the word embedding."""

    def __init__(self, layers: int, width: int, heads: int, text: Text) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(text.vocabulary, width), nn.Embedding(512, width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.pooler, self.order = nn.Linear(width, width), nn.Linear(width, 2)
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width, 1e-12)
        self.bias = nn.Parameter(torch.zeros(text.vocabulary))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, ids: torch.Tensor, types: torch.Tensor, attended: torch.Tensor, masked: torch.Tensor,
                labels: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        mask = ((attended - 1.0) * 10_000.0)[:, None, None, :]
        x = self.words(ids) + self.types(types) + self.positions.weight[:ids.shape[1]]
        x = F.dropout(self.norm(x), 0.1)
        for layer in self.layers:
            x = layer(x, mask)
        y = x.gather(1, masked[..., None].expand(-1, -1, x.shape[2])).flatten(0, 1)
        y = self.transform_norm(F.gelu(self.transform(y)))
        scores = F.linear(y, self.words.weight, self.bias)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return F.cross_entropy(scores, labels.flatten()) + F.cross_entropy(self.order(pooled), order)


def tokens_of(batch: int, text: Text) -> list[torch.Tensor]:
    """Make a batch of random tokens, in the form that ``Bert`` takes."""
    rng = np.random.default_rng(0)
    shape, predicted = (batch, text.length), (batch, text.predictions)
    types = np.broadcast_to(np.arange(text.length) >= text.length // 2, shape)
    masked = np.sort(np.argsort(rng.random(shape), axis=1)[:, :text.predictions], axis=1)
    arrays: list[Any] = [rng.integers(text.vocabulary, size=shape), types.astype(np.int64), np.ones(shape, np.float32),
                         masked, rng.integers(text.vocabulary, size=predicted), rng.integers(2, size=batch)]
    return [torch.from_numpy(array) for array in arrays]


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: _resnet(_basic, (2, 2, 2, 2), 1), "resnet50": lambda: _resnet(_bottleneck, (3, 4, 6, 3), 4),
    "vgg11": lambda: _vgg((1, 1, 2, 2, 2)), "vgg16": lambda: _vgg((2, 2, 3, 3, 3))}
TEXT = {"bert-tiny": (2, 128, 2), "bert-small": (4, 512, 8), "bert-base": (12, 768, 12)}  # layers, width, heads


def noise_step(name: str, batch: int, *, side: int | None = None, length: int | None = None, where: str,
               bf16: bool, vocabulary: int = 30_522) -> Callable[[], None]:
    """Return a training step on a device. It draws new images in each step, which are channels-last.

    bf16: activations in bfloat16 (autocast), parameters in float32. A step does not wait for the device. Raises
    KeyError for a network that this file does not have.
    """
    torch.manual_seed(0)
    optimizer: torch.optim.Optimizer
    compute: Callable[[], torch.Tensor]
    if name in TEXT:
        text = replace(Text(), vocabulary=vocabulary)
        if length is not None:
            text = replace(text, length=length, predictions=min(text.predictions, length // 4))
        bert = Bert(*TEXT[name], text).to(where)
        tokens = [t.to(where) for t in tokens_of(batch, text)]
        optimizer, compute = torch.optim.AdamW(bert.parameters(), lr=LEARNING_RATE), lambda: bert(*tokens)
    else:
        model: Any = IMAGES[name]()  # PyTorch's types know no ``to`` with both arguments
        model = model.to(where, memory_format=torch.channels_last)
        pixels = torch.empty((batch, 3, side or 224, side or 224), device=where, memory_format=torch.channels_last)
        labels = torch.randint(CLASSES, (batch,), device=where)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=1e-4)
        compute = lambda: F.cross_entropy(model(pixels.normal_()), labels)  # noqa: E731

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(where, torch.bfloat16, enabled=bf16):
            loss = compute()
        loss.backward()
        optimizer.step()
    return step
