"""The operations as functions on tensors. Each is defined in a module below, as an ``Op`` and what is called for it.

Importing this package attaches the operators and methods of Tensor. What has a module of the same name ends in an
underscore here: ``linear_`` is ``minidl.ops.linear.linear``, ``embedding_`` is ``minidl.ops.embedding.embedding``.
"""

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

__all__ = [
    "adaptive_avg_pool2d", "add", "add_", "avg_pool2d", "batch_norm", "cast", "concat", "contiguous", "conv2d",
    "conv_transpose2d", "copy_", "cross_entropy", "detach", "div", "dropout", "embedding_", "exp", "expand", "fill_",
    "flatten", "full", "gather_rows", "gelu", "gelu_tanh", "layer_norm", "linear_", "log", "matmul", "max_pool2d",
    "mean", "merge_heads", "mul", "narrow", "neg", "normal_", "permute", "relu", "reshape", "scale",
    "scaled_dot_product_attention", "shift", "sigmoid", "softmax", "split_heads", "sqrt", "sub", "sum", "sum_to",
    "tanh", "uniform_", "upload_",
]
