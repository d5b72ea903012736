"""Llama 3: Grattafiori et al., "The Llama 3 Herd of Models", 2024; Qwen2.5: Yang et al., technical report, 2024.


A decoder with RMSNorm before each half of a layer (Zhang & Sennrich 2019), rotary position embeddings (Su et al. 2021),
grouped-query attention (Ainslie et al. 2023) and a SwiGLU feed-forward network (Shazeer 2020). Linear layers have no
bias, except that Qwen2.5 has one in its queries, keys and values. Sizes are those of Table 3 of Llama's paper (8B), of
the published configurations of Llama 3.2 (1B, 3B), and of Table 1 of Qwen2.5's report. Parameters are named as in
Hugging Face's LlamaForCausalLM and Qwen2ForCausalLM; with tied embeddings the head uses the table of token embeddings.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from minidl import nn
from minidl.autograd import no_grad
from minidl.dispatch import donate
from minidl.errors import ShapeError, UserError
from minidl.models.sampling import next_tokens, seeded
from minidl.models.text import Text
from minidl.ops import concat, expand, linear_, reshape, silu
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

INITIAL_STD = 0.02
CONTEXT = Text(length=2048, predictions=2048, vocabulary=128_256)
QWEN_CONTEXT = CONTEXT.of_vocabulary(151_936)
TINY_CONTEXT = Text(length=64, predictions=64, vocabulary=512)


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretch of slow rotations, with Hugging Face's names.

    Rotations that turn fewer than ``low_freq_factor`` times in the original context are ``factor`` times as slow, those
    that turn more than ``high_freq_factor`` times stay, and those between are blended.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """A network's sizes, with Hugging Face's names. head_dim None: hidden_size / num_attention_heads.
    qkv_bias: True if queries, keys and values have a bias, as in Qwen2.5."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int = 128_256
    tie_word_embeddings: bool = False
    head_dim: int | None = None
    rope_theta: float = 500_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 131_072
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise UserError(f"{self.num_attention_heads} heads of queries are not a multiple of "
                            f"{self.num_key_value_heads} of keys and values")
        if self.head_width % 2:
            raise UserError(f"rotary embeddings need an even width of a head, not {self.head_width}")

    @property
    def head_width(self) -> int:
        """The width of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def frequencies(self) -> np.ndarray:
        """Return the angles per position, in radians, of the pairs of a head's dimensions: [head width / 2], float32.
        Source: Su et al. 2021, section 3.2.2, and Llama 3.1's published code for the scaling."""
        width = self.head_width
        angles: np.ndarray = 1.0 / self.rope_theta ** (np.arange(0, width, 2, dtype=np.float32) / width)
        if self.rope_scaling is None:
            return angles.astype(np.float32)
        s = self.rope_scaling
        turns = s.original_max_position_embeddings * angles / (2 * np.pi)  # in the original context
        kept = np.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0)
        return (angles * (kept + (1.0 - kept) / s.factor)).astype(np.float32)


class Rotation:
    """The rotary embedding of the positions from ``start`` to before ``start + length``.

    It has tables [length, 1, head width] of cosines and sines, uploaded once and used by all layers of a forward pass.
    """

    def __init__(self, config: LlamaConfig, start: int, length: int) -> None:
        runtime, width = current_runtime(), config.head_width
        shape, dtype = (length, 1, width), runtime.precision.activations
        if not runtime.device.has_values:
            self.cos, self.sin = (runtime.tensor(None, shape=shape, dtype=dtype) for _ in range(2))
            return
        angles = np.outer(np.arange(start, start + length, dtype=np.float32), config.frequencies())
        # The pair (a, b) of dimensions i and i + width / 2 becomes (a cos - b sin, b cos + a sin).
        cos, sin = np.tile(np.cos(angles), 2), np.concatenate([-np.sin(angles), np.sin(angles)], 1)
        self.cos, self.sin = (runtime.tensor(table.reshape(shape), dtype=dtype) for table in (cos, sin))

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate the heads of queries or keys: [N, L, heads * width] -> the same shape."""
        width = self.cos.shape[2]
        y = x.reshape((*x.shape[:2], x.shape[2] // width, width))
        swapped = concat([y.narrow(3, width // 2, width // 2), y.narrow(3, 0, width // 2)], 3)
        y = y * self.cos
        swapped = donate(swapped) * self.sin
        y = donate(y) + donate(swapped)
        return y.reshape(x.shape)


class Cache:
    """The keys and values of the tokens that a network has seen, for each of its layers; at first there are none.
    ``length``: the number of tokens seen."""

    def __init__(self) -> None:
        self.length = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extended(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's keys and values of further tokens, [N, L, width] each; return those of all tokens."""
        if layer in self._layers:
            k, v = (concat([old, new], 1) for old, new in zip(self._layers[layer], (k, v), strict=True))
        self._layers[layer] = k, v
        return k, v


class LlamaAttention(nn.Module):
    """Causal self-attention whose heads share keys and values in groups: [N, L, D] -> [N, L, D].

    Keys and values are repeated for the heads that share them, as an operation, so that attention itself is that of
    ``nn.attend``; the copies may be dropped and made again.
    """

    def __init__(self, config: LlamaConfig, number: int) -> None:
        self.number = number
        queries = config.num_attention_heads * config.head_width
        keys = config.num_key_value_heads * config.head_width
        self.heads, self.head_width = config.num_attention_heads, config.head_width
        self.shared_by = config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.no_dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, rotation: Rotation, mask: nn.Causal | None, cache: Cache | None = None) -> Tensor:
        q = rotation(self.q_proj(x))
        k, v = rotation(self.k_proj(x)), self.v_proj(x)
        if cache is not None:
            k, v = cache.extended(self.number, k, v)
        k, v = self._repeated(k), self._repeated(v)
        x = nn.attend(donate(q), k, v, mask, heads=self.heads, dropout=self.no_dropout)
        return self.o_proj(x)

    def _repeated(self, x: Tensor) -> Tensor:
        """Repeat each head of keys or values for the heads of queries that share it: [N, L, heads * width]."""
        if self.shared_by == 1:
            return x
        n, length, width = x.shape
        heads = width // self.head_width
        x = x.reshape((n, length, heads, 1, self.head_width))
        x = expand(x, (n, length, heads, self.shared_by, self.head_width))
        return reshape(x, (n, length, self.heads * self.head_width))


class LlamaMLP(nn.Module):
    """The SwiGLU feed-forward network: down(silu(gate(x)) * up(x)): [N, L, D] -> [N, L, D]."""

    def __init__(self, config: LlamaConfig) -> None:
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = silu(self.gate_proj(x)) * self.up_proj(x)  # all three are kept for the gradient, so none is donated
        return self.down_proj(y)


class LlamaDecoderLayer(nn.Module):
    """A layer: x + attention(norm(x)), then x + mlp(norm(x)): [N, L, D] -> [N, L, D]."""

    def __init__(self, config: LlamaConfig, number: int) -> None:
        self.self_attn = LlamaAttention(config, number)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rotation: Rotation, mask: nn.Causal | None, cache: Cache | None = None) -> Tensor:
        y = self.self_attn(self.input_layernorm(x), rotation, mask, cache)
        x = donate(y) + x
        y = self.mlp(self.post_attention_layernorm(x))
        return donate(y) + x


class LlamaModel(nn.Module):
    """The network without its head: token ids [N, L] -> normalised hidden states [N, L, D].

    With a cache the tokens follow those that it holds: all tokens of a text at first, then one at a time. Raises
    ShapeError for more tokens than ``max_position_embeddings``, and for several tokens after others.
    """

    def __init__(self, config: LlamaConfig) -> None:
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, n) for n in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: Tensor, cache: Cache | None = None) -> Tensor:
        start = 0 if cache is None else cache.length
        length, most = input_ids.shape[1], self.config.max_position_embeddings
        if start + length > most:
            raise ShapeError(f"llama has {most} positions, but a sequence has {start + length} tokens")
        if start and length > 1:
            raise ShapeError(f"llama takes one token after {start} cached ones, not {length}")
        rotation, mask = Rotation(self.config, start, length), None if start else nn.Causal()
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, rotation, mask, cache)
        if cache is not None:
            cache.length += length
        return self.norm(x)


class Llama(nn.Module):
    """Llama with its loss: the mean cross-entropy of the next tokens, a scalar; logits are made for some at a time.

    input_ids, labels: [N, L], int64; a label of -100 does not count. ``labels[:, i]`` must be the token after
    ``input_ids[:, i]``; forward() does not shift them.
    """

    def __init__(self, config: LlamaConfig) -> None:
        self.model = LlamaModel(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Embedding(config.vocab_size, config.hidden_size)  # a table, no layer to adapt
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0.0, INITIAL_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.constant_(module.bias, 0.0)

    @property
    def head_weight(self) -> Tensor:
        """The weight of the head, [vocabulary, D]: with tied embeddings the table of token embeddings."""
        tied = self.model.config.tie_word_embeddings
        weight: Tensor = (self.model.embed_tokens if tied else self.lm_head).weight
        return weight

    def logits(self, input_ids: Tensor) -> Tensor:
        """Return a score per word for each position: [N * L, vocabulary]."""
        x = self.model(input_ids)
        x = x.reshape((-1, x.shape[2]))
        return linear_(x, nn.lowered(self.head_weight))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.model(input_ids)
        x = x.reshape((-1, x.shape[2]))
        return nn.functional.linear_cross_entropy(x, self.head_weight, labels.reshape((-1,)))


def generate(model: Llama, input_ids: Tensor, count: int, *, temperature: float = 0.0, top_k: int | None = None,
             seed: int | None = None, use_cache: bool = True) -> Tensor:
    """Return the sequences [N, L] extended by ``count`` tokens: [N, L + count]. Each takes one iteration.

    temperature, top_k  how a token is drawn: see ``sampling.next_tokens``. 0, the default, takes the likeliest
    seed                the random numbers follow from it; None: from the runtime
    use_cache           keep the keys and values of earlier tokens, so that each step computes one position only; the
                        scores differ by rounding from those without a cache

    Raises ShapeError, before the first step, if the network has too few positions.
    """
    most = model.model.config.max_position_embeddings
    if input_ids.shape[1] + count > most:
        raise ShapeError(f"llama has {most} positions, too few for {input_ids.shape[1]} tokens and {count} more")
    cache = Cache() if use_cache else None
    with seeded(seed):
        for _ in range(count):
            with no_grad(), current_runtime().iteration():
                new = input_ids if cache is None or not cache.length else input_ids[:, -1:]
                x = model.model(new, cache)
                scores = linear_(x[:, -1, :], nn.lowered(model.head_weight))
                drawn = next_tokens(scores, temperature, top_k)
                input_ids = concat([input_ids, drawn], 1)
                del new, x, scores, drawn
    return input_ids


def _network(config: LlamaConfig, *, vocabulary: int | None = None, layers: int | None = None) -> Llama:
    return Llama(replace(config, vocab_size=vocabulary or config.vocab_size,
                         num_hidden_layers=layers or config.num_hidden_layers))


_LLAMA = partial(LlamaConfig, rope_scaling=RopeScaling(32.0), head_dim=128, tie_word_embeddings=True)
_QWEN = partial(LlamaConfig, vocab_size=151_936, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=32_768,
                qkv_bias=True, tie_word_embeddings=True)

TINY = LlamaConfig(2, 64, 176, 4, 2, vocab_size=512, max_position_embeddings=512, tie_word_embeddings=True)
llama_tiny = partial(_network, TINY)
llama_1b = partial(_network, _LLAMA(16, 2048, 8192, 32, 8, head_dim=64))
llama_3b = partial(_network, _LLAMA(28, 3072, 8192, 24, 8))
llama_8b = partial(_network, _LLAMA(32, 4096, 14_336, 32, 8, tie_word_embeddings=False,
                                    rope_scaling=RopeScaling(8.0)))
qwen25_05b = partial(_network, _QWEN(24, 896, 4864, 14, 2))
qwen25_15b = partial(_network, _QWEN(28, 1536, 8960, 12, 2))
qwen25_3b = partial(_network, _QWEN(36, 2048, 11_008, 16, 2))
qwen25_7b = partial(_network, _QWEN(28, 3584, 18_944, 28, 4, vocab_size=152_064, tie_word_embeddings=False))
