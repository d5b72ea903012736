"""Layers and losses as functions, with PyTorch's names and arguments: ``import minidl.nn.functional as F``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from math import prod

import numpy as np

from minidl.errors import ShapeError, UserError
from minidl.meta import Shape, boolean, wide
from minidl.nn.attention import Causal, attend
from minidl.nn.convolving import conv1d, conv2d, conv_transpose2d
from minidl.nn.layers import Dropout
from minidl.nn.linear_loss import linear_cross_entropy
from minidl.nn.pooling import adaptive_avg_pool2d, avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from minidl.nn.precision import computed_in, lowered
from minidl.nn.resizing import interpolate, pad, pixel_shuffle, pixel_unshuffle
from minidl.ops import attention as attention_
from minidl.ops import elementwise, layernorm
from minidl.ops import embedding as embedding_
from minidl.ops import linear as linear_
from minidl.ops import update as update_
from minidl.ops.activations import (
    celu, elu, glu, hardshrink, hardsigmoid, hardswish, hardtanh, leaky_relu, logsigmoid, mish, prelu, relu6, selu,
    softmin, softshrink, softsign, tanhshrink, threshold,
)
from minidl.ops.activations import softplus_of as softplus
from minidl.ops.choose import compare, convert, masked_fill, where
from minidl.ops.elementwise import add, mul, relu, sigmoid, tanh
from minidl.ops.functions import log_softmax, silu, softmax
from minidl.ops.inplace import written
from minidl.ops.losses import (
    binary_cross_entropy, binary_cross_entropy_with_logits, cross_entropy, huber_loss, kl_div, l1_loss, mse_loss,
    nll_loss, smooth_l1_loss,
)
from minidl.ops.products import cosine_similarity, normalize
from minidl.ops.ranking import amax
from minidl.ops.rearranging import one_hot, repeat_interleave
from minidl.ops.shape import detach, permute, reshape, sizes_of
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

__all__ = [
    "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "celu",
    "conv1d", "conv2d", "conv_transpose2d", "cosine_similarity", "cross_entropy", "dropout", "elu", "embedding",
    "gelu", "glu", "group_norm", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "interpolate",
    "kl_div", "l1_loss", "layer_norm", "leaky_relu", "linear", "linear_cross_entropy",
    "log_softmax", "logsigmoid", "max_pool1d", "max_pool2d",
    "mish",
    "mse_loss", "nll_loss", "normalize", "one_hot", "pad", "pixel_shuffle", "pixel_unshuffle", "prelu", "relu",
    "relu6", "scaled_dot_product_attention", "selu", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softmin",
    "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
]


def _in_place_too(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an activation with a further argument ``inplace``: True writes the result into the operand."""
    @wraps(function)
    def either(input: Tensor, *args: object, inplace: bool = False, **options: object) -> Tensor:
        if args and isinstance(args[-1], bool):  # inplace, PyTorch's last positional argument
            *args, inplace = args  # type: ignore[assignment]
        if inplace:
            return written(input, lambda y: function(y, *args, **options))
        return function(input, *args, **options)
    own = signature(function)
    further = Parameter("inplace", Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation="bool")
    either.__signature__ = own.replace(parameters=[*own.parameters.values(), further])  # type: ignore[attr-defined]
    return either


_ACTIVATIONS: list[Callable[..., Tensor]] = [celu, elu, hardsigmoid, hardswish, hardtanh, leaky_relu, mish, relu, relu6,
                                             selu, silu, threshold]
celu, elu, hardsigmoid, hardswish, hardtanh, leaky_relu, mish, relu, relu6, selu, silu, threshold = [
    _in_place_too(function) for function in _ACTIVATIONS]


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return input * Phi(input) with the normal distribution function Phi, exact ("none") or as "tanh".
    Raises UserError for another ``approximate``."""
    if approximate not in ("none", "tanh"):
        raise UserError(f"gelu: approximate must be none or tanh, not {approximate!r}")
    return elementwise.gelu(input) if approximate == "none" else elementwise.gelu_tanh(input)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """In training, zero each element with probability p and divide the rest by 1 - p; otherwise return input."""
    if not training or not p:
        return input
    seed = current_runtime().next_seed()
    return written(input, lambda y: elementwise.dropout(y, p, seed)) if inplace else elementwise.dropout(input, p, seed)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return input weight^T + bias. input: [..., in], weight: [out, in]."""
    return linear_.linear(lowered(input), lowered(weight), bias)


def embedding(input: Tensor, weight: Tensor) -> Tensor:
    """Return rows of the table ``weight`` [rows, width], selected by input: [*input.shape, width].
    A row out of range raises UserError on the CPU, and is NaN on a GPU."""
    return embedding_.embedding(weight, input, dtype=computed_in(weight.dtype))


def layer_norm(input: Tensor, normalized_shape: int | Shape, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """Return (input - mean) / sqrt(var + eps) * weight + bias, with mean and variance over the last dimensions.
    ``normalized_shape`` is the shape of these dimensions. Raises ShapeError if input does not end in it."""
    shape = sizes_of((normalized_shape,))
    if input.shape[max(0, input.ndim - len(shape)):] != shape:
        raise ShapeError(f"layer_norm: input {list(input.shape)} does not end in {list(shape)}")
    rows = reshape(input, (*input.shape[:input.ndim - len(shape)], -1)) if len(shape) != 1 else input
    width, kind = rows.shape[-1], None if weight is None else weight.dtype
    kind = kind or wide(input.dtype)
    gamma = update_.full((width,), 1.0, kind) if weight is None else reshape(weight, (width,))
    beta = update_.full((width,), 0.0, kind) if bias is None else reshape(bias, (width,))
    return reshape(layernorm.layer_norm(rows, gamma, beta, eps=eps), input.shape)


def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """Normalise groups of channels (Wu & He 2018).

    Then multiply by weight and add bias per channel. input: [N, C, ...].
    Raises UserError if ``num_groups`` does not divide the channels."""
    if input.ndim < 2 or input.shape[1] % num_groups:
        raise UserError(f"group_norm: {num_groups} groups do not divide the channels of {list(input.shape)}")
    groups = reshape(input, (input.shape[0], num_groups, prod(input.shape[1:]) // num_groups))
    y = reshape(layer_norm(groups, groups.shape[-1], eps=eps), input.shape)
    channels = (input.shape[1], *(1,) * (input.ndim - 2))
    y = y if weight is None else mul(y, reshape(weight.cast(y.dtype), channels))
    return y if bias is None else add(y, reshape(bias.cast(y.dtype), channels))


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """Return softmax(scale q k^T + mask) v. query: [N, heads, L, D], key and value: [N, heads, S, D].

    N and heads may be missing. ``scale`` defaults to 1 / sqrt(D). A boolean mask is True at positions that are seen; a
    floating mask is added. The result of a fully masked position is 0, without a gradient. ``is_causal``: position i
    sees positions up to i. With ``enable_gqa`` several heads of queries share one head of keys and values.
    ``nn.attend`` takes operands [N, L, heads * D]. Raises UserError for a mask together with ``is_causal``, and for
    operands that do not fit each other; ShapeError for a mask that does not fit.
    """
    if enable_gqa and query.ndim == key.ndim == 4:
        if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1]:
            raise UserError(f"attention: {query.shape[1]} heads of queries are not a multiple of {key.shape[1]} of "
                            f"keys and {value.shape[1]} of values")
        key, value = (repeat_interleave(x, query.shape[1] // x.shape[1], 1) for x in (key, value))
    if is_causal and attn_mask is not None:
        raise UserError("attention takes a mask or is_causal, not both; make the mask causal instead")
    if not query.ndim == key.ndim == value.ndim or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise UserError(f"attention: queries {list(query.shape)}, keys {list(key.shape)} and values "
                        f"{list(value.shape)} differ in more than their lengths")
    if query.ndim in (2, 3):
        q, k, v = (reshape(x, (*(1,) * (4 - x.ndim), *x.shape)) for x in (query, key, value))
        y = scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale)
        return reshape(y, (*query.shape[:-1], y.shape[-1]))
    if query.ndim != 4:
        raise UserError(f"attention needs [N, heads, L, D], not {list(query.shape)}")
    length, keys = query.shape[2], key.shape[2]
    if is_causal and length != keys:
        attn_mask, is_causal = current_runtime().tensor(np.tri(length, keys, dtype=bool)), False
    mask, blind = (None, None) if attn_mask is None else _additive_mask(attn_mask, query)
    heads = query.shape[1]
    q, k, v = (attention_.merge_heads(x) for x in (query, key, value))
    y = attend(q, k, v, Causal() if is_causal else mask, heads=heads, dropout=Dropout(dropout_p), factor=scale)
    y = permute(reshape(y, (y.shape[0], y.shape[1], heads, -1)), (0, 2, 1, 3))
    return y if blind is None else masked_fill(y, blind, 0.0)


def _additive_mask(mask: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``mask`` in additive form, with fully masked rows unmasked, and booleans [..., 1] that mark these rows."""
    if mask.dtype.floating:
        lowest = amax(detach(mask), -1, keepdim=True)
        blind = compare(lowest, float("-inf"), "==")
        return masked_fill(mask, blind, 0.0), blind
    mask = convert(mask, boolean)
    blind = compare(elementwise.sum(mask, -1, keepdim=True), 0, "==")
    added = where(mask, update_.full(mask.shape, 0.0, query.dtype), float("-inf"))
    return masked_fill(added, blind, 0.0), blind
