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
    """[L, L], 0 on and below the diagonal and -inf above it: a position sees itself and what came before. Uploaded, in
    the runtime's precision."""
    runtime = current_runtime()
    values = np.triu(np.full((length, length), -np.inf, np.float32), 1) if runtime.device.has_values else None
    return runtime.tensor(values, shape=(length, length), dtype=runtime.precision.activations)


class Causal:
    """In the place of a mask: a position sees itself and what came before.

    All layers of a pass share one. Where the scores of a layer are a tensor, a mask is uploaded for the first of these
    layers and kept for the others; attention as one operation needs none.
    """

    def __init__(self) -> None:
        self._mask: Tensor | None = None

    def tensor(self, length: int) -> Tensor:
        """``causal_mask(length)``, made at the first call; later calls must have the same length."""
        if self._mask is None:
            self._mask = causal_mask(length)
        return self._mask


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Causal | None = None, *, heads: int,
           dropout: Dropout) -> Tensor:
    """softmax(q k^T / sqrt(D) + mask) v for each head.  q, k, v: [N, L, heads * D] -> the same.

    The mask is added to the scores, so it broadcasts to [N, heads, L, L]; dropout acts on what the softmax gives.
    The device says whether this is one operation or several (``Device.fuses_attention``). On the CPU the zeros of the
    dropout are the same either way; rounding is not.
    """
    causal, added = (mask, None) if isinstance(mask, Causal) else (None, mask)
    p = dropout.p if dropout.training else 0.0
    if _fuses(q, k, added, heads=heads, causal=causal is not None, p=p):
        seed = current_runtime().next_seed() if p else 0
        return scaled_dot_product_attention(q, k, v, added, heads=heads, causal=causal is not None, p=p, seed=seed)
    if causal is not None:
        added = causal.tensor(q.shape[1])
    q = scale(q, (q.shape[2] // heads) ** -0.5)
    q, k, v = (split_heads(y, heads) for y in (q, k, v))
    # Each result replaces the one before: no name outlives its use.
    y = matmul(q, k, transpose_b=True)
    y = softmax(donate(y), added if added is None else cast(added, y.dtype))
    y = dropout(y)
    y = matmul(y, v)
    return merge_heads(y)


def _fuses(q: Tensor, k: Tensor, mask: Tensor | None, *, heads: int, causal: bool, p: float) -> bool:
    if mask is not None and mask.requires_grad:
        return False  # only the composition has a gradient for it
    return current().device.fuses_attention(q.meta, k.meta, None if mask is None else mask.meta, heads=heads,
                                            causal=causal, p=p)


class MultiHeadAttention(Module):
    """softmax(q k^T / sqrt(D) + mask) v for each head, with q, k, v linear in x.  x: [N, L, heads * D] -> the same.

    The mask is added to the scores, so it broadcasts to [N, heads, L, L]; dropout acts on what the softmax gives.
    There is no projection of the result: a Linear behind it is the caller's. Raises UserError if the width cannot be
    divided among the heads.

    The heads are strided views of q, k and v, which the products read in place. 1 / sqrt(D) goes into q, the smaller
    factor. Kept for the gradient: x, q, k, v, the softmax's output and, where there is dropout, what it made of it; of
    attention as one operation x, q, k, v, its result and a number a row.
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
