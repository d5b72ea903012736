"""How loops become kernels: each is compiled twice, for one thread and for all of them.

A kernel is a Python function whose outermost loop is a ``prange`` over pieces of work that its arguments cut, by shape
alone. Both versions come from that one source and make the same pieces, so their results have the same bits, whatever
the number of threads. No version needs the interpreter's lock.

What is compiled is kept on disk and found again by the next process.

Threads that have no work sleep. GNU OpenMP's would spin, for the next call may come soon; where other programs want
the processors, too, each such wait costs a whole time slice, and a step took 5 to 35 times as long. The environment
variable OMP_WAIT_POLICY, if it is set before minidl is imported, decides instead.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from numba.core import types
from numba.extending import overload, register_jitable

from minidl.kernels import random, scalar
from minidl.outside.numba_cache import njit

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when Numba loads OpenMP, at the first parallel call

# A parallel call costs from 2 to 100 microseconds, depending on the thread layer that Numba finds; below this number
# of elements of work a serial one is faster. The bits do not depend on it.
PARALLEL_FROM = 1 << 16

# Contraction rounds once where a product is added, instead of twice. Infinities and NaN are values here: nothing else
# of "fast math" is allowed.
_FORMULA: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
# Without it, the longer formulas stay calls, and loops over calls stay scalar.
_INLINE: Any = {**_FORMULA, "forceinline": True}
_OPTIONS: dict[str, Any] = {"nogil": True, **_FORMULA}

# Numba keeps what it compiled as long as the function's own file stays as it is. Kernels contain formulas and loops of
# these files, too: a change of one of them must be seen.
SHARED = ("attention.py", "columns.py", "compiled.py", "conv_cuts.py", "elements.py", "elementwise.py", "half.py",
          "matrices.py", "product.py", "sums.py", "vectors.py", "../scalar.py", "../random.py")
_STAMPS = tuple((path.stat().st_mtime_ns, path.stat().st_size) for name in SHARED
                if (path := Path(__file__).parent / name).exists())


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """The function compiled by Numba when it is first called with new types; kept on disk."""
    dispatcher = njit(**_OPTIONS | options)(function)
    index = dispatcher._cache._cache_file
    index._source_stamp = (index._source_stamp, _STAMPS)
    return dispatcher


def summing(function: Callable[..., Any]) -> Any:
    """``compiled`` for loops that add up, in whatever order fills the vector registers.

    That order is chosen here, once for all kernels that call the function, so their bits still agree.
    """
    return compiled(function, fastmath={"contract", "reassoc", "nsz"})


class Kernel:
    """A loop over pieces: ``kernel(work, *arguments)``, with ``work`` the number of elements that it goes through."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.serial = compiled(function)
        assert isinstance(function, FunctionType)
        copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__,
                            function.__closure__)
        # Another name, or both versions would be one entry of the cache.
        copy.__qualname__, copy.__module__ = f"{function.__qualname__}.parallel", function.__module__
        self.parallel = compiled(copy, parallel=True)
        self.__doc__ = function.__doc__

    def __call__(self, work: int, *arguments: Any) -> None:
        (self.serial if work < PARALLEL_FROM else self.parallel)(*arguments)


# Formulas ----------------------------------------------------------------------------------------------------------
def _lift(function: Callable[..., Any]) -> None:
    """Let kernels call a function of ``scalar``; the float32 version of it if there is one."""
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
