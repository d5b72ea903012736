"""Softmax over the last dimension, with an additive mask, and its gradient; one thread block per row.

Each element is read once and written once; rows too long for registers (more than 4,096 elements) are read twice, the
first time for the largest element and the sum together. Dense rows of whole groups take the kernels of
``fast/softmax_groups``, several rows in a thread block.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.fast import is_on
from minidl.kernels.cuda.fast.element_groups import group_width
from minidl.kernels.cuda.fast.layernorm_groups import shape_of
from minidl.kernels.cuda.fast.softmax_groups import softmax_gradient_row_groups, softmax_row_groups
from minidl.kernels.cuda.launch import Kernel, Launches, View, blocks_of, integers
from minidl.kernels.cuda.layout import merged, padded
from minidl.kernels.cuda.rows import rows, shape_of_block
from minidl.kernels.cuda.tools import Tools


def row_place(tools: Tools) -> Callable[..., Any]:
    """Return ``place(r, n1, n2, s0, s1, s2)``: the offset of row r for three leading dimensions with these strides."""
    def place(r: Any, n1: Any, n2: Any, s0: Any, s1: Any, s2: Any) -> Any:
        return r // n2 // n1 * s0 + r // n2 % n1 * s1 + r % n2 * s2
    return tools.device(place)


def softmax(tools: Tools, *, dtype: str, masked: bool, labelled: bool, items: int,
            threads: int) -> Callable[..., None]:
    """Return a kernel: y = exp(x + mask - largest) / sum, row by row.

    If ``labelled`` (for cross-entropy), y is less by 1 at a row's label, and losses[r] = log(sum of exp(x - x[label])).
    If the label is ignored the loss is 0, if it is no class NaN; in both cases y is the plain softmax. items: elements
    of a row that a thread holds in registers; 0: none, a row is read twice.
    """
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    place, exp, log = row_place(tools), tools.scalar(dtype).exp, tools.scalar(dtype).log
    block_max, block_sum = tools.block_max(threads), tools.tile_sum(1, threads)
    held, lowest, nan = max(items, 1), number(-np.inf), number(np.nan)

    def kernel(y: Any, x: Any, mask: Any, losses: Any, labels: Any, label_s: Any, ignored: Any,
               width: Any, n1: Any, n2: Any, y0: Any, y1: Any, y2: Any, y_s: Any,
               x0: Any, x1: Any, x2: Any, x_s: Any, m0: Any, m1: Any, m2: Any, m_s: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        values = cuda.local.array(held, number)
        r, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        x_at, y_at = place(r, n1, n2, x0, x1, x2), place(r, n1, n2, y0, y1, y2)
        m_at = place(r, n1, n2, m0, m1, m2)
        top, total, loss = lowest, number(0), number(0)
        counts, valid, chosen = False, False, np.int64(-1)
        if labelled:  # read before the row is written, perhaps over x
            label = np.int64(labels[r * label_s])
            counts, valid = label != ignored, 0 <= label < width
            if valid:
                loss = load(x, x_at + label * x_s)
                if counts:
                    chosen = label
        if items > 0:
            for k in range(held):
                i = thread + k * threads
                values[k] = lowest
                if i < width:
                    values[k] = load(x, x_at + i * x_s)
                    if masked:
                        values[k] += load(mask, m_at + i * m_s)
                    if not values[k] <= top:
                        top = values[k]
            top = block_max(top, scratch)
            for k in range(held):
                if thread + k * threads < width:
                    values[k] = exp(values[k] - top)
                    total += values[k]
            total = block_sum(total, scratch)
            for k in range(held):
                i = thread + k * threads
                if i < width:
                    value = values[k] / total
                    if i == chosen:
                        value -= number(1)
                    store(y, y_at + i * y_s, value)
        else:
            for i in range(thread, width, threads):
                value = load(x, x_at + i * x_s)
                if masked:
                    value += load(mask, m_at + i * m_s)
                if not value <= top:  # the sum so far was relative to a smaller one
                    total = total * exp(top - value) + number(1)
                    top = value
                elif value != lowest:
                    total += exp(value - top)
            mine, top = top, block_max(top, scratch)
            if mine != top:
                total *= exp(mine - top)
            total = block_sum(total, scratch)
            for i in range(thread, width, threads):
                value = load(x, x_at + i * x_s)
                if masked:
                    value += load(mask, m_at + i * m_s)
                value = exp(value - top) / total
                if i == chosen:
                    value -= number(1)
                store(y, y_at + i * y_s, value)
        if labelled and thread == 0:
            if not valid:
                loss = nan
            losses[r] = log(total) + (top - loss) if counts else number(0)
    return kernel


def softmax_grad(tools: Tools, *, dtype: str, items: int, threads: int) -> Callable[..., None]:
    """Return a kernel: dx = (dy - sum(dy * y)) * y, row by row. items: as in ``softmax``."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    place, block_sum, held = row_place(tools), tools.tile_sum(1, threads), max(items, 1)

    def kernel(dx: Any, dy: Any, y: Any, width: Any, n1: Any, n2: Any, dx0: Any, dx1: Any, dx2: Any, dx_s: Any,
               dy0: Any, dy1: Any, dy2: Any, dy_s: Any, y0: Any, y1: Any, y2: Any, y_s: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        y_values, dy_values = cuda.local.array(held, number), cuda.local.array(held, number)
        r, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        y_at, dy_at = place(r, n1, n2, y0, y1, y2), place(r, n1, n2, dy0, dy1, dy2)
        dx_at = place(r, n1, n2, dx0, dx1, dx2)
        level = number(0)
        if items > 0:
            for k in range(held):
                i = thread + k * threads
                if i < width:
                    y_values[k], dy_values[k] = load(y, y_at + i * y_s), load(dy, dy_at + i * dy_s)
                    level += y_values[k] * dy_values[k]
            level = block_sum(level, scratch)
            for k in range(held):
                i = thread + k * threads
                if i < width:
                    store(dx, dx_at + i * dx_s, (dy_values[k] - level) * y_values[k])
        else:
            for i in range(thread, width, threads):
                level += load(y, y_at + i * y_s) * load(dy, dy_at + i * dy_s)
            level = block_sum(level, scratch)
            for i in range(thread, width, threads):
                store(dx, dx_at + i * dx_s, (load(dy, dy_at + i * dy_s) - level) * load(y, y_at + i * y_s))
    return kernel


def _softmax(builder: Launches, y: View, x: View, mask: View | None = None) -> None:
    """Add launches to ``builder``: y = softmax(x + mask) over the last dimension."""
    if y.size and not (is_on("softmax") and _softmax_of_groups(builder, y, x, mask)):
        wide = [y, x, x if mask is None else mask.expand(x.shape)]
        operands, count, arguments = rows(builder, wide, [])
        builder.launch(softmax, count, *operands, x, x, *integers(0, 0), *arguments, dtype=x.dtype.name,
                       masked=mask is not None, labelled=False, **shape_of_block(x.shape[-1]))


def _softmax_of_groups(builder: Launches, y: View, x: View, mask: View | None) -> bool:
    """Launch the grouped kernel and return True, if rows and mask are aligned groups of 16 bytes; else return False."""
    held, beside = shape_of(y, x), (1, 1, 0, 0, 0)
    if held is None:
        return False
    width, length, count = held["width"], x.shape[-1], x.size // x.shape[-1]
    if mask is not None:
        mask = mask.expand(x.shape)
        dims = merged(x.shape[:-1], x.strides[:-1], mask.strides[:-1])
        steps = [step for _, _, step in dims]
        if mask.strides[-1] != 1 or len(dims) > 3 or not group_width(length, y, x, mask) or any(
                step % width for step in steps):
            return False
        (_, _, m0), (n1, _, m1), (n2, _, m2) = padded(dims, 3, 2)
        beside = (n1, n2, m0 // width, m1 // width, m2 // width)
    builder.launch(softmax_row_groups, blocks_of(count, held["threads"] // held["lanes"]), y, x,
                   x if mask is None else mask, *integers(length // width, count, *beside), dtype=x.dtype.name,
                   masked=mask is not None, whole=held["lanes"] * held["held"] * width == length,
                   narrow=count < 1 << 31, **held)
    return True


def _softmax_grad(builder: Launches, dx: View, dy: View, y: View) -> None:
    """Add launches: dx = y * (dy - sum(dy * y)), row by row: the gradient of softmax."""
    held = shape_of(dx, dy, y) if y.size and is_on("softmax") else None
    if held is not None:
        length = y.shape[-1]
        builder.launch(softmax_gradient_row_groups, blocks_of(y.size // length, held["threads"] // held["lanes"]), dx,
                       dy, y, *integers(length // held["width"], y.size // length), dtype=y.dtype.name, **held)
    elif y.size:
        operands, count, arguments = rows(builder, [dx, dy, y], [])
        builder.launch(softmax_grad, count, *operands, *arguments, dtype=y.dtype.name, **shape_of_block(y.shape[-1]))


KERNELS: dict[str, Kernel] = {"softmax": Kernel(_softmax), "softmax_grad": Kernel(_softmax_grad)}
