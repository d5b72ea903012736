"""Softmax cross-entropy, and its gradient.

The loss has the dtype of computation (Tools.wide) for all logits. The forward pass takes two launches: the residuals
and losses of all rows in one read, then the mean. The backward pass, too: the number of labels that count, then the
rows. A GPU cannot raise: a label that is no class makes the loss NaN, and its row of the gradient, too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.attention import row_place, softmax
from minidl.kernels.cuda.launch import Kernel, Launches, View, compute, integers
from minidl.kernels.cuda.rows import rows, shape_of_block
from minidl.kernels.cuda.tools import Tools


def mean_loss(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel, for one thread block: loss = sum(losses) / (labels not ignored); NaN if there are none."""
    cuda, (_, store), number = tools.cuda, tools.wide(dtype), tools.number(dtype)
    block_sum = tools.tile_sum(1, threads)

    def kernel(loss: Any, losses: Any, labels: Any, label_s: Any, ignored: Any, n: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        thread = cuda.threadIdx.x
        total, counted = number(0), number(0)
        for r in range(thread, n, threads):
            total += losses[r]
            if labels[r * label_s] != ignored:
                counted += number(1)
        total = block_sum(total, scratch)
        counted = block_sum(counted, scratch)
        if thread == 0:
            store(loss, 0, total / counted)
    return kernel


def gradient_factor(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel, for one thread block: factor = dloss / number of labels not ignored."""
    cuda, (load, _), number = tools.cuda, tools.wide(dtype), tools.number(dtype)
    block_sum = tools.tile_sum(1, threads)

    def kernel(factor: Any, dloss: Any, labels: Any, label_s: Any, ignored: Any, n: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        thread, counted = cuda.threadIdx.x, number(0)
        for r in range(thread, n, threads):
            if labels[r * label_s] != ignored:
                counted += number(1)
        counted = block_sum(counted, scratch)
        if thread == 0:
            factor[0] = load(dloss, 0) / counted
    return kernel


def rows_gradient(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel: dx = residual * factor; 0 in rows whose label is ignored, NaN where it is no class."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    place, nan = row_place(tools), number(np.nan)

    def kernel(dx: Any, residual: Any, factor: Any, labels: Any, label_s: Any, ignored: Any,
               width: Any, n1: Any, n2: Any, dx0: Any, dx1: Any, dx2: Any, dx_s: Any,
               p0: Any, p1: Any, p2: Any, p_s: Any) -> None:
        r, scale = np.int64(cuda.blockIdx.x), factor[0]
        dx_at, p_at = place(r, n1, n2, dx0, dx1, dx2), place(r, n1, n2, p0, p1, p2)
        label = np.int64(labels[r * label_s])
        valid = 0 <= label < width
        for i in range(cuda.threadIdx.x, width, threads):
            value = load(residual, p_at + i * p_s) * scale
            if not valid:
                value = nan
            if label == ignored:
                value = number(0)
            store(dx, dx_at + i * dx_s, value)
    return kernel


def _cross_entropy(builder: Launches, loss: View, residual: View, logits: View, labels: View, *,
                   ignore_index: int = -100) -> None:
    """Add launches: loss = -mean(log softmax(logits)[label]) over rows not ignored; residual = softmax - onehot(label).
    """
    dtype, (count, _) = logits.dtype.name, logits.shape
    losses = builder.scratch((count,), compute(logits.dtype))
    label = integers(labels.strides[0], ignore_index)
    operands, _, arguments = rows(builder, [residual, logits, logits], [])
    builder.launch(softmax, count, *operands, losses, labels, *label, *arguments, dtype=dtype, masked=False,
                   labelled=True, **shape_of_block(logits.shape[-1]))
    builder.launch(mean_loss, 1, loss, losses, labels, *label, *integers(count), dtype=loss.dtype.name)


def _cross_entropy_grad(builder: Launches, dx: View, dloss: View, residual: View, labels: View, *,
                        ignore_index: int = -100) -> None:
    """Add launches: dx = residual * dloss / (number of rows not ignored); 0 in ignored rows."""
    dtype, (count, width) = residual.dtype.name, residual.shape
    factor = builder.scratch((1,), compute(residual.dtype))
    label = integers(labels.strides[0], ignore_index)
    builder.launch(gradient_factor, 1, factor, dloss, labels, *label, *integers(count), dtype=dloss.dtype.name)
    operands, _, arguments = rows(builder, [dx, residual], [])
    builder.launch(rows_gradient, count, *operands, factor, labels, *label, *arguments, dtype=dtype,
                   threads=shape_of_block(width)["threads"])


def share_of_labels(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel: y = value * (number of labels not ignored in ``part``) / (number of them in all labels).

    y is 0 if ``part`` has no such label, and NaN if there is none at all. It runs in one thread block.
    """
    cuda, (load, store), number = tools.cuda, tools.wide(dtype), tools.number(dtype)
    block_sum = tools.tile_sum(1, threads)

    def kernel(y: Any, value: Any, part: Any, labels: Any, part_s: Any, label_s: Any, ignored: Any, few: Any,
               n: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        thread, counted, every = cuda.threadIdx.x, number(0), number(0)
        for r in range(thread, few, threads):
            if part[r * part_s] != ignored:
                counted += number(1)
        for r in range(thread, n, threads):
            if labels[r * label_s] != ignored:
                every += number(1)
        counted = block_sum(counted, scratch)
        every = block_sum(every, scratch)
        if thread == 0:
            share = counted / every  # NaN, not an error, if there is none
            if every > number(0) and counted == number(0):
                store(y, 0, number(0))  # for every value, NaN too
            else:
                store(y, 0, load(value, 0) * share)
    return kernel


def _label_share(builder: Launches, y: View, value: View, part: View, labels: View, *,
                 ignore_index: int = -100) -> None:
    """Add launches: y = value times the share of the labels not ignored that are in ``part``."""
    builder.launch(share_of_labels, 1, y, value, part, labels, *integers(
        part.strides[0], labels.strides[0], ignore_index, part.shape[0], labels.shape[0]), dtype=y.dtype.name)


KERNELS: dict[str, Kernel] = {
    "cross_entropy": Kernel(_cross_entropy), "cross_entropy_grad": Kernel(_cross_entropy_grad),
    "label_share": Kernel(_label_share),
}
