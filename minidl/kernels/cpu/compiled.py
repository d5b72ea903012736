"""Compiles loops to kernels: each loop is compiled twice, for one thread and for all of them.

A kernel is a Python function whose outermost loop is a ``prange`` over pieces of work, cut by shape alone. Both
versions come from that one source and make the same pieces, so their results have the same bits for any number of
threads. Both release the GIL. Compiled code is stored on disk for the next process.

Threads without work sleep. GNU OpenMP's would spin by default, in expectation of the next call; if other programs want
the processors too, each such wait costs a whole time slice, and a step took 5 to 35 times as long. The environment
variable OMP_WAIT_POLICY, if set before minidl is imported, decides instead.
"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from numba.core import types
from numba.extending import overload, register_jitable

from minidl.kernels import random, scalar
from minidl.outside.numba_cache import njit

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when Numba loads OpenMP, at the first parallel call

# A parallel call costs from 2 to 100 microseconds, depending on Numba's thread layer. Below this number of elements a
# serial call is faster. The bits do not depend on it.
PARALLEL_FROM = 1 << 16

# Contraction rounds a b + c once instead of twice. No other "fast math" is allowed: infinities and NaN must survive.
_FORMULA: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
# Without inlining, the longer formulas stay calls, and loops over calls stay scalar.
_INLINE: Any = {**_FORMULA, "forceinline": True}
_OPTIONS: dict[str, Any] = {"nogil": True, **_FORMULA}

# Numba's disk cache only watches the function's own file. Kernels also contain formulas and loops of these files, so a
# change of one of them must invalidate the cache too.
SHARED = ("attention.py", "columns.py", "compiled.py", "conv_cuts.py", "elements.py", "elementwise.py", "half.py",
          "matrices.py", "product.py", "sums.py", "vectors.py", "../scalar.py", "../random.py")
_STAMPS = tuple((path.stat().st_mtime_ns, path.stat().st_size) for name in SHARED
                if (path := Path(__file__).parent / name).exists())


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Return the function as a Numba dispatcher, compiled at the first call with new types and cached on disk."""
    dispatcher = njit(**_OPTIONS | options)(function)
    index = dispatcher._cache._cache_file
    index._source_stamp = (index._source_stamp, _STAMPS)
    return dispatcher


def summing(function: Callable[..., Any]) -> Any:
    """Return a loop that adds up, compiled so that the sum may be reordered to fill vector registers.

    Kernels call this one compiled function, so the order, and thus the bits, are the same in all of them.
    """
    return compiled(function, fastmath={"contract", "reassoc", "nsz"})


class PieceLoop:
    """A loop compiled for one thread and for all of them, called as ``kernel(work, *arguments)``.
    work: a number of elements or of multiplications; below PARALLEL_FROM one thread runs the loop."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.serial = compiled(function)
        assert isinstance(function, FunctionType)
        copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__,
                            function.__closure__)
        # With the same name both versions would be one entry of the cache.
        copy.__qualname__, copy.__module__ = f"{function.__qualname__}.parallel", function.__module__
        self.parallel = compiled(copy, parallel=True)
        self.__doc__ = function.__doc__

    def __call__(self, work: int, *arguments: Any) -> None:
        (self.serial if work < PARALLEL_FROM else self.parallel)(*arguments)


def kernels_used(functions: Iterable[Any]) -> int:
    """Return how many kernels these functions refer to, directly or through others.
    About as many are compiled when they run for the first time on a machine."""
    seen: dict[int, Any] = {}
    left = list(functions)
    while left:
        each = left.pop()
        if id(each) in seen or not isinstance(each, FunctionType | partial | PieceLoop):
            continue
        seen[id(each)] = each
        if isinstance(each, partial):
            left += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, FunctionType) and each.__module__.startswith("minidl."):
            left += [each.__globals__[name] for name in each.__code__.co_names if name in each.__globals__]
            left += [cell.cell_contents for cell in each.__closure__ or ()]
    return sum(isinstance(each, PieceLoop) for each in seen.values())


# Formulas ----------------------------------------------------------------------------------------------------------
def _lift(function: Callable[..., Any]) -> None:
    """Let compiled code call a function of ``scalar``; for float32 its special version, if there is one."""
    narrow = scalar.FLOAT32.get(function)
    if narrow is None:
        register_jitable(**_INLINE)(function)
        return

    @overload(function, jit_options=_INLINE)
    def choose(x: Any) -> Callable[..., Any]:
        return narrow if x == types.float32 else function


for _function in list(vars(scalar).values()):
    if isinstance(_function, FunctionType) and _function is not scalar.typed:
        _lift(_function)
for _function in (random.low, random.random_bits):
    register_jitable(**_INLINE)(_function)


@overload(scalar.typed)
def _typed(value: Any, like: Any) -> Callable[..., Any]:
    def convert(value: Any, like: Any) -> Any:
        return like_type(value)
    like_type = like
    return convert
