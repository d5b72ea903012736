"""Pooling over [N, C, H, W].
For its gradient, max-pool keeps one byte per output, the maximum's position in its window."""

from collections.abc import Sequence

from minidl.dispatch import apply, apply_all, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, Shape, meta, uint8
from minidl.op import Attrs, Op
from minidl.ops.conv import Pair, check_window, pair, window_output
from minidl.ops.shape import reshape
from minidl.ops.update import full
from minidl.parts.slice_rules import along
from minidl.tensor import Tensor


def _pool_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    nbytes = sum(m.nbytes for m in (*inputs, *outputs))
    return Cost(float(max(m.size for m in (*inputs, *outputs))), float(nbytes), "pool")


def _max_infer(x: Meta, *, kernel: Pair, stride: Pair, padding: Pair) -> tuple[Meta, Meta]:
    check_window("max_pool2d", kernel, stride, padding)
    if kernel[0] * kernel[1] > 256:
        raise ShapeError(f"max_pool2d needs at most 256 positions; a {kernel[0]}x{kernel[1]} window has more than 256")
    if 2 * padding[0] > kernel[0] or 2 * padding[1] > kernel[1]:
        raise ShapeError(f"max_pool2d: padding {padding} is more than half of the window {kernel}")
    shape = (*x.shape[:2], *window_output(x.shape, kernel, stride, padding, what="max_pool2d"))
    return meta(shape, x.dtype), meta(shape, uint8)


def _max_grad_infer(dy: Meta, index: Meta, *, x_shape: Shape, kernel: Pair, stride: Pair, padding: Pair) -> Meta:
    return meta(x_shape, dy.dtype)


def _avg_infer(x: Meta, *, kernel: Pair, stride: Pair, padding: Pair) -> Meta:
    return meta((*x.shape[:2], *window_output(x.shape, kernel, stride, padding, what="avg_pool2d")), x.dtype)


def _avg_grad_infer(dy: Meta, *, x_shape: Shape, kernel: Pair, stride: Pair, padding: Pair) -> Meta:
    return meta(x_shape, dy.dtype)


def _adaptive_infer(x: Meta, *, size: Pair) -> Meta:
    if len(x.shape) != 4:
        raise ShapeError(f"adaptive_avg_pool2d needs [N, C, H, W], not {list(x.shape)}")
    if min(size) < 1 or min(x.shape[2:]) < 1:
        raise ShapeError(f"adaptive_avg_pool2d of {list(x.shape)} has no {size[0]}x{size[1]} windows")
    return meta((*x.shape[:2], *size), x.dtype)


def _adaptive_grad_infer(dy: Meta, *, x_shape: Shape) -> Meta:
    return meta(x_shape, dy.dtype)


MAX_POOL2D_GRAD = Op("max_pool2d_grad", _max_grad_infer, _pool_cost, integers=("index",),
                     slices=along(0, 1, shapes=("x_shape",)))
MAX_POOL2D = Op("max_pool2d", _max_infer, _pool_cost, outputs=("y", "index"), slices=along(0),
                vjp=lambda needs, dy, dindex, index, *, x_shape, kernel, stride, padding:
                (apply(MAX_POOL2D_GRAD, donate(dy), donate(index), x_shape=x_shape, kernel=kernel, stride=stride,
                       padding=padding),))
AVG_POOL2D_GRAD = Op("avg_pool2d_grad", _avg_grad_infer, _pool_cost, slices=along(0, shapes=("x_shape",)))
AVG_POOL2D = Op("avg_pool2d", _avg_infer, _pool_cost, slices=along(0),
                vjp=lambda needs, dy, *, x_shape, kernel, stride, padding:
                (apply(AVG_POOL2D_GRAD, donate(dy), x_shape=x_shape, kernel=kernel, stride=stride, padding=padding),))
ADAPTIVE_AVG_POOL2D_GRAD = Op("adaptive_avg_pool2d_grad", _adaptive_grad_infer, _pool_cost,
                              slices=along(0, shapes=("x_shape",)))
ADAPTIVE_AVG_POOL2D = Op("adaptive_avg_pool2d", _adaptive_infer, _pool_cost, slices=along(0),
                         vjp=lambda needs, dy, *, x_shape:
                         (apply(ADAPTIVE_AVG_POOL2D_GRAD, donate(dy), x_shape=x_shape),))


def max_pool2d(x: Tensor, kernel: int | Pair, *, stride: int | Pair | None = None, padding: int | Pair = 0) -> Tensor:
    """Return the maximum of each window of [N, C, H, W]; the default stride is the window's size.
    The first of equal maxima gets the gradient. Raises ShapeError for a window that does not fit, or has over 256
    elements, and for padding of more than half of it."""
    stride = kernel if stride is None else stride
    return apply_all(MAX_POOL2D, x, kernel=pair(kernel), stride=pair(stride), padding=pair(padding))[0]


def avg_pool2d(x: Tensor, kernel: int | Pair, *, stride: int | Pair | None = None, padding: int | Pair = 0,
               count_include_pad: bool = True) -> Tensor:
    """Return the mean of each window of [N, C, H, W]; the default stride is the window's size.
    With ``count_include_pad`` padding counts as zeros, otherwise not at all. Raises ShapeError if no window fits."""
    kernel, padding = pair(kernel), pair(padding)
    window = {"kernel": kernel, "stride": pair(kernel if stride is None else stride), "padding": padding}
    y = apply(AVG_POOL2D, x, **window)
    if count_include_pad or padding == (0, 0):
        return y
    # The mean of a padded window of ones is the share of the window that is not padding.
    return donate(y) / apply(AVG_POOL2D, full((1, 1, *x.shape[2:]), 1.0, x.dtype), **window)


def adaptive_avg_pool2d(x: Tensor, size: int | tuple[int | None, int | None] | None) -> Tensor:
    """Return the means over an h x w grid of windows: [N, C, H, W] or [C, H, W] -> [..., h, w]; None keeps a size.

    Window (i, j) has the rows floor(i H / h) to ceil((i + 1) H / h) - 1 and the columns floor(j W / w) to
    ceil((j + 1) W / w) - 1. Raises ShapeError for other dimensions of x or a size below 1."""
    if x.ndim == 3:
        y = adaptive_avg_pool2d(reshape(x, (1, *x.shape)), size)
        return reshape(y, y.shape[1:])
    if isinstance(size, tuple | list) and len(size) == 2 and x.ndim == 4:
        size = tuple(x.shape[2 + i] if n is None else n for i, n in enumerate(size))  # type: ignore[assignment]
    return apply(ADAPTIVE_AVG_POOL2D, x, size=pair(size))  # type: ignore[arg-type]  # pair() raises for other values
