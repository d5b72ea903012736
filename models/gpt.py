"""GPT-2: Radford, Wu, Child, Luan, Amodei & Sutskever, "Language Models are Unsupervised Multitask Learners", 2019.


Section 2.3: the decoder of Vaswani et al. 2017 as in Radford et al. 2018, with layer normalisation before each half of
a block and once more at the end. A position sees itself and earlier positions, and predicts the next token. The sizes
are those of Table 2. Parameters are named as in Hugging Face's GPT2LMHeadModel; the head uses the table of token
embeddings as its weight.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from minidl import nn
from minidl.autograd import no_grad
from minidl.dispatch import donate
from minidl.errors import ShapeError
from minidl.meta import int64
from minidl.models.sampling import next_tokens
from minidl.models.text import Text
from minidl.ops import concat, cross_entropy, linear_, matmul
from minidl.runtime import Runtime, current_runtime
from minidl.tensor import Tensor

INITIAL_STD = 0.02
CONTEXT = Text(length=1024, predictions=1024, vocabulary=50_257)  # section 2.3


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """A network's sizes, with Hugging Face's names; the feed-forward layer is four times as wide."""

    n_layer: int
    n_embd: int
    n_head: int
    vocab_size: int = 50_257
    n_positions: int = 1024
    dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5


class Conv1D(nn.Module):
    """A linear layer x w + b with a transposed weight [in, out], called Conv1D as in the original code.
    x: [N, L, in] -> [N, L, out], or only the result's columns ``start`` to ``stop`` - 1."""

    def __init__(self, in_features: int, out_features: int, std: float = INITIAL_STD) -> None:
        self.weight = nn.parameter((in_features, out_features))
        self.bias = nn.parameter((out_features,))
        nn.init.normal_(self.weight, 0.0, std)
        nn.init.constant_(self.bias, 0.0)

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        n, length, width = x.shape
        weight, bias = self.weight, self.bias
        if stop is not None:
            weight, bias = weight[:, start:stop], bias[start:stop]
        y = matmul(x.reshape((n * length, width)), nn.lowered(weight))
        y = donate(y) + nn.lowered(bias)
        return y.reshape((n, length, y.shape[1]))


class GPTAttention(nn.Module):
    """Causal self-attention: [N, L, D] -> [N, L, D]. c_attn holds the weights of queries, keys and values side by side.
    """

    def __init__(self, config: GPTConfig) -> None:
        self.heads = config.n_head
        self.c_attn = Conv1D(config.n_embd, 3 * config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd, _residual_std(config))
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout, inplace=True)

    def forward(self, x: Tensor, mask: nn.Causal) -> Tensor:
        d = x.shape[2]
        # Slice the weight, not the result: the zeros around each third of the gradient are then small, and attention
        # reads contiguous products.
        x = nn.attend(donate(self.c_attn(x, 0, d)), self.c_attn(x, d, 2 * d), self.c_attn(x, 2 * d, 3 * d), mask,
                      heads=self.heads, dropout=self.attn_dropout)
        x = self.c_proj(x)
        return self.resid_dropout(x)


class GPTMLP(nn.Module):
    """The feed-forward network: [N, L, D] -> 4 D, GELU in its tanh form -> [N, L, D]."""

    def __init__(self, config: GPTConfig) -> None:
        self.c_fc = Conv1D(config.n_embd, 4 * config.n_embd)
        self.c_proj = Conv1D(4 * config.n_embd, config.n_embd, _residual_std(config))
        self.act = nn.GELU("tanh")
        self.dropout = nn.Dropout(config.dropout, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        x = self.act(x)
        x = self.c_proj(x)
        return self.dropout(x)


class GPTBlock(nn.Module):
    """A block: x + attention(norm(x)), then x + mlp(norm(x)): [N, L, D] -> [N, L, D]."""

    def __init__(self, config: GPTConfig) -> None:
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = GPTAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = GPTMLP(config)

    def forward(self, x: Tensor, mask: nn.Causal) -> Tensor:
        y = self.attn(self.ln_1(x), mask)
        x = donate(y) + x
        y = self.mlp(self.ln_2(x))
        return donate(y) + x


class GPTModel(nn.Module):
    """The network without its head: token ids [N, L] -> normalised hidden states [N, L, D]."""

    def __init__(self, config: GPTConfig) -> None:
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.dropout, inplace=True)
        self.h = nn.ModuleList(GPTBlock(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)

    def forward(self, input_ids: Tensor) -> Tensor:
        length, positions = input_ids.shape[1], self.wpe.weight
        if length > positions.shape[0]:
            raise ShapeError(f"gpt has {positions.shape[0]} positions, but a sequence has {length} tokens")
        mask = nn.Causal()
        x = self.wte(input_ids)
        x = donate(x) + nn.lowered(positions.narrow(0, 0, length))
        x = self.drop(x)
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x)


class GPT(nn.Module):
    """GPT-2 with its loss: the mean cross-entropy of the next tokens, a scalar.

    input_ids, labels: [N, L], int64; a label of -100 does not count. ``labels[:, i]`` must be the token after
    ``input_ids[:, i]``; forward() does not shift them.
    """

    def __init__(self, config: GPTConfig) -> None:
        self.transformer = GPTModel(config)
        for table in (self.transformer.wte, self.transformer.wpe):
            nn.init.normal_(table.weight, 0.0, INITIAL_STD)

    def logits(self, input_ids: Tensor) -> Tensor:
        """Return a score per word for each position: [N * L, vocabulary]."""
        x = self.transformer(input_ids)
        x = x.reshape((-1, x.shape[2]))
        return linear_(x, nn.lowered(self.transformer.wte.weight))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.logits(input_ids)
        return cross_entropy(donate(x), labels.reshape((-1,)))


def generate(model: GPT, input_ids: Tensor, count: int, *, temperature: float = 1.0,
             top_k: int | None = None) -> Tensor:
    """Return the sequences [N, L] extended by ``count`` sampled tokens: [N, L + count].

    Each token takes one iteration and is drawn from softmax(scores / temperature), among the ``top_k`` likeliest if
    given. The model sees only as many of the last tokens as it has positions. Call ``model.eval()`` first.
    """
    for _ in range(count):
        with no_grad(), current_runtime().iteration():
            seen = input_ids[:, -model.transformer.wpe.weight.shape[0]:]
            scores = model.logits(seen).view(*seen.shape, -1)[:, -1, :]
            drawn = next_tokens(scores, temperature, top_k)
            input_ids = concat([input_ids, drawn], 1)
            del seen, scores, drawn
    return input_ids


def _residual_std(config: GPTConfig) -> float:
    """Return the initial std of layers that add to the residual path (section 2.3): INITIAL_STD / sqrt(their number).
    """
    root: float = (2 * config.n_layer)**0.5
    return INITIAL_STD / root


def _network(layers: int, width: int, heads: int, *, vocabulary: int = 50_257) -> GPT:
    return GPT(GPTConfig(layers, width, heads, vocab_size=vocabulary))


gpt2 = partial(_network, 12, 768, 12)
gpt2_medium = partial(_network, 24, 1024, 16)
gpt2_large = partial(_network, 36, 1280, 20)
gpt2_xl = partial(_network, 48, 1600, 25)


class Inputs(NamedTuple):
    """One batch on the device: the arguments of GPT, in their order."""

    input_ids: Tensor
    labels: Tensor


def synthetic_batch(runtime: Runtime, batch: int, text: Text | None = None, *, seed: int = 0) -> Inputs:
    """Return a random batch of sequences and their next tokens, uploaded by two calls; shapes only if simulated.
    The values depend on the seed only. Raises OutOfMemory."""
    text = text or CONTEXT
    shape = (batch, text.length)
    if not runtime.device.has_values:
        return Inputs(*(runtime.tensor(None, shape=shape, dtype=int64) for _ in range(2)))
    tokens = np.random.default_rng(seed).integers(text.vocabulary, size=(batch, text.length + 1))
    return Inputs(runtime.tensor(tokens[:, :-1]), runtime.tensor(tokens[:, 1:]))
