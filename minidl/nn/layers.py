"""Layers for tensors of any shape: a few parameters and one operation each. All arithmetic is in minidl.ops.

Supported arguments have the names, order and meaning of torch.nn's. Parameters are always float32; layers compute in
the runtime's precision (see ``precision``).
"""

from __future__ import annotations

from functools import partial

from minidl.dispatch import replaced
from minidl.errors import UserError
from minidl.nn import init
from minidl.nn.module import Module
from minidl.nn.precision import computed_in, lowered
from minidl.ops import elementwise, embedding, layernorm, linear, shape
from minidl.runtime import current_runtime, parameter
from minidl.tensor import Tensor


class Linear(Module):
    """A linear layer: x w^T + b. x: [..., in_features] -> [..., out_features]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = parameter((out_features, in_features))
        self.bias = parameter((out_features,)) if bias else None
        init.default_(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear.linear(lowered(x), lowered(self.weight), self.bias)

    def extra_repr(self) -> str:
        outs, ins = self.weight.shape
        return f"{ins}, {outs}{no_bias(self.bias)}"


class LayerNorm(Module):
    """Layer normalisation (Ba, Kiros & Hinton 2016) over the last dimension, of ``normalized_shape`` values."""

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5) -> None:
        width = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if len(width) != 1:
            raise UserError(f"LayerNorm: only the last dimension can be normalised, not {list(width)}")
        self.eps = eps
        self.weight = parameter(width)
        self.bias = parameter(width)
        init.constant_(self.weight, 1.0)
        init.constant_(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return layernorm.layer_norm(x, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}"


class Embedding(Module):
    """A table of vectors, looked up by integers of any shape: ids -> [*ids.shape, embedding_dim], in compute precision.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        self.weight = parameter((num_embeddings, embedding_dim))
        init.normal_(self.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return embedding.embedding(self.weight, ids, dtype=computed_in(self.weight.dtype))

    def extra_repr(self) -> str:
        rows, width = self.weight.shape
        return f"{rows}, {width}"


class Dropout(Module):
    """Dropout: in training, zero each element with probability p in [0, 1) and divide the rest by 1 - p.
    With ``inplace`` the handle x then holds the result, and x's bytes may be overwritten."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not 0.0 <= p < 1.0:
            raise UserError(f"Dropout: p must be in [0, 1), not {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        zeroed = partial(elementwise.dropout, p=self.p, seed=current_runtime().next_seed())
        return replaced(x, zeroed) if self.inplace else zeroed(x)

    def extra_repr(self) -> str:
        return f"p={self.p}" + (", inplace=True" if self.inplace else "")


class Flatten(Module):
    """A layer that merges the dimensions from ``start_dim`` to ``end_dim`` into one; a view."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        return shape.flatten(x, self.start_dim, self.end_dim)


class Identity(Module):
    """A layer that returns its input, for example to keep the numbering of a Sequential."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def no_bias(bias: Tensor | None) -> str:
    """Return what ``extra_repr`` shows for a missing bias, or an empty string."""
    return "" if bias is not None else ", bias=False"
