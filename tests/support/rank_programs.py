"""Small trainings for ranks, each of which must have the bits of slices on one device; and groups of ranks in threads.

As a program, ``rank_programs.py NETWORK POLICY SHARE FILE [DIVIDE]``, it is one rank of MPI and writes what came out.
"""

import pickle
import sys
from functools import partial
from threading import Thread
from time import monotonic
from typing import NamedTuple

import numpy as np
from tiny_gpt import TEXT, TINY

from minidl import Runtime, models, nn, optim
from minidl.models import bert, gpt
from minidl.models.text import Text
from minidl.ops import reshape
from minidl.ops.loss import cross_entropy
from minidl.ranks import mpi, threads

BATCHES = (10, 10, 10, 10, 10, 7)  # the last one of an epoch is smaller, and no rank has as much as another
BERT_TEXT = Text(length=16, predictions=3, vocabulary=40)
WORDS, IGNORED = 30, -100


class Outcome(NamedTuple):
    """Of a training: losses, and the bits of parameters, buffers and optimizer states by name."""

    losses: list[float]
    bits: dict[str, bytes]


class Tagger(nn.Module):
    """An LSTM that labels each word of sentences of different lengths."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 12)
        self.cells = nn.LSTM(12, 16, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 5)

    def forward(self, words):
        found, _ = self.cells(self.words(words))
        return self.head(self.drop(found))


def _digits(runtime, model, batch, step):
    rng = np.random.default_rng([1, step])
    x, y = rng.standard_normal((batch, 3, 32, 32)).astype("float32"), rng.integers(0, 10, batch)
    return cross_entropy(model(runtime.tensor(x)), runtime.tensor(y))


def _masks(runtime, model, batch, step):
    rng = np.random.default_rng([2, step])
    x, y = rng.standard_normal((batch, 3, 32, 32)).astype("float32"), rng.integers(0, 2, (batch, 32, 32))
    return models.find("unet-small").loss(model, runtime.tensor(x), runtime.tensor(y))


def _sentences(runtime, model, batch, step):
    """Sentences as long as the longest of their batch; the words behind the end of a shorter one have no label."""
    rng = np.random.default_rng([3, step])
    lengths = rng.integers(1, 7 + step % 2, batch)
    inside = np.arange(lengths.max()) < lengths[:, None]
    words = rng.integers(0, WORDS, inside.shape)
    labels = np.where(inside, words % 5, IGNORED)
    found = model(runtime.tensor(words))
    return cross_entropy(reshape(found, (-1, 5)), reshape(runtime.tensor(labels), (-1,)), ignore_index=IGNORED)


def _bert(runtime, model, batch, step):
    return model(*bert.synthetic_batch(runtime, batch, BERT_TEXT))


def _gpt(runtime, model, batch, step):
    return model(*gpt.synthetic_batch(runtime, batch, TEXT))


_momentum = partial(optim.SGD, lr=0.05, momentum=0.9)
_adamw = partial(optim.AdamW, lr=0.003, weight_decay=0.01)
NETWORKS = {
    "resnet20": (lambda: models.create("resnet20", num_classes=10), _digits, _momentum),
    "bert-tiny": (lambda: bert.BertForPreTraining(
        bert.BertConfig(2, 32, 4, vocab_size=40, max_position_embeddings=16)), _bert, _adamw),
    "gpt2-tiny": (lambda: gpt.GPT(TINY), _gpt, _adamw),
    "unet-small": (lambda: models.create("unet-small"), _masks, _adamw),
    "lstm": (Tagger, _sentences, _momentum),
}


def train(name, *, slices=1, ranks=None, policy="none", share=1.0, device="cpu", batches=BATCHES, budget=0,
          host=1 << 30):
    """Train with clipped gradients; ``share``: the budget, of what a step of the largest rank needs unmanaged.
    budget: in bytes, in place of a share. host: bytes of host memory."""
    make, loss, optimizer_of = NETWORKS[name]
    budget = budget or (1 << 30 if share == 1.0 and policy == "none"
                        else _budget(name, slices, ranks, share, batches[0]))
    with Runtime(device, memory_budget=budget, host_memory=host, policy=policy, slices=slices, ranks=ranks,
                 seed=11) as runtime:
        model = make()
        optimizer = optimizer_of(model.parameters())
        losses = []
        for step, batch in enumerate(batches):
            with runtime.iteration():
                optimizer.zero_grad()
                value = loss(runtime, model, batch, step)
                value.backward()
                optim.clip_global_norm(model.parameters(), 1.0)
                optimizer.step()
                losses.append(value.item())
                del value
        state = {key: array.tobytes() for key, array in model.state_dict().items()}
        return Outcome(losses, state | {f"optimizer.{key}": x.numpy().tobytes()
                                        for key, x in optimizer.named_states().items()})


def _budget(name, slices, ranks, share, batch):
    make, loss, optimizer_of = NETWORKS[name]
    with Runtime("cpu", memory_budget=1 << 30, policy="none", slices=slices, ranks=ranks, seed=11) as runtime:
        model = make()
        optimizer = optimizer_of(model.parameters())

        def step(number):
            optimizer.zero_grad()
            loss(runtime, model, batch, number).backward()
            optimizer.step()
        demands = [runtime.dry_run(partial(step, number)) for number in (0, 1)]  # sentences of the second are longer
    budget = max(int(share * demands[0].unmanaged_peak_bytes), *[demand.largest_op_bytes for demand in demands])
    return budget if ranks is None else max(ranks.agree(budget))  # ranks follow the smallest, and slices differ


def together(count, work, divide="nothing"):
    """The results of ``work(ranks)`` on each of several ranks, each in a thread. Raises the first rank's error."""
    results, errors = [None] * count, []

    def go(ranks):
        try:
            results[ranks.rank] = work(ranks)
        except BaseException as error:
            errors.append(error)
            ranks.fail()
    workers = [Thread(target=go, args=(ranks,)) for ranks in threads(count, divide=divide)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return results


def outcomes(count, work, made=lambda ranks: Runtime("cpu", memory_budget=1 << 22, ranks=ranks)):
    """Return the error of each of several ranks in threads, in rank order; None for a rank without an error.
    work: called with the rank's runtime and number. made: makes the runtime of a rank."""
    raised = [None] * count

    def go(ranks):
        try:
            with made(ranks) as runtime:
                work(runtime, ranks.rank)
        except Exception as error:
            raised[ranks.rank] = error
            ranks.fail()
    workers = [Thread(target=go, args=(ranks,), daemon=True) for ranks in threads(count, patience_s=900.0)]
    ends = monotonic() + 600.0
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, ends - monotonic()))
    assert not any(worker.is_alive() for worker in workers), "a rank waits for another one"
    return raised


if __name__ == "__main__":
    mine = mpi(divide=sys.argv[5] if len(sys.argv) > 5 else "nothing")
    outcome = train(sys.argv[1], ranks=mine, policy=sys.argv[2], share=float(sys.argv[3]))
    with open(f"{sys.argv[4]}.{mine.rank}", "wb") as file:
        pickle.dump(tuple(outcome), file)
