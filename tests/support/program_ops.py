"""The operations of random programs: the operands that each accepts, and its form in minidl and in PyTorch.

A shape is a tuple of numbers and of "B", the batch, which changes between iterations; so a shape is known before the
program runs. A rule gets the draft of a program, picks operands, and returns them with attributes and the result's
shape; None if no operands fit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from minidl import ops
from minidl.meta import bfloat16

Dim = int | str
Shape = tuple[Dim, ...]
Attrs = dict[str, Any]
Choice = tuple[tuple[int, ...], Attrs, Shape]  # operands, attributes, the result's shape

BATCH = "B"
MOST_ELEMENTS = 3000  # of one tensor, with a batch of NOMINAL
NOMINAL = 4


def elements(shape: Shape, batch: int = NOMINAL) -> int:
    """Return the number of elements of a shape for this batch."""
    count = 1
    for dim in concrete(shape, batch):
        count *= dim
    return count


def concrete(shape: Shape, batch: int) -> tuple[int, ...]:
    """Return the shape for this batch."""
    return tuple(batch if dim == BATCH else int(dim) for dim in shape)


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """Return the shape of a + b; None if they do not fit."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


@dataclass
class Draft:
    """A program under construction.

    It has the shapes of its live values, and which are parameters, buffers, or leaves and views of parameters that
    exist in every iteration.
    """

    draw: random.Random
    shapes: dict[int, Shape] = field(default_factory=dict)
    parameters: dict[int, Shape] = field(default_factory=dict)
    constants: dict[int, Shape] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)
    buffers: dict[int, Shape] = field(default_factory=dict)
    made: int = 0

    def number(self) -> int:
        """Return the number of a new value."""
        self.made += 1
        return self.made

    def parameter(self, shape: Shape) -> int:
        """Return a parameter of a shape: sometimes an existing one, so that layers share it."""
        same = [number for number, known in self.parameters.items() if known == shape]
        if same and self.draw.random() < 0.5:
            return self.draw.choice(same)
        number = self.number()
        self.parameters[number] = self.shapes[number] = shape
        return number

    def buffer(self, shape: Shape) -> int:
        """Return a new persistent tensor that is not trained."""
        number = self.number()
        self.buffers[number] = shape
        return number

    def pick(self, fits: Callable[[Shape], bool] = lambda shape: True) -> int | None:
        """Return a value whose shape fits, preferring late ones; None if there is none."""
        found = [number for number, shape in self.shapes.items() if fits(shape)]
        if not found:
            return None
        return found[max(self.draw.randrange(len(found)), self.draw.randrange(len(found)))]


Rule = Callable[[Draft], Choice | None]


@dataclass(frozen=True)
class Kind:
    """One operation: its rule, its call in minidl, and its call in PyTorch, whose first argument is the module."""

    rule: Rule
    ours: Callable[..., Any]
    peer: Callable[..., Any] | None


def _unary(draft: Draft) -> Choice | None:
    x = draft.pick()
    return None if x is None else ((x,), {}, draft.shapes[x])


def _number(draft: Draft) -> Choice | None:
    x = draft.pick()
    return None if x is None else ((x,), {"value": draft.draw.choice([-1.5, 0.5, 2.0, 1.0])}, draft.shapes[x])


def _seeded(draft: Draft) -> Choice | None:
    x = draft.pick()
    return None if x is None else ((x,), {"p": 0.5, "seed": draft.draw.randrange(1000)}, draft.shapes[x])


def _binary(draft: Draft) -> Choice | None:
    a = draft.pick()
    if a is None:
        return None
    shape = draft.shapes[a]

    def fits(other: Shape) -> bool:
        result = broadcast(shape, other)
        return result is not None and elements(result) <= MOST_ELEMENTS

    b = draft.pick(fits)
    if b is None:
        return None
    if draft.draw.random() < 0.5:
        a, b = b, a
    result = broadcast(draft.shapes[a], draft.shapes[b])
    return None if result is None else ((a, b), {}, result)


def _product(draft: Draft) -> Choice | None:
    a = draft.pick(lambda shape: len(shape) >= 2 and shape[-1] != BATCH)
    if a is None:
        return None
    first = draft.shapes[a]
    b = draft.pick(lambda shape: len(shape) == 2 and shape[0] == first[-1])
    if b is None:
        b = draft.parameter((first[-1], draft.draw.choice([1, 3, 16])))
    return (a, b), {}, (*first[:-1], draft.shapes[b][1])


def _linear(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: len(shape) >= 2 and shape[-1] != BATCH)
    if x is None:
        return None
    shape = draft.shapes[x]
    width = draft.draw.choice([1, 4, 16, shape[-1]])
    reads = (x, draft.parameter((width, shape[-1])))
    if draft.draw.random() < 0.5:
        reads += (draft.parameter((width,)),)
    return reads, {}, (*shape[:-1], width)


def _image(shape: Shape) -> bool:
    """Return True if windows fit: only the batch may be empty."""
    return len(shape) == 4 and BATCH not in shape[1:] and 0 not in shape[1:]


def _convolution(draft: Draft) -> Choice | None:
    x = draft.pick(_image)
    if x is None:
        return None
    n, c, h, w = draft.shapes[x]
    k, size = draft.draw.choice([2, 3]), draft.draw.choice([1, 3])
    groups = draft.draw.choice([1, gcd(k, c)])
    reads = (x, draft.parameter((k, c // groups, size, size)))
    if draft.draw.random() < 0.5:
        reads += (draft.parameter((k,)),)
    return reads, {"padding": size // 2, "groups": groups}, (n, k, h, w)


def _pool(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: _image(shape) and all(isinstance(d, int) and d >= 2 for d in shape[2:]))
    if x is None:
        return None
    n, c, h, w = draft.shapes[x]
    return (x,), {"kernel": 2}, (n, c, int(h) // 2, int(w) // 2)


def _batch_norm(draft: Draft) -> Choice | None:
    x = draft.pick(_image)
    if x is None:
        return None
    shape = draft.shapes[x]
    channels = shape[1:2]
    return (x, draft.parameter(channels), draft.parameter(channels), *(draft.buffer(channels) for _ in range(2))), \
        {}, shape


def _rows(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: len(shape) >= 1 and shape[-1] != BATCH)
    return None if x is None else ((x,), {}, draft.shapes[x])


def _layer_norm(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: len(shape) >= 2 and shape[-1] not in (1, BATCH))
    if x is None:
        return None
    shape = draft.shapes[x]
    return (x, draft.parameter(shape[-1:]), draft.parameter(shape[-1:])), {}, shape


def _attention(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: len(shape) == 3 and BATCH not in shape[1:] and 0 not in shape[1:]
                   and int(shape[2]) % 2 == 0)
    if x is None:
        return None
    shape = draft.shapes[x]
    k = draft.pick(lambda other: other == shape)
    v = draft.pick(lambda other: other == shape)
    assert k is not None and v is not None
    return (x, k, v), {"causal": draft.draw.random() < 0.5}, shape


def _embedding(draft: Draft) -> Choice | None:
    rows, width = draft.draw.choice([5, 40]), draft.draw.choice([2, 16])
    return (draft.parameter((rows, width)),), {"count": draft.draw.choice([3, BATCH]), "rows": rows}, ()


def _sum(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: len(shape) >= 1)
    if x is None:
        return None
    shape = draft.shapes[x]
    axes = tuple(sorted(draft.draw.sample(range(len(shape)), draft.draw.randint(1, len(shape)))))
    keep = draft.draw.random() < 0.5
    result = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape) if keep or axis not in axes)
    return (x,), {"dim": axes, "keepdim": keep}, result


def _permute(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: len(shape) >= 2)
    if x is None:
        return None
    shape = draft.shapes[x]
    axes = tuple(draft.draw.sample(range(len(shape)), len(shape)))
    return (x,), {"axes": axes}, tuple(shape[axis] for axis in axes)


def _narrow(draft: Draft) -> Choice | None:
    """A part along one axis, sometimes empty."""
    x = draft.pick(lambda shape: any(isinstance(dim, int) and dim > 1 for dim in shape))
    if x is None:
        return None
    shape = draft.shapes[x]
    axis = draft.draw.choice([a for a, dim in enumerate(shape) if isinstance(dim, int) and dim > 1])
    start = draft.draw.randrange(int(shape[axis]))
    stop = start if draft.draw.random() < 0.1 else draft.draw.randint(start + 1, int(shape[axis]))
    return (x,), {"axis": axis, "start": start, "stop": stop}, (*shape[:axis], stop - start, *shape[axis + 1:])


def _reshape(draft: Draft) -> Choice | None:
    """Merge two neighbouring dimensions, or split one."""
    x = draft.pick(lambda shape: len(shape) >= 1)
    if x is None:
        return None
    shape = draft.shapes[x]
    pairs = [a for a in range(len(shape) - 1) if BATCH not in shape[a:a + 2]]
    even = [a for a, dim in enumerate(shape) if isinstance(dim, int) and dim % 2 == 0 and dim]
    if pairs and (not even or draft.draw.random() < 0.5):
        a = draft.draw.choice(pairs)
        result: Shape = (*shape[:a], int(shape[a]) * int(shape[a + 1]), *shape[a + 2:])
    elif even and len(shape) < 5:
        a = draft.draw.choice(even)
        result = (*shape[:a], 2, int(shape[a]) // 2, *shape[a + 1:])
    else:
        return None
    return (x,), {"shape": result}, result


def _expand(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: 1 in shape)
    if x is None:
        return None
    result = tuple(draft.draw.choice([1, 3, 8]) if dim == 1 else dim for dim in draft.shapes[x])
    return ((x,), {"shape": result}, result) if elements(result) <= MOST_ELEMENTS else None


def _concat(draft: Draft) -> Choice | None:
    a = draft.pick(lambda shape: any(dim != BATCH for dim in shape))
    if a is None:
        return None
    shape = draft.shapes[a]
    axis = draft.draw.choice([i for i, dim in enumerate(shape) if dim != BATCH])
    reads, total = (a,), int(shape[axis])
    for _ in range(draft.draw.choice([1, 2])):
        other = draft.pick(lambda s: len(s) == len(shape) and s[axis] != BATCH
                           and s[:axis] + s[axis + 1:] == shape[:axis] + shape[axis + 1:])
        assert other is not None  # a fits
        reads, total = (*reads, other), total + int(draft.shapes[other][axis])
    result = (*shape[:axis], total, *shape[axis + 1:])
    return (reads, {"axis": axis}, result) if elements(result) <= MOST_ELEMENTS else None


def _labelled(draft: Draft) -> Choice | None:
    x = draft.pick(lambda shape: len(shape) == 2 and shape[1] not in (0, BATCH))
    if x is None:
        return None
    count, classes = draft.shapes[x]
    return (x,), {"count": count, "rows": classes}, ()


def _routed(draft: Draft) -> Choice | None:
    """A mixture of experts: each gets some of the rows, sometimes none."""
    x = draft.pick(lambda shape: len(shape) == 2 and shape[1] != BATCH)
    if x is None:
        return None
    rows, width = draft.shapes[x]
    out, experts = draft.draw.choice([2, 8]), draft.draw.choice([2, 3])
    shares = sorted(draft.draw.choice([0.0, 0.5, 0.5, 1.0]) for _ in range(experts - 1))
    weights = tuple(draft.parameter((out, width)) for _ in range(experts))
    return (x, *weights), {"shares": tuple(shares)}, (rows, out)


def _route(x: Any, weights: Sequence[Any], shares: Sequence[float], linear: Any, narrow: Any, concat: Any) -> Any:
    """Multiply each expert's rows with its weight."""
    cuts = [0, *(int(share * x.shape[0]) for share in shares), x.shape[0]]
    return concat([linear(narrow(x, a, b), w) for a, b, w in zip(cuts[:-1], cuts[1:], weights, strict=True)])


def _rounded(x: Any) -> Any:
    """Round to bfloat16 and back; in float64, PyTorch's dtype here, do nothing."""
    return x * 1.0 if x.dtype.name == "float64" else ops.cast(ops.cast(x, bfloat16), x.dtype)


def _unary_kind(name: str, peer: Callable[..., Any]) -> Kind:
    return Kind(_unary, getattr(ops, name), peer)


KINDS: dict[str, Kind] = {
    "neg": _unary_kind("neg", lambda t, x: -x),
    "relu": _unary_kind("relu", lambda t, x: t.relu(x)),
    "tanh": _unary_kind("tanh", lambda t, x: t.tanh(x)),
    "sigmoid": _unary_kind("sigmoid", lambda t, x: t.sigmoid(x)),
    "gelu": _unary_kind("gelu", lambda t, x: t.nn.functional.gelu(x)),
    "gelu_tanh": _unary_kind("gelu_tanh", lambda t, x: t.nn.functional.gelu(x, approximate="tanh")),
    "silu": _unary_kind("silu", lambda t, x: t.nn.functional.silu(x)),
    "softplus": _unary_kind("softplus", lambda t, x: t.nn.functional.softplus(x)),
    "clamp": Kind(_unary, lambda x: x.clamp(-0.5, 0.5), lambda t, x: x.clamp(-0.5, 0.5)),
    "contiguous": _unary_kind("contiguous", lambda t, x: x.contiguous()),
    "detach": _unary_kind("detach", lambda t, x: x.detach()),
    "exp": Kind(_unary, lambda x: ops.exp(ops.tanh(x)), lambda t, x: t.exp(t.tanh(x))),
    "log": Kind(_unary, lambda x: ops.log(ops.sigmoid(x) + 1.0), lambda t, x: t.log(t.sigmoid(x) + 1.0)),
    "sqrt": Kind(_unary, lambda x: ops.sqrt(ops.sigmoid(x) + 1.0), lambda t, x: t.sqrt(t.sigmoid(x) + 1.0)),
    "scale": Kind(_number, lambda x, value: x * value, lambda t, x, value: x * value),
    "shift": Kind(_number, lambda x, value: x + value, lambda t, x, value: x + value),
    "from": Kind(_number, lambda x, value: value - x, lambda t, x, value: value - x),
    "add": Kind(_binary, lambda a, b: a + b, lambda t, a, b: a + b),
    "sub": Kind(_binary, lambda a, b: a - b, lambda t, a, b: a - b),
    "mul": Kind(_binary, lambda a, b: a * b, lambda t, a, b: a * b),
    "div": Kind(_binary, lambda a, b: a / (ops.sigmoid(b) + 0.5), lambda t, a, b: a / (t.sigmoid(b) + 0.5)),
    "where": Kind(_binary, lambda a, b: ops.where(a > b, a, b * 2.0), lambda t, a, b: t.where(a > b, a, b * 2.0)),
    "matmul": Kind(_product, lambda a, b: a @ b, lambda t, a, b: a @ b),
    "linear": Kind(_linear, ops.linear_, lambda t, *xs: t.nn.functional.linear(*xs)),
    "conv2d": Kind(_convolution, ops.conv2d, lambda t, *xs, **options: t.nn.functional.conv2d(*xs, **options)),
    "max_pool2d": Kind(_pool, ops.max_pool2d, lambda t, x, kernel: t.nn.functional.max_pool2d(x, kernel)),
    "avg_pool2d": Kind(_pool, ops.avg_pool2d, lambda t, x, kernel: t.nn.functional.avg_pool2d(x, kernel)),
    "batch_norm": Kind(_batch_norm, lambda *xs: ops.batch_norm(*xs, training=True),
                       lambda t, x, g, b, m, v: t.nn.functional.batch_norm(x, m, v, g, b, training=True)),
    "cross_entropy": Kind(_labelled, ops.cross_entropy, lambda t, x, labels: t.nn.functional.cross_entropy(x, labels)),
    "experts": Kind(_routed, lambda x, *ws, shares: _route(
        x, ws, shares, ops.linear_, lambda x, a, b: x.narrow(0, a, b - a), lambda parts: ops.concat(parts, 0)),
        lambda t, x, *ws, shares: _route(x, ws, shares, t.nn.functional.linear,
                                         lambda x, a, b: x.narrow(0, a, b - a), t.cat)),
    "dropout": Kind(_seeded, ops.dropout, None),
    "cast": Kind(_unary, _rounded, lambda t, x: x * 1.0),
    "softmax": Kind(_rows, ops.softmax, lambda t, x: t.softmax(x, -1)),
    "log_softmax": Kind(_rows, ops.log_softmax, lambda t, x: t.log_softmax(x, -1)),
    "layer_norm": Kind(_layer_norm, ops.layer_norm,
                       lambda t, x, g, b: t.nn.functional.layer_norm(x, x.shape[-1:], g, b)),
    "attention": Kind(_attention, lambda q, k, v, causal: ops.scaled_dot_product_attention(
        q, k, v, heads=2, causal=causal), lambda t, q, k, v, causal: _attention_peer(t, q, k, v, causal)),
    "embedding": Kind(_embedding, ops.embedding_, lambda t, w, ids: t.nn.functional.embedding(ids, w)),
    "sum": Kind(_sum, lambda x, dim, keepdim: x.sum(dim, keepdim=keepdim),
                lambda t, x, dim, keepdim: x.sum(dim, keepdim=keepdim)),
    "mean": Kind(_sum, lambda x, dim, keepdim: x.mean(dim, keepdim=keepdim),
                 lambda t, x, dim, keepdim: x.mean(dim, keepdim=keepdim)),
    "permute": Kind(_permute, lambda x, axes: x.permute(axes), lambda t, x, axes: x.permute(axes)),
    "narrow": Kind(_narrow, lambda x, axis, start, stop: x.narrow(axis, start, stop - start),
                   lambda t, x, axis, start, stop: x.narrow(axis, start, stop - start)),
    "index": Kind(_narrow, lambda x, axis, start, stop: x[(*[slice(None)] * axis, slice(start, stop))],
                  lambda t, x, axis, start, stop: x.narrow(axis, start, stop - start)),
    "reshape": Kind(_reshape, lambda x, shape: x.reshape(shape), lambda t, x, shape: x.reshape(shape)),
    "expand": Kind(_expand, lambda x, shape: ops.expand(x, shape), lambda t, x, shape: x.expand(shape)),
    "concat": Kind(_concat, lambda *xs, axis: ops.concat(xs, axis), lambda t, *xs, axis: t.cat(xs, axis)),
}


def _attention_peer(t: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    n, length, width = q.shape
    heads = [x.reshape(n, length, 2, width // 2).permute(0, 2, 1, 3) for x in (q, k, v)]
    y = t.nn.functional.scaled_dot_product_attention(*heads, is_causal=causal)
    return y.permute(0, 2, 1, 3).reshape(n, length, width)


def weights(names: Sequence[str]) -> list[float]:
    """Return how often each operation is drawn: common ones more often."""
    often = {"add": 4.0, "sub": 2.0, "mul": 4.0, "linear": 4.0, "tanh": 2.0, "concat": 2.0, "narrow": 2.0, "sum": 2.0,
             "conv2d": 2.0, "dropout": 0.3}
    return [often.get(name, 1.0) for name in names]
