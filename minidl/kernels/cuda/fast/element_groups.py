"""Elementwise kernels on groups of 16 bytes: a group is one load, and one store.

  dense      all operands are runs of elements in one order
  repeated   one operand repeats for every row of the others, which are dense: a bias, a broadcast mean
  strided    the innermost dimension of all is a run of whole groups: a copy of attention's heads
  dropout    contiguous, because positions count in C order

The general kernels (``elementwise``) do the same element by element, with the same bits.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.launch import Argument, Launches, View, blocks_of, integers
from minidl.kernels.cuda.layout import RANK, Dimension, digits, padded
from minidl.kernels.cuda.tools import GROUP_BYTES, GROUPED, Tools

GROUPS = 2  # of a thread: as many loads of each operand are in flight at once
REPEATED = 4  # groups of a thread if an operand repeats: computing the first place takes as long as moving several


def application(tools: Tools, dtype: str, formula: str, form: str) -> Callable[..., Any]:
    """Return ``apply(a, b, number, position)``, which calls the formula with those operands that ``form`` names."""
    if form == "number":
        def fill(a: Any, b: Any, number: Any, position: Any) -> Any:
            return number
        return tools.device(fill)
    if form == "a" and not formula:
        def same(a: Any, b: Any, number: Any, position: Any) -> Any:
            return a
        return tools.device(same)
    function = getattr(tools.scalar(dtype), formula)
    if form == "a":
        def one(a: Any, b: Any, number: Any, position: Any) -> Any:
            return function(a)
        return tools.device(one)
    if form == "a, b":
        def two(a: Any, b: Any, number: Any, position: Any) -> Any:
            return function(a, b)
        return tools.device(two)
    assert form == "a, number"

    def with_number(a: Any, b: Any, number: Any, position: Any) -> Any:
        return function(a, number)
    return tools.device(with_number)


def dense_groups(tools: Tools, *, dtypes: tuple[str, str, str], formula: str, form: str, width: int,
                 threads: int) -> Callable[..., None]:
    """Return a kernel: y[i] = formula(a[i], b[i], number), by groups of ``width`` elements; its n is in groups."""
    cuda, number = tools.cuda, tools.number(dtypes[0])
    (_, store), (load_a, _), (load_b, _) = (tools.group(dtype, width) for dtype in dtypes)
    apply, reads_a, reads_b = application(tools, dtypes[0], formula, form), "a" in form, "a, b" in form
    held = GROUPS * width

    def kernel(y: Any, a: Any, b: Any, value: Any, n: Any) -> None:
        first = np.int64(cuda.blockIdx.x) * (threads * GROUPS) + cuda.threadIdx.x
        a_values, b_values = cuda.local.array(held, number), cuda.local.array(held, number)
        for k in range(GROUPS):
            i = first + k * threads
            if i < n:
                if reads_a:
                    load_a(a, i, a_values, k * width)
                if reads_b:
                    load_b(b, i, b_values, k * width)
        for k in range(GROUPS):
            i = first + k * threads
            if i < n:
                for v in range(k * width, (k + 1) * width):
                    a_values[v] = apply(a_values[v], b_values[v], value, i)
                store(y, i, a_values, k * width)
    return kernel


def repeated_groups(tools: Tools, *, dtypes: tuple[str, str, str], formula: str, form: str, width: int, spread: bool,
                    narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: y[o, m, i] = formula(a[o, m, i], b[o, i], number); a formula of one operand reads b only.

    n: number of all groups; rows: the values of m for each o; inside: groups along i; t_o, t_m, t_i: the coordinates of
    a step of ``threads`` groups. Without ``spread`` there is a single o. width: elements of a group of 16 bytes.
    narrow: n is below 2^31.
    """
    cuda, number, index = tools.cuda, tools.number(dtypes[0]), tools.integer if narrow else np.int64
    (_, store), (load_a, _), (load_b, _) = (tools.group(dtype, width) for dtype in dtypes)
    function, two, held = application(tools, dtypes[0], formula, form), "a, b" in form, REPEATED * width

    def kernel(y: Any, a: Any, b: Any, value: Any, n: Any, rows: Any, inside: Any, t_o: Any, t_m: Any,
               t_i: Any) -> None:
        first = np.int64(cuda.blockIdx.x) * (threads * REPEATED) + cuda.threadIdx.x
        a_values, b_values = cuda.local.array(held, number), cuda.local.array(held, number)
        row = index(index(first) // index(inside))
        i, m, o = np.int64(index(first) - row * index(inside)), np.int64(0), np.int64(0)
        if spread:
            o = np.int64(index(row // index(rows)))
            m = np.int64(row) - o * rows
        for k in range(REPEATED):
            if first + k * threads < n:
                if two:
                    load_a(a, first + k * threads, a_values, k * width)
                load_b(b, o * inside + i, b_values, k * width)
            i += t_i
            if spread:
                m += t_m
                o += t_o
            if i >= inside:
                i -= inside
                m += 1
            if spread and m >= rows:
                m -= rows
                o += 1
        for k in range(REPEATED):
            if first + k * threads < n:
                for v in range(k * width, (k + 1) * width):
                    if two:
                        a_values[v] = function(a_values[v], b_values[v], value, v)
                    else:
                        a_values[v] = function(b_values[v], b_values[v], value, v)
                store(y, first + k * threads, a_values, k * width)
    return kernel


def strided_groups(tools: Tools, *, dtype: str, width: int, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: y = x in four dimensions, the innermost contiguous; counts and strides are in groups.
    ``narrow``: all counts and offsets are below 2^31."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    (locate, advance), held, kind = tools.walk(narrow), GROUPS * width, tools.integer if narrow else np.int64

    def at(c0: Any, c1: Any, c2: Any, c3: Any, s0: Any, s1: Any, s2: Any, s3: Any) -> Any:
        outer = kind(kind(c0) * kind(s0) + kind(c1) * kind(s1))
        return np.int64(kind(outer + kind(kind(c2) * kind(s2) + kind(c3) * kind(s3))))
    at = tools.device(at)

    def kernel(y: Any, x: Any, n: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any,
               y0: Any, y1: Any, y2: Any, y3: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
        first = np.int64(cuda.blockIdx.x) * (threads * GROUPS) + cuda.threadIdx.x
        values, places = cuda.local.array(held, number), cuda.local.array(GROUPS, np.int64)
        c0, c1, c2, c3 = locate(first, n1, n2, n3)
        for k in range(GROUPS):
            if first + k * threads < n:
                places[k] = at(c0, c1, c2, c3, y0, y1, y2, y3)
                load(x, at(c0, c1, c2, c3, x0, x1, x2, x3), values, k * width)
                c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
        for k in range(GROUPS):
            if first + k * threads < n:
                store(y, places[k], values, k * width)
    return kernel


def dropout_groups(tools: Tools, *, dtype: str, width: int, threads: int) -> Callable[..., None]:
    """Return a kernel for the dropout of contiguous elements, by groups of ``width``; its n is in groups."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    drop, bits_of, held = tools.scalar(dtype).dropout, tools.random_bits, GROUPS * width

    def kernel(y: Any, x: Any, key: Any, threshold: Any, scale: Any, start: Any, n: Any) -> None:
        first = np.int64(cuda.blockIdx.x) * (threads * GROUPS) + cuda.threadIdx.x
        values = cuda.local.array(held, number)
        for k in range(GROUPS):
            if first + k * threads < n:
                load(x, first + k * threads, values, k * width)
        for k in range(GROUPS):
            i = first + k * threads
            if i < n:
                for v in range(width):
                    position = (start + i * width + v) & 0xFFFFFFFF
                    at = k * width + v
                    values[at] = drop(values[at], bits_of(key, position), threshold, scale)
                store(y, i, values, k * width)
    return kernel


# Plans --------------------------------------------------------------------------------------------------------------
def group_width(size: int, *operands: View) -> int:
    """Return the elements of a group, 16 bytes of the widest operand; 0 if size, dtype or alignment allow no groups."""
    width = GROUP_BYTES // max(a.dtype.itemsize for a in operands)
    fits = not size % width and all(a.dtype.name in GROUPED and a.pointer.offset % (width * a.dtype.itemsize) == 0
                                    for a in operands)
    return width if fits else 0


def repeats(dims: list[Dimension], last: int) -> tuple[int, int] | None:
    """Return two numbers of elements if operand ``last`` repeats along a dimension; None for other layouts.

    The first is the size of the innermost dimension, the second is this size times that of the next dimension outwards,
    along which operand ``last`` must repeat (step 0). There may be a third dimension. Otherwise all operands, ``last``
    too, must be dense. dims: the outermost first, each with its size and the operands' steps in elements."""
    if len(dims) not in (2, 3) or any(step != 1 for step in dims[-1][1:]) or dims[-2][last] != 0:
        return None
    inside, rows = dims[-1][0], dims[-2][0]
    if any(step != inside for step in (*dims[-2][1:last], *dims[-2][last + 1:])):
        return None
    if len(dims) == 3:
        outer = dims[0]
        if outer[last] != inside or any(s != rows * inside for s in (*outer[1:last], *outer[last + 1:])):
            return None
    return inside, rows * inside


def over_repeated(builder: Launches, dims: list[Dimension], y: View, inputs: list[View], value: Argument, *,
                  formula: str, form: str) -> bool:
    """Launch ``repeated_groups`` and return True, if the last input repeats for every row of the others; else False."""
    if not inputs or form not in ("a", "a, b", "a, number"):
        return False
    found = repeats(dims, 1 + len(inputs))
    width = group_width(found[0], y, *inputs) if found is not None else 0
    if found is None or not width:
        return False
    n, inside, rows = y.size // width, found[0] // width, found[1] // found[0]
    operands, steps = (y, inputs[0], inputs[-1]), digits(launch.THREADS, [n + launch.THREADS, rows, inside])
    builder.launch(repeated_groups, blocks_of(n, launch.THREADS * REPEATED), *operands, value,
                   *integers(n, rows, inside, *steps), dtypes=tuple(a.dtype.name for a in operands),
                   formula=formula, form=form, width=width, spread=len(dims) == 3, narrow=n + launch.THREADS < 1 << 31)
    return True


def copy_strided(builder: Launches, dims: list[Dimension], y: View, x: View) -> bool:
    """Launch ``strided_groups`` and return True, if both views are runs of whole groups of 4-byte words; else False."""
    width = group_width(dims[-1][0], y, x)
    runs = width and y.dtype.itemsize == 4 and len(dims) <= RANK and dims[-1][1:] == (1, 1) and not any(
        step % width for d in dims[:-1] for step in d[1:])
    if not runs:
        return False
    counted = [(n, *(s // width for s in steps)) for n, *steps in dims[:-1]] + [(dims[-1][0] // width, 1, 1)]
    inner = padded(counted, RANK, 2)
    extents, step = [d[0] for d in inner], launch.THREADS
    n = int(np.prod(extents, dtype=np.int64))
    last = [sum((d[0] - 1) * d[o] for d in inner) for o in (1, 2)]  # the last group's offset in y and in x
    builder.launch(strided_groups, blocks_of(n, launch.THREADS * GROUPS), y, x, *integers(
        n, *extents[1:], *digits(step, [n + step, *extents[1:]]), *[d[o] for o in (1, 2) for d in inner]),
        dtype=y.dtype.name, width=width, narrow=max(n, *last) < 1 << 31)
    return True
