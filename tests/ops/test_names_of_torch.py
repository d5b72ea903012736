"""Functions, methods and layers under PyTorch's names against PyTorch: values, dtypes and gradients.

A case is a function of a library and of tensors, run with either. Float32 on both sides; a tolerance of 1e-5 relative
is some roundings, of which compositions have more than one. Skipped where torch is not installed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Runtime

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

NAN, INF = float("nan"), float("inf")
EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, INF, -INF, NAN, 1e-30, 3e38, 100.0], "f4")
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def case(name, function, *arrays):
    assert name not in CASES
    CASES[name] = (function, arrays)


def normal(*shape, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype("f4")


A, B, C = normal(3, 4), normal(3, 4, seed=1), normal(4, 5)
POSITIVE = np.abs(A) + 0.5
IMAGE = normal(2, 4, 5, 6)
WHOLE = np.array([[3, -2, 0, 7], [1, 5, -6, 2], [0, 0, 4, -1]])
ROWS = np.array([2, 0, 2])

for name in ("abs", "sign", "floor", "ceil", "trunc", "round", "frac", "sin", "cos", "exp", "expm1", "erf", "erfc",
             "tanh", "sigmoid", "relu", "square", "neg", "sinh", "cosh", "exp2", "deg2rad", "rad2deg", "tan"):
    case(name, lambda T, x, name=name: getattr(T, name)(x), A * 3)
    case(f"{name}, a method", lambda T, x, name=name: getattr(x, name)(), A)
for name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal"):
    case(name, lambda T, x, name=name: getattr(T, name)(x), POSITIVE)
for name in ("exp", "sin", "sqrt", "log1p", "sigmoid", "tanh", "rsqrt", "reciprocal", "erf"):
    case(f"{name} of integers", lambda T, x, name=name: getattr(T, name)(x), np.abs(WHOLE) + 1)
for name in ("abs", "sign", "floor", "ceil", "trunc", "relu", "exp", "tanh", "sigmoid", "sqrt", "isnan", "isinf",
             "isfinite", "nan_to_num", "square", "neg", "logical_not"):
    case(f"{name} at the edges", lambda T, x, name=name: getattr(T, name)(x), EDGES)
for name in ("maximum", "minimum", "atan2"):
    if name != "atan2":
        case(f"{name} at the edges", lambda T, a, b, name=name: getattr(T, name)(a, b), EDGES[:, None], EDGES)
        case(name, lambda T, a, b, name=name: getattr(T, name)(a, b), A, np.where(A > 0, A, B))
for sign, function in {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
                       "/": lambda a, b: a / b, "//": lambda a, b: a // b, "%": lambda a, b: a % b,
                       "==": lambda a, b: a == b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b}.items():
    case(f"x {sign} y", lambda T, a, b, f=function: f(a, b), A, np.abs(B) + 0.25)
    case(f"x {sign} 2.5", lambda T, a, f=function: f(a, 2.5), A)
    case(f"x {sign} 2 of integers", lambda T, a, f=function: f(a, 2), WHOLE)
    case(f"2 {sign} x", lambda T, a, f=function: f(2, a), POSITIVE)
    case(f"2.5 {sign} x of integers", lambda T, a, f=function: f(2.5, a), np.abs(WHOLE) + 1)
    case(f"integers {sign} floats", lambda T, a, b, f=function: f(a, b), WHOLE, np.abs(B) + 0.25)
    case(f"integers {sign} integers", lambda T, a, b, f=function: f(a, b), WHOLE, np.abs(WHOLE) + 1)
for sign, function in {"+": lambda a, b: a + b, "*": lambda a, b: a * b, "&": lambda a, b: a & b,
                       "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "==": lambda a, b: a == b}.items():
    case(f"masks {sign} masks", lambda T, a, b, f=function: f(a, b), A > 0, B > 0)
case("mask * float", lambda T, a, m: a * m, A, B > 0)
case("sinc", lambda T, x: T.sinc(x) + T.sinc(x * 0), POSITIVE)
case("mask * 2", lambda T, m: m * 2, B > 0)
case("mask * 2.5", lambda T, m: m * 2.5, B > 0)
case("~ of integers", lambda T, x: ~x, WHOLE)
case("~ of masks", lambda T, x: ~x, A > 0)
for value in (2, 3, 0.5, -1.0, 0, 1, 2.5, -2):
    case(f"x ** {value}", lambda T, x, value=value: x ** value, POSITIVE)
case("x ** 0 at the edges", lambda T, x: x ** 0, EDGES)
case("x ** y", lambda T, a, b: a ** b, POSITIVE, B)
case("pow(x, y) at the edges", lambda T, a, b: T.pow(a, b), np.array([-2, 0, 0, 0, 2, 0, -2], "f4"),
     np.array([3, 0, 2, 1, 0.5, -1, 2], "f4"))
case("2 ** x", lambda T, x: 2 ** x, A)
case("integers ** 2", lambda T, x: x ** 2, WHOLE)
case("integers ** 2.0", lambda T, x: x ** 2.0, WHOLE)
case("integers ** integers", lambda T, x, y: x ** y, WHOLE, np.abs(WHOLE) % 3)
case("add(alpha)", lambda T, a, b: T.add(a, b, alpha=2) + a.sub(b, alpha=0.5), A, B)
for mode in ("floor", "trunc"):
    case(f"div, {mode}", lambda T, a, b, mode=mode: T.div(a, b, rounding_mode=mode), A * 4, POSITIVE)
    case(f"div of integers, {mode}", lambda T, a, mode=mode: T.div(a, 3, rounding_mode=mode), WHOLE)
case("clamp with tensors", lambda T, x, low, high: T.clamp(x, low, high), A, B - 1, B)
case("clamp at the edges", lambda T, x: T.clamp(x, -1.0, 0.5), EDGES)
case("masked_fill with a tensor", lambda T, x, v: x.masked_fill(x > 0, v), A, np.float32(2.0))
case("where of numbers", lambda T, x: T.where(x > 0, x, 1.0) + T.where(x > 1, 2.0, x), A)
case("where of integers and floats", lambda T, x, y: T.where(x > 0, x, y), A, WHOLE)
case("lerp", lambda T, a, b: T.lerp(a, b, 0.25), A, B)
case("addcmul", lambda T, a, b, c: T.addcmul(a, b, c, value=0.5) + T.addcdiv(a, b, c, value=2), A, B, POSITIVE)
case("logaddexp", lambda T, a, b: T.logaddexp(a, b), A * 50, B * 50)
case("logical", lambda T, a, b: T.logical_and(a > 0, b) ^ T.logical_or(a > 0, b > 0) ^ T.logical_xor(a, b), A, B)
for name in ("var", "std"):
    case(f"{name}()", lambda T, x, name=name: getattr(x, name)(), A)
    case(f"{name}(False)", lambda T, x, name=name: getattr(x, name)(False), A)
    case(f"{name}(1, True)", lambda T, x, name=name: getattr(x, name)(1, True), A)
    case(f"{name}(1, False, True)", lambda T, x, name=name: getattr(x, name)(1, False, True), A)
    case(f"{name}(correction=0)", lambda T, x, name=name: getattr(x, name)(dim=0, correction=0), A)
    case(f"{name} of equal values", lambda T, x, name=name: getattr(x, name)(0), np.full((4, 2), 3.0, "f4"))
for p in (1, 2, 3, 0.5, INF, "fro"):
    case(f"norm, {p}", lambda T, x, p=p: T.norm(x, p) + x.norm(p, dim=1).sum(), A)
case("norm below 0", lambda T, x: T.norm(x.detach(), -1, dim=1), np.array([[0, 2], [1, 2]], "f4"))
case("norm of 0", lambda T, x: x.norm() + x.norm(dim=1).sum(), np.zeros((2, 3), "f4"))
case("mm", lambda T, a, b: T.mm(a, b) + a.mm(b), A, C)
case("bmm", lambda T, a, b: T.bmm(a, b), normal(2, 3, 4), normal(2, 4, 5))
case("mv, dot", lambda T, a, b: a.mv(b).sum() + b.dot(b), A, C[:, 0].copy())
case("outer", lambda T, a, b: T.outer(a, b), A[0], C[0])
case("matrix @ vector", lambda T, a, b: a @ b, A, C[:, 1].copy())
case("vector @ matrix", lambda T, a, b: a @ b, A[0], C)
case("vector @ vector", lambda T, a: a @ a, A[0])
case("addmm", lambda T, x, a, b: T.addmm(x, a, b, beta=0.5, alpha=2), normal(3, 5), A, C)
case("baddbmm", lambda T, x, a, b: T.baddbmm(x, a, b), normal(2, 3, 5), normal(2, 3, 4), normal(2, 4, 5))
case("trace", lambda T, x: T.trace(x), A)
for equation, shapes in {"ij,jk->ik": ((3, 4), (4, 5)), "bij,bjk": ((2, 3, 4), (2, 4, 5)), "ij->ji": ((3, 4),),
                         "ij->": ((3, 4),), "i,j->ij": ((3,), (4,)), "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
                         "ij,j": ((3, 4), (4,)), "...ij,jk->...ik": ((2, 3, 4), (4, 5)),
                         "ij,kj,k->i": ((2, 3), (4, 3), (4,)),
                         "bi,bj,ij->b": ((5, 3), (5, 4), (3, 4)), "ijk,ijk->ij": ((2, 3, 4), (2, 3, 4)),
                         "ij,kl->jl": ((2, 3), (4, 5)), "ijk->ik": ((2, 3, 4),)}.items():
    case(f"einsum {equation}", lambda T, *xs, equation=equation: T.einsum(equation, *xs),
         *(normal(*shape, seed=i) for i, shape in enumerate(shapes)))
case("unbind", lambda T, x: T.unbind(x, 1)[2] * x.unbind(1)[0], A)
case("flip", lambda T, x: T.flip(x, (0, 1)) + x.flip(1), A)
case("roll", lambda T, x: T.roll(x, 1, 0) + x.roll((1, -2), (0, 1)) + T.roll(x, 5), A)
case("movedim", lambda T, x: T.movedim(x, 0, 2), normal(2, 3, 4))
case("tile", lambda T, x: T.tile(x, (2, 1, 2)), A)
case("unflatten", lambda T, x: x.unflatten(1, (2, -1)), A)
case("hstack, vstack", lambda T, a, b: T.hstack((a, b)).sum(1) + T.vstack((a, b)).sum(), A, B)
case("meshgrid", lambda T, a, b: T.meshgrid(a, b, indexing="ij")[0] * T.meshgrid(a, b, indexing="ij")[1],
     A[0], C[0])
case("meshgrid, xy", lambda T, a, b: T.meshgrid(a, b, indexing="xy")[0] * 2, A[0], C[0])
case("repeat_interleave", lambda T, x: x.repeat_interleave(2, 1), A)
case("repeat_interleave, flat", lambda T, x: T.repeat_interleave(x, 3), A)
case("index_select", lambda T, x, rows: T.index_select(x, 0, rows), A, ROWS)
case("x[-rows]", lambda T, x, rows: x[-rows], A, ROWS)
case("narrow", lambda T, x: x.narrow(1, 1, 2) + T.narrow(x, 1, -3, 2), A)
case("select", lambda T, x: x.select(1, -1), A)
case("cumsum", lambda T, x: T.cumsum(x, 1) + x.cumsum(0), A)
case("cumsum of integers", lambda T, x: x.cumsum(1), WHOLE)
case("cumsum of masks", lambda T, x: x.cumsum(0), A > 0)
case("cumprod", lambda T, x: T.cumprod(x, 1), A)
case("prod", lambda T, x: x.prod() + T.prod(x, 0).sum() + x.prod(1, keepdim=True).sum(), A)
case("prod of integers", lambda T, x: x.prod(1), WHOLE)
case("any, all", lambda T, x: x.any() ^ x.all(1) ^ T.any(x > 0, 1) ^ T.all(x > -1, 1), A)
case("count_nonzero", lambda T, x: T.count_nonzero(x), WHOLE)
case("logsumexp", lambda T, x: T.logsumexp(x, 1) + x.logsumexp((0, 1)), A * 50)
case("logsumexp of -inf", lambda T, x: T.logsumexp(x, 1), np.array([[-INF, -INF], [1.0, -INF], [INF, 1.0]], "f4"))
for descending in (False, True):
    case(f"sort, {descending}", lambda T, x, d=descending: T.sort(x, 1, d)[0] + x.sort(0, d)[0], A)
    case(f"argsort, {descending}", lambda T, x, d=descending: T.argsort(x, 1, d), A)
    case(f"sort at the edges, {descending}", lambda T, x, d=descending: T.sort(x, descending=d)[0], EDGES)
case("stable sort", lambda T, x: T.sort(x, dim=1, stable=True)[1], np.array([[1, 0, 1, 0, 1]], "f4"))
case("nonzero", lambda T, x: T.nonzero(x) + x.nonzero(as_tuple=True)[0].sum(), WHOLE)
case("masked_select", lambda T, x: T.masked_select(x, x > 0), A)
case("scatter_add", lambda T, x, rows, y: x.scatter_add(1, rows, y), A, np.abs(WHOLE) % 4, B)
case("scatter of a number", lambda T, x, rows: x.scatter(1, rows, 9.0), A, np.abs(WHOLE)[:, :2] % 4)
case("take_along_dim", lambda T, x, rows: T.take_along_dim(x, rows, 1), A, np.abs(WHOLE)[:, :2] % 4)
case("one_hot", lambda T, x: T.nn.functional.one_hot(x, 4) + T.nn.functional.one_hot(x, 7)[..., :4], ROWS)
case("one_hot by values", lambda T, x: T.nn.functional.one_hot(x), ROWS)
case("to(dtype)", lambda T, x: x.to(T.float64) + x.to("cpu", T.float64) + x.to("cpu", dtype=T.float64), A)
case("new_zeros", lambda T, x: x.new_zeros(2, 3) + x.new_ones((2, 3)) + x.new_full((2, 3), 4.0), A)
case("new_tensor", lambda T, x: x.new_tensor([1, 2]), A)
case("full of a tensor", lambda T, x: x * T.ones_like(x) * 2, A)
case("empty any", lambda T, x: x.any(), np.zeros((0, 3), "f4"))

for name, more in {"leaky_relu": (0.2,), "elu": (0.7,), "celu": (1.3,), "selu": (), "relu6": (), "hardtanh": (),
                   "hardsigmoid": (), "hardswish": (), "logsigmoid": (), "mish": (), "softsign": (), "tanhshrink": (),
                   "softshrink": (0.4,), "hardshrink": (0.4,), "threshold": (0.1, 20.0), "glu": (1,),
                   "softplus": (2.0,), "softmin": (1,), "silu": (), "gelu": ()}.items():
    case(f"F.{name}", lambda T, x, name=name, more=more: getattr(T.nn.functional, name)(x, *more), A * 3)
for name in ("leaky_relu", "elu", "relu6", "hardtanh", "hardshrink", "silu", "mish", "celu"):
    case(f"F.{name} at its kinks", lambda T, x, name=name: getattr(T.nn.functional, name)(x),
         np.array([0.0, -0.0, 6.0, -1.0, 1.0, 0.5, -0.5, -200.0, 200.0], "f4"))
case("F.prelu", lambda T, x, w: T.nn.functional.prelu(x, w), IMAGE, normal(4))
case("F.normalize", lambda T, x: T.nn.functional.normalize(x) + T.nn.functional.normalize(x, 1.0, 0), A)
case("F.cosine_similarity", lambda T, a, b: T.nn.functional.cosine_similarity(a, b), A, B)
for reduction in ("mean", "sum", "none"):
    case(f"F.smooth_l1_loss, {reduction}", lambda T, a, b, r=reduction: T.nn.functional.smooth_l1_loss(
        a, b, reduction=r, beta=0.7), A, B)
    case(f"F.huber_loss, {reduction}", lambda T, a, b, r=reduction: T.nn.functional.huber_loss(
        a, b, reduction=r, delta=0.7), A, B)
    by = "batchmean" if reduction == "mean" else reduction
    case(f"F.kl_div, {reduction}", lambda T, a, b, r=by: T.nn.functional.kl_div(
        T.log_softmax(a, 1), b.detach(), reduction=r), A, np.where(B > 0, np.abs(B), 0))
    case(f"F.l1_loss, {reduction}", lambda T, a, b, r=reduction: T.nn.functional.l1_loss(a, b, reduction=r),
         A, np.where(A > 0, A, B))
    for smoothing in (0.0, 0.2):
        for ignore in (-100, 2):
            case(f"F.cross_entropy, {reduction}, {smoothing}, ignoring {ignore}",
                 lambda T, x, y, w, r=reduction, s=smoothing, i=ignore: T.nn.functional.cross_entropy(
                     x, y, ignore_index=i, reduction=r, label_smoothing=s) + T.nn.functional.cross_entropy(
                     x, y, w.detach(), ignore_index=i, reduction=r, label_smoothing=s), normal(5, 4),
                 np.array([ignore, 1, ignore, 3, 0]), np.abs(normal(4)))
    case(f"F.cross_entropy of images, {reduction}", lambda T, x, y, r=reduction: T.nn.functional.cross_entropy(
        x, y, reduction=r), IMAGE, np.arange(60).reshape(2, 5, 6) % 4)
    case(f"F.cross_entropy of probabilities, {reduction}", lambda T, x, y, r=reduction: T.nn.functional.cross_entropy(
        x, T.softmax(y, 1), reduction=r, label_smoothing=0.1), A, B)
    case(f"F.nll_loss, {reduction}", lambda T, x, y, r=reduction: T.nn.functional.nll_loss(
        T.log_softmax(x, 1), y, reduction=r), IMAGE, np.arange(60).reshape(2, 5, 6) % 4)
for reduction in ("sum", "mean", "std", "var", "amax", "amin", "norm", "any", "all", "count_nonzero"):
    for empty in ((), []):  # PyTorch's own gradients of ``std`` and ``var`` are infinite here
        case(f"{reduction} over {empty}", lambda T, x, name=reduction, dim=empty: getattr(T, name)(
            x.detach() if name in ("std", "var") else x, dim=dim), A)
for pad, mode in (((1, 2), "constant"), ((1, 2, 0, 1), "constant"), ((-1, 2, 1, -2), "constant"),
                  ((1, 2, 3, 1), "reflect"), ((1, 2, 3, 1), "replicate"), ((1, 2, 3, 1), "circular")):
    case(f"F.pad {pad}, {mode}", lambda T, x, pad=pad, mode=mode: T.nn.functional.pad(x, pad, mode), IMAGE)
for mode in ("nearest", "bilinear", "bicubic", "area"):
    for size in ((7, 9), (3, 4)):
        case(f"F.interpolate {size}, {mode}", lambda T, x, size=size, mode=mode: T.nn.functional.interpolate(
            x, size, mode=mode), IMAGE)
    case(f"F.interpolate times 2, {mode}", lambda T, x, mode=mode: T.nn.functional.interpolate(
        x, scale_factor=2, mode=mode), IMAGE)
case("F.interpolate, corners aligned", lambda T, x: T.nn.functional.interpolate(
    x, (7, 9), mode="bilinear", align_corners=True), IMAGE)
case("F.pixel_shuffle", lambda T, x: T.nn.functional.pixel_unshuffle(T.nn.functional.pixel_shuffle(x, 2), 2) * 2
     + T.nn.functional.pixel_shuffle(x, 2).sum(), IMAGE)
CONVOLUTIONS = {
    "depthwise": ((4, 1, 3, 3), {"groups": 4, "padding": 1}), "two groups": ((6, 2, 3, 3), {"groups": 2, "stride": 2}),
    "depthwise, twice": ((8, 1, 3, 2), {"groups": 4, "padding": 1, "stride": 2, "dilation": 2}),
    "dilated": ((3, 4, 3, 2), {"dilation": (2, 3), "padding": 2}), "same": ((3, 4, 3, 3), {"padding": "same"}),
    "dilated groups": ((4, 2, 2, 2), {"groups": 2, "dilation": 2}), "valid": ((3, 4, 2, 2), {"padding": "valid"})}
SEQUENCES = {
    "plain": ((3, 4, 3), {"padding": 1}), "causal": ((4, 1, 4), {"groups": 4, "padding": 3}),
    "dilated": ((3, 4, 3), {"dilation": 2, "stride": 2}), "same": ((3, 4, 3), {"padding": "same"})}
TRANSPOSED = {
    "plain": ((4, 3, 3, 3), {"stride": 2, "padding": 1}), "dilated": ((4, 3, 2, 2), {"dilation": 2}),
    "more": ((4, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "more than padding": ((4, 3, 2, 2), {"stride": 3, "output_padding": 2}),
    "groups": ((4, 2, 3, 3), {"groups": 2, "stride": 2, "output_padding": (1, 0)})}
for label, (shape, options) in CONVOLUTIONS.items():
    case(f"F.conv2d, {label}", lambda T, x, w, b, o=options: T.nn.functional.conv2d(x, w, b, **o), IMAGE,
         normal(*shape), normal(shape[0]))
for label, (shape, options) in SEQUENCES.items():
    case(f"F.conv1d, {label}", lambda T, x, w, b, o=options: T.nn.functional.conv1d(x, w, b, **o), normal(2, 4, 9),
         normal(*shape), normal(shape[0]))
for label, (shape, options) in TRANSPOSED.items():
    case(f"F.conv_transpose2d, {label}", lambda T, x, w, b, o=options: T.nn.functional.conv_transpose2d(
        x, w, b, **o), IMAGE, normal(*shape), normal(shape[1] * options.get("groups", 1)))
MASK = np.tri(5, 5, dtype=bool)[None, None]
BLIND = MASK & (np.arange(5) != 2)[:, None]
HEADS = tuple(normal(2, 3, 5, 4, seed=i) for i in range(3))
case("attention with a mask", lambda T, q, k, v, m: T.nn.functional.scaled_dot_product_attention(
    q, k, v, m), *HEADS, MASK)
case("attention of a row that sees nothing", lambda T, q, k, v, m: T.nn.functional.scaled_dot_product_attention(
    q, k, v, m), *HEADS, BLIND)
case("attention of a row of -inf", lambda T, q, k, v: T.nn.functional.scaled_dot_product_attention(
    q, k, v, T.where(T.tensor(BLIND), T.zeros(1, 1, 5, 5), -INF)), *HEADS)
case("attention with a scale, of three dimensions", lambda T, q, k, v: T.nn.functional.scaled_dot_product_attention(
    q[0], k[0], v[0], scale=0.3), *HEADS)
case("causal attention of fewer queries", lambda T, q, k, v: T.nn.functional.scaled_dot_product_attention(
    q[:, :, :3], k, v, is_causal=True), *HEADS)


@dataclass(frozen=True)
class Outcome:
    value: np.ndarray
    gradients: list[np.ndarray | None]


def outcome(library, name, differentiates) -> Outcome:
    """What the function returns, and the gradients of its elements' sum by weights."""
    function, arrays = CASES[name]
    inputs = [library.tensor(array) for array in arrays]
    for x in inputs:
        if differentiates and library.is_floating_point(x):
            x.requires_grad = True
    y = function(library, *inputs)
    gradients: list[Any] = []
    if y.requires_grad:
        weights = np.random.default_rng(9).uniform(0.5, 1.5, tuple(y.shape)).astype("f4")
        (y * library.tensor(weights).to(y.dtype)).sum().backward()
        gradients = [None if x.grad is None else np.asarray(x.grad.tolist()) for x in inputs]
    return Outcome(y.detach().numpy(), gradients)


def is_differentiated(name):
    """Not where the peer's value is infinite or NaN: there gradients are conventions of the kernels."""
    if "//" in name or "%" in name:  # PyTorch has no gradient of some of these
        return False
    return "at the edges" not in name or name.split()[0] in ("abs", "sign", "maximum", "minimum")


@pytest.mark.filterwarnings("ignore:Implicit dimension choice:UserWarning")
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_over_no_dimension_in_particular_is_over_the_one_that_pytorch_chooses(name):
    with Runtime("cpu", memory_budget="1MiB", policy="none"):
        for shape in ((), (3,), (2, 3), (2, 3, 4), (1, 2, 3, 2)):
            right = getattr(torch.nn.functional, name)(torch.tensor(normal(*shape)), dim=None)
            found = getattr(minidl.nn.functional, name)(minidl.tensor(normal(*shape)), dim=None)
            np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_name_of_pytorch_means_what_it_means_there(name):
    expected = outcome(torch, name, is_differentiated(name))
    with Runtime("cpu", memory_budget="16MiB", policy="none"):
        ours = outcome(minidl, name, is_differentiated(name))
    assert ours.value.dtype == expected.value.dtype and ours.value.shape == expected.value.shape
    np.testing.assert_allclose(ours.value, expected.value, rtol=1e-5, atol=2e-6)
    assert len(ours.gradients) == len(expected.gradients)
    for found, right in zip(ours.gradients, expected.gradients, strict=True):
        if right is not None and right.any():
            assert found is not None
            np.testing.assert_allclose(found, right, rtol=2e-5, atol=5e-6)
        elif found is not None:
            assert not np.nan_to_num(found, nan=1.0).any()
