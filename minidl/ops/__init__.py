"""The operations as functions on tensors. Each module below defines some: an ``Op`` and the function that calls it.

Importing this package attaches the operators and methods of Tensor. A function with the name of its module ends in an
underscore here: ``linear_`` is ``minidl.ops.linear.linear``, ``embedding_`` is ``minidl.ops.embedding.embedding``.
"""

from minidl.ops import arithmetic, inplace, methods, recurrent
from minidl.ops.arithmetic import power
from minidl.ops.attention import merge_heads, scaled_dot_product_attention, softmax, split_heads
from minidl.ops.batchnorm import batch_norm
from minidl.ops.choose import compare, convert, logical_and, logical_not, logical_or, masked_fill, where
from minidl.ops.conv import conv2d, conv_transpose2d
from minidl.ops.elementwise import (
    add, div, dropout, exp, expand, gelu, gelu_tanh, log, mean, mul, neg, relu, scale, shift, sigmoid, sqrt, sub, sum,
    sum_to, tanh,
)
from minidl.ops.embedding import embedding as embedding_
from minidl.ops.embedding import gather_rows
from minidl.ops.functions import clamp, log_softmax, silu, softplus, std, var
from minidl.ops.indexing import assign, index
from minidl.ops.layernorm import layer_norm
from minidl.ops.library import absolute, cos, erf, expm1, floor, log1p, maximum, minimum, pow_of, sign, sin
from minidl.ops.linear import linear as linear_
from minidl.ops.linear import matmul
from minidl.ops.loss import cross_entropy
from minidl.ops.parts import cat, chunk, split, squeeze, stack, transpose, unsqueeze
from minidl.ops.pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from minidl.ops.ranking import amax, amin, argmax, argmin, gather, max, min, topk
from minidl.ops.shape import between, cast, concat, contiguous, detach, flatten, narrow, permute, reshape
from minidl.ops.update import add_, copy_, fill_, full, normal_, uniform_, upload_

__all__ = [
    "absolute", "adaptive_avg_pool2d", "add", "add_", "amax", "amin", "argmax", "argmin", "arithmetic", "assign",
    "avg_pool2d", "batch_norm", "between", "cast", "cat", "chunk", "clamp", "compare", "concat", "contiguous", "conv2d",
    "conv_transpose2d", "convert", "copy_", "cos", "cross_entropy", "detach", "div", "dropout", "embedding_", "erf",
    "exp", "expand", "expm1", "fill_", "flatten", "floor", "full", "gather", "gather_rows", "gelu", "gelu_tanh",
    "index", "inplace", "layer_norm", "linear_", "log", "log1p", "log_softmax", "logical_and", "logical_not",
    "logical_or", "masked_fill", "matmul", "max", "max_pool2d", "maximum", "mean", "merge_heads", "methods", "min",
    "minimum", "mul", "narrow", "neg", "normal_", "permute", "pow_of", "power", "recurrent", "relu", "reshape",
    "scale", "scaled_dot_product_attention", "shift", "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "split",
    "split_heads", "sqrt", "squeeze", "stack", "std", "sub", "sum", "sum_to", "tanh", "topk", "transpose",
    "uniform_", "unsqueeze", "upload_", "var", "where",
]
