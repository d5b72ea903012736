"""Comparisons, selection by masks, conversions, ranks of rows, and further functions, by NumPy's vectorised functions.

Temporary arrays are no larger than a piece that fits the cache.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from minidl.kernels.cpu.blocks import Array, index_blocks, source
from minidl.kernels.cpu.elementwise import over_elements

RELATIONS: dict[str, np.ufunc] = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
                                  ">": np.greater, ">=": np.greater_equal}
PIECE = 1 << 15  # elements that are selected at once, if that needs a temporary


def _in_pieces(function: Callable[..., None], y: Array, *inputs: Array) -> None:
    """Run ``function(y, *inputs)`` on one cache-sized piece of the arrays after another, each as a flat array."""
    def run(count: int, *parts: Array) -> None:
        for start in range(0, count, PIECE):
            function(*[part[start:start + PIECE] for part in parts])
    over_elements(run, y, *inputs)


def power(y: Array, x: Array, *, value: float) -> None:
    """y = x to the power of ``value``."""
    over_elements(lambda _, part, x_part: np.power(x_part, x_part.dtype.type(value), out=part), y, x)


def softplus(y: Array, x: Array) -> None:
    """y = log(1 + exp(x))."""
    over_elements(lambda _, part, x_part: np.logaddexp(x_part, 0, out=part), y, x)


def silu(y: Array, x: Array) -> None:
    """y = x / (1 + exp(-x))."""
    _in_pieces(lambda part, x_part: np.divide(x_part, 1 + np.exp(-x_part), out=part), y, x)


def silu_grad(dx: Array, dy: Array, x: Array) -> None:
    """dx = dy * s * (1 + x * (1 - s)), with s the sigmoid of x."""
    def run(part: Array, dy_part: Array, x_part: Array) -> None:
        s = 1 / (1 + np.exp(-x_part))
        np.multiply(dy_part, s * (1 + x_part * (1 - s)), out=part)
    _in_pieces(run, dx, dy, x)


def _of_numpy(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a kernel that applies one of NumPy's functions element by element."""
    def run(y: Array, *inputs: Array) -> None:
        over_elements(lambda _, part, *parts: function(*parts, out=part), y, *inputs)
    return run


absolute, sin, cos, floor = map(_of_numpy, (np.absolute, np.sin, np.cos, np.floor))
log1p, expm1, erf = map(_of_numpy, (np.log1p, np.expm1, special.erf))
maximum, minimum, pow_ = map(_of_numpy, (np.maximum, np.minimum, np.power))


def sign(y: Array, x: Array) -> None:
    """y = 1 where x > 0, -1 where x < 0, else 0."""
    _in_pieces(lambda part, x_part: np.copyto(part, (x_part > 0).astype(np.int8) - (x_part < 0), casting="unsafe"),
               y, x)


def compare(y: Array, a: Array, b: Array, *, relation: str) -> None:
    """y = True where ``relation``, such as "<", holds between a and b, else False."""
    over_elements(lambda _, part, *pair: RELATIONS[relation](*pair, out=part), y, a, b)


def compare_number(y: Array, x: Array, *, relation: str, value: float) -> None:
    """y = True where ``relation``, such as "<", holds between x and ``value``, else False."""
    over_elements(lambda _, part, x_part: RELATIONS[relation](x_part, x_part.dtype.type(value), out=part), y, x)


def where(y: Array, mask: Array, a: Array, b: Array) -> None:
    """y = a where the mask is true, else b; y may share the bytes of one of them."""
    _in_pieces(lambda part, *three: np.copyto(part, np.where(*three)), y, mask, a, b)


def masked_fill(y: Array, x: Array, mask: Array, *, value: float, inverted: bool) -> None:
    """y = ``value`` where the mask is true (``inverted``: false), else x."""
    def fill(part: Array, x_part: Array, mask_part: Array) -> None:
        np.copyto(part, x_part)
        np.copyto(part, value, where=~mask_part if inverted else mask_part, casting="unsafe")
    _in_pieces(fill, y, x, mask)


def convert(y: Array, x: Array, **_: Any) -> None:
    """y = x in y's dtype; conversion to an integer truncates."""
    over_elements(lambda _, part, x_part: np.copyto(part, x_part, casting="unsafe"), y, x)


def _order(rows: Array, k: int, largest: bool) -> Array:
    """Return the indices of each row's k largest (or smallest) elements, [.., k]: NaN first, equal ones by index."""
    if k == 1:
        first: Array = (np.argmax if largest else np.argmin)(rows, axis=-1)[..., None]
        return first
    if largest:  # a stable sort of the reversed row, read backwards, keeps equal elements in order
        order: Array = rows.shape[-1] - 1 - np.argsort(rows[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        return order[..., :k]
    order = np.argsort(rows, axis=-1, kind="stable")
    numbers = np.take_along_axis(rows == rows, order, -1)
    return np.take_along_axis(order, np.argsort(numbers, axis=-1, kind="stable"), -1)[..., :k]


def topk(values: Array, index: Array, x: Array, *, k: int, largest: bool) -> None:
    """values, index = each row's k largest elements (smallest without ``largest``), best first, and their indices.
    NaN comes first in both orders; of equal elements the one with the lower index."""
    for at in index_blocks(x.shape, 8, whole=1):
        rows = x[at]
        order = _order(source(rows), k, largest)
        index[at] = order
        values[at] = np.take_along_axis(rows, order, -1)


def log_softmax(y: Array, x: Array) -> None:
    """y = x - log(sum(exp(x))), row by row, without overflow; sums are accumulated in float64."""
    for at in index_blocks(x.shape, 8, whole=1):
        rows = source(x[at])
        rows = rows - rows.max(-1, keepdims=True)
        total = np.exp(rows).sum(-1, keepdims=True, dtype=np.float64)
        y[at] = rows - np.log(total).astype(rows.dtype)
