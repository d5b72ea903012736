"""Cases of comparisons, masks, ranks, indexing and further functions of one tensor, with their formulas."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import special

from bench.support.kernel_case import Case
from minidl import meta as metas

RELATIONS: dict[str, Callable[..., Any]] = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
                                            ">": np.greater, ">=": np.greater_equal}
LIBRARY: dict[str, Callable[..., Any]] = {"abs": np.abs, "sign": np.sign, "sin": np.sin, "cos": np.cos,
                                          "erf": special.erf, "floor": np.floor, "expm1": np.expm1}
EXTREMES: dict[str, Callable[..., Any]] = {"maximum": np.maximum, "minimum": np.minimum}


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _ranked(x: Any, *, k: Any, largest: Any) -> Any:
    """Return the first k elements of each row in order, and their indices; of equal elements the first comes first."""
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order


def _log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _put(dy: Any, onto: Any = None, *, shape: Any, parts: Any) -> Any:
    """Return the gradient of indexing, which adds ``dy`` at the indexed places; added to ``onto`` if that is given."""
    dx = np.zeros(shape) if onto is None else onto.copy()
    dx[tuple(slice(*(p or (None,))) if isinstance(p, tuple) else p for p in parts)] += dy
    return dx


def adadelta_ref(p: Any, v: Any, u: Any, g: Any, *, lr: Any, rho: Any, eps: Any, weight_decay: Any) -> Any:
    """Return a parameter and its two running means after one step of Adadelta."""
    g = g + weight_decay * p
    v = rho * v + (1 - rho) * g * g
    step = np.sqrt(u + eps) / np.sqrt(v + eps) * g
    return p - lr * step, v, rho * u + (1 - rho) * step * step


def _fill(x: Any, mask: Any, value: Any, inverted: Any) -> Any:
    return np.where(mask != inverted, value, x)


def cases(block: int) -> Iterator[Case]:
    """Yield all cases, at sizes on both sides of a multiple of ``block``, and with broadcasting."""
    shape: tuple[int, ...]
    for shape in ((), (block - 1,), (block + 1,), (2, block + 1, 1)):
        yield Case("power", (("+", shape),), lambda x, value: x**value, {"value": 2.5})
        yield Case("power", (shape,), lambda x, value: x**value, {"value": 3.0})
        for name, f in LIBRARY.items():
            yield Case(name, (shape,), f)
        yield Case("log1p", (("+", shape),), np.log1p)
        for name in ("abs", "sign"):
            yield Case(name, (("i3", shape),), LIBRARY[name])
        for name, f in EXTREMES.items():
            yield Case(name, (shape, shape), f)
            yield Case(name, (("i3", shape), ("i3", shape)), f)
        yield Case("pow", (("+", shape), shape), np.power)
        yield Case("silu", (shape,), lambda x: x * _sigmoid(x))
        yield Case("silu_grad", (shape, shape), lambda dy, x: dy * _sigmoid(x) * (1 + x * (1 - _sigmoid(x))))
        yield Case("softplus", (shape,), lambda x: np.log1p(np.exp(x)))
        yield Case("compare_number", (shape,), lambda x, relation, value: RELATIONS[relation](x, value),
                   {"relation": ">", "value": 0.25})
        yield Case("compare_number", (("i3", shape),), lambda x, relation, value: RELATIONS[relation](x, value),
                   {"relation": "!=", "value": 1.0})
        yield Case("convert", (shape,), lambda x, dtype: np.trunc(x), {"dtype": metas.int64})
        yield Case("convert", (("b", shape),), lambda x, dtype: x, {"dtype": metas.float32})
        yield Case("where", (("b", shape), shape, shape), np.where)
        yield Case("masked_fill", (shape, ("b", shape)), _fill, {"value": -1.5, "inverted": False})
    for relation, holds in RELATIONS.items():
        def compare(a: Any, b: Any, relation: Any, holds: Any = holds) -> Any:
            return holds(a, b)
        yield Case("compare", (("i3", (4, 5)), ("i3", (5,))), compare, {"relation": relation})
    yield Case("pow", (("+", (4, 1, 3)), (5, 1)), np.power)
    for name, f in EXTREMES.items():
        yield Case(name, ((4, 1, 3), (5, 1)), f)
    yield Case("compare", ((4, 1, 3), (5, 1)), lambda a, b, relation: a < b, {"relation": "<"})
    yield Case("compare", ((2 * block + 1,), (1,)), lambda a, b, relation: a >= b, {"relation": ">="})
    yield Case("where", (("b", (5, 1)), (4, 5, 3), (3,)), np.where)
    yield Case("where", (("b", (2, 5, 3)), (1, 1), (2, 5, 3)), np.where)
    yield Case("masked_fill", ((4, 5, 3), ("b", (5, 1))), _fill, {"value": 2.0, "inverted": True})
    yield Case("masked_fill", ((2, block + 1), ("b", (2, 1))), _fill, {"value": np.inf, "inverted": False})
    for shape, k in (((1,), 1), ((3, 5), 1), ((2, 3, block + 1), 3), ((9, 2), 2), ((2, block), 1)):
        for largest in (True, False):
            yield Case("topk", (shape,), _ranked, {"k": k, "largest": largest})
            yield Case("topk", ((f"i{max(2, k)}", shape),), _ranked, {"k": k, "largest": largest})
        yield Case("log_softmax", (shape,), _log_softmax)
    parts: tuple[Any, ...]
    for shape, dy, parts in (((5,), (0,), ((2, 2, 1),)), ((4, 5), (5,), (1, ())),
                             ((4, 5), (4, 2, 1), ((), (1, 5, 2), None)),
                             ((5, 2, 6), (2, 2, 3), ((0, 4, 3), (), (1, 6, 2))),
                             ((3, 2, block + 1), (1, 3, 2), (None, (), (), block))):
        for onto in ((), (shape,)):
            yield Case("index_grad", (dy, *onto), _put, {"shape": shape, "parts": parts})
