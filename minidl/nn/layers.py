"""Layers for tensors of any shape: a few parameters and one operation each. All arithmetic is in minidl.ops.

Supported arguments have the names, order and meaning of torch.nn's. Parameters are created in float32; layers compute
in the runtime's precision (see ``precision``).
"""

from __future__ import annotations

from functools import partial

from minidl.dispatch import replaced
from minidl.errors import UserError
from minidl.meta import Shape
from minidl.nn import init
from minidl.nn.module import Module
from minidl.nn.precision import computed_in, lowered
from minidl.ops import elementwise, embedding, layernorm, linear, shape
from minidl.ops.choose import compare, where
from minidl.ops.parts import unsqueeze
from minidl.runtime import current_runtime, parameter
from minidl.tensor import Tensor


class Linear(Module):
    """A linear layer: x w^T + b. x: [..., in_features] -> [..., out_features]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = parameter((out_features, in_features))
        self.bias = parameter((out_features,)) if bias else None
        init.default_(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return linear.linear(lowered(input), lowered(self.weight), self.bias)

    def extra_repr(self) -> str:
        outs, ins = self.weight.shape
        return f"{ins}, {outs}{no_bias(self.bias)}"


class LayerNorm(Module):
    """Layer normalisation (Ba, Kiros & Hinton 2016) over the last dimensions, whose sizes are ``normalized_shape``."""

    def __init__(self, normalized_shape: int | Shape, eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True) -> None:
        self.normalized_shape = shape.sizes_of((normalized_shape,))
        self.eps = eps
        self.weight, self.bias = scale_and_shift(self.normalized_shape, elementwise_affine, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not None and self.bias is not None and len(self.normalized_shape) == 1:
            return layernorm.layer_norm(x, self.weight, self.bias, eps=self.eps)
        from minidl.nn.functional import layer_norm  # functional.py imports this module
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        shape = self.normalized_shape
        return f"{shape[0] if len(shape) == 1 else shape}, eps={self.eps}"


class Embedding(Module):
    """A table of vectors, looked up by integers of any shape: [..] -> [.., embedding_dim], in the runtime's precision.

    The row ``padding_idx`` is 0 at first and has no gradient. Raises UserError for a row out of range (on a GPU: NaN).
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise UserError(f"Embedding: padding_idx {padding_idx} is out of range for {num_embeddings} rows")
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.weight = parameter((num_embeddings, embedding_dim))
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.constant_(self.weight[self.padding_idx].detach(), 0.0)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """Return an Embedding with a copy of ``embeddings`` [rows, width]; ``freeze``: False trains it."""
        made = cls(embeddings.shape[0], embeddings.shape[1], padding_idx)
        made.weight.data = embeddings
        made.weight.requires_grad = not freeze
        return made

    def forward(self, ids: Tensor) -> Tensor:
        y = embedding.embedding(self.weight, ids, dtype=computed_in(self.weight.dtype))
        if self.padding_idx is None:
            return y
        padding = compare(unsqueeze(ids, ids.ndim), self.padding_idx, "==")
        return where(padding, y.detach(), y)

    def extra_repr(self) -> str:
        rows, width = self.weight.shape
        return f"{rows}, {width}"


class Dropout(Module):
    """Dropout: in training, zero each element with probability p and divide the rest by 1 - p; else return x.
    With ``inplace`` the handle x gets the result, which may use x's bytes. Raises UserError for p outside [0, 1)."""

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
    """A layer that merges the dimensions from ``start_dim`` to ``end_dim`` into one: a view, or a copy if x is strided.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        return shape.flatten(x, self.start_dim, self.end_dim)


class Identity(Module):
    """A layer that returns its input, for example to keep the numbering of a Sequential."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def scale_and_shift(shape: Shape, affine: bool, bias: bool) -> tuple[Tensor | None, Tensor | None]:
    """Return a norm's weight (ones) and bias (zeros): both None unless ``affine``, the bias None unless ``bias``."""
    weight = parameter(shape) if affine else None
    shift = parameter(shape) if affine and bias else None
    if weight is not None:
        init.constant_(weight, 1.0)
    if shift is not None:
        init.constant_(shift, 0.0)
    return weight, shift


def no_bias(bias: Tensor | None) -> str:
    """Return the text that ``repr`` shows for a missing bias, or an empty string if there is one."""
    return "" if bias is not None else ", bias=False"
