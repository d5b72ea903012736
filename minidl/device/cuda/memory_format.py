"""Memory format on the GPU: which tensors lie channels-last. A rule on operations' names and metas.

In fp32 the best of cuDNN's plans for most convolutions of ResNet-50 needs 50 to 310 MB of workspace in NCHW, and some
hundred bytes in NHWC. So images, and the weights of convolutions, lie with their channels innermost: the shape stays
[N, C, H, W], the strides say so, and models do not know. Where both orders are the same bytes (one channel, or one
pixel), C order is kept, so that such tensors can be reshaped without a copy.

    a leaf with four dimensions, and what MAKERS make     channels-last
    what C_ORDER make                                     C order
    anything else with four dimensions                    channels-last if an input lies so, else C order
"""

from functools import cache

from minidl.kernels.roles import ROLES
from minidl.meta import Meta, Shape, meta

# Of a layer norm because its mean and rstd have a place for each row, in the order in which rows of the output lie.
C_ORDER = frozenset({"contiguous", "matmul", "linear", "linear_dgrad", "linear_wgrad", "layer_norm"})
MAKERS = frozenset({
    *ROLES, "upload",
    "max_pool2d", "max_pool2d_grad", "avg_pool2d", "avg_pool2d_grad", "adaptive_avg_pool2d", "adaptive_avg_pool2d_grad",
})


def channels_last_strides(shape: Shape) -> Shape:
    """Strides, in elements, of [N, C, H, W] whose channels are innermost."""
    _, c, h, w = shape
    return h * w * c, 1, w * c, c


@cache
def channels_last(plain: Meta) -> Meta:
    """The same tensor with its channels innermost; itself if it has not four dimensions, or lies so anyway."""
    if len(plain.shape) != 4 or plain.offset or is_channels_last(plain):
        return plain
    return meta(plain.shape, plain.dtype, channels_last_strides(plain.shape))


@cache
def is_channels_last(m: Meta) -> bool:
    """Whether the bytes of [N, C, H, W] are those of a dense [N, H, W, C]."""
    if len(m.shape) != 4:
        return False
    wanted = channels_last_strides(m.shape)
    return all(d == 1 or s == t for d, s, t in zip(m.shape, m.strides, wanted, strict=True))


def outputs(op_name: str, inputs: tuple[Meta, ...], plain: tuple[Meta, ...]) -> tuple[Meta, ...]:
    """How the outputs of a call lie; ``plain`` are the same in C order."""
    if op_name in C_ORDER:
        return plain
    if op_name in MAKERS or any(not m.contiguous and is_channels_last(m) for m in inputs):
        return tuple([channels_last(m) if len(m.shape) == 4 and m.contiguous else m for m in plain])
    return plain
