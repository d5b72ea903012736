"""Multi-head self-attention (Vaswani et al. 2017, section 3.2.2). All arithmetic is in minidl.ops."""

import numpy as np

from minidl.context import current
from minidl.dispatch import donate
from minidl.errors import UserError
from minidl.nn.layers import Dropout, Linear
from minidl.nn.module import Module
from minidl.ops.attention import merge_heads, scaled_dot_product_attention, softmax, split_heads
from minidl.ops.elementwise import scale
from minidl.ops.linear import matmul
from minidl.ops.shape import cast
from minidl.runtime import current_runtime
from minidl.tensor import Tensor


def causal_mask(length: int) -> Tensor:
    """Return a causal mask [L, L] in the runtime's precision: 0 on and below the diagonal, -inf above it."""
    runtime = current_runtime()
    values = np.triu(np.full((length, length), -np.inf, np.float32), 1) if runtime.device.has_values else None
    return runtime.tensor(values, shape=(length, length), dtype=runtime.precision.activations)


class Causal:
    """A causal mask that is created when a layer first needs it, for all layers of a forward pass that get this object.
    Unfused attention uploads the mask at the first layer and uses it in the others; fused attention needs no mask."""

    def __init__(self) -> None:
        self._mask: Tensor | None = None

    def tensor(self, length: int) -> Tensor:
        """Return ``causal_mask(length)`` with the first call's length; later calls get that, whatever theirs is."""
        if self._mask is None:
            self._mask = causal_mask(length)
        return self._mask


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Causal | None = None, *, heads: int,
           dropout: Dropout, factor: float | None = None) -> Tensor:
    """Return softmax(factor q k^T + mask) v per head, by default with the factor 1 / sqrt(D).

    q, k, v and the result: [N, L, heads * D]. The mask broadcasts to [N, heads, L, L]; dropout is applied to the
    softmax's output. The device decides whether this is one operation or several (``Device.fuses_attention``), and in
    which dtype several compute (``Device.composes_attention_in``): scores of 16-bit operands are float32. On the CPU
    both have the same dropout mask, but round differently.
    """
    usual = (q.shape[2] // heads) ** -0.5
    factor = usual if factor is None else factor
    causal, added = (mask, None) if isinstance(mask, Causal) else (None, mask)
    p = dropout.p if dropout.training else 0.0
    if _fuses(q, k, v, added, heads=heads, causal=causal is not None, p=p):
        seed = current_runtime().next_seed() if p else 0
        q = q if factor == usual else scale(q, factor / usual)
        return scaled_dot_product_attention(q, k, v, added, heads=heads, causal=causal is not None, p=p, seed=seed)
    if causal is not None:
        added = causal.tensor(q.shape[1])
    given, kind = q.dtype, current().device.composes_attention_in(q.dtype)
    q, k, v = (cast(x, kind) for x in (q, k, v))
    q = q if factor == 1.0 else scale(q, factor)
    q, k, v = (split_heads(y, heads) for y in (q, k, v))
    # Rebinding y frees each intermediate as soon as it has been used.
    y = matmul(q, k, transpose_b=True)
    y = softmax(donate(y), added if added is None else cast(added, y.dtype))
    y = dropout(y)
    y = matmul(y, v)
    return cast(merge_heads(y), given)


def _fuses(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, heads: int, causal: bool, p: float) -> bool:
    if mask is not None and mask.requires_grad or v.shape != k.shape or not k.shape[1]:
        return False  # only unfused attention has a gradient for the mask, values of other sizes, or no keys at all
    return current().device.fuses_attention(q.meta, k.meta, None if mask is None else mask.meta, heads=heads,
                                            causal=causal, p=p)


class MultiHeadAttention(Module):
    """Multi-head self-attention: softmax(q k^T / sqrt(D) + mask) v per head, with q, k, v linear in x.

    x and the result: [N, L, heads * D]. The mask broadcasts to [N, heads, L, L]; dropout is applied to the softmax's
    output. There is no output projection; add a Linear for it. Raises UserError if ``heads`` does not divide the width.

    Kept for the gradient: x, q, k, v, the softmax's output and, with dropout, the dropout's output; fused attention
    keeps x, q, k, v, its result and one number per row.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        if width % heads:
            raise UserError(f"a width of {width} cannot be divided among {heads} attention heads")
        self.heads = heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | Causal | None = None) -> Tensor:
        return attend(donate(self.query(x)), self.key(x), self.value(x), mask, heads=self.heads, dropout=self.dropout)
