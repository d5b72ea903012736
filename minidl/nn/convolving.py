"""Convolutions with dilation, with a window per channel, and of sequences, by two-dimensional convolutions.

    dilation       a kernel with zeros between its elements
    depthwise      one window per channel: the sum over kernel positions of the shifted image times a factor per
                   channel, or one operation, if the device has it
    one dimension  an image of one row
"""

from collections.abc import Sequence
from math import prod

from minidl.context import current
from minidl.dispatch import apply, donate
from minidl.errors import ShapeError, UserError
from minidl.nn.precision import lowered
from minidl.nn.resizing import pad as padded
from minidl.ops import conv
from minidl.ops.arithmetic import add, mul
from minidl.ops.conv import DEPTHWISE, Pair, pair
from minidl.ops.indexing import index
from minidl.ops.parts import squeeze, unsqueeze
from minidl.ops.shape import cast, concat, reshape
from minidl.ops.update import full
from minidl.tensor import Tensor

Window = int | Pair
PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


def places(what: str, padding: Window | str, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """Return the padding as (height, width): "valid" is none, "same" keeps the image's size.
    what: the layer, for messages. Raises UserError for other text, and for "same" with unequal sides or a stride."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        whole = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        if stride != (1, 1) or any(n % 2 for n in whole):
            raise UserError(f"{what}: padding='same' needs stride 1 and a window of odd size, not {kernel} with "
                            f"stride {stride} and dilation {dilation}")
        return whole[0] // 2, whole[1] // 2
    if isinstance(padding, str):
        raise UserError(f"{what}: padding must be numbers, 'same' or 'valid', not {padding!r}")
    return pair(padding)


def _spaced(w: Tensor, dilation: Pair) -> Tensor:
    """Return a kernel [K, C, R, S] with dilation - 1 zeros between neighbouring elements of its windows.
    Raises ShapeError for a dilation below 1."""
    if min(dilation) < 1:
        raise ShapeError(f"a dilation of {dilation} is below 1")
    for axis, distance in ((2, dilation[0]), (3, dilation[1])):
        if distance > 1 and w.shape[axis] > 1:
            size = w.shape[axis]
            rows = unsqueeze(w, axis + 1)
            zeros = full((*rows.shape[:axis + 1], distance - 1, *rows.shape[axis + 2:]), 0.0, w.dtype)
            wide = concat([rows, zeros], axis + 1)
            wide = reshape(wide, (*w.shape[:axis], size * distance, *w.shape[axis + 1:]))
            w = index(wide, (*(slice(None),) * axis, slice(0, (size - 1) * distance + 1)))
    return w


def _depthwise(x: Tensor, w: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """Return a convolution with a window per channel. x: [N, C, H, W], w: [C, 1, R, S] -> [N, C, P, Q]."""
    if current().device.fuses_depthwise(x.meta):
        return apply(DEPTHWISE, x, w, stride=stride, padding=padding, dilation=dilation)
    r, s = w.shape[2:]
    x = padded(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
    reach = dilation[0] * (r - 1), dilation[1] * (s - 1)
    high, wide = ((size - far - 1) // step + 1 for size, far, step in zip(x.shape[2:], reach, stride, strict=True))
    if min(high, wide) < 1:
        raise ShapeError(f"conv2d: a {r}x{s} window of dilation {dilation} does not fit {list(x.shape)}")
    total = None
    for i in range(r):
        for j in range(s):
            top, left = i * dilation[0], j * dilation[1]
            moved = index(x, (slice(None), slice(None), slice(top, top + (high - 1) * stride[0] + 1, stride[0]),
                              slice(left, left + (wide - 1) * stride[1] + 1, stride[1])))
            term = mul(moved, reshape(w[:, 0, i, j], (-1, 1, 1)))
            total = term if total is None else add(donate(total), donate(term))
    assert total is not None
    return total


def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Window = 1, padding: Window | str = 0,
           dilation: Window = 1, groups: int = 1) -> Tensor:
    """Return the cross-correlation. input: [N, C, H, W] or [C, H, W], weight: [K, C / groups, R, S] -> [N, K, P, Q].
    Dilation, and on a GPU one window per channel, are composed of other operations. Raises ShapeError for shapes,
    strides or groups that do not fit, UserError for a ``padding`` that does not (see ``places``)."""
    if input.ndim == 3:
        return squeeze(conv2d(unsqueeze(input, 0), weight, bias, stride, padding, dilation, groups), 0)
    x, w = lowered(input), lowered(weight)
    steps, apart = pair(stride), pair(dilation)
    around = places("conv2d", padding, (w.shape[2], w.shape[3]), steps, apart)
    if groups > 1 and w.shape == (x.shape[1], 1, *w.shape[2:]):
        y = _depthwise(x, w, steps, around, apart)
        return y if bias is None else add(y, reshape(cast(bias, y.dtype), (-1, 1, 1)))
    return conv.conv2d(x, _spaced(w, apart), bias, stride=steps, padding=around, groups=groups)


def _single(value: int | Sequence[int] | str) -> int | str:
    if isinstance(value, int | str):
        return value
    if len(value) != 1:
        raise ShapeError(f"for sequences, a window's size, stride and padding are one integer, not {tuple(value)}")
    return value[0]


def conv1d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1,
           padding: int | Sequence[int] | str = 0, dilation: int | Sequence[int] = 1, groups: int = 1) -> Tensor:
    """Return the cross-correlation of sequences. input: [N, C, L] or [C, L], weight: [K, C / groups, R] -> [N, K, P].
    Raises ShapeError for shapes, strides or groups that do not fit, UserError for a ``padding`` that does not."""
    around = _single(padding)
    y = conv2d(unsqueeze(input, -2), unsqueeze(weight, 2), bias, (1, int(_single(stride))),
               around if isinstance(around, str) else (0, around), (1, int(_single(dilation))), groups)
    return squeeze(y, -2)


def conv_transpose2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Window = 1, padding: Window = 0,
                     output_padding: Window = 0, groups: int = 1, dilation: Window = 1) -> Tensor:
    """Return the transposed convolution. input: [N, K, P, Q], weight: [K, C / groups, R, S] -> [N, C, H, W].
    ``output_padding``: additional rows and columns at the end, fewer than the stride. Raises ShapeError on a misfit."""
    if input.ndim == 3:
        return squeeze(conv_transpose2d(unsqueeze(input, 0), weight, bias, stride, padding, output_padding, groups,
                                        dilation), 0)
    x, w = lowered(input), _spaced(lowered(weight), pair(dilation))
    steps, around, more = pair(stride), pair(padding), pair(output_padding)
    if not any(more):
        return conv.conv_transpose2d(x, w, bias, stride=steps, padding=around, groups=groups)
    if any(m >= t for m, t in zip(more, steps, strict=True)):
        raise ShapeError(f"conv_transpose2d: output_padding {more} is not below the stride {steps}")
    y = conv.conv_transpose2d(x, w, None, stride=steps, padding=0, groups=groups)
    y = padded(y, (-around[1], more[1] - around[1], -around[0], more[0] - around[0]))
    return y if bias is None else add(y, reshape(cast(bias, y.dtype), (-1, 1, 1)))


def channels_of(what: str, channels: tuple[int, int], groups: int) -> None:
    """Raise UserError, naming the layer ``what``, unless ``groups`` divides both numbers of channels, above 0."""
    if groups < 1 or any(n % groups for n in channels) or prod(channels) == 0:
        raise UserError(f"{what}: {groups} groups do not divide {channels[0]} and {channels[1]} channels")
