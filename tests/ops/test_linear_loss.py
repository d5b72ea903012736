"""The loss of a linear layer in chunks of rows: that of the whole logits, of which only a chunk is ever there."""

from functools import partial

import numpy as np
import pytest

from minidl import Runtime, no_grad
from minidl.errors import ShapeError, UserError
from minidl.meta import float64
from minidl.models.gpt import synthetic_batch
from minidl.models.llama import Llama, LlamaConfig
from minidl.models.text import Text
from minidl.nn.functional import linear_cross_entropy
from minidl.ops import cross_entropy, linear_
from minidl.optim import SGD

N, WIDTH, CLASSES = 37, 8, 11
RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((N, WIDTH)), RNG.standard_normal((CLASSES, WIDTH))
LABELS = RNG.integers(0, CLASSES, N)
LABELS[[3, 4, 5, 6, 7, 20, 36]] = -100


def whole(x, w, labels):
    return cross_entropy(linear_(x, w), labels)


def found(loss, *, labels=LABELS, dtype=float64, learn=(True, True), factor=2.5, **options):
    """The loss times a factor, and the gradients of both operands (None: not asked for)."""
    with Runtime("cpu:virtual", memory_budget="4MiB", poisoned=True, **options) as runtime:
        operands = [runtime.tensor(a, dtype=dtype) if dtype else runtime.tensor(a.astype(np.float32)) for a in (X, W)]
        for tensor, learns in zip(operands, learn, strict=True):
            tensor.requires_grad = learns
        value = loss(*operands, runtime.tensor(labels))
        if any(learn):
            (value * factor).backward()
        return value.item(), *(None if t.grad is None else t.grad.numpy() for t in operands)


@pytest.mark.parametrize("rows", [None, 1, 5, N, N + 1])
def test_values_and_gradients_are_those_of_whole_logits(rows):
    for one, other in zip(found(whole), found(partial(linear_cross_entropy, rows=rows)), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("learn", [(True, False), (False, True), (False, False)])
def test_only_gradients_that_are_wanted_are_computed(learn):
    for one, other in zip(found(whole, learn=learn), found(partial(linear_cross_entropy, rows=5), learn=learn),
                          strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(other, one, rtol=1e-13, atol=1e-15)


def test_without_gradients_there_is_no_graph():
    with Runtime("cpu:virtual", memory_budget="4MiB") as runtime, no_grad():
        x, w = (runtime.tensor(a.astype(np.float32)) for a in (X, W))
        x.requires_grad = w.requires_grad = True
        with runtime.iteration():
            assert not linear_cross_entropy(x, w, runtime.tensor(LABELS), rows=5).requires_grad
            assert not any("grad" in call.op for call in runtime.trace().calls)


def test_if_no_row_counts_the_loss_is_not_a_number_and_a_chunk_without_such_rows_adds_nothing():
    assert np.isnan(found(partial(linear_cross_entropy, rows=5), labels=np.full(N, -100))[0])
    labels = np.where(np.arange(N) < 10, -100, LABELS)
    for one, other in zip(found(whole, labels=labels), found(partial(linear_cross_entropy, rows=5), labels=labels),
                          strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-13, atol=1e-15)


def test_in_bfloat16_the_weights_gradient_is_as_near_as_that_of_whole_logits():
    def lowered_whole(x, w, labels):
        from minidl import nn
        return whole(nn.lowered(x), nn.lowered(w), labels)
    exact = found(whole)
    usual = found(lowered_whole, dtype=None, precision="bf16")
    chunks = found(partial(linear_cross_entropy, rows=2), dtype=None, precision="bf16")
    for right, one, other in zip(exact, usual, chunks, strict=True):
        assert np.linalg.norm(other - right) < 1.3 * np.linalg.norm(one - right)  # 1.6, if chunks add up in bfloat16


def test_other_shapes_are_refused():
    with Runtime("cpu:virtual", memory_budget="4MiB") as runtime:
        x, w = (runtime.tensor(a.astype(np.float32)) for a in (X, W))
        with pytest.raises(ShapeError, match=r"input \[N, width\] and target \[N\], not \[37, 8\] and \[36\]"):
            linear_cross_entropy(x, w, runtime.tensor(LABELS[1:]))
        with pytest.raises(UserError, match="at least 1 row, not 0"):
            linear_cross_entropy(x, w, runtime.tensor(LABELS), rows=0)


def test_the_logits_of_all_tokens_are_never_there(monkeypatch):
    words, tokens = 4000, 2 * 512
    config = LlamaConfig(1, 16, 16, 2, 1, vocab_size=words, tie_word_embeddings=True)
    seen = []
    with Runtime("sim:p100", policy="none") as runtime:
        model = Llama(config)
        optimizer = SGD(model.parameters(), lr=0.1)
        run = runtime.executor.run

        def watched(*arguments):
            results = run(*arguments)
            seen.append(sum(s.meta.shape[0] for s in {id(s.base): s.base for s in runtime.memory.live()}.values()
                            if s.meta.shape[1:] == (words,) and s.block is not None))
            return results

        def step():
            optimizer.zero_grad()
            model(*synthetic_batch(runtime, 2, Text(512, 512, words))).backward()
            optimizer.step()
        needs = runtime.dry_run(step)
        monkeypatch.setattr(runtime.executor, "run", watched)
        with runtime.iteration():
            step()
    assert max(seen) == tokens // 8  # the residuals take the bytes of the logits
    assert needs.unmanaged_peak_bytes < 4 * tokens * words  # less than the bytes of all logits


def test_a_batch_in_slices_gives_the_same_loss():
    config = LlamaConfig(1, 16, 16, 2, 1, vocab_size=40)
    losses = []
    for slices in (1, 2):
        with Runtime("cpu:virtual", memory_budget="16MiB", slices=slices) as runtime:
            model = Llama(config)
            with runtime.iteration():
                value = model(*synthetic_batch(runtime, 4, Text(100, 100, 40)))
                value.backward()
                losses.append((value.item(), model.model.embed_tokens.weight.grad.numpy()))
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
    np.testing.assert_allclose(losses[0][1], losses[1][1], atol=1e-6)
