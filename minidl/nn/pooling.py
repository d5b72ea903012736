"""Pooling functions with PyTorch's names and arguments, for images and for sequences (as images of one row).
Arguments of PyTorch that are not supported raise UserError."""

from __future__ import annotations

from collections.abc import Callable

from minidl.errors import UserError
from minidl.nn.resizing import pad
from minidl.ops import pool
from minidl.ops.conv import Pair, pair
from minidl.ops.elementwise import scale
from minidl.ops.parts import squeeze, unsqueeze
from minidl.ops.shape import sizes_of
from minidl.tensor import Tensor

Window = int | Pair


def _of_images(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return function(x), for a function that takes [N, C, H, W]; x may lack the dimension N."""
    return squeeze(function(unsqueeze(x, 0)), 0) if x.ndim == 3 else function(x)


def _up_to_the_end(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Return x padded with -inf after its last rows and columns, so that every window that begins in x is complete."""
    more = []
    for size, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True):
        windows = -(-(size + 2 * p - k) // s) + 1
        windows -= (windows - 1) * s >= size + p
        more.append(max(0, (windows - 1) * s + k - size - 2 * p))
    return pad(x, (0, more[1], 0, more[0]), value=float("-inf")) if any(more) else x


def max_pool2d(input: Tensor, kernel_size: Window, stride: Window | None = None, padding: Window = 0,
               dilation: Window = 1, ceil_mode: bool = False, return_indices: bool = False) -> Tensor:
    """Return the maximum of each window of [N, C, H, W]; the default stride is the window's size.
    With ``ceil_mode`` a window may reach beyond the end. Raises ShapeError for a window that does not fit or has more
    than 256 elements, UserError for ``dilation`` and ``return_indices``."""
    if pair(dilation) != (1, 1) or return_indices:
        raise UserError(f"max_pool2d: dilation must be 1 and return_indices False, not {dilation} and {return_indices}")
    kernel, around = pair(kernel_size), pair(padding)
    step = kernel if stride is None else pair(stride)

    def of(x: Tensor) -> Tensor:
        wide = _up_to_the_end(x, kernel, step, around) if ceil_mode and x.ndim == 4 and x.dtype.floating else x
        return pool.max_pool2d(wide, kernel, stride=step, padding=around)
    return _of_images(of, input)


def avg_pool2d(input: Tensor, kernel_size: Window, stride: Window | None = None, padding: Window = 0,
               ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """Return the mean of each window of [N, C, H, W], or its sum / ``divisor_override``.
    The default stride is the window's size. Padding counts as zeros, or not at all. Raises ShapeError for a window that
    does not fit, UserError for ``ceil_mode`` and a divisor of 0."""
    if ceil_mode:
        raise UserError("avg_pool2d: ceil_mode must be False; pad(x, ...) completes the windows")
    whole = count_include_pad or divisor_override is not None
    if divisor_override == 0:
        raise UserError("avg_pool2d: divisor_override must not be 0")
    y = _of_images(lambda x: pool.avg_pool2d(x, kernel_size, stride=stride, padding=padding,
                                             count_include_pad=whole), input)
    rows, columns = pair(kernel_size)
    return y if divisor_override is None else scale(y, rows * columns / divisor_override)


def adaptive_avg_pool2d(input: Tensor, output_size: int | tuple[int | None, int | None] | None) -> Tensor:
    """Return the means over a grid of windows: [N, C, H, W] or [C, H, W] -> [..., *output_size]; None keeps a size."""
    return pool.adaptive_avg_pool2d(input, output_size)


def _one(value: int | tuple[int, ...]) -> int:
    return sizes_of((value,))[0]


def max_pool1d(input: Tensor, kernel_size: int, stride: int | None = None, padding: int = 0, dilation: int = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Tensor:
    """Return the maximum of each window of [N, C, L] or [C, L]; arguments and errors are those of ``max_pool2d``."""
    step = kernel_size if stride is None else stride
    return squeeze(max_pool2d(unsqueeze(input, -2), (1, _one(kernel_size)), (1, _one(step)), (0, _one(padding)),
                              (1, _one(dilation)), ceil_mode, return_indices), -2)


def avg_pool1d(input: Tensor, kernel_size: int, stride: int | None = None, padding: int = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Tensor:
    """Return the mean of each window of [N, C, L] or [C, L]; arguments and errors are those of ``avg_pool2d``."""
    step = kernel_size if stride is None else stride
    return squeeze(avg_pool2d(unsqueeze(input, -2), (1, _one(kernel_size)), (1, _one(step)), (0, _one(padding)),
                              ceil_mode, count_include_pad), -2)
