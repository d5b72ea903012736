"""Functions whose gradients are checked, by operation, at block-edge sizes; and views that their inputs may be.

Inputs keep a distance from kinks that is larger than any finite-difference step, and from large derivatives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.support.kernel_cases import OPS
from minidl import current_runtime, ops
from minidl import meta as metas
from minidl.dispatch import apply
from minidl.ops.embedding import add_rows
from minidl.tensor import Tensor

B = 4  # elements in a block of the kernels, as the test sets it
EDGES = (1, 2, B - 1, B, B + 1, 2 * B + 1)

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal(rng, shape):
    return rng.standard_normal(shape)


def positive(rng, shape):
    """In [1, 2], where logarithms, roots and quotients have small third derivatives."""
    return rng.uniform(1.0, 2.0, shape)


def distinct(rng, shape):
    """Values at least 0.5 apart and at least 0.25 from zero, so that no step crosses a kink."""
    count = int(np.prod(shape))
    return (rng.permutation(count).reshape(shape) - count // 2 + 0.5) / 2


def quarters(rng, shape):
    """Values a quarter away from integers."""
    return rng.integers(-3, 3, shape) + rng.uniform(0.25, 0.75, shape)


@dataclass(frozen=True)
class Case:
    """A function of tensors of these shapes, differentiated with respect to all of them."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    draw: Draw = normal


def constant(values, dtype=None) -> Tensor:
    return current_runtime().tensor(np.asarray(values, dtype))


def halves(rng, shape):
    """Multiples of 1/2: two of them, one shifted by 1/4, are never close to each other."""
    return np.round(2 * rng.standard_normal(shape)) / 2


def unary(function, draw=normal):
    shapes = [(), *((n,) for n in EDGES), *((2, n) for n in EDGES), (3, 2, 5)]
    return [Case(function, (shape,), draw) for shape in shapes]


def binary(function, draw=normal):
    same = [Case(function, ((2, n), (2, n)), draw) for n in EDGES]
    spread = [Case(function, shapes, draw) for n in EDGES for shapes in
              [((2, n), (n,)), ((n,), (2, n)), ((2, 1), (1, n)), ((n, 1), (3, 1, n)), ((), (n,)), ((n,), ())]]
    return same + spread


def product(m, k, n, a_lead=(), b_lead=()):
    return [Case(partial(apply, OPS["matmul"], transpose_a=ta, transpose_b=tb),
                 ((*a_lead, *((k, m) if ta else (m, k))), (*b_lead, *((n, k) if tb else (k, n)))))
            for ta in (False, True) for tb in (False, True)]


def convolution(n=2, c=2, k=3, h=5, w=5, kernel=(3, 3), bias=True, **attrs):
    shapes = ((n, c * attrs.get("groups", 1), h, w), (k, c, *kernel), (k,))
    return Case(partial(ops.conv2d, **attrs), shapes if bias else shapes[:2])


def rectified(n=2, c=2, k=3, h=5, w=5, kernel=(3, 3), bias=True, **attrs):
    """A convolution with ReLU whose whole channels are on or off, far from the kink."""
    signs = np.where(np.arange(k) % 2, -1.0, 1.0)
    shapes = ((n, c * attrs.get("groups", 1), h, w), (k, c, *kernel), (k,))
    if bias:
        return Case(lambda x, w, b: ops.conv2d(x, w, b + constant(100 * signs), relu=True, **attrs), shapes)
    return Case(lambda x, w: ops.conv2d(x, w * constant(signs.reshape(-1, 1, 1, 1)), relu=True, **attrs), shapes[:2],
                positive)


def transposed(n=2, c=2, k=3, p=3, q=4, kernel=(2, 2), bias=True, **attrs):
    shapes = ((n, k, p, q), (k, c, *kernel), (c * attrs.get("groups", 1),))
    return Case(partial(ops.conv_transpose2d, **attrs), shapes if bias else shapes[:2])


def normalisation(shape, *, training, relu=False, added=False):
    """Batch norm whose inputs include gamma and beta; statistics are the batch's in training, and constants otherwise.

    With relu, whole channels are on or off, far from the kink.
    """
    c = shape[1]
    far = np.where(np.arange(c) % 2, -40.0, 40.0) if relu else np.zeros(c)

    def function(x, gamma, beta, residual=None):
        mean, var = constant(np.linspace(-1.0, 1.0, c)), constant(np.linspace(0.5, 2.0, c))
        return ops.batch_norm(x, gamma, beta + constant(far), mean, var, training=training, eps=0.5, relu=relu,
                              residual=residual)
    return Case(function, (shape, (c,), (c,), shape) if added else (shape, (c,), (c,)))


def entropy(rows, classes, ignored=()):
    """Cross-entropy; ``ignored`` rows count neither in the sum nor in the mean."""
    labels = np.arange(rows) * 7 % classes
    labels[list(ignored)] = -7
    return Case(lambda x: ops.cross_entropy(x, constant(labels), ignore_index=-7), ((rows, classes),))


def attention(n, length, keys, heads, d, mask=None, **attrs):
    """Attention with a constant mask."""
    q, k = (n, length, heads * d), (n, keys, heads * d)
    added = None if mask is None else np.random.default_rng(4).standard_normal(mask)
    return Case(lambda q, k, v: ops.scaled_dot_product_attention(
        q, k, v, None if added is None else constant(added), heads=heads, seed=9, **attrs), (q, k, k))


def chosen(function, shape):
    """``function(mask, ...)`` with a constant, partly true mask."""
    mask = np.arange(int(np.prod(shape))).reshape(shape) % 3 != 1
    return lambda *xs: function(constant(mask), *xs)


def pooling(function, h, w, kernel, n=2, c=3, **attrs):
    return Case(lambda x: function(x, kernel, **attrs), ((n, c, h, w),), distinct)


CASES: dict[str, list[Case]] = {
    "add": binary(ops.add), "sub": binary(ops.sub), "mul": binary(ops.mul), "div": binary(ops.div, positive),
    "neg": unary(ops.neg), "scale": unary(lambda x: x * -2.5), "shift": unary(lambda x: 3.0 - x),
    "exp": unary(ops.exp), "log": unary(ops.log, positive), "sqrt": unary(ops.sqrt, positive),
    "relu": unary(ops.relu, distinct), "tanh": unary(ops.tanh), "sigmoid": unary(ops.sigmoid),
    "gelu": unary(ops.gelu), "gelu_tanh": unary(ops.gelu_tanh),
    "abs": unary(ops.absolute, distinct), "sign": unary(lambda x: ops.sign(x) * x, distinct),
    "floor": unary(lambda x: ops.floor(x) * x, quarters), "sin": unary(ops.sin), "cos": unary(ops.cos),
    "erf": unary(ops.erf), "log1p": unary(ops.log1p, positive), "expm1": unary(ops.expm1),
    "maximum": binary(lambda x, y: ops.maximum(x, y + 0.25), halves),
    "minimum": binary(lambda x, y: ops.minimum(x, y + 0.25), halves),
    "pow": binary(ops.pow_of, positive),
    "power": unary(lambda x: x**2.5, positive), "silu": unary(ops.silu), "softplus": unary(ops.softplus),
    "log_softmax": [Case(partial(ops.log_softmax, dim=dim), shapes) for n in EDGES for shapes, dim in
                    [(((n,),), -1), (((2, n),), -1), (((n, 3, 2),), 1)]],
    "where": [Case(chosen(ops.where, mask), shapes) for n in EDGES for mask, shapes in
              [((n,), ((n,), (n,))), ((2, 1), ((2, n), (n,))), ((2, n), ((1, n), ()))]],
    "masked_fill": [Case(chosen(lambda mask, x: ops.masked_fill(x, mask, 3.0), mask), (shape,)) for n in EDGES
                    for mask, shape in [((n,), (n,)), ((2, 1), (2, n)), ((2, n), (n,))]]
    + [Case(chosen(lambda mask, x: ops.where(mask, x, 2.0), (n,)), ((2, n),)) for n in EDGES],
    "topk": [Case(lambda x, k=k, dim=dim: ops.topk(x, k, dim)[0], (shape,), distinct) for n in EDGES
             for k, dim, shape in [(1, -1, (n,)), (min(n, 2), 1, (2, n)), (1, 0, (n, 3)), (2, 1, (n, 3, 2))]]
    + [Case(lambda x: ops.amin(x, (0, 2), True), ((2, n, 3),), distinct) for n in EDGES],
    "index": [Case(lambda x, key=key: ops.index(x, key), (shape,)) for n in EDGES for key, shape in
              [((0,), (n, 3)), ((slice(None), -1), (3, n)), ((..., slice(0, n, 2)), (2, n)),
               ((None, slice(1, None)), (n, 2)), ((slice(None), slice(1, 3), 0), (2, 4, n))]]
    + [Case(lambda x: ops.concat(ops.split(x, 2, 1), 1) + ops.concat(x.chunk(2, 1), 1), ((2, n),)) for n in EDGES]
    + [Case(lambda x: x[[0, 2, 0], ..., None] * x[1], ((3, n),)) for n in EDGES],
    "dropout": unary(lambda x: ops.dropout(x, 0.4, seed=11)),
    "sum_to": [Case(partial(ops.sum_to, shape=to), (shape,)) for n in EDGES for shape, to in
               [((3, n), (n,)), ((n, 3), (n, 1)), ((2, n, 3), (1, n, 1)), ((2, n), ()), ((2, n, 3), (n, 3))]],
    "expand": [Case(partial(ops.expand, shape=to), (shape,)) for n in EDGES for shape, to in
               [((n,), (3, n)), ((n, 1), (n, 3)), ((1, n, 1), (2, n, 3)), ((), (2, n))]],
    "reshape": [Case(lambda x, to=to: ops.reshape(x, to), (shape,)) for n in EDGES for shape, to in
                [((2, n), (n, 2, 1)), ((n, 6), (2, -1, 3)), ((2, n), (2 * n,))]],
    "permute": [Case(lambda x, axes=axes: ops.permute(x, axes), ((2, n, 3),)) for n in EDGES
                for axes in [(2, 1, 0), (1, 2, 0), (2, 0, 1), (0, 2, 1), (0, 1, 2)]],
    "narrow": [Case(partial(ops.between, axis=axis, start=start, stop=start + n), (shape,)) for n in EDGES
               for axis, start, shape in
               [(0, 0, (n + 2, 3)), (0, 2, (n + 2, 3)), (1, 1, (2, n + 3, 2)), (2, 0, (1, 2, n))]],
    # A cast to float64: rounded values have no slope. Other dtypes have their own test (test_precision).
    "cast": [Case(lambda x: apply(ops.shape.CAST, x, dtype=metas.float64), shape) for n in EDGES for shape in
             [((n,),), ((2, n),)]],
    "contiguous": [Case(lambda x: ops.contiguous(ops.permute(x, (1, 0))), ((2, n),)) for n in EDGES[1:]],
    "concat": [Case(lambda *xs, axis=axis: ops.concat(xs, axis), shapes) for n in EDGES for axis, shapes in
               [(0, ((n, 3), (2, 3))), (1, ((2, 1), (2, n), (2, 3))), (2, ((2, 2, n), (2, 2, 5))), (1, ((n, 2),))]],
    "matmul": [case for n in EDGES for sizes in [(n, 3, 2), (2, n, 3), (3, 2, n)] for case in product(*sizes)]
    + product(2, 3, 5, (2,), (2,)) + product(2, 3, 5, (3, 1), (2,)) + product(2, 3, 5, (), (2,))
    + product(1, 2, 1, (2,)),
    "linear": [Case(ops.linear_, shapes) for n in EDGES for shapes in
               [((n, 3), (2, 3)), ((n, 3), (2, 3), (2,)), ((2, n), (3, n), (3,)), ((2, 3), (n, 3), (n,)),
                ((2, n, 3), (2, 3), (2,))]],
    "conv2d": [convolution(n=n) for n in EDGES] + [convolution(c=n, k=B) for n in EDGES]
    + [convolution(k=n, bias=False) for n in EDGES] + [convolution(h=n, w=2 * B + 1, padding=1) for n in EDGES]
    + [convolution(h=n, w=n, kernel=(1, 1)) for n in EDGES]
    # Strides that leave the last rows or columns unused, windows wider than the image, unequal sides.
    + [convolution(h=6, w=8, stride=2, padding=1), convolution(h=8, w=6, stride=3), convolution(stride=(2, 1)),
       convolution(kernel=(1, 1), stride=2, h=4), convolution(kernel=(7, 7), padding=3, h=3, w=4),
       convolution(kernel=(2, 3), padding=(0, 2)), convolution(kernel=(5, 5), bias=False)]
    + [convolution(c=c, k=k, groups=3, padding=1, bias=c > 1) for c, k in ((1, 6), (2, 3), (B, 9))],
    "conv2d_relu": [rectified(n=n, bias=n % 2 > 0) for n in EDGES] + [rectified(c=n, k=B) for n in EDGES]
    + [rectified(k=n, bias=False) for n in EDGES] + [rectified(h=n, w=2 * B + 1, padding=1) for n in EDGES]
    + [rectified(h=n, w=n, kernel=(1, 1)) for n in EDGES]
    + [rectified(h=6, w=8, stride=2, padding=1), rectified(k=4, groups=2)],
    "conv2d_dgrad": [transposed(n=n, stride=2) for n in EDGES] + [transposed(c=n, k=B, stride=2) for n in EDGES]
    + [transposed(k=n, bias=False) for n in EDGES] + [transposed(p=n, q=2 * B + 1, kernel=(3, 3), padding=1)
                                                      for n in EDGES]
    # Outputs that no window covers, windows that overlap, unequal sides.
    + [transposed(kernel=(1, 1), stride=2), transposed(kernel=(3, 3), stride=2), transposed(stride=(3, 1)),
       transposed(kernel=(3, 2), stride=2, padding=(1, 0)), transposed(k=4, groups=2),
       transposed(c=1, groups=3, stride=2)],
    "max_pool2d": [pooling(ops.max_pool2d, n, 2 * B + 1, (min(n, 2), 2)) for n in EDGES]
    + [pooling(ops.max_pool2d, n, 3, 3, stride=2, padding=1) for n in EDGES]
    + [pooling(ops.max_pool2d, 7, 5, (3, 2), stride=(1, 2)), pooling(ops.max_pool2d, 5, 5, 2, c=2 * B + 1, n=1)],
    "avg_pool2d": [pooling(ops.avg_pool2d, n, 2 * B + 1, (min(n, 2), 2)) for n in EDGES]
    + [pooling(ops.avg_pool2d, n, 3, 3, stride=2, padding=1) for n in EDGES]
    + [pooling(ops.avg_pool2d, 7, 5, (3, 2), stride=(1, 2)), pooling(ops.avg_pool2d, 5, 5, 2, c=2 * B + 1, n=1)]
    + [pooling(ops.avg_pool2d, n, 4, 3, stride=1, padding=1, count_include_pad=False) for n in EDGES],
    "adaptive_avg_pool2d": [pooling(ops.adaptive_avg_pool2d, n, 5, size) for n in EDGES
                            for size in (1, 3, (n, 5), (2, 7))],
    "batch_norm": [normalisation(shape, training=training) for n in EDGES for training in (False, True)
                   for shape in [(n, 2, 3), (3, n), (2, n, 2, 2), (2, 3, 1, n)]],
    "batch_norm_relu": [normalisation(shape, training=training, relu=True) for n in EDGES for training in (False, True)
                        for shape in [(n, 2, 3), (3, n), (2, n, 2, 2)]],
    "batch_norm_add_relu": [normalisation(shape, training=training, relu=True, added=True) for n in EDGES
                            for training in (False, True) for shape in [(n, 2, 3), (3, n), (2, n, 2, 2)]],
    "depthwise": [Case(partial(apply, OPS["depthwise"], stride=stride, padding=padding, dilation=dilation),
                       ((n, c, 7, 8), (c, 1, *kernel)))
                  for n, c in ((1, 1), (2, 3)) for kernel, stride, padding, dilation in (
                      ((3, 3), (1, 1), (1, 1), (1, 1)), ((3, 2), (2, 1), (1, 0), (1, 1)),
                      ((2, 3), (2, 3), (2, 2), (2, 2)))],
    "cross_entropy": [entropy(rows, classes) for n in EDGES for rows, classes in [(n, 3), (2, n)]]
    + [entropy(rows, 3, ignored=(0, rows - 1)) for rows in (B - 1, B + 1)],
    "layer_norm": [Case(partial(ops.layer_norm, eps=1.0), (shape, shape[-1:], shape[-1:])) for n in EDGES
                   for shape in [(n,), (n, 3), (2, n), (2, 3, n)]],
    **{name: [Case(partial(apply, OPS[name], backwards=backwards), ((n, t, gates * h), (gates * h, h), *states, *bias))
              for n, t, h, backwards in ((1, 1, 1, False), (2, 3, 2, True), (9, 2, 3, False))
              for states in [((n, h),) * count] for bias in ((), ((gates * h,),))]
       for name, gates, count in (("lstm", 4, 2), ("gru", 3, 1))},
    "softmax": [Case(ops.softmax, shapes) for n in EDGES for shapes in
                [((n,),), ((2, n),), ((2, n), (n,)), ((n, 3), (n, 1)), ((2, 3, n), (2, 1, n)), ((n, 2), (n, 2))]],
    # Its tiles are far larger than B, and have edges in kernel_cases; here every dimension is 1 and more than 1.
    "scaled_dot_product_attention": [attention(*sizes) for sizes in [(1, 1, 3, 2, 2), (2, 3, 1, 1, 3), (1, 4, 5, 3, 1)]]
    + [attention(2, n, n, 2, 3, causal=True, p=0.3) for n in (1, 5)]
    + [attention(2, 3, 4, 2, 2, mask=mask, p=0.3) for mask in [(4,), (2, 1, 1, 4), (2, 3, 1)]],
    "embedding": [Case(lambda w, ids=ids: ops.embedding_(w, constant(ids)), ((5, n),)) for n in EDGES
                  for ids in ([2], [4, 0, 4, 4], [[1, 3, 1], [3, 3, 0]], [1, 4, 2, 2, 2, 0, 1, 1, 4])],
    "gather_rows": [Case(lambda x, at=at: ops.gather_rows(x, constant(at)), ((2, 3, n),)) for n in EDGES
                    for at in ([[0], [2]], [[1, 1, 0, 1], [2, 0, 2, 2]])],
    "add_rows": [Case(lambda x, at=at: add_rows(x, constant(at), (2, 3, x.shape[1])), ((2 * len(at[0]), n),))
                 for n in EDGES for at in ([[0], [2]], [[1, 1, 0, 1], [2, 0, 2, 2]])],
}


# Inputs as views: each returns a base array and a view function that gives the wanted shape.
def plain(rng, shape, draw):
    return draw(rng, shape), lambda x: x


def permuted(rng, shape, draw):
    axes = tuple(np.roll(range(len(shape)), 1).tolist())
    return draw(rng, tuple(shape[a] for a in axes)), lambda x: ops.permute(x, tuple(np.argsort(axes).tolist()))


def narrowed(rng, shape, draw):
    if not shape:
        return plain(rng, shape, draw)
    wide = (*shape[:-1], shape[-1] + 3)
    return draw(rng, wide), lambda x: ops.between(x, len(shape) - 1, 2, 2 + shape[-1])


def expanded(rng, shape, draw):
    base = tuple(1 if i % 2 == 1 or len(shape) == 1 else n for i, n in enumerate(shape))
    return draw(rng, base), lambda x: ops.expand(x, shape)


def reshaped(rng, shape, draw):
    flat = (1, *shape[::-1], 1)
    return draw(rng, flat), lambda x: ops.reshape(x, shape)


LAYOUTS = (plain, permuted, narrowed, expanded, reshaped)
