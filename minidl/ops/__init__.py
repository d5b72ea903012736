"""Every operation, each defined once; ``OPS`` is the table that the kernel tables must match."""

from minidl.op import Op
from minidl.ops import (
    attention,
    batchnorm,
    conv,
    elementwise,
    embedding,
    layernorm,
    linear,
    loss,
    pool,
    shape,
    update,
)
from minidl.ops.attention import merge_heads, scaled_dot_product_attention, softmax, split_heads
from minidl.ops.batchnorm import batch_norm
from minidl.ops.conv import conv2d, conv_transpose2d
from minidl.ops.elementwise import (
    add,
    div,
    dropout,
    exp,
    expand,
    gelu,
    gelu_tanh,
    log,
    mean,
    mul,
    neg,
    relu,
    scale,
    shift,
    sigmoid,
    sqrt,
    sub,
    sum,
    sum_to,
    tanh,
)
from minidl.ops.embedding import embedding as embedding_
from minidl.ops.embedding import gather_rows
from minidl.ops.layernorm import layer_norm
from minidl.ops.linear import linear as linear_
from minidl.ops.linear import matmul
from minidl.ops.loss import cross_entropy
from minidl.ops.pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from minidl.ops.shape import cast, concat, contiguous, detach, flatten, narrow, permute, reshape
from minidl.ops.update import add_, copy_, fill_, full, normal_, uniform_, upload_
