"""Further layers, with the names and arguments of torch.nn: compositions of operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from minidl.errors import UserError, WrongKind
from minidl.meta import Shape
from minidl.nn import functional, init, resizing
from minidl.nn import losses as losses_
from minidl.nn.layers import Dropout, scale_and_shift
from minidl.nn.module import Module
from minidl.nn.parameters import Parameter, is_plain
from minidl.ops import losses, products
from minidl.ops.arithmetic import mul
from minidl.ops.elementwise import mean, shift
from minidl.ops.names_math import rsqrt
from minidl.ops.parts import squeeze, unsqueeze
from minidl.ops.shape import reshape, sizes_of
from minidl.ops.update import full
from minidl.runtime import parameter
from minidl.tensor import Tensor


class ParameterList(Module):
    """A list of parameters, named 0, 1, 2, ... Of a tensor that is no parameter it has a parameter with its value.
    Raises WrongKind for objects other than tensors."""

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        for value in values:
            self.append(value)

    def append(self, value: Tensor) -> ParameterList:
        """Add a parameter at the end; returns this list."""
        if not isinstance(value, Tensor):
            raise WrongKind(f"ParameterList takes tensors, not a {type(value).__name__}")
        setattr(self, str(len(self)), Parameter(value) if is_plain(value) else value)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self.parameters(recurse=False))

    def __iter__(self) -> Iterator[Tensor]:
        return self.parameters(recurse=False)

    def __getitem__(self, index: int) -> Tensor:
        return list(self)[index]


class Dropout1d(Dropout):
    """In training, zero whole channels with probability p and divide the rest by 1 - p.  x: [N, C, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        kept = super().forward(full((*x.shape[:2], *(1,) * (x.ndim - 2)), 1.0, x.dtype))
        return mul(x, kept)


class Dropout2d(Dropout1d):
    """In training, zero whole channels of [N, C, H, W] with probability p and divide the rest by 1 - p."""


class RMSNorm(Module):
    """RMS normalisation over the last dimensions: x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019).
    ``eps``: None is 2^-23, or 2^-52 for float64."""

    def __init__(self, normalized_shape: int | Shape, eps: float | None = None,
                 elementwise_affine: bool = True) -> None:
        self.shape = sizes_of((normalized_shape,))
        self.eps = eps
        self.weight = parameter(self.shape) if elementwise_affine else None
        if self.weight is not None:
            init.constant_(self.weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        eps = self.eps if self.eps is not None else 2.0**-23 if x.dtype.itemsize < 8 else 2.0**-52
        dims = tuple(range(x.ndim - len(self.shape), x.ndim))
        y = mul(x, rsqrt(shift(mean(mul(x, x), dims, keepdim=True), eps)))
        return y if self.weight is None else mul(y, self.weight.cast(y.dtype))


class InstanceNorm2d(Module):
    """Instance normalisation: each channel of each image by its own mean and variance. x: [N, C, ...].
    ``affine`` adds a trained factor and bias per channel (Ulyanov, Vedaldi & Lempitsky 2016). Raises UserError for
    ``track_running_stats``; ``momentum`` has no effect."""

    dims: ClassVar[int] = 4

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False, *, bias: bool = True) -> None:
        if track_running_stats:
            raise UserError(f"{type(self).__name__}: track_running_stats must be False; there are no running means")
        self.eps = eps
        self.weight, self.bias = scale_and_shift((num_features,), affine, bias)

    def forward(self, x: Tensor) -> Tensor:
        from minidl.nn.functional import group_norm
        if x.ndim == self.dims - 1:
            return squeeze(self.forward(unsqueeze(x, 0)), 0)
        return group_norm(x, x.shape[1], self.weight, self.bias, self.eps)


class InstanceNorm1d(InstanceNorm2d):
    """Instance normalisation of sequences [N, C, L]: each channel of each sequence by its own mean and variance."""

    dims = 3


class _Pad(Module):
    """The base class of layers that pad the last dimensions; one number is the padding of all sides."""

    mode: ClassVar[str]
    dims: ClassVar[int]

    def __init__(self, padding: int | Sequence[int]) -> None:
        self.padding = sizes_of((padding,)) * (1 if hasattr(padding, "__iter__") else 2 * self.dims)

    def forward(self, x: Tensor) -> Tensor:
        return resizing.pad(x, self.padding, self.mode)


class ReflectionPad1d(_Pad):
    """A layer that pads the last dimension by reflection, without repeating the edge."""

    mode, dims = "reflect", 1


class ReflectionPad2d(_Pad):
    """A layer that pads the last two dimensions by reflection, without repeating the edge."""

    mode, dims = "reflect", 2


class ReplicationPad1d(_Pad):
    """A layer that pads the last dimension by repeating the edge elements."""

    mode, dims = "replicate", 1


class ReplicationPad2d(_Pad):
    """A layer that pads the last two dimensions by repeating the edge elements."""

    mode, dims = "replicate", 2


class CircularPad2d(_Pad):
    """A layer that pads the last two dimensions with elements of the opposite side."""

    mode, dims = "circular", 2


class ZeroPad2d(_Pad):
    """A layer that pads the last two dimensions with zeros."""

    mode, dims = "constant", 2


class ConstantPad2d(_Pad):
    """A layer that pads the last two dimensions with one value."""

    mode, dims = "constant", 2

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return resizing.pad(x, self.padding, self.mode, self.value)


class PixelShuffle(Module):
    """A layer that moves channels into pixels: [N, C r^2, H, W] -> [N, C, H r, W r], r = ``upscale_factor``."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return resizing.pixel_shuffle(x, self.upscale_factor)


class Upsample(Module):
    """A layer that resizes x [N, C, ...] to ``size`` or by ``scale_factor``, as ``functional.interpolate`` does."""

    def __init__(self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,
                 mode: str = "nearest", align_corners: bool | None = None) -> None:
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        return resizing.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)


class Unflatten(Module):
    """A layer that splits dimension ``dim`` into several of the given sizes."""

    def __init__(self, dim: int, unflattened_size: Shape) -> None:
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        dim = self.dim % x.ndim
        return reshape(x, (*x.shape[:dim], *self.unflattened_size, *x.shape[dim + 1:]))


class CosineSimilarity(Module):
    """The cosine of the angle between two vectors along ``dim``."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim, self.eps = dim, eps

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return products.cosine_similarity(a, b, self.dim, self.eps)


class KLDivLoss(losses_.Loss):
    """Kullback-Leibler divergence: target * (log(target) - x) for log-probabilities x, averaged.
    ``log_target``: True if the target is log-probabilities, too."""

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return losses.kl_div(x, target, reduction=self.reduction, log_target=self.log_target)


class SmoothL1Loss(losses_.Loss):
    """Smooth L1 loss: d^2 / (2 beta) where d = |x - target| < beta, d - beta / 2 elsewhere, averaged."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return losses.smooth_l1_loss(x, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(losses_.Loss):
    """Huber loss: d^2 / 2 where d = |x - target| <= delta, delta * (d - delta / 2) elsewhere, averaged."""

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return losses.huber_loss(x, target, reduction=self.reduction, delta=self.delta)


class GroupNorm(Module):
    """Group normalisation: each example's groups of channels by their mean and variance. x: [N, num_channels, ...]."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *,
                 bias: bool = True) -> None:
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps = eps
        self.weight, self.bias = scale_and_shift((num_channels,), affine, bias)

    def forward(self, x: Tensor) -> Tensor:
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"
