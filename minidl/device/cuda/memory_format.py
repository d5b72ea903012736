"""Memory format on the GPU: a rule, by operation and metas, for which tensors are channels-last.

In fp32 the best of cuDNN's plans for most convolutions of ResNet-50 needs 50 to 310 MB of workspace in NCHW, and a few
hundred bytes in NHWC. So images and the weights of convolutions are channels-last: the shape stays [N, C, H, W], only
the strides differ, and models do not notice. Where both formats are the same bytes (one channel, or one pixel), the
tensor stays contiguous, so that it can be reshaped without a copy.

  a leaf with four dimensions, and outputs of MAKERS    channels-last
  outputs of C_ORDER                                    contiguous
  sums over ranks                                       channels-last if the summed tensor is, else contiguous
  other outputs with four dimensions                    channels-last if an input is, else contiguous
"""

from functools import cache

from minidl.kernels.roles import ROLES
from minidl.meta import Meta, Shape, meta

# layer_norm: its mean and rstd are stored by row, in the order of the output's rows.
C_ORDER = frozenset({"contiguous", "matmul", "linear", "linear_dgrad", "linear_wgrad", "layer_norm"})
SUMS_OVER_RANKS = frozenset({"sum_ranks", "sum_rows"})
MAKERS = frozenset({
    *ROLES, "upload",
    "max_pool2d", "max_pool2d_grad", "avg_pool2d", "avg_pool2d_grad", "adaptive_avg_pool2d", "adaptive_avg_pool2d_grad",
})


def channels_last_strides(shape: Shape) -> Shape:
    """Return the strides, in elements, of a channels-last tensor of shape [N, C, H, W]."""
    _, c, h, w = shape
    return h * w * c, 1, w * c, c


@cache
def channels_last(plain: Meta) -> Meta:
    """Return the tensor as channels-last; unchanged without four dimensions, with an offset, or if it already is."""
    if len(plain.shape) != 4 or plain.offset or is_channels_last(plain):
        return plain
    return meta(plain.shape, plain.dtype, channels_last_strides(plain.shape))


@cache
def is_channels_last(m: Meta) -> bool:
    """Return True if the bytes of [N, C, H, W] are those of a contiguous [N, H, W, C]."""
    if len(m.shape) != 4:
        return False
    wanted = channels_last_strides(m.shape)
    return all(d == 1 or s == t for d, s, t in zip(m.shape, m.strides, wanted, strict=True))


def outputs(op_name: str, inputs: tuple[Meta, ...], plain: tuple[Meta, ...]) -> tuple[Meta, ...]:
    """Return the outputs of a call in their memory format; ``plain`` are the contiguous ones."""
    if op_name in C_ORDER:
        return plain
    if op_name in SUMS_OVER_RANKS:  # a bucket of tensors, each of which keeps its own format
        return tuple([m if x.contiguous or not is_channels_last(x) else channels_last(m)
                      for x, m in zip(inputs, plain, strict=False)])
    if op_name == "gather_ranks" and not inputs[0].size:  # no rows that would tell; the ranks compare the format
        return tuple(map(channels_last, plain))
    if op_name in MAKERS or any(not m.contiguous and is_channels_last(m) for m in inputs):
        return tuple([channels_last(m) if len(m.shape) == 4 and m.contiguous else m for m in plain])
    return plain
