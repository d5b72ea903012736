"""Layers for images, [N, C, H, W]: convolutions, batch normalisation and pooling. All arithmetic is in minidl.ops.

Supported arguments have the names, order and meaning of torch.nn's. Parameters are float32 at first; layers compute in
the runtime's precision (see ``precision``).
"""

from minidl.dispatch import donate
from minidl.errors import ShapeError, UserError
from minidl.meta import float32
from minidl.nn import init, pooling
from minidl.nn.convolving import PADDING_MODES, channels_of, conv1d, conv2d, conv_transpose2d, places
from minidl.nn.layers import no_bias, scale_and_shift
from minidl.nn.module import Module
from minidl.nn.precision import lowered
from minidl.nn.resizing import pad
from minidl.ops import batchnorm, conv, elementwise
from minidl.ops.conv import Pair, pair
from minidl.ops.shape import sizes_of
from minidl.ops.update import full
from minidl.runtime import parameter
from minidl.tensor import Tensor


class Conv2d(Module):
    """A two-dimensional convolution (cross-correlation). x: [N, in_channels, H, W] -> [N, out_channels, P, Q].

    ``conv(x, relu=True)`` is relu(conv(x)), in one operation without groups and dilation. Dilation is composed of other
    operations (``convolving``). Raises UserError unless ``groups`` divides both numbers of channels, and for an unknown
    ``padding_mode``.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Pair, stride: int | Pair = 1,
                 padding: int | Pair | str = 0, dilation: int | Pair = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros") -> None:
        channels_of(type(self).__name__, (in_channels, out_channels), groups)
        if padding_mode not in PADDING_MODES:
            raise UserError(f"{type(self).__name__}: padding_mode must be one of {', '.join(PADDING_MODES)}, not "
                            f"{padding_mode!r}")
        kernel = pair(kernel_size)
        self.stride, self.dilation, self.groups, self.padding_mode = pair(stride), pair(dilation), groups, padding_mode
        self.padding = places(type(self).__name__, padding, kernel, self.stride, self.dilation)
        self.weight = parameter((out_channels, in_channels // groups, *kernel))
        self.bias = parameter((out_channels,)) if bias else None
        init.default_(self.weight, self.bias)

    def forward(self, x: Tensor, *, relu: bool = False) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x = pad(x, (padding[1], padding[1], padding[0], padding[0]), PADDING_MODES[self.padding_mode])
            padding = 0, 0
        if self.groups == 1 and self.dilation == (1, 1) and x.ndim == 4:
            return conv.conv2d(lowered(x), lowered(self.weight), self.bias, stride=self.stride, padding=padding,
                               relu=relu)
        y = conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
        return elementwise.relu(donate(y)) if relu else y

    def extra_repr(self) -> str:
        outs, ins, *kernel = self.weight.shape
        more = (f", dilation={self.dilation}" if self.dilation != (1, 1) else "") + (
            f", groups={self.groups}" if self.groups != 1 else "")
        window = _window((kernel[0], kernel[1]), self.stride, self.padding)
        return f"{ins * self.groups}, {outs}{window}{more}{no_bias(self.bias)}"


class Conv1d(Module):
    """A convolution of sequences of length L. x: [N, in_channels, L] -> [N, out_channels, P], of P positions each.
    Raises UserError unless ``groups`` divides both numbers of channels."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int | str = 0,
                 dilation: int = 1, groups: int = 1, bias: bool = True) -> None:
        channels_of("Conv1d", (in_channels, out_channels), groups)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = parameter((out_channels, in_channels // groups, sizes_of((kernel_size,))[0]))
        self.bias = parameter((out_channels,)) if bias else None
        init.default_(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvReLU2d(Conv2d):
    """A Conv2d and a ReLU in one layer, relu(conv(x)), for a Sequential: ``Conv2d`` with ``relu=True``."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override] # a Sequential passes only x
        return super().forward(x, relu=True)


class ConvTranspose2d(Module):
    """A transposed convolution. x: [N, in_channels, H, W] -> [N, out_channels, H', W'].
    For a kernel of height R, H' = (H - 1) * stride - 2 * padding + dilation * (R - 1) + 1 + output_padding. Raises
    UserError unless ``groups`` divides both numbers of channels.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Pair, stride: int | Pair = 1,
                 padding: int | Pair = 0, output_padding: int | Pair = 0, groups: int = 1, bias: bool = True,
                 dilation: int | Pair = 1) -> None:
        channels_of("ConvTranspose2d", (in_channels, out_channels), groups)
        self.stride, self.padding, self.groups = pair(stride), pair(padding), groups
        self.output_padding, self.dilation = pair(output_padding), pair(dilation)
        self.weight = parameter((in_channels, out_channels // groups, *pair(kernel_size)))
        self.bias = parameter((out_channels,)) if bias else None
        init.default_(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return conv_transpose2d(x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups,
                                self.dilation)

    def extra_repr(self) -> str:
        ins, outs, *kernel = self.weight.shape
        return f"{ins}, {outs}{_window((kernel[0], kernel[1]), self.stride, self.padding)}{no_bias(self.bias)}"


class BatchNorm2d(Module):
    """Batch normalisation over [N, C, H, W] (Ioffe & Szegedy 2015), by batch statistics in training, else running ones.
    ``bn(x, residual=r, relu=True)`` is relu(bn(x) + r) without further passes over the feature maps. forward() raises
    ShapeError for another number of dimensions."""

    running_mean: Tensor
    running_var: Tensor
    _dims: tuple[int, ...] = (4,)

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, bias: bool = True) -> None:
        for argument, value in (("momentum", momentum), ("eps", eps)):
            if not isinstance(value, int | float):
                raise UserError(f"{type(self).__name__}: {argument} must be a number, not {value}")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.weight, self.bias = scale_and_shift((num_features,), affine, bias)
        for name, value in (("running_mean", 0.0), ("running_var", 1.0)):
            running = parameter((num_features,), requires_grad=False) if track_running_stats else None
            self.register_buffer(name, running)
            if running is not None:
                init.constant_(running, value)

    def forward(self, x: Tensor, *, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        if x.ndim not in self._dims:
            raise ShapeError(f"{type(self).__name__} needs {' or '.join(map(str, self._dims))} dimensions, not the "
                             f"{x.ndim} of {list(x.shape)}")
        gamma, beta, mean, var = (full((self.num_features,), value, float32) if tensor is None else tensor
                                  for tensor, value in ((self.weight, 1.0), (self.bias, 0.0), (self.running_mean, 0.0),
                                                        (self.running_var, 1.0)))
        return batchnorm.batch_norm(x, gamma, beta, mean, var, training=self.training or not self.track_running_stats,
                                    momentum=self.momentum, eps=self.eps, relu=relu, residual=residual)

    def extra_repr(self) -> str:
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"
                + ("" if self.affine else ", affine=False")
                + ("" if self.track_running_stats else ", track_running_stats=False"))


class BatchNorm1d(BatchNorm2d):
    """Batch normalisation of [N, C] or [N, C, L], by channel: batch statistics in training, else running ones."""

    _dims = (2, 3)


class BatchNormReLU2d(BatchNorm2d):
    """A BatchNorm2d and a ReLU in one layer, relu(bn(x)), for a Sequential, without another pass over the maps."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override] # a Sequential passes only x
        return super().forward(x, relu=True)


class _Pool2d(Module):
    """The base class of pooling layers with a window over [N, C, H, W]; the default stride is the window's size."""

    def __init__(self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0) -> None:
        self.kernel_size = pair(kernel_size)
        self.stride = self.kernel_size if stride is None else pair(stride)
        self.padding = pair(padding)

    def extra_repr(self) -> str:
        return _window(self.kernel_size, self.stride, self.padding)[2:]


class MaxPool2d(_Pool2d):
    """Max-pooling: the maximum of each window of [N, C, H, W]; the default stride is the window's size.
    With ``ceil_mode`` a window may reach beyond the end. forward() raises UserError for ``dilation`` or indices."""

    def __init__(self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
                 dilation: int | Pair = 1, return_indices: bool = False, ceil_mode: bool = False) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation, self.return_indices, self.ceil_mode = dilation, return_indices, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return pooling.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
                                  self.return_indices)


class AvgPool2d(_Pool2d):
    """Average-pooling: the mean of each window of [N, C, H, W]; the default stride is the window's size.
    With ``count_include_pad`` padding counts as zeros, else not. forward() raises UserError for ``ceil_mode``."""

    def __init__(self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> None:
        super().__init__(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, x: Tensor) -> Tensor:
        return pooling.avg_pool2d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode,
                                  self.count_include_pad, self.divisor_override)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.count_include_pad else ", count_include_pad=False")


class MaxPool1d(MaxPool2d):
    """Max-pooling of sequences: the maximum of each window of [N, C, L]."""

    def forward(self, x: Tensor) -> Tensor:
        return pooling.max_pool1d(x, self.kernel_size[1], self.stride[1], self.padding[1], pair(self.dilation)[1],
                                  self.ceil_mode, self.return_indices)


class AvgPool1d(AvgPool2d):
    """Average-pooling of sequences: the mean of each window of [N, C, L]."""

    def forward(self, x: Tensor) -> Tensor:
        return pooling.avg_pool1d(x, self.kernel_size[1], self.stride[1], self.padding[1], self.ceil_mode,
                                  self.count_include_pad)


class AdaptiveAvgPool2d(Module):
    """Adaptive average-pooling: means over a grid of windows, [N, C, H, W] -> [N, C, *output_size]."""

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        self.output_size = output_size if isinstance(output_size, tuple) else (output_size, output_size)

    def forward(self, x: Tensor) -> Tensor:
        return pooling.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


def _window(kernel: Pair, stride: Pair, padding: Pair) -> str:
    """Return a window's arguments as text that ``repr`` shows; a padding of 0 is left out."""
    text = f", kernel_size={kernel}, stride={stride}"
    return text + (f", padding={padding}" if any(padding) else "")
