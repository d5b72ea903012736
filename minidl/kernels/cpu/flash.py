"""Scaled dot-product attention and its gradients by tiles: the matrix of scores is never stored whole.

  forward, for ROWS queries of one head, over the keys in tiles of COLUMNS:
      s = q k' + mask;  m' = max(m, max s);  o = exp(m - m') o + exp(s - m') v;  sum likewise;  y = o / sum
  backward, for one head, over tiles of keys and queries:
      p = exp(s - lse);  dv += p' dy;  ds = p (dy v' - sum(dy y));  dq += ds k;  dk += ds' q
      in 16-bit floats sum(dy y) is the sum of p (dy v'), as y is rounded

The forward pass is the online softmax of Milakov & Gimelshein 2018; both together are FlashAttention (Dao, Fu, Ermon,
Rudra & Re 2022, algorithms 1 and 4). Dropout uses the random numbers of the elementwise kernel on the whole [N, heads,
L, S].

Operands in 16-bit floats are converted a few sequences at a time. Products and sums are in float32 (float64 for
float64), over cuts that follow from shapes alone. A head's gradients are one task, so bits do not depend on threads.
"""

from collections.abc import Iterator
from functools import partial
from math import log
from typing import Any

import numba
import numpy as np

from minidl.kernels import scalar
from minidl.kernels.cpu.blocks import Array, pieces, room, settle, source
from minidl.kernels.cpu.compiled import compiled
from minidl.kernels.cpu.flat import computed
from minidl.kernels.cpu.matrices import edges, pack
from minidl.kernels.cpu.product import multiply
from minidl.kernels.cpu.sums import largest, total, total_product
from minidl.kernels.cpu.vectors import lanes
from minidl.kernels.random import fold_seed, random_bits

parallel = partial(compiled, parallel=True)
ROWS, COLUMNS = 128, 192  # of a tile of scores: about 250 KB with its operands; whole panels of products
SERIAL = 1 << 15  # below this number of scores one core is faster than several


@compiled
def _add_mask(line: Array, mask: Array, at: int, causal: bool, hidden: int) -> None:
    """Add the mask from element ``at`` on to a line of scores; if ``causal``, set scores from ``hidden`` on to -inf."""
    if mask.size:
        masked = mask[at:at + line.size]
        for j in range(line.size):
            line[j] += masked[j]
    if causal:
        for j in range(max(0, hidden), line.size):
            line[j] = -np.inf


@compiled
def _dropout_row(line: Array, key: int, first: int, threshold: int, keep_scale: Any) -> None:
    """Apply dropout to a row of scores, of which the first has number ``first`` (mod 2^32) among all scores.
    key: the seed, folded to 32 bits; threshold: 2^32 p; keep_scale: 1 / (1 - p)."""
    for j in range(line.size):
        line[j] = scalar.dropout(line[j], random_bits(np.uint32(key), np.uint32(first + j)), threshold, keep_scale)


@compiled
def _online_softmax_row(line: Array, top: Any, out: Array) -> tuple[Any, Any, float]:
    """line = exp(line - largest so far), out *= exp(top - largest); return the largest, this factor, the line's sum."""
    best = max(top, largest(line))
    # If all scores so far are -inf, everything is exp(-inf) = 0, not exp(-inf + inf).
    shift = best if best > -np.inf else line.dtype.type(0)
    for j in range(line.size):
        line[j] = scalar.exp(line[j] - shift)
    fade = scalar.exp(line.dtype.type(top - shift))
    if fade != 1:
        for j in range(out.size):
            out[j] *= fade
    return best, fade, total(line)


@compiled
def _score_gradients(p: Array, ds: Array, lse: Any, level: Any, key: int, first: int, threshold: int,
                     keep_scale: Any) -> None:
    """Turn a row p of scores into probabilities after dropout, and the row ds of dy v' into the scores' gradient.
    lse: log(sum(exp(scores))) of the row; level: its sum(dy y); others: as in ``_dropout_row``."""
    for j in range(p.size):
        p[j] = scalar.exp(p[j] - lse)
    if threshold:
        for j in range(p.size):
            bits = random_bits(np.uint32(key), np.uint32(first + j))
            ds[j] = p[j] * (scalar.dropout(ds[j], bits, threshold, keep_scale) - level)
            p[j] = scalar.dropout(p[j], bits, threshold, keep_scale)
    else:
        for j in range(p.size):
            ds[j] = p[j] * (ds[j] - level)


@compiled
def _level(p: Array, slope: Array, lse: Any, key: int, first: int, threshold: int, keep_scale: Any) -> float:
    """Return the part of a row's sum(dy y) that a tile adds: scores p, slopes dy v'; others as in ``_score_gradients``.
    """
    found = 0.0
    for j in range(p.size):
        value = scalar.exp(p[j] - lse)
        if threshold:
            value = scalar.dropout(value, random_bits(np.uint32(key), np.uint32(first + j)), threshold, keep_scale)
        found += value * slope[j]
    return found


@compiled
def _scaled(to: Array, origin: Array, at: int, step: int, rows: int, depth: int, scale: Any) -> None:
    """to [rows, depth] = origin times ``scale``; consecutive rows of origin are ``step`` elements apart."""
    for i in range(rows):
        line, values = to[i * depth:(i + 1) * depth], origin[at + i * step:at + i * step + depth]
        for j in range(depth):
            line[j] = values[j] * scale


@parallel
def _attention(y: Array, lse: Array, q: Array, k: Array, v: Array, mask: Array, mask_n: int, mask_h: int, mask_l: int,
               count: int, length: int, keys: int, heads: int, depth: int, causal: bool, key: int, threshold: int,
               keep_scale: float, first: int, workers: int) -> None:
    """Run attention on flat arrays.

    y, q: [count, length, heads, depth], k, v: [count, keys, heads, depth], lse: [count, heads, length]. mask: empty, or
    element (n, h, i, j) at n mask_n + h mask_h + i mask_l + j. first: the number, in the whole batch, of the first
    sequence of this slice, from which the random numbers of dropout are counted; key, threshold, keep_scale: as in
    ``_dropout_row``. workers: how many threads share the tasks.
    """
    kind = q.dtype.type
    width, down = heads * depth, (length + ROWS - 1) // ROWS
    scale, keep = kind(1 / np.sqrt(depth)), kind(keep_scale)
    panel = 3 * lanes(q)
    for worker in numba.prange(workers):
        inside = edges(q)
        query, out = np.empty(ROWS * depth, q.dtype), np.empty(ROWS * depth, q.dtype)
        scores = np.empty(ROWS * COLUMNS, q.dtype)
        k_panels = np.empty((COLUMNS + panel) * depth, q.dtype)
        v_panels = np.empty(COLUMNS * (depth + panel), q.dtype)
        tops, sums = np.empty(ROWS, q.dtype), np.empty(ROWS, np.float64)
        for task in range(worker, count * heads * down, workers):
            n, h, start = task // (heads * down), task // down % heads, task % down * ROWS
            rows = min(ROWS, length - start)
            row = (n * heads + h) * length + start
            at = (n * length + start) * width + h * depth
            _scaled(query, q, at, width, rows, depth, scale)
            out[:] = 0
            tops[:] = -np.inf
            sums[:] = 0
            for left in range(0, min(keys, start + rows) if causal else keys, COLUMNS):
                columns = min(COLUMNS, keys - left)
                origin = (n * keys + left) * width + h * depth
                pack(k_panels, k, origin, 1, width, depth, columns, inside)
                multiply(scores, 0, COLUMNS, query, 0, depth, 1, k_panels, 0, rows, columns, depth, False)
                for i in range(rows):
                    line = scores[i * COLUMNS:i * COLUMNS + columns]
                    _add_mask(line, mask, n * mask_n + h * mask_h + (start + i) * mask_l + left, causal,
                              start + i + 1 - left)
                    tops[i], fade, more = _online_softmax_row(line, tops[i], out[i * depth:(i + 1) * depth])
                    sums[i] = sums[i] * fade + more
                    if threshold:
                        _dropout_row(line, key, ((first * heads) * length + row + i) * keys + left, threshold, keep)
                pack(v_panels, v, origin, width, 1, columns, depth, inside)
                multiply(out, 0, depth, scores, 0, COLUMNS, 1, v_panels, 0, rows, depth, columns, True)
            for i in range(rows):
                _scaled(y[at + i * width:], out, i * depth, 0, 1, depth, kind(1 / sums[i]))
                lse[row + i] = tops[i] + kind(log(sums[i]))


@parallel
def _attention_grad(dq: Array, dk: Array, dv: Array, dy: Array, q: Array, k: Array, v: Array, y: Array, lse: Array,
                    mask: Array, mask_n: int, mask_h: int, mask_l: int, count: int, length: int, keys: int,
                    heads: int, depth: int, causal: bool, key: int, threshold: int, keep_scale: float, first: int,
                    workers: int, rounded: bool) -> None:
    """Compute attention's gradients on flat arrays, as in ``_attention``; dq has q's layout, dk and dv that of k.

    dq, dk and dv need no initial values: their first terms are stored, not added. rounded: y has been rounded to 16
    bits, so sum(dy y) is computed from the scores again. Where one probability is near 1, the rounding of y would be
    a tenth of the gradient.
    """
    kind = q.dtype.type
    width = heads * depth
    scale, keep = kind(1 / np.sqrt(depth)), kind(keep_scale)
    panel = 3 * lanes(q)
    for worker in numba.prange(workers):
        inside = edges(q)
        query = np.empty(ROWS * depth, q.dtype)
        p, ds = np.empty(ROWS * COLUMNS, q.dtype), np.empty(ROWS * COLUMNS, q.dtype)
        k_across = np.empty((COLUMNS + panel) * depth, q.dtype)
        v_across = np.empty((COLUMNS + panel) * depth, q.dtype)
        k_panels = np.empty(COLUMNS * (depth + panel), q.dtype)
        row_panels = np.empty(ROWS * (depth + panel), q.dtype)  # dy and q
        levels = np.empty(length, q.dtype)
        for task in range(worker, count * heads, workers):
            n, h = task // heads, task % heads
            base = n * length * width + h * depth
            for i in range(length):
                at = base + i * width
                levels[i] = 0 if rounded else total_product(dy[at:at + depth], y[at:at + depth])
            tiles = (keys + COLUMNS - 1) // COLUMNS
            for turn in range(0 if rounded else tiles, 2 * tiles):  # all tiles for the levels, then all for gradients
                left, for_levels = turn % tiles * COLUMNS, turn < tiles
                columns = min(COLUMNS, keys - left)
                to = (n * keys + left) * width + h * depth
                pack(k_panels, k, to, width, 1, columns, depth, inside)
                pack(k_across, k, to, 1, width, depth, columns, inside)
                pack(v_across, v, to, 1, width, depth, columns, inside)
                begin = left // ROWS * ROWS if causal else 0
                for start in range(begin, length, ROWS):
                    rows, at, row = min(ROWS, length - start), base + start * width, task * length + start
                    _scaled(query, q, at, width, rows, depth, scale)
                    multiply(p, 0, COLUMNS, query, 0, depth, 1, k_across, 0, rows, columns, depth, False)
                    multiply(ds, 0, COLUMNS, dy, at, width, 1, v_across, 0, rows, columns, depth, False)
                    for i in range(rows):
                        line, slope = p[i * COLUMNS:i * COLUMNS + columns], ds[i * COLUMNS:i * COLUMNS + columns]
                        _add_mask(line, mask, n * mask_n + h * mask_h + (start + i) * mask_l + left, causal,
                                  start + i + 1 - left)
                        number = ((first * heads) * length + row + i) * keys + left
                        if for_levels:
                            levels[start + i] += _level(line, slope, lse[row + i], key, number, threshold, keep)
                        else:
                            _score_gradients(line, slope, lse[row + i], levels[start + i], key, number, threshold, keep)
                    if for_levels:
                        continue
                    keep_sum = start > begin
                    pack(row_panels, dy, at, width, 1, rows, depth, inside)
                    multiply(dv, to, width, p, 0, 1, COLUMNS, row_panels, 0, columns, depth, rows, keep_sum)
                    pack(row_panels, query, 0, depth, 1, rows, depth, inside)
                    multiply(dk, to, width, ds, 0, 1, COLUMNS, row_panels, 0, columns, depth, rows, keep_sum)
                    multiply(dq, at, width, ds, 0, COLUMNS, 1, k_panels, 0, rows, depth, columns, left > 0)
            for i in range(length):
                line = dq[base + i * width:base + i * width + depth]
                for j in range(depth):
                    line[j] *= scale


Mask = tuple[Array, int, int, int]  # (mask, mask_n, mask_h, mask_l) of _attention


def _mask(mask: Array | None, sequences: slice, keys: int, dtype: np.dtype[Any]) -> Mask:
    """Return (mask, mask_n, mask_h, mask_l), the arguments of ``_attention``, for some sequences of a mask."""
    if mask is None:
        return np.empty(0, dtype), 0, 0, 0
    wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if wide.shape[0] > 1:
        wide = wide[sequences]
    if wide.shape[3] != keys:
        wide = np.repeat(wide, keys, 3)
    values = np.ascontiguousarray(source(wide), dtype)
    n, h, i = (0 if extent == 1 else stride // values.itemsize
               for extent, stride in zip(values.shape[:3], values.strides[:3], strict=True))
    return values.reshape(-1), n, h, i


def _parts(mask: Array | None, keys: int, arrays: tuple[Array, ...], heads: int, causal: bool, p: float,
           seed: int, before: int) -> Iterator[tuple[slice, tuple[Any, ...]]]:
    """Yield (slice of sequences to compute at once, the kernel's arguments after its arrays).
    before: the number, in the whole batch, of the first of these sequences, which decides their random numbers."""
    q = arrays[0]
    length, width = q.shape[1:]
    for index in pieces(q.shape, *arrays, whole=2):
        sequences = index[0]
        first, stop, _ = sequences.indices(q.shape[0])
        workers = 1 if (stop - first) * heads * length * keys < SERIAL else numba.get_num_threads()
        yield sequences, (*_mask(mask, sequences, keys, computed(q.dtype)), stop - first, length, keys, heads,
                          width // heads, causal, fold_seed(seed), int(p * 2.0**32), 1.0 / (1.0 - p), before + first,
                          workers)


def scaled_dot_product_attention(y: Array, lse: Array, q: Array, k: Array, v: Array, mask: Array | None = None, *,
                                 heads: int, causal: bool, p: float, seed: int, first: int = 0) -> None:
    """y = dropout(softmax(q k' / sqrt(D) + mask)) v for each head.  q, y: [N, L, heads D], k, v: [N, S, heads D].

    lse: [N, heads, L], the logarithm of each row's sum of exp(score). A row whose scores are all masked is NaN. first:
    the number, in the whole batch, of the first sequence, from which the random numbers of dropout are counted.
    """
    for part, arguments in _parts(mask, k.shape[1], (q, k, v, y, lse), heads, causal, p, seed, first):
        outputs = y[part], lse[part]
        results = [room(output) for output in outputs]
        _attention(*[a.reshape(-1) for a in (*results, *(source(a[part]) for a in (q, k, v)))], *arguments)
        for output, result in zip(outputs, results, strict=True):
            settle(output, result)


def scaled_dot_product_attention_grad(dq: Array, dk: Array, dv: Array, dy: Array, q: Array, k: Array, v: Array,
                                      y: Array, lse: Array, mask: Array | None = None, *, heads: int, causal: bool,
                                      p: float, seed: int, first: int = 0) -> None:
    """dq, dk, dv = the gradients of ``scaled_dot_product_attention``; probabilities are recomputed from lse."""
    for part, arguments in _parts(mask, k.shape[1], (q, k, v, dy, y, lse, dq, dk, dv), heads, causal, p, seed, first):
        outputs = dq[part], dk[part], dv[part]
        results = [room(output) for output in outputs]
        inputs = [source(a[part]) for a in (dy, q, k, v, y, lse)]
        _attention_grad(*[a.reshape(-1) for a in (*results, *inputs)], *arguments, y.dtype != computed(y.dtype))
        for output, result in zip(outputs, results, strict=True):
            settle(output, result)
