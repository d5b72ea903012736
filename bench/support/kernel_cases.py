"""Every operation that is launched, at sizes where kernels go wrong: a table of cases. Knows no device.

The right results come from ``formulas``, or from short formulas here.

A case's sizes stand at the edges of blocks of ``block`` elements: tests make the blocks of their kernels as small as
BLOCK; the check of a GPU takes the blocks as they are.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from bench.support import choice_cases, depthwise_cases, recurrent_cases
from bench.support import formulas as ref
from bench.support.kernel_case import OPS, Case
from minidl import meta as metas
from minidl import ops
from minidl.meta import Meta, meta
from minidl.op import Op, Signature

__all__ = ["BLOCK", "CASES", "OPS", "RANDOM", "Case", "cases", "edges", "shared_bytes"]

BLOCK = 64  # elements
BINARY: dict[str, Callable[..., Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "exp": np.exp, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh,
    "gelu": ref.gelu_ref, "gelu_tanh": ref.gelu_tanh_ref, "sigmoid": lambda x: 1 / (1 + np.exp(-x))}
GRADS: dict[str, Callable[..., Any]] = {
    "relu_grad": lambda dy, y: dy * (y > 0), "tanh_grad": lambda dy, y: dy * (1 - y * y),
    "sigmoid_grad": lambda dy, y: dy * y * (1 - y), "gelu_grad": ref.gelu_grad_ref,
    "gelu_tanh_grad": ref.gelu_tanh_grad_ref}
IMAGE = (3, 5, 6, 7)
WINDOWS: list[dict[str, Any]] = [{"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)},
           {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)},
           {"kernel": (3, 3), "stride": (1, 3), "padding": (0, 1)}]
# kernel, stride, padding, bias: pointwise; padded; asymmetric; strided 1x1; a window as large as the padded image
CONVS = [((1, 1), (1, 1), (0, 0), True), ((3, 3), (1, 1), (1, 1), False), ((3, 2), (2, 1), (0, 2), True),
         ((1, 1), (2, 2), (0, 0), False), ((1, 1), (1, 1), (1, 0), False), ((8, 9), (3, 3), (1, 1), False)]


def edges(block: int) -> list[tuple[int, ...]]:
    """Return shapes that fill blocks exactly, that fill the last block partly, and that are smaller than a block."""
    return [(), (1,), (2,), (block - 1,), (block,), (block + 1,), (2 * block + 1,), (3, 5, 7), (2, block + 1, 1)]


def _inferred(op: Op, *inputs: Meta, **attrs: Any) -> tuple[Meta, ...]:
    found = op.infer(*inputs, **attrs)
    return found if isinstance(found, tuple) else (found,)


def elementwise_cases(block: int) -> Iterator[Case]:
    """Yield cases of elementwise operations, casts and sums, with and without broadcasting."""
    shape: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]
    x: tuple[int, ...]
    y: Any
    for shape in edges(block):
        for name, f in BINARY.items():
            yield Case(name, (shape, ("+", shape)), f)
        for name, f in UNARY.items():
            yield Case(name, (shape,), f)
        for name, f in GRADS.items():
            yield Case(name, (shape, shape), f)
        yield Case("sqrt_grad", (shape, ("+", shape)), lambda dy, y: dy / (2 * y))
        yield Case("log", (("+", shape),), np.log)
        yield Case("sqrt", (("+", shape),), np.sqrt)
        yield Case("scale", (shape,), lambda x, value: x * value, {"value": -1.75})
        yield Case("shift", (shape,), lambda x, value: x + value, {"value": 0.3})
        yield Case("dropout", (shape,), ref.dropout_ref, {"p": 0.3, "seed": 5})
        yield Case("dropout", (shape,), ref.dropout_ref, {"p": 0.3, "seed": 5, "start": (1 << 32) - 3})
        yield Case("contiguous", (shape,), lambda x: x)
        for name in ("cast", "cast_grad"):
            yield Case(name, (shape,), lambda x, dtype: x, {"dtype": metas.float64})
        yield Case("add_", (shape, shape), np.add)
        yield Case("copy_", (shape, shape), lambda a, b: b)
        yield Case("fill_", (shape,), lambda a, value: np.full(a.shape, value), {"value": 1.5})
    # The last ones have operands of as many bytes as the result, and of another shape.
    for a, b in (((4, 1, 3), (5, 1)), ((3,), (2, 70, 3)), ((), (5,)), ((1, block), (block,)), ((block,), (1, block)),
                 ((1,), ()), ((1, 1, 2 * block + 1), (2 * block + 1,))):
        for name, f in BINARY.items():
            yield Case(name, (a, ("+", b)), f)
    for x, y in (((4, 70, 3), (70, 1)), ((4, 5), ()), ((4, 5), (1, 5)), ((4, 5), (4, 5)), ((2, 3, 4), (3, 1)),
                 ((1,), (1,))):
        yield Case("sum_to", (x,), ref.sum_ref, {"shape": y})


def product_cases(block: int) -> Iterator[Case]:
    """Yield cases of matrix products and linear layers."""
    a: tuple[int, ...]
    b: tuple[int, ...]
    swap = np.swapaxes
    for a, b in (((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 1)), ((1, 1), (1, 1)),
                 ((65, 33), (33, 7))):
        for ta in (False, True):
            for tb in (False, True):
                yield Case("matmul", ((*a[:-2], *a[-2:][::-1]) if ta else a, (*b[:-2], *b[-2:][::-1]) if tb else b),
                           lambda a, b, transpose_a, transpose_b: (swap(a, -1, -2) if transpose_a else a)
                           @ (swap(b, -1, -2) if transpose_b else b), {"transpose_a": ta, "transpose_b": tb})
    for lead in ((1,), (7,), (2, 3), (2, 3, 4)):
        yield Case("linear", ((*lead, 5), (4, 5), (4,)), lambda x, w, b: x @ w.T + b)
        yield Case("linear", ((*lead, 5), (4, 5)), lambda x, w: x @ w.T)
        yield Case("linear_dgrad", ((*lead, 4), (4, 5)), lambda dy, w: dy @ w)
        yield Case("linear_wgrad", ((*lead, 40), (*lead, 5)), lambda dy, x: dy.reshape(-1, 40).T @ x.reshape(-1, 5))
        yield Case("bias_grad", ((*lead, 70),), lambda dy, axis: dy.reshape(-1, 70).sum(0), {"axis": len(lead)})
    yield Case("bias_grad", (IMAGE,), lambda dy, axis: dy.sum((0, 2, 3)), {"axis": 1})


def batch_norm_cases(block: int) -> Iterator[Case]:
    """Yield cases of batch norm, alone and fused with other operations."""
    shape: tuple[int, ...]
    for shape in ((2, 3), (1, 5, 9), IMAGE, (2, 1, 9, 9), (70, 3, 1, 1)):
        c = (shape[1],)
        yield Case("batch_norm_stats", (shape,), lambda x: (x.mean(ref.other_axes(x)), x.var(ref.other_axes(x))))
        yield Case("batch_norm", (shape, c, c, c, ("+", c)), lambda x, gamma, beta, mean, var, eps, training:
                   ref.normed(x, mean, var, eps) * ref.spread(gamma, x) + ref.spread(beta, x),
                   {"eps": 1e-3, "training": True})
        yield Case("batch_norm_grad_reduce", (shape, shape, c, ("+", c)), lambda dy, x, mean, var, eps:
                   ((dy * ref.normed(x, mean, var, eps)).sum(ref.other_axes(x)), dy.sum(ref.other_axes(x))),
                   {"eps": 1e-3})
        for training in (True, False):
            yield Case("batch_norm_grad", (shape, shape, c, c, ("+", c), c, c), ref.bn_grad_ref,
                       {"eps": 1e-3, "training": training})
        line = {"eps": 1e-3, "training": True}
        yield Case("batch_norm_relu", (shape, c, c, c, ("+", c)), lambda x, gamma, beta, mean, var, eps, training:
                   np.maximum(ref.line_ref(x, gamma, beta, mean, var, eps), 0), line)
        yield Case("batch_norm_add_relu", (shape, shape, c, c, c, ("+", c)), lambda x, r, gamma, beta, mean, var, eps,
                   training: np.maximum(ref.line_ref(x, gamma, beta, mean, var, eps) + r, 0), line)
        yield Case("batch_norm_relu_grad_reduce", (shape, shape, c, c, c, ("+", c)), ref.bn_relu_reduce_ref,
                   {"eps": 1e-3})
        for training in (True, False):
            yield Case("batch_norm_relu_grad", (shape, shape, c, c, c, ("+", c), c, c), ref.bn_relu_grad_ref,
                       {"eps": 1e-3, "training": training})
    yield Case("batch_norm_update_", ((5,), ("+", (5,)), (5,), ("+", (5,))), lambda rm, rv, m, v, momentum, count:
               (0.9 * rm + 0.1 * m, 0.9 * rv + 0.1 * v * count / (count - 1)), {"momentum": 0.1, "count": 6})
    for width in (5, block + 1):
        yield Case("batch_norm_merge", ((width,), ("+", (width,)), (width,), ("+", (width,))), ref.bn_merge_ref,
                   {"count": 3, "other": 2})


def pool_cases(block: int) -> Iterator[Case]:
    """Yield cases of pooling, with windows and adaptive."""
    for window in WINDOWS:
        y = _inferred(ops.pool.MAX_POOL2D, meta(IMAGE), **window)[0].shape
        yield Case("max_pool2d", (IMAGE,), ref.max_ref, window)
        yield Case("avg_pool2d", (IMAGE,), lambda x, **w: ref.patches(x, **w).mean((-1, -2)), window)
        yield Case("avg_pool2d_grad", (y,), ref.avg_grad_ref, {"x_shape": IMAGE, **window})
    yield Case("max_pool2d_grad", ((3, 5, 3, 3), ("i4", (3, 5, 3, 3))), ref.max_grad_ref,
               {"x_shape": IMAGE, **WINDOWS[0]})
    yield Case("max_pool2d_grad", ((2, 3, 4, 4), ("i9", (2, 3, 4, 4))), ref.max_grad_ref,
               {"x_shape": (2, 3, 6, 6), "kernel": (3, 3), "stride": (1, 1), "padding": (0, 0)})
    for size in ((1, 1), (2, 3), (4, 5), (6, 7), (9, 2)):
        yield Case("adaptive_avg_pool2d", (IMAGE,), ref.adaptive_ref, {"size": size})
        yield Case("adaptive_avg_pool2d_grad", ((*IMAGE[:2], *size),), ref.adaptive_grad_ref, {"x_shape": IMAGE})


def row_cases(block: int) -> Iterator[Case]:
    """Yield cases of operations that work on rows: losses, layer norm, softmax and attention."""
    shape: tuple[int, ...]
    for n, classes, kind in ((1, 1, "i"), (3, 10, "i"), (33, 70, "i"), (2, 3, "g"), (33, 70, "g")):
        yield Case("cross_entropy", ((n, classes), (f"{kind}{classes}", (n,))), ref.cross_entropy_ref)
        yield Case("cross_entropy_grad", ((), (n, classes), (f"{kind}{classes}", (n,))), ref.cross_entropy_grad_ref)
        yield Case("label_share", ((), (f"{kind}{classes}", (n,)), (f"{kind}{classes}", (2 * n,))), ref.label_share_ref)
    yield Case("label_share", ((), ("g5", (1,)), ("g5", (block + 1,))), ref.label_share_ref)  # its part counts nothing
    for shape in ((1,), (5,), (1, 2), (block + 1, 1), (3, block - 1), (3, block), (3, block + 1), (2, 3, 7),
                  (2, 3, 2, 2 * block + 1)):
        rows, d = shape[:-1], shape[-1:]
        yield Case("layer_norm", (shape, d, d), ref.layer_ref, {"eps": 1e-3})
        yield Case("layer_norm_grad_reduce", (shape, shape, rows, ("+", rows)), ref.layer_reduce_ref)
        yield Case("layer_norm_grad", (shape, shape, d, rows, ("+", rows)), ref.layer_grad_ref)
        yield Case("softmax", (shape,), ref.softmax_ref)
        yield Case("softmax", (shape, d), ref.softmax_ref)
        yield Case("softmax_grad", (shape, shape), lambda dy, y: y * (dy - (dy * y).sum(-1, keepdims=True)))
    yield Case("softmax", ((2, 3, 5, 40), (2, 1, 1, 40)), ref.softmax_ref)
    # Tiles of scores are 128 queries by 192 keys; masks for a key, a row, a sequence, and one for everything.
    for n, length, keys, heads, depth, mask, causal, p in (
            (1, 1, 1, 1, 1, None, False, 0.0), (2, 5, 7, 2, 3, (7,), False, 0.0), (3, 4, 4, 2, 4, None, True, 0.4),
            (1, 127, 193, 1, 5, (1, 1, 1, 193), False, 0.0), (1, 129, 129, 2, 17, (129, 129), True, 0.3),
            (2, 128, 192, 1, 16, (2, 1, 128, 1), False, 0.3), (1, 257, 385, 2, 8, (2, 1, 385), False, 0.0),
            (1, 300, 300, 1, 64, None, True, 0.0)):
        options = {"heads": heads, "causal": causal, "p": p, "seed": 6}
        q, k, masks = (n, length, heads * depth), (n, keys, heads * depth), () if mask is None else (mask,)
        yield Case("scaled_dot_product_attention", (q, k, k, *masks), ref.attention_ref, options)
        yield Case("scaled_dot_product_attention_grad", (q, q, k, k, q, ("+", (n, heads, length)), *masks),
                   ref.attention_grad_ref, options)


def index_cases(block: int) -> Iterator[Case]:
    """Yield cases of embedding, gathering, concatenation and slicing."""
    for table, ids in (((1, 1), (1,)), ((5, 3), (7,)), ((4, block + 1), (2, 9)), ((300, 2), (3, block, 2))):
        numbers = (f"i{table[0]}", ids)
        yield Case("embedding", (table, numbers), lambda w, ids: w[ids])
        yield Case("embedding_grad", ((*ids, table[1]), numbers), ref.embedding_grad_ref, {"rows": table[0]})
    for (n, length, width), count in (((1, 1, 1), 1), ((2, 5, 3), 4), ((3, 4, block + 1), 9), ((2, block, 2), 1)):
        numbers = (f"i{length}", (n, count))
        yield Case("gather_rows", ((n, length, width), numbers), ref.gather_ref)
        for name in ("gather_rows_grad", "add_rows"):
            yield Case(name, ((n * count, width), numbers), ref.gather_grad_ref, {"x_shape": (n, length, width)})
    for axis in (0, 1, 2):
        shapes = [tuple(n if i == axis else 3 for i in range(3)) for n in (1, 4, 2)]
        yield Case("concat", tuple(shapes), lambda *xs, axis: np.concatenate(xs, axis), {"axis": axis})
        for start in (0, 1, 3):
            def embedded(dy: Any, shape: Any, axis: Any, start: Any) -> Any:
                return np.pad(dy, [(start, 3 - start) if i == axis else (0, 0) for i in range(3)])
            yield Case("narrow_grad", (shapes[2],), embedded,
                       {"shape": tuple(5 if i == axis else 3 for i in range(3)), "axis": axis, "start": start})


def update_cases(block: int) -> Iterator[Case]:
    """Yield cases of the optimizers' updates, and of operations that create tensors."""
    some = ((3, 5), (2 * block + 1,))
    positive = tuple(("+", s) for s in some)
    for decay in (0.0, 0.1):
        sgd = {"lr": 0.05, "weight_decay": decay}
        yield Case("sgd_", some * 2, ref.by_tensor(ref.sgd_ref, 2), sgd)
        for first in (False, True):
            yield Case("sgd_momentum_", some * 3, ref.by_tensor(ref.momentum_ref, 3),
                       {**sgd, "momentum": 0.9, "first": first})
        for step in (1, 7):
            for way in ({}, {"decoupled": True}):
                yield Case("adam_", some + some + positive + some, ref.by_tensor(ref.adam_ref, 4),
                           {**sgd, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "step": step, **way})
        yield Case("adadelta_", some + positive + positive + some, ref.by_tensor(choice_cases.adadelta_ref, 4),
                   {**sgd, "rho": 0.9, "eps": 1e-3})
    yield Case("full", (), lambda shape, dtype, value: np.full(shape, value),
               {"shape": (3, 4), "dtype": metas.float64, "value": 2.5})
    for data in (np.arange(6.0).reshape(2, 3).T, None):
        yield Case("upload", (), lambda shape, dtype, data: np.zeros(shape) if data is None else data,
                   {"shape": (3, 2), "dtype": metas.float32, "data": data})
        yield Case("upload_", ((3, 2),), lambda a, data: np.zeros(a.shape) if data is None else data, {"data": data})


def convolution_cases(block: int) -> Iterator[Case]:
    """Yield cases of convolutions and their gradients."""
    for (kernel, stride, padding, bias), (groups, width) in product(CONVS, ((1, IMAGE[1]), (2, 3))):
        window = {"stride": stride, "padding": padding, "groups": groups}
        x, w = (IMAGE[0], groups * width, *IMAGE[2:]), (4, width, *kernel)
        y = _inferred(ops.conv.CONV2D, meta(x), meta(w), **window)[0].shape
        yield Case("conv2d", (x, w) + ((4,),) * bias, ref.conv_ref, window)
        yield Case("conv2d_relu", (x, w) + ((4,),) * bias, ref.conv_relu_ref, window)
        for onto in ((), (x,)):
            yield Case("conv2d_dgrad", (y, w, *onto), ref.dgrad_ref, {"x_shape": x, **window})
        yield Case("conv2d_wgrad", (y, x), ref.wgrad_ref, {"kernel": kernel, **window})


def cases(block: int = BLOCK) -> Iterator[Case]:
    """Yield cases of every operation that is launched, except the random ones."""
    for some in (elementwise_cases, product_cases, batch_norm_cases, pool_cases, row_cases, index_cases, update_cases,
                 convolution_cases, choice_cases.cases, recurrent_cases.cases,
                 depthwise_cases.cases):
        yield from some(block)


def shared_bytes(name: str, inputs: Sequence[Meta], attrs: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return pairs (output, input) of a call for which the engine may give the output the input's memory."""
    return Signature(OPS[name], tuple(inputs), _inferred(OPS[name], *inputs, **attrs), ()).donates


CASES = list(cases())
RANDOM = {"normal_", "uniform_"}  # no formula: tests look at their moments
