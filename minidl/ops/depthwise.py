"""Depthwise convolution, a window for each channel, and its gradients: for devices that have it as one operation.

Other devices compose it (``Device.fuses_depthwise``, ``nn.functional.conv2d``).
"""

from collections.abc import Sequence

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, Shape, meta
from minidl.op import Attrs, Op
from minidl.ops.conv import Pair, window_output
from minidl.ops.elementwise import ADD
from minidl.ops.linear import check_dtypes
from minidl.parts.slice_rules import along
from minidl.tensor import Gradients, Needs, Tensor


def _infer(x: Meta, w: Meta, *, stride: Pair, padding: Pair, dilation: Pair) -> Meta:
    if len(x.shape) != 4 or len(w.shape) != 4 or w.shape[:2] != (x.shape[1], 1):
        raise ShapeError(f"depthwise: input {list(x.shape)} [N, C, H, W] does not fit weight {list(w.shape)} "
                         "[C, 1, R, S]")
    check_dtypes("depthwise", x, w, None)
    if min(dilation) < 1:
        raise ShapeError(f"depthwise: dilation {dilation} is below 1")
    reach = (w.shape[2] - 1) * dilation[0] + 1, (w.shape[3] - 1) * dilation[1] + 1
    return meta((*x.shape[:2], *window_output(x.shape, reach, stride, padding, what="depthwise")), x.dtype)


def _cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Return the cost of the convolution or of one gradient: 2 R S FLOPs per output; each operand is moved once."""
    gradient = "kernel" in attrs or "x_shape" in attrs
    window = attrs.get("kernel") or inputs[1].shape[2:]
    flops = 2.0 * (inputs if gradient else outputs)[0].size * window[0] * window[1]
    return Cost(flops, float(sum(m.nbytes for m in (*inputs, *outputs))), "conv")


def _vjp(needs: Needs, dy: Tensor, x: Tensor, w: Tensor, *, x_shape: Shape, w_shape: Shape, stride: Pair,
         padding: Pair, dilation: Pair) -> Gradients:
    window = {"stride": stride, "padding": padding, "dilation": dilation}
    dw = apply(DEPTHWISE_WGRAD, dy, donate(x), kernel=w_shape[2:], **window) if needs[1] else None
    return apply(DEPTHWISE_DGRAD, donate(dy), w, x_shape=x_shape, **window) if needs[0] else None, dw


DEPTHWISE = Op("depthwise", _infer, _cost, vjp=_vjp, slices=along(0),
               saves=lambda attrs, needs: ("w",) * needs[0] + ("x",) * needs[1])
DEPTHWISE_DGRAD = Op("depthwise_dgrad", lambda dy, w, *, x_shape, stride, padding, dilation: meta(x_shape, dy.dtype),
                     _cost, slices=along(0, shapes=("x_shape",)))
DEPTHWISE_WGRAD = Op("depthwise_wgrad", lambda dy, x, *, kernel, stride, padding, dilation: meta(
    (x.shape[1], 1, *kernel), x.dtype), _cost, long_lived=True, slices=along(0, 1, whole=(0,), fold=ADD))
