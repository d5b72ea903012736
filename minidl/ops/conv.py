"""Two-dimensional convolution (NCHW, cross-correlation) and its two gradients; optionally fused with a ReLU after it.

The device chooses the algorithm and its workspace; shapes and costs below are the same for all algorithms. A separate
ReLU reads and writes the feature map once more, in the forward pass and in each replay. A fused convolution keeps the
same tensors as the two calls and gives their bits; on a CPU, or with a bias, it takes no longer than one alone.

Depthwise convolution, a window for each channel, is for devices that have it as one operation; other devices compose it
(``Device.fuses_depthwise``, ``nn.functional.conv2d``).
"""

from collections.abc import Sequence

from minidl.context import current
from minidl.dispatch import apply, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, Shape, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import whole
from minidl.ops.elementwise import ADD, RELU_GRAD
from minidl.ops.elementwise import relu as relu_
from minidl.ops.linear import bias_grad, check_dtypes
from minidl.ops.shape import cast
from minidl.parts.slice_rules import along
from minidl.tensor import Gradients, Needs, Tensor

Pair = tuple[int, int]


def pair(value: int | Pair) -> Pair:
    """Return (height, width) of an argument that is one integer or two. Raises ShapeError for anything else."""
    if isinstance(value, int):
        return value, value
    sizes = tuple(value) if hasattr(value, "__iter__") else (value,)
    if len(sizes) not in (1, 2) or not all(hasattr(n, "__index__") for n in sizes):
        raise ShapeError(f"a window's size, stride and padding are one or two integers, not {value!r}")
    sizes = whole(sizes)
    return sizes[0], sizes[-1]


def output_extent(size: int, kernel: int, stride: int, padding: int) -> int:
    """Return the number of positions of a window of ``kernel`` elements along a dimension of ``size`` elements."""
    return (size + 2 * padding - kernel) // stride + 1


def check_window(what: str, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """Raise ShapeError for a window without elements, a stride below 1, or negative padding."""
    if min(kernel) < 1 or min(stride) < 1 or min(padding) < 0:
        raise ShapeError(f"{what}: no {kernel[0]}x{kernel[1]} window can have stride {stride} and padding {padding}")


def window_output(x: Shape, kernel: Pair, stride: Pair, padding: Pair, *, what: str) -> Pair:
    """Return the output's (height, width) for a window over x [N, C, H, W]; ``what``: the operation, for messages.
    Raises ShapeError if x has other dimensions, or if no window fits."""
    if len(x) != 4:
        raise ShapeError(f"{what} needs [N, C, H, W], not {list(x)}")
    check_window(what, kernel, stride, padding)
    h, w = (output_extent(s, k, t, p) for s, k, t, p in zip(x[2:], kernel, stride, padding, strict=True))
    if h < 1 or w < 1:
        raise ShapeError(f"{what}: a {kernel[0]}x{kernel[1]} window does not fit {list(x)} with padding {padding}")
    return h, w


def _conv_infer(x: Meta, w: Meta, b: Meta | None = None, *, stride: Pair, padding: Pair, groups: int = 1) -> Meta:
    if groups < 1 or len(w.shape) != 4 or len(x.shape) != 4 or x.shape[1] != w.shape[1] * groups or (
            w.shape[0] % groups):
        many = "" if groups == 1 else f" in {groups} groups"
        raise ShapeError(f"conv2d: input {list(x.shape)} [N, C, H, W] does not fit weight {list(w.shape)} "
                         f"[K, C{' / groups' if many else ''}, R, S]{many}")
    if b is not None and b.shape != w.shape[:1]:
        raise ShapeError(f"conv2d: bias {list(b.shape)} does not fit weight {list(w.shape)}")
    check_dtypes("conv2d", x, w, b)
    h, wd = window_output(x.shape, w.shape[2:], stride, padding, what="conv2d")
    return meta((x.shape[0], w.shape[0], h, wd), x.dtype)


def _fprop_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return _cost(outputs[0], inputs[1], (*inputs, *outputs))


def _dgrad_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return _cost(inputs[0], inputs[1], (*inputs, *outputs))


def _wgrad_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return _cost(inputs[0], outputs[0], (*inputs, *outputs))


def _cost(y: Meta, w: Meta, operands: tuple[Meta, ...]) -> Cost:
    """Return the cost of the convolution or of one gradient: 2 N K P Q R S FLOPs for each channel of a group; each
    operand is moved once."""
    _, c, r, s = w.shape
    return Cost(2.0 * y.size * c * r * s, float(sum(m.nbytes for m in operands)), "conv")


def _conv_vjp(needs: Needs, dy: Tensor, x: Tensor, w: Tensor, *, x_shape: Shape, w_shape: Shape,
              x_partial: Tensor | None, stride: Pair, padding: Pair, groups: int) -> Gradients:
    window = {"stride": stride, "padding": padding, "groups": groups}
    db = bias_grad(dy, axis=1) if len(needs) > 2 and needs[2] else None
    # The weight's gradient comes first: it is the last use of the saved input, whose bytes dx may then use.
    dw = apply(CONV2D_WGRAD, dy, donate(x), kernel=w_shape[2:], **window) if needs[1] else None
    dx = None
    if needs[0]:
        # dx is added in place to the gradient that x has from another branch. This saves a tensor of x's size at the
        # memory peak, and a pass over it.
        onto = () if x_partial is None else (donate(x_partial),)
        dx = apply(CONV2D_DGRAD, donate(dy), w, *onto, x_shape=x_shape, **window)
    return (dx, dw, db)[:len(needs)]


def _relu_vjp(needs: Needs, dy: Tensor, y: Tensor, x: Tensor, w: Tensor, *, x_shape: Shape, w_shape: Shape,
              x_partial: Tensor | None, stride: Pair, padding: Pair, groups: int) -> Gradients:
    """Return the gradients through ReLU, whose mask follows from its output y, and then through the convolution."""
    dy = apply(RELU_GRAD, donate(dy), donate(y))
    return _conv_vjp(needs, dy, x, w, x_shape=x_shape, w_shape=w_shape, x_partial=x_partial, stride=stride,
                     padding=padding, groups=groups)


def _dgrad_vjp(needs: Needs, ddx: Tensor, dy: Tensor, w: Tensor, *, w_shape: Shape, stride: Pair,
               padding: Pair, groups: int) -> Gradients:
    """Return the gradients of conv_transpose2d with respect to dy and w.
    conv_transpose2d is conv2d's input gradient, linear in both; so these are conv2d and conv2d's weight gradient."""
    window = {"stride": stride, "padding": padding, "groups": groups}
    dw = apply(CONV2D_WGRAD, donate(dy), ddx, kernel=w_shape[2:], **window) if needs[1] else None
    ddy = apply(CONV2D, ddx, w, **window) if needs[0] else None
    return (ddy, dw, ddx)[:len(needs)]


def _dgrad_infer(dy: Meta, w: Meta, onto: Meta | None = None, *, x_shape: Shape, stride: Pair, padding: Pair,
                 groups: int = 1) -> Meta:
    if onto is not None and onto.shape != x_shape:
        raise ShapeError(f"conv2d_dgrad: cannot add {list(x_shape)} onto {list(onto.shape)}")
    check_dtypes("conv2d_dgrad", dy, w, None)
    return meta(x_shape, dy.dtype)


def _wgrad_infer(dy: Meta, x: Meta, *, kernel: Pair, stride: Pair, padding: Pair, groups: int = 1) -> Meta:
    return meta((dy.shape[1], x.shape[1] // groups, *kernel), dy.dtype)


CONV2D = Op("conv2d", _conv_infer, _fprop_cost, vjp=_conv_vjp,
            saves=lambda attrs, needs: ("w",) * needs[0] + ("x",) * needs[1], slices=along(0))
CONV2D_RELU = Op("conv2d_relu", _conv_infer, _fprop_cost, vjp=_relu_vjp,
                 saves=lambda attrs, needs: ("y",) + ("w",) * needs[0] + ("x",) * needs[1], slices=along(0))
CONV2D_DGRAD: Op = Op("conv2d_dgrad", _dgrad_infer, _dgrad_cost, outputs=("dx",), donates=((0, 2),), vjp=_dgrad_vjp,
                      saves=lambda attrs, needs: ("w",) * needs[0] + ("dy",) * needs[1],
                      slices=along(0, 2, shapes=("x_shape",)))
CONV2D_WGRAD = Op("conv2d_wgrad", _wgrad_infer, _wgrad_cost, long_lived=True,
                  slices=along(0, 1, whole=(0,), fold=ADD))


def conv2d(x: Tensor, w: Tensor, b: Tensor | None = None, *, stride: int | Pair = 1, padding: int | Pair = 0,
           groups: int = 1, relu: bool = False) -> Tensor:
    """Return the cross-correlation of x and w, plus b. x: [N, C, H, W], w: [K, C / groups, R, S], b: [K]
    -> [N, K, P, Q].

    Of ``groups`` equal ranges of channels, range i of the result sums over range i of x. x and w have one dtype; the
    bias is float32 beside 16-bit floats. ``relu``: a ReLU comes last. Misfits: ShapeError.
    """
    inputs = (x, w) if b is None else (x, w, b)
    if relu and current().fuses:
        return apply(CONV2D_RELU, *inputs, stride=pair(stride), padding=pair(padding), groups=groups)
    y = apply(CONV2D, *inputs, stride=pair(stride), padding=pair(padding), groups=groups)
    return relu_(donate(y)) if relu else y


def conv_transpose2d(x: Tensor, w: Tensor, b: Tensor | None = None, *, stride: int | Pair = 1,
                     padding: int | Pair = 0, groups: int = 1) -> Tensor:
    """Return the transposed convolution, the input gradient of conv2d (Zeiler et al., CVPR 2010).
    x: [N, K, P, Q], w: [K, C / groups, R, S], b: [C] -> [N, C, (P - 1) * stride - 2 * padding + R, ...].

    Raises ShapeError for shapes other than these, or two dtypes.
    """
    stride, padding = pair(stride), pair(padding)
    if groups < 1 or x.ndim != 4 or w.ndim != 4 or x.shape[1] != w.shape[0] or w.shape[0] % groups or (
            b is not None and b.shape != (w.shape[1] * groups,)):
        bias = f" and bias {list(b.shape)} [C]" if b is not None else ""
        many = "" if groups == 1 else f" in {groups} groups"
        raise ShapeError(f"conv_transpose2d: input {list(x.shape)} [N, K, P, Q] does not fit weight {list(w.shape)} "
                         f"[K, C{' / groups' if many else ''}, R, S]{bias}{many}")
    check_window("conv_transpose2d", (w.shape[2], w.shape[3]), stride, padding)
    h, wd = ((n - 1) * t - 2 * p + k for n, k, t, p in zip(x.shape[2:], w.shape[2:], stride, padding, strict=True))
    if h < 1 or wd < 1:
        raise ShapeError(f"conv_transpose2d: with padding {padding} the output of {list(x.shape)} has no elements")
    y = apply(CONV2D_DGRAD, x, w, x_shape=(x.shape[0], w.shape[1] * groups, h, wd), stride=stride, padding=padding,
              groups=groups)
    return y if b is None else donate(y) + cast(b, y.dtype).reshape((-1, 1, 1))


def _depthwise_infer(x: Meta, w: Meta, *, stride: Pair, padding: Pair, dilation: Pair) -> Meta:
    if len(x.shape) != 4 or len(w.shape) != 4 or w.shape[:2] != (x.shape[1], 1):
        raise ShapeError(f"depthwise: input {list(x.shape)} [N, C, H, W] does not fit weight {list(w.shape)} "
                         "[C, 1, R, S]")
    check_dtypes("depthwise", x, w, None)
    if min(dilation) < 1:
        raise ShapeError(f"depthwise: dilation {dilation} is below 1")
    reach = (w.shape[2] - 1) * dilation[0] + 1, (w.shape[3] - 1) * dilation[1] + 1
    return meta((*x.shape[:2], *window_output(x.shape, reach, stride, padding, what="depthwise")), x.dtype)


def _depthwise_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Return the cost of the convolution or of one gradient: 2 R S FLOPs per output; each operand is moved once."""
    gradient = "kernel" in attrs or "x_shape" in attrs
    window = attrs.get("kernel") or inputs[1].shape[2:]
    flops = 2.0 * (inputs if gradient else outputs)[0].size * window[0] * window[1]
    return Cost(flops, float(sum(m.nbytes for m in (*inputs, *outputs))), "conv")


def _depthwise_vjp(needs: Needs, dy: Tensor, x: Tensor, w: Tensor, *, x_shape: Shape, w_shape: Shape, stride: Pair,
                   padding: Pair, dilation: Pair) -> Gradients:
    window = {"stride": stride, "padding": padding, "dilation": dilation}
    dw = apply(DEPTHWISE_WGRAD, dy, donate(x), kernel=w_shape[2:], **window) if needs[1] else None
    return apply(DEPTHWISE_DGRAD, donate(dy), w, x_shape=x_shape, **window) if needs[0] else None, dw


DEPTHWISE = Op("depthwise", _depthwise_infer, _depthwise_cost, vjp=_depthwise_vjp, slices=along(0),
               saves=lambda attrs, needs: ("w",) * needs[0] + ("x",) * needs[1])
DEPTHWISE_DGRAD = Op("depthwise_dgrad", lambda dy, w, *, x_shape, stride, padding, dilation: meta(x_shape, dy.dtype),
                     _depthwise_cost, slices=along(0, shapes=("x_shape",)))
DEPTHWISE_WGRAD = Op("depthwise_wgrad", lambda dy, x, *, kernel, stride, padding, dilation: meta(
    (x.shape[1], 1, *kernel), x.dtype), _depthwise_cost, long_lived=True, slices=along(0, 1, whole=(0,), fold=ADD))
