"""BERT with both heads of its pre-training: Devlin, Chang, Lee & Toutanova, NAACL 2019, sections 3 and 3.1.


The sizes below base are those of Turc, Chang, Lee & Toutanova, "Well-Read Students Learn Better", 2019. Parameters are
named as in Hugging Face's BertForPreTraining. The masked-LM head uses the table of word embeddings as its decoder
weight, under that one name. Only the predicted positions pass the head. Row 0 of the table, the padding, is trained
like the others.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from minidl import nn
from minidl.dispatch import donate
from minidl.errors import ShapeError
from minidl.meta import float32, int64
from minidl.models.text import Text
from minidl.ops import cross_entropy, gather_rows, linear_, tanh
from minidl.runtime import Runtime
from minidl.tensor import Tensor

INITIAL_STD = 0.02
MASKED_SCORE = -10_000.0  # added to the scores of hidden positions, so that their exp is 0
IGNORED = -100  # label of a prediction that does not count


@dataclass(frozen=True, slots=True)
class BertConfig:
    """A network's sizes, with Hugging Face's names; the feed-forward layer is four times as wide."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int = 30_522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12


class BertEmbeddings(nn.Module):
    """The normalised sum of the embeddings of token, position and segment: ids, types [N, L] -> [N, L, D]."""

    def __init__(self, config: BertConfig) -> None:
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob, inplace=True)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        length, positions = input_ids.shape[1], self.position_embeddings.weight
        if length > positions.shape[0]:
            raise ShapeError(f"bert has {positions.shape[0]} positions, but a sequence has {length} tokens")
        x = self.word_embeddings(input_ids)
        x = donate(x) + self.token_type_embeddings(token_type_ids)
        x = donate(x) + nn.lowered(positions.narrow(0, 0, length))
        x = self.LayerNorm(x)
        return self.dropout(x)


class BertResidual(nn.Module):
    """LayerNorm(residual + dropout(x w^T + b)), the end of both halves of a layer."""

    def __init__(self, config: BertConfig, in_features: int) -> None:
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob, inplace=True)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = self.dense(x)
        x = self.dropout(x)
        x = donate(x) + residual
        return self.LayerNorm(x)


class BertAttention(nn.Module):
    """Self-attention and its residual: [N, L, D] -> [N, L, D]."""

    def __init__(self, config: BertConfig) -> None:
        self.self = nn.MultiHeadAttention(config.hidden_size, config.num_attention_heads,
                                          config.attention_probs_dropout_prob)
        self.output = BertResidual(config, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.output(self.self(x, mask), x)


class BertIntermediate(nn.Module):
    """The first feed-forward layer, with GELU: [N, L, D] -> [N, L, 4 D]."""

    def __init__(self, config: BertConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        return self.activation(x)


class BertLayer(nn.Module):
    """Attention, then a feed-forward network for each position: [N, L, D] -> [N, L, D]."""

    def __init__(self, config: BertConfig) -> None:
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidual(config, 4 * config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class BertEncoder(nn.Module):
    """The layers, one after the other: [N, L, D] and a mask [N, 1, 1, L] -> [N, L, D]."""

    def __init__(self, config: BertConfig) -> None:
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class BertPooler(nn.Module):
    """The pooled sequence, a layer on the first token's hidden state: [N, L, D] -> [N, D]."""

    def __init__(self, config: BertConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = x.narrow(1, 0, 1).reshape((x.shape[0], x.shape[2]))
        x = self.dense(x)
        return tanh(donate(x))


class BertModel(nn.Module):
    """The network without heads: it maps [N, L] tokens to hidden states [N, L, D] and pooled sequences [N, D].

    ids, types and mask (1: token, 0: padding) are [N, L] each.
    """

    def __init__(self, config: BertConfig) -> None:
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        n, length = attention_mask.shape
        mask = nn.lowered((attention_mask - 1.0) * -MASKED_SCORE).reshape((n, 1, 1, length))
        x = self.embeddings(input_ids, token_type_ids)
        x = self.encoder(x, mask)
        return x, self.pooler(x)


class BertTransform(nn.Module):
    """The layer between a hidden state and the decoder: [M, D] -> [M, D]."""

    def __init__(self, config: BertConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.GELU()
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        x = self.activation(x)
        return self.LayerNorm(x)


class BertPredictions(nn.Module):
    """The masked-LM head: hidden states [M, D] and the table of words -> a score per word, [M, vocabulary]."""

    def __init__(self, config: BertConfig) -> None:
        self.bias = nn.parameter((config.vocab_size,))
        self.transform = BertTransform(config)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        x = self.transform(x)
        return linear_(x, nn.lowered(words), self.bias)


class BertHeads(nn.Module):
    """The heads of the two pre-training tasks: masked words, and next-sentence prediction."""

    def __init__(self, config: BertConfig) -> None:
        self.predictions = BertPredictions(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)


class BertForPreTraining(nn.Module):
    """BERT with its pre-training loss: mean cross-entropy of masked words plus that of the next sentence, a scalar.

    input_ids, token_type_ids         [N, L], int64
    attention_mask                    [N, L], float32: 1 for tokens, 0 for padding
    masked_positions, masked_labels   [N, P], int64; a label of -100 fills up sequences with fewer than P masked words
    next_sentence_labels              [N], int64: 0 if the second segment follows the first, 1 if not
    """

    def __init__(self, config: BertConfig) -> None:
        self.bert = BertModel(config)
        self.cls = BertHeads(config)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0.0, INITIAL_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.constant_(module.bias, 0.0)
        nn.init.constant_(self.cls.predictions.bias, 0.0)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor, masked_positions: Tensor,
                masked_labels: Tensor, next_sentence_labels: Tensor) -> Tensor:
        x, pooled = self.masked_words(input_ids, token_type_ids, attention_mask, masked_positions)
        x = cross_entropy(donate(x), masked_labels.reshape((-1,)))
        return x + cross_entropy(self.cls.seq_relationship(pooled), next_sentence_labels)

    def masked_words(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor,
                     masked_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return a score per word at each predicted position, [N P, vocabulary], and the pooled sequences, [N, D]."""
        x, pooled = self.bert(input_ids, token_type_ids, attention_mask)
        x = gather_rows(donate(x), masked_positions)
        return self.cls.predictions(x, self.bert.embeddings.word_embeddings.weight), pooled


def _network(layers: int, width: int, heads: int, *, vocabulary: int = 30_522) -> BertForPreTraining:
    return BertForPreTraining(BertConfig(layers, width, heads, vocab_size=vocabulary))


bert_tiny = partial(_network, 2, 128, 2)
bert_mini = partial(_network, 4, 256, 4)
bert_small = partial(_network, 4, 512, 8)
bert_medium = partial(_network, 8, 512, 8)
bert_base = partial(_network, 12, 768, 12)
bert_large = partial(_network, 24, 1024, 16)


class Inputs(NamedTuple):
    """One batch on the device: the arguments of BertForPreTraining, in their order."""

    input_ids: Tensor
    token_type_ids: Tensor
    attention_mask: Tensor
    masked_positions: Tensor
    masked_labels: Tensor
    next_sentence_labels: Tensor


def synthetic_batch(runtime: Runtime, batch: int, text: Text | None = None, *, seed: int = 0) -> Inputs:
    """Return a random batch of sequences with two equal segments, uploaded by six calls; shapes only if simulated.
    The values depend on the seed only. Raises OutOfMemory, and ShapeError for more predictions than tokens."""
    text = text or Text()
    if not 0 < text.predictions <= text.length:
        raise ShapeError(f"{text.predictions} positions cannot be predicted in a sequence of {text.length}")
    tokens, predicted = (batch, text.length), (batch, text.predictions)
    if not runtime.device.has_values:
        def shaped(shape: tuple[int, ...]) -> Tensor:
            return runtime.tensor(None, shape=shape, dtype=int64)
        return Inputs(shaped(tokens), shaped(tokens), runtime.tensor(None, shape=tokens, dtype=float32),
                      shaped(predicted), shaped(predicted), shaped((batch,)))
    random = np.random.default_rng(seed)
    types = np.broadcast_to(np.arange(text.length) >= text.length // 2, tokens)
    positions = np.argsort(random.random(tokens), axis=1)[:, :text.predictions]
    return Inputs(runtime.tensor(random.integers(text.vocabulary, size=tokens)),
                  runtime.tensor(types, dtype=int64), runtime.tensor(np.ones(tokens), dtype=float32),
                  runtime.tensor(np.sort(positions, axis=1)),
                  runtime.tensor(random.integers(text.vocabulary, size=predicted)),
                  runtime.tensor(random.integers(2, size=batch)))


def loss(model: nn.Module, batch: Inputs) -> Tensor:
    """Return the loss of one batch, the result of the network's forward pass."""
    scalar: Tensor = model(*batch)
    return scalar
