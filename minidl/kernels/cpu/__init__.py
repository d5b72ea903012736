"""The CPU kernels: Numba and a little NumPy, on arrays that are views of one byte arena.

A kernel is called as ``kernel(*outputs, *inputs, **attributes)``. Inputs may be strided. Outputs are contiguous, have
arbitrary contents before the call, and may occupy exactly the bytes of an input that the operation donates. Temporary
arrays are small, about one megabyte or one image, except for some strided inputs; larger ones are declared workspaces.
The same shapes and bytes always give the same bits.
"""

from collections.abc import Callable

import numpy as np

from minidl.kernels.cpu import (
    attention, batchnorm, depthwise, elementwise, embedding, flash, layernorm, linear, loss, pool, recurrent, selection,
    shape, sums, update,
)
from minidl.kernels.cpu.conv import CONVOLUTIONS, CpuAlgorithm

__all__ = ["ALGORITHMS", "COMPOSED", "KERNELS", "CpuAlgorithm"]

# Infinities and NaN are ordinary values, as on a GPU: training that diverges shows in its loss, not as a warning.
_quiet = np.errstate(all="ignore")

# Convolutions, in order of preference. The table of kernels runs "serial", with its small workspace on the heap.
ALGORITHMS: dict[str, tuple[CpuAlgorithm, ...]] = CONVOLUTIONS

_TABLE: dict[str, Callable[..., None]] = {
    "add": elementwise.add, "sub": elementwise.sub, "mul": elementwise.mul, "div": elementwise.div,
    "neg": elementwise.neg, "scale": elementwise.scale, "shift": elementwise.shift,
    "exp": elementwise.exp, "log": elementwise.log,
    "sqrt": elementwise.sqrt, "sqrt_grad": elementwise.sqrt_grad,
    "relu": elementwise.relu, "relu_grad": elementwise.relu_grad,
    "tanh": elementwise.tanh, "tanh_grad": elementwise.tanh_grad,
    "sigmoid": elementwise.sigmoid, "sigmoid_grad": elementwise.sigmoid_grad,
    "gelu": elementwise.gelu, "gelu_grad": elementwise.gelu_grad,
    "gelu_tanh": elementwise.gelu_tanh, "gelu_tanh_grad": elementwise.gelu_tanh_grad,
    "silu": selection.silu, "silu_grad": selection.silu_grad,
    "softplus": selection.softplus, "power": selection.power,
    "abs": selection.absolute, "sign": selection.sign, "sin": selection.sin, "cos": selection.cos,
    "erf": selection.erf, "floor": selection.floor, "log1p": selection.log1p, "expm1": selection.expm1,
    "maximum": selection.maximum, "minimum": selection.minimum, "pow": selection.pow_,
    "compare": selection.compare, "compare_number": selection.compare_number, "where": selection.where,
    "masked_fill": selection.masked_fill, "convert": selection.convert, "topk": selection.topk,
    "log_softmax": selection.log_softmax,
    "softmax": attention.softmax, "softmax_grad": attention.softmax_grad,
    "scaled_dot_product_attention": flash.scaled_dot_product_attention,
    "scaled_dot_product_attention_grad": flash.scaled_dot_product_attention_grad,
    "dropout": elementwise.dropout, "sum_to": sums.sum_to,
    "matmul": linear.matmul, "linear": linear.linear, "linear_dgrad": linear.linear_dgrad,
    "linear_wgrad": linear.linear_wgrad, "bias_grad": linear.bias_grad,
    "batch_norm_stats": batchnorm.batch_norm_stats, "batch_norm": batchnorm.batch_norm,
    "batch_norm_grad_reduce": batchnorm.batch_norm_grad_reduce, "batch_norm_grad": batchnorm.batch_norm_grad,
    "batch_norm_relu": batchnorm.batch_norm_relu, "batch_norm_add_relu": batchnorm.batch_norm_add_relu,
    "batch_norm_relu_grad_reduce": batchnorm.batch_norm_relu_grad_reduce,
    "batch_norm_relu_grad": batchnorm.batch_norm_relu_grad, "batch_norm_update_": batchnorm.batch_norm_update_,
    "batch_norm_merge": batchnorm.batch_norm_merge,
    "layer_norm": layernorm.layer_norm, "layer_norm_grad": layernorm.layer_norm_grad,
    "layer_norm_grad_reduce": layernorm.layer_norm_grad_reduce,
    "lstm": recurrent.lstm, "lstm_grad": recurrent.lstm_grad, "gru": recurrent.gru, "gru_grad": recurrent.gru_grad,
    "embedding": embedding.embedding, "embedding_grad": embedding.embedding_grad,
    "gather_rows": embedding.gather_rows, "gather_rows_grad": embedding.gather_rows_grad,
    "add_rows": embedding.add_rows,
    "max_pool2d": pool.max_pool2d, "max_pool2d_grad": pool.max_pool2d_grad,
    "depthwise": depthwise.depthwise, "depthwise_dgrad": depthwise.depthwise_dgrad,
    "depthwise_wgrad": depthwise.depthwise_wgrad,
    "avg_pool2d": pool.avg_pool2d, "avg_pool2d_grad": pool.avg_pool2d_grad,
    "adaptive_avg_pool2d": pool.adaptive_avg_pool2d, "adaptive_avg_pool2d_grad": pool.adaptive_avg_pool2d_grad,
    "cross_entropy": loss.cross_entropy, "cross_entropy_grad": loss.cross_entropy_grad, "label_share": loss.label_share,
    "cast": elementwise.cast, "cast_grad": elementwise.cast,
    "contiguous": shape.contiguous, "concat": shape.concat, "narrow_grad": shape.narrow_grad,
    "index_grad": shape.index_grad,
    "sgd_": update.sgd_, "sgd_momentum_": update.sgd_momentum_, "adam_": update.adam_,
    "adadelta_": update.adadelta_,
    "add_": update.add_, "copy_": update.copy_, "fill_": update.fill_, "full": update.full,
    "normal_": update.normal_, "uniform_": update.uniform_, "upload": update.upload, "upload_": update.upload_,
    **{name: next(a.run for a in variants if a.name == "serial") for name, variants in CONVOLUTIONS.items()},
}

COMPOSED = frozenset({"depthwise", "depthwise_dgrad", "depthwise_wgrad", "lstm", "lstm_grad", "gru", "gru_grad"})
"""The operations that a GPU does not have: there, several others do their work (``Device.fuses_recurrence``,
``Device.fuses_depthwise``)."""

KERNELS: dict[str, Callable[..., None]] = {name: _quiet(kernel) for name, kernel in _TABLE.items()}
