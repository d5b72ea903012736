"""Multi-head self-attention (Vaswani et al. 2017, section 3.2.2). Knows no network; all arithmetic is in minidl.ops."""

from minidl.errors import UserError
from minidl.nn.layers import Dropout, Linear
from minidl.nn.module import Module
from minidl.ops.attention import merge_heads, softmax, split_heads
from minidl.ops.elementwise import scale
from minidl.ops.linear import matmul
from minidl.tensor import Tensor, give


class MultiHeadAttention(Module):
    """softmax(q k^T / sqrt(D) + mask) v for each head, with q, k, v linear in x.  x: [N, L, heads * D] -> the same.

    The mask is added to the scores, so it broadcasts to [N, heads, L, L]; dropout acts on what the softmax gives.
    There is no projection of the result: a Linear behind it is the caller's. Raises UserError if the width cannot be
    divided among the heads.

    The heads are strided views of q, k and v, which the products read in place. 1 / sqrt(D) goes into q, the smaller
    factor. Kept for the gradient: x, q, k, v, the softmax's output and, where there is dropout, what it made of it.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        if width % heads:
            raise UserError(f"a width of {width} cannot be divided among {heads} attention heads")
        self.heads = heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q = scale(give(self.query(x)), (x.shape[2] // self.heads) ** -0.5)
        q, k, v = (split_heads(y, self.heads) for y in (q, self.key(x), self.value(x)))
        # Each result replaces the one before: no name outlives its use.
        y = matmul(q, k, transpose_b=True)
        y = softmax(give(y), mask)
        y = self.dropout(y)
        y = matmul(y, v)
        return merge_heads(y)
