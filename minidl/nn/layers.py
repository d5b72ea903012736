"""Layers: a few parameters and one operation each. Knows no network; all arithmetic is in minidl.ops.

Arguments have the names, the order and the meaning of torch.nn's, as far as they are supported. Parameters are float32
in every precision; what a layer computes in is its runtime's (see ``precision``).
"""

from __future__ import annotations

from math import sqrt

from minidl.errors import UserError
from minidl.nn import init
from minidl.nn.module import Module
from minidl.nn.precision import computed_in, lowered
from minidl.ops import attention, batchnorm, conv, elementwise, embedding, layernorm, linear, loss, pool, shape
from minidl.ops.conv import Pair, pair
from minidl.runtime import current_runtime, parameter
from minidl.tensor import Tensor, give


def _initialise(weight: Tensor, bias: Tensor | None) -> None:
    """PyTorch's default for layers with a weight: both uniform in +-1/sqrt(fan_in)."""
    init.kaiming_uniform_(weight, a=sqrt(5.0))
    if bias is not None:
        bound = 1.0 / sqrt(init.fans(weight)[0])
        init.uniform_(bias, -bound, bound)


class Linear(Module):
    """y = x w^T + b.  x: [..., in_features] -> [..., out_features]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = parameter((out_features, in_features))
        self.bias = parameter((out_features,)) if bias else None
        _initialise(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear.linear(lowered(x), lowered(self.weight), self.bias)

    def extra_repr(self) -> str:
        outs, ins = self.weight.shape
        return f"{ins}, {outs}{_no_bias(self.bias)}"


class Conv2d(Module):
    """Cross-correlation.  x: [N, in_channels, H, W] -> [N, out_channels, P, Q].

    ``conv(x, relu=True)`` is relu(conv(x)) without another pass over the feature map.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Pair, stride: int | Pair = 1,
                 padding: int | Pair = 0, *, bias: bool = True) -> None:
        self.stride = pair(stride)
        self.padding = pair(padding)
        self.weight = parameter((out_channels, in_channels, *pair(kernel_size)))
        self.bias = parameter((out_channels,)) if bias else None
        _initialise(self.weight, self.bias)

    def forward(self, x: Tensor, *, relu: bool = False) -> Tensor:
        return conv.conv2d(lowered(x), lowered(self.weight), self.bias, stride=self.stride, padding=self.padding,
                           relu=relu)

    def extra_repr(self) -> str:
        outs, ins, *kernel = self.weight.shape
        return f"{ins}, {outs}{_window((kernel[0], kernel[1]), self.stride, self.padding)}{_no_bias(self.bias)}"


class ConvReLU2d(Conv2d):
    """relu(conv(x)) without another pass over the feature map, for a Sequential."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, relu=True)


class ConvTranspose2d(Module):
    """Transposed convolution.  x: [N, in_channels, H, W] -> [N, out_channels, (H - 1) stride - 2 padding + R, ...]."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Pair, stride: int | Pair = 1,
                 padding: int | Pair = 0, *, bias: bool = True) -> None:
        self.stride = pair(stride)
        self.padding = pair(padding)
        self.weight = parameter((in_channels, out_channels, *pair(kernel_size)))
        self.bias = parameter((out_channels,)) if bias else None
        _initialise(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return conv.conv_transpose2d(lowered(x), lowered(self.weight), self.bias, stride=self.stride,
                                     padding=self.padding)

    def extra_repr(self) -> str:
        ins, outs, *kernel = self.weight.shape
        return f"{ins}, {outs}{_window((kernel[0], kernel[1]), self.stride, self.padding)}{_no_bias(self.bias)}"


class BatchNorm2d(Module):
    """Batch normalisation over [N, C, H, W] (Ioffe & Szegedy 2015): batch statistics in training, else running ones.

    ``bn(x, residual=r, relu=True)`` is relu(bn(x) + r) in one pass over the feature maps.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.eps = eps
        self.momentum = momentum
        self.weight = parameter((num_features,))
        self.bias = parameter((num_features,))
        self.register_buffer("running_mean", parameter((num_features,), requires_grad=False))
        self.register_buffer("running_var", parameter((num_features,), requires_grad=False))
        for tensor, value in ((self.weight, 1.0), (self.bias, 0.0), (self.running_mean, 0.0), (self.running_var, 1.0)):
            init.constant_(tensor, value)

    def forward(self, x: Tensor, *, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        return batchnorm.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var,
                                    training=self.training, momentum=self.momentum, eps=self.eps, relu=relu,
                                    residual=residual)

    def extra_repr(self) -> str:
        return f"{self.weight.size}, eps={self.eps}, momentum={self.momentum}"


class BatchNormReLU2d(BatchNorm2d):
    """relu(bn(x)) in one pass over the feature maps, for a Sequential."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, relu=True)


class LayerNorm(Module):
    """Layer normalisation (Ba, Kiros & Hinton 2016) of rows of ``normalized_shape`` values: the last dimension."""

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5) -> None:
        width = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if len(width) != 1:
            raise UserError(f"LayerNorm: only the last dimension can be normalised, not {list(width)}")
        self.eps = eps
        self.weight = parameter(width)
        self.bias = parameter(width)
        init.constant_(self.weight, 1.0)
        init.constant_(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return layernorm.layer_norm(x, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.size}, eps={self.eps}"


class Embedding(Module):
    """Rows of a table, by number.  ids: integers of any shape -> [*ids.shape, embedding_dim], as activations are."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        self.weight = parameter((num_embeddings, embedding_dim))
        init.normal_(self.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return embedding.embedding(self.weight, ids, dtype=computed_in(self.weight.dtype))

    def extra_repr(self) -> str:
        rows, width = self.weight.shape
        return f"{rows}, {width}"


class Dropout(Module):
    """In training, zero each element with probability p in [0, 1) and divide the rest by 1 - p; else the identity.

    With ``inplace`` the handle passed in is given up, so that its bytes may be written over.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not 0.0 <= p < 1.0:
            raise UserError(f"Dropout: p must be in [0, 1), not {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        return elementwise.dropout(give(x) if self.inplace else x, self.p, current_runtime().next_seed())

    def extra_repr(self) -> str:
        return f"p={self.p}" + (", inplace=True" if self.inplace else "")


class ReLU(Module):
    """max(x, 0). With ``inplace`` the handle passed in is given up, so that its bytes may be written over."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.relu(give(x) if self.inplace else x)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.sigmoid(x)


class GELU(Module):
    """x times the probability that a normal number is below x (Hendrycks & Gimpel 2016): exact, or by its tanh form."""

    def __init__(self, approximate: str = "none") -> None:
        if approximate not in ("none", "tanh"):
            raise UserError(f"GELU: approximate is none or tanh, not {approximate!r}")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.gelu(x) if self.approximate == "none" else elementwise.gelu_tanh(x)

    def extra_repr(self) -> str:
        return "" if self.approximate == "none" else f"approximate={self.approximate!r}"


class Softmax(Module):
    """exp(x) / sum(exp(x)) over the last dimension, after a mask, if there is one, has been added to x."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return attention.softmax(x, mask)


class _Pool2d(Module):
    """A window that slides over [N, C, H, W]; the stride is the window by default."""

    def __init__(self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0) -> None:
        self.kernel_size = pair(kernel_size)
        self.stride = self.kernel_size if stride is None else pair(stride)
        self.padding = pair(padding)

    def extra_repr(self) -> str:
        return _window(self.kernel_size, self.stride, self.padding)[2:]


class MaxPool2d(_Pool2d):
    """Maximum of each window of [N, C, H, W]; the stride is the window by default."""

    def forward(self, x: Tensor) -> Tensor:
        return pool.max_pool2d(x, self.kernel_size, stride=self.stride, padding=self.padding)


class AvgPool2d(_Pool2d):
    """Mean of each window of [N, C, H, W]; the stride is the window by default. Padding counts as zeros, or not."""

    def __init__(self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0, *,
                 count_include_pad: bool = True) -> None:
        super().__init__(kernel_size, stride, padding)
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return pool.avg_pool2d(x, self.kernel_size, stride=self.stride, padding=self.padding,
                               count_include_pad=self.count_include_pad)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.count_include_pad else ", count_include_pad=False")


class AdaptiveAvgPool2d(Module):
    """Mean over a grid of windows: [N, C, H, W] -> [N, C, *output_size]."""

    def __init__(self, output_size: int | Pair) -> None:
        self.output_size = pair(output_size)

    def forward(self, x: Tensor) -> Tensor:
        return pool.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class Flatten(Module):
    """Merge the dimensions from ``start_dim`` on into one; a view."""

    def __init__(self, start_dim: int = 1) -> None:
        self.start_dim = start_dim

    def forward(self, x: Tensor) -> Tensor:
        return shape.flatten(x, self.start_dim)


class Identity(Module):
    """x itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class CrossEntropyLoss(Module):
    """Softmax cross-entropy, averaged over the rows whose label is not ``ignore_index``.

    logits: [N, classes], labels: [N] integers -> a scalar.
    """

    def __init__(self, ignore_index: int = -100) -> None:
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return loss.cross_entropy(logits, labels, ignore_index=self.ignore_index)


def _window(kernel: Pair, stride: Pair, padding: Pair) -> str:
    """The arguments that describe a window, without those that have their usual value."""
    text = f", kernel_size={kernel}, stride={stride}"
    return text + (f", padding={padding}" if any(padding) else "")


def _no_bias(bias: Tensor | None) -> str:
    return "" if bias is not None else ", bias=False"
