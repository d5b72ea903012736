"""T5: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", JMLR 2020.

An encoder and a decoder with RMSNorm before each part of a layer, linear layers without bias, and attention whose
scores are not divided by sqrt(D) but get a learned bias per head and relative position (section 2.1). The sizes small
to 3b are those of section 3.7; the flan names have those of T5 1.1 (Chung et al., "Scaling Instruction-Finetuned
Language Models", 2022): a gated feed-forward network (Shazeer 2020) and a head of its own. Parameters are named as in
Hugging Face's T5ForConditionalGeneration; embeddings of both halves, and a tied head, use the table ``shared``.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from minidl import nn
from minidl.autograd import no_grad
from minidl.dispatch import donate
from minidl.errors import ShapeError
from minidl.meta import int64
from minidl.models.sampling import next_tokens, seeded
from minidl.models.text import Text
from minidl.ops import concat, linear_, relu
from minidl.ops.creation import full
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

CONTEXT = Text(length=512, predictions=512, vocabulary=32_128)
START = 0  # the first token of the decoder, T5's padding
BUCKETS, FARTHEST = 32, 128  # of relative positions: their number, and the distance from which all share the last one


@dataclass(frozen=True, slots=True)
class T5Config:
    """A network's sizes, with Hugging Face's names: ``num_layers`` in the encoder, and as many in the decoder.
    gated: True for the feed-forward network wo(gelu(wi_0(x)) * wi_1(x)), False for wo(relu(wi(x)))."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    d_kv: int = 64
    vocab_size: int = 32_128
    gated: bool = False
    tie_word_embeddings: bool = True
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6

    @property
    def inner(self) -> int:
        """The width of all heads together."""
        return self.num_heads * self.d_kv


def buckets(length: int, *, both_sides: bool) -> np.ndarray:
    """Return the number of the bucket of each pair of a query's and a key's position: [length, length], int64.

    Half of a side's buckets hold one distance each, the others ranges that grow logarithmically up to FARTHEST.
    both_sides: True if keys after the query have the upper half of the buckets; False: they share bucket 0.
    """
    distance = np.arange(length)[:, None] - np.arange(length)[None]  # above 0: the key comes before the query
    count = BUCKETS // 2 if both_sides else BUCKETS
    shift = count * (distance < 0) if both_sides else 0
    distance = np.abs(distance) if both_sides else np.maximum(distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, exact).astype(np.float32) / np.float32(exact)) / np.log(FARTHEST / exact)
    far = np.minimum(exact + (ratio * (count - exact)).astype(np.int64), count - 1)
    found: np.ndarray = np.where(distance < exact, distance, far) + shift
    return found


class T5Attention(nn.Module):
    """Attention of queries [N, L, D] over keys and values made of ``seen`` [N, S, D], without a scale: [N, L, D].
    The first layer of each half has the table of relative positions, one number per bucket and head."""

    def __init__(self, config: T5Config, *, has_relative_attention_bias: bool = False) -> None:
        self.heads = config.num_heads
        self.q = nn.Linear(config.d_model, config.inner, bias=False)
        self.k = nn.Linear(config.d_model, config.inner, bias=False)
        self.v = nn.Linear(config.d_model, config.inner, bias=False)
        self.o = nn.Linear(config.inner, config.d_model, bias=False)
        if has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(BUCKETS, config.num_heads)
        self.dropout = nn.Dropout(config.dropout_rate)
        for layer, std in ((self.q, (config.d_model * config.d_kv)**-0.5), (self.k, config.d_model**-0.5),
                           (self.v, config.d_model**-0.5), (self.o, config.inner**-0.5)):
            nn.init.normal_(layer.weight, 0.0, std)
        if has_relative_attention_bias:
            nn.init.normal_(self.relative_attention_bias.weight, 0.0, config.d_model**-0.5)

    def bias(self, length: int, *, both_sides: bool) -> Tensor:
        """Return the bias of each head and pair of positions: [1, heads, length, length]."""
        runtime = current_runtime()
        numbers = buckets(length, both_sides=both_sides) if runtime.device.has_values else None
        x = self.relative_attention_bias(runtime.tensor(numbers, shape=(length, length), dtype=int64))
        return x.permute(2, 0, 1).reshape((1, self.heads, length, length))

    def forward(self, x: Tensor, seen: Tensor, bias: Tensor | None) -> Tensor:
        return self.o(nn.attend(donate(self.q(x)), self.k(seen), self.v(seen), bias, heads=self.heads,
                                dropout=self.dropout, factor=1.0))


class T5DenseReluDense(nn.Module):
    """A feed-forward network, wo(relu(wi(x))): [N, L, D] -> [N, L, D]."""

    def __init__(self, config: T5Config) -> None:
        self.wi = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout_rate, inplace=True)
        _initialise(self.wi, self.wo)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wi(x)
        x = relu(donate(x))
        x = self.dropout(x)
        return self.wo(x)


class T5DenseGatedActDense(nn.Module):
    """A gated feed-forward network, wo(gelu(wi_0(x)) * wi_1(x)): [N, L, D] -> [N, L, D]."""

    def __init__(self, config: T5Config) -> None:
        self.wi_0 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wi_1 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.act = nn.GELU("tanh")
        self.dropout = nn.Dropout(config.dropout_rate, inplace=True)
        _initialise(self.wi_0, self.wi_1, self.wo)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.wi_0(x)) * self.wi_1(x)
        x = self.dropout(x)
        return self.wo(x)


def _initialise(*layers: nn.Linear) -> None:
    """Draw weights from normal distributions whose standard deviation is 1 / sqrt(inputs)."""
    for layer in layers:
        nn.init.normal_(layer.weight, 0.0, layer.weight.shape[1]**-0.5)


class T5LayerSelfAttention(nn.Module):
    """x + dropout(attention(norm(x))): [N, L, D] -> [N, L, D]."""

    def __init__(self, config: T5Config, *, first: bool) -> None:
        self.SelfAttention = T5Attention(config, has_relative_attention_bias=first)
        self.layer_norm = nn.RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate, inplace=True)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        y = self.layer_norm(x)
        y = self.SelfAttention(y, y, bias)
        y = self.dropout(y)
        return donate(y) + x


class T5LayerCrossAttention(nn.Module):
    """x + dropout(attention of norm(x) over the encoder's states): [N, L, D] and [N, S, D] -> [N, L, D]."""

    def __init__(self, config: T5Config) -> None:
        self.EncDecAttention = T5Attention(config)
        self.layer_norm = nn.RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate, inplace=True)

    def forward(self, x: Tensor, encoded: Tensor, mask: Tensor | None) -> Tensor:
        y = self.layer_norm(x)
        y = self.EncDecAttention(y, encoded, mask)
        y = self.dropout(y)
        return donate(y) + x


class T5LayerFF(nn.Module):
    """x + dropout(feed-forward(norm(x))): [N, L, D] -> [N, L, D]."""

    def __init__(self, config: T5Config) -> None:
        self.DenseReluDense = (T5DenseGatedActDense if config.gated else T5DenseReluDense)(config)
        self.layer_norm = nn.RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer_norm(x)
        y = self.DenseReluDense(y)
        y = self.dropout(y)
        return donate(y) + x


class T5Block(nn.Module):
    """A layer of the encoder, or with ``decodes`` of the decoder, which also attends over the encoder's states."""

    def __init__(self, config: T5Config, *, first: bool, decodes: bool) -> None:
        parts: list[nn.Module] = [T5LayerSelfAttention(config, first=first)]
        if decodes:
            parts.append(T5LayerCrossAttention(config))
        self.layer = nn.ModuleList([*parts, T5LayerFF(config)])

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None, mask: Tensor | None) -> Tensor:
        x = self.layer[0](x, bias)
        if encoded is not None:
            x = self.layer[1](x, encoded, mask)
        y: Tensor = self.layer[len(self.layer) - 1](x)
        return y


class T5Stack(nn.Module):
    """The encoder, or with ``decodes`` the decoder, after the embedding: [N, L, D] -> [N, L, D].

    ``mask`` [N, 1, 1, S], 0 or -1e9, hides padding of the encoder's tokens. All layers share one bias of positions.
    """

    def __init__(self, config: T5Config, *, decodes: bool) -> None:
        self.decodes = decodes
        self.block = nn.ModuleList(T5Block(config, first=n == 0, decodes=decodes) for n in range(config.num_layers))
        self.final_layer_norm = nn.RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate, inplace=True)

    def forward(self, x: Tensor, mask: Tensor | None, encoded: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        bias = self.block[0].layer[0].SelfAttention.bias(length, both_sides=not self.decodes)
        if self.decodes:
            bias = donate(bias) + nn.causal_mask(length)
        elif mask is not None:
            bias = bias + mask
        x = self.dropout(x)
        for block in self.block:
            x = block(x, bias, encoded, mask)
        x = self.final_layer_norm(x)
        return self.dropout(x)


class T5(nn.Module):
    """T5 with its loss, the mean cross-entropy of the predicted tokens, a scalar; logits are made for some at a time.

    ``forward`` is for running text, as the other language models here: ``labels[:, i]`` is the token after
    ``input_ids[:, i]``. The encoder reads the first half of each sequence, and the decoder predicts the tokens after it
    (the paper's prefix language modelling, section 3.3.1). ``loss`` is for pairs of texts. A label of -100 does not
    count.
    """

    def __init__(self, config: T5Config) -> None:
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.shared.weight, 0.0, 1.0)
        self.encoder = T5Stack(config, decodes=False)
        self.decoder = T5Stack(config, decodes=True)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Embedding(config.vocab_size, config.d_model)  # a table, no layer to adapt
            nn.init.normal_(self.lm_head.weight, 0.0, 1.0)

    @property
    def head_weight(self) -> Tensor:
        """The weight of the head, [vocabulary, D]: with tied embeddings the table of tokens."""
        weight: Tensor = (self.shared if self.config.tie_word_embeddings else self.lm_head).weight
        return weight

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the encoder's states [N, S, D], and the mask that hides padding; None without ``attention_mask``.
        attention_mask: [N, S], 1 for tokens, 0 for padding."""
        mask = None
        if attention_mask is not None:
            n, length = attention_mask.shape
            mask = nn.lowered((attention_mask - 1.0) * 1e9).reshape((n, 1, 1, length))
        return self.encoder(self.shared(input_ids), mask), mask

    def decode(self, decoder_input_ids: Tensor, encoded: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the decoder's states [N, L, D], which times ``head_weight`` are the logits.
        encoded, mask: what ``encode`` returned."""
        x: Tensor = self.decoder(self.shared(decoder_input_ids), mask, encoded)
        if self.config.tie_word_embeddings:
            x = x * self.config.d_model**-0.5
        return x

    def logits(self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return a score per word for each of the decoder's positions: [N * L, vocabulary]."""
        x = self.decode(decoder_input_ids, *self.encode(input_ids, attention_mask))
        return linear_(x.reshape((-1, x.shape[2])), nn.lowered(self.head_weight))

    def loss(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the mean loss of the texts ``labels`` [N, L], given the texts ``input_ids`` [N, S]: a scalar."""
        before = (labels[:, :-1] * (labels[:, :-1] >= 0)).long()  # the ignored ones are read as padding
        before = concat([full((labels.shape[0], 1), START, dtype=int64), before], 1)
        x = self.decode(before, *self.encode(input_ids, attention_mask))
        return nn.functional.linear_cross_entropy(x.reshape((-1, x.shape[2])), self.head_weight, labels.reshape((-1,)))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        half = input_ids.shape[1] // 2
        if not half:
            raise ShapeError(f"t5 needs sequences of at least 2 tokens, one to read, not {input_ids.shape[1]}")
        return self.loss(input_ids[:, :half], labels[:, half - 1:])


def generate(model: T5, input_ids: Tensor, count: int, *, attention_mask: Tensor | None = None,
             temperature: float = 0.0, top_k: int | None = None, seed: int | None = None) -> Tensor:
    """Return ``count`` tokens for each text [N, S] that the encoder reads: [N, count]. Each takes one iteration.

    The decoder computes all its positions anew for each token. temperature, top_k: how a token is drawn, see
    ``sampling.next_tokens``; seed: the random numbers follow from it, or with None from the runtime. Call
    ``model.eval()`` first.
    """
    with seeded(seed):
        with no_grad(), current_runtime().iteration():
            encoded, mask = model.encode(input_ids, attention_mask)
            made = full((input_ids.shape[0], 1), START, dtype=int64)
        for _ in range(count):
            with no_grad(), current_runtime().iteration():
                x = model.decode(made, encoded, mask)
                scores = linear_(x[:, -1, :], nn.lowered(model.head_weight))
                drawn = next_tokens(scores, temperature, top_k)
                made = concat([made, drawn], 1)
                del x, scores, drawn
    return made[:, 1:]


def _network(config: T5Config, *, vocabulary: int | None = None, layers: int | None = None) -> T5:
    return T5(replace(config, vocab_size=vocabulary or config.vocab_size, num_layers=layers or config.num_layers))


_FLAN = partial(T5Config, gated=True, tie_word_embeddings=False)

t5_small = partial(_network, T5Config(6, 512, 2048, 8))
t5_base = partial(_network, T5Config(12, 768, 3072, 12))
t5_large = partial(_network, T5Config(24, 1024, 4096, 16))
t5_3b = partial(_network, T5Config(24, 1024, 16_384, 32, 128))
flan_t5_small = partial(_network, _FLAN(8, 512, 1024, 6))
flan_t5_base = partial(_network, _FLAN(12, 768, 2048, 12))
flan_t5_large = partial(_network, _FLAN(24, 1024, 2816, 16))
flan_t5_xl = partial(_network, _FLAN(24, 2048, 5120, 32))
