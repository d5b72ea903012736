"""The Transformer's layers (Vaswani et al. 2017) with torch.nn's names, arguments and parameters.
Queries, keys and values are [L, N, width], or [N, L, width] with ``batch_first``, or [L, width] for one sequence. A
boolean mask is True at hidden positions, as in PyTorch; a floating mask is added to the scores."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import sqrt

from minidl.context import current
from minidl.errors import UserError
from minidl.meta import boolean
from minidl.nn import functional, init
from minidl.nn.activations import GELU, ReLU
from minidl.nn.containers import ModuleList
from minidl.nn.layers import Dropout, LayerNorm, Linear
from minidl.nn.module import Module
from minidl.ops.choose import convert, masked_fill
from minidl.ops.creation import full, ones, triu
from minidl.ops.elementwise import add, mean, scale
from minidl.ops.functions import softmax
from minidl.ops.linear import matmul
from minidl.ops.parts import chunk, squeeze, transpose, unsqueeze
from minidl.ops.shape import cast, permute, reshape
from minidl.runtime import parameter
from minidl.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]


def _added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a mask in additive form, of like's dtype: a boolean one becomes -inf where True, else 0; None for None."""
    if mask is None or mask.dtype is not boolean:
        return mask if mask is None else convert(mask, like.dtype)
    return masked_fill(full(mask.shape, 0.0, dtype=like.dtype), mask, float("-inf"))


class MultiheadAttention(Module):
    """Multi-head attention: softmax(q k^T / sqrt(D) + mask) v for each head, with projections before and after.
    D: ``embed_dim / num_heads``. Raises UserError unless this is whole, for ``add_bias_kv`` and ``add_zero_attn``, and
    for a ``kdim`` or ``vdim`` other than ``embed_dim``."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False) -> None:
        if add_bias_kv or add_zero_attn or {kdim, vdim} - {None, embed_dim}:
            raise UserError("MultiheadAttention takes no add_bias_kv, add_zero_attn, and only embed_dim as kdim, vdim")
        if embed_dim % num_heads:
            raise UserError(f"a width of {embed_dim} cannot be divided among {num_heads} attention heads")
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.in_proj_weight = parameter((3 * embed_dim, embed_dim))
        self.in_proj_bias = parameter((3 * embed_dim,)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        self.dropout = Dropout(dropout)
        init.xavier_uniform_(self.in_proj_weight)
        for shift in (self.in_proj_bias, self.out_proj.bias):
            if shift is not None:
                init.constant_(shift, 0.0)

    def _heads(self, x: Tensor, number: int) -> Tensor:
        """Return the projection of queries (0), keys (1) or values (2) as heads: [N, L, width] -> [N, heads, L, D]."""
        weight = chunk(self.in_proj_weight, 3)[number]
        shift = None if self.in_proj_bias is None else chunk(self.in_proj_bias, 3)[number]
        y = functional.linear(x, weight, shift)
        return permute(reshape(y, (*y.shape[:2], self.num_heads, self.embed_dim // self.num_heads)), (0, 2, 1, 3))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the result and, with ``need_weights``, the attention weights, per head or their mean over heads.

        ``key_padding_mask``: [N, S]; ``attn_mask``: [L, S] or [N * heads, L, S]. Booleans are True at hidden positions;
        floats are added. ``is_causal`` has no effect; without ``attn_mask`` it raises UserError.
        """
        if is_causal and attn_mask is None:
            raise UserError("MultiheadAttention: is_causal needs attn_mask, which it describes")
        if query.ndim == 2:
            padding = None if key_padding_mask is None else unsqueeze(key_padding_mask, 0)
            at = 0 if self.batch_first else 1
            y, seen = self.forward(unsqueeze(query, at), unsqueeze(key, at), unsqueeze(value, at), padding,
                                   need_weights, attn_mask, average_attn_weights)
            return squeeze(y, at), None if seen is None else squeeze(seen, 0)
        if not self.batch_first:
            query, key, value = (transpose(x, 0, 1) for x in (query, key, value))
        q, k, v = (self._heads(x, i) for i, x in enumerate((query, key, value)))
        n, heads, length, width = q.shape
        mask = _added(attn_mask, q)
        if mask is not None and mask.ndim == 3:
            mask = reshape(mask, (n, heads, *mask.shape[1:]))
        if key_padding_mask is not None:
            padding = _added(key_padding_mask, q)
            assert padding is not None
            padding = reshape(padding, (n, 1, 1, key.shape[1]))
            mask = padding if mask is None else add(mask, padding)
        if need_weights:
            given, kind = q.dtype, current().device.composes_attention_in(q.dtype)
            scores = matmul(scale(cast(q, kind), 1.0 / sqrt(width)), cast(k, kind), transpose_b=True)
            seen = self.dropout(softmax(scores if mask is None else add(scores, cast(mask, kind))))
            y, seen = cast(matmul(seen, cast(v, kind)), given), cast(seen, given)
        else:
            p = self.dropout.p if self.training else 0.0
            seen, y = None, functional.scaled_dot_product_attention(q, k, v, mask, p)
        y = self.out_proj(reshape(permute(y, (0, 2, 1, 3)), (n, length, self.embed_dim)))
        y = y if self.batch_first else transpose(y, 0, 1)
        return y, mean(seen, 1) if seen is not None and average_attn_weights else seen


def _activation(named: Activation) -> Callable[[Tensor], Tensor]:
    known: dict[str, Callable[[Tensor], Tensor]] = {"relu": ReLU(), "gelu": GELU()}
    if isinstance(named, str) and named not in known:
        raise UserError(f"activation must be relu, gelu or a function, not {named!r}")
    if isinstance(named, str):
        return known[named]
    # A function of PyTorch takes no tensors of minidl; minidl's function of its name does.
    if str(getattr(named, "__module__", "")).partition(".")[0] == "torch":
        name = getattr(named, "__name__", type(named).__name__)
        if name not in functional.__all__:
            raise UserError(f"activation is PyTorch's {name}: pass a function or module of minidl.nn")
        found: Callable[[Tensor], Tensor] = getattr(functional, name)
        return found
    return named


class _Layer(Module):
    """The base class of Transformer layers: attention and two linear layers, each with a residual.
    A norm follows each residual, or with ``norm_first`` precedes each part."""

    attends_others = False

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True) -> None:
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        if self.attends_others:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        if self.attends_others:
            self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout1, self.dropout2, self.dropout3 = Dropout(dropout), Dropout(dropout), Dropout(dropout)
        self.activation = _activation(activation)

    def _part(self, x: Tensor, norm: LayerNorm, function: Callable[[Tensor], Tensor]) -> Tensor:
        return add(x, function(norm(x))) if self.norm_first else norm(add(x, function(x)))

    def _fed(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """An encoder layer: self-attention, then two linear layers.
    ``is_causal`` describes the mask; without one it raises UserError."""

    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool = False) -> Tensor:
        def seen(y: Tensor) -> Tensor:
            return self.dropout1(self.self_attn(y, y, y, src_key_padding_mask, False, src_mask,
                                                is_causal=is_causal)[0])
        x = self._part(src, self.norm1, seen)
        return self._part(x, self.norm2, lambda y: self.dropout2(self._fed(y)))


class TransformerDecoderLayer(_Layer):
    """A decoder layer: self-attention, attention over the encoder's output (``memory``), then two linear layers.
    The arguments ``..._is_causal`` describe the masks; without these they raise UserError."""

    attends_others = True

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                tgt_is_causal: bool = False, memory_is_causal: bool = False) -> Tensor:
        def own(y: Tensor) -> Tensor:
            return self.dropout1(self.self_attn(y, y, y, tgt_key_padding_mask, False, tgt_mask,
                                                is_causal=tgt_is_causal)[0])

        def others(y: Tensor) -> Tensor:
            return self.dropout2(self.multihead_attn(y, memory, memory, memory_key_padding_mask, False, memory_mask,
                                                     is_causal=memory_is_causal)[0])
        x = self._part(tgt, self.norm1, own)
        x = self._part(x, self.norm2, others)
        return self._part(x, self.norm3, lambda y: self.dropout3(self._fed(y)))


class TransformerEncoder(Module):
    """An encoder: ``num_layers`` copies of a layer, then an optional norm. ``is_causal`` describes the mask."""

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Module | None = None,
                 enable_nested_tensor: bool = True, mask_check: bool = True) -> None:
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.norm = norm

    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool | None = None) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """A decoder over an encoder's output: ``num_layers`` copies of a layer, then an optional norm."""

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None) -> None:
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.norm = norm

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                        bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """A Transformer: an encoder, and a decoder over its output."""

    def __init__(self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
                 dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
                 custom_encoder: Module | None = None, custom_decoder: Module | None = None,
                 layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
                 bias: bool = True) -> None:
        options = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options), num_encoder_layers, LayerNorm(d_model, layer_norm_eps, bias=bias))
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options), num_decoder_layers, LayerNorm(d_model, layer_norm_eps, bias=bias))
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
                memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
                memory_is_causal: bool = False) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        made: Tensor = self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                                    tgt_is_causal, memory_is_causal)
        return made

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """Return a causal mask [sz, sz]: 0 on and below the diagonal, -inf above it."""
        later = convert(triu(ones(sz, sz), 1), boolean)
        return masked_fill(full((sz, sz), 0.0), later, float("-inf"))
