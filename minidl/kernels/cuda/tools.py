"""What device functions are written with: numbers from memory, the shared formulas, walks over dimensions, sums.

A source is a Python closure over these tools. Numba compiles it for a GPU; a simulator calls it as it stands. The tools
are what differs between the two, so they are given and not imported: this file knows CUDA as an object with
``threadIdx``, ``blockIdx``, ``shared``, ``local`` and ``syncthreads``.

Python's own floats would turn arithmetic into float64: sources use numbers of the type that they compute in.
"""

from collections.abc import Callable
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from minidl.kernels import random, scalar
from minidl.kernels.cuda.launch import COMPUTE

Function = Callable[..., Any]


class Tools:
    """One set for one target.

    cuda      the module of Numba's name, or what stands for it
    device    makes a function callable from device functions
    math      ``math``, or functions of the same names
    integer   the type of indices that are known to be below 2^31: divisions of these are several times faster
    """

    def __init__(self, cuda: Any, device: Callable[[Function], Function], math: Any, integer: Any) -> None:
        self.cuda = cuda
        self.device = device
        self.math = math
        self.integer = integer
        self.scalar = cache(self._scalar)
        self.memory = cache(self._memory)
        self.walk = cache(self._walk)
        self.tile_sum = cache(self._tile_sum)
        self.block_max = cache(self._block_max)
        self.random_bits = device(random.random_bits)

    @staticmethod
    def number(dtype: str) -> Any:
        """The NumPy type that a dtype is computed in."""
        return np.dtype(COMPUTE.get(dtype, "int64")).type

    def wide(self, dtype: str) -> tuple[Function, Function]:
        """``load`` and ``store`` of what stands beside operands of a dtype (``meta.wide``): float32 beside halves."""
        load, store = self.memory(np.dtype(self.number(dtype)).name)
        return load, store

    def _scalar(self, dtype: str) -> SimpleNamespace:
        """The formulas of ``scalar``, and log, for a dtype: those without branches and calls where it is float32."""
        number = self.number(dtype)

        def typed(value: Any, like: Any) -> Any:
            return number(value)

        # Formulas call each other by name: all copies look names up among the copies.
        lifted: dict[str, Any] = dict(vars(scalar), math=self.math)
        for name, function in vars(scalar).items():
            if isinstance(function, FunctionType):
                chosen = scalar.FLOAT32.get(function, function) if number is np.float32 else function
                assert isinstance(chosen, FunctionType)
                lifted[name] = self.device(FunctionType(chosen.__code__, lifted, name))
        lifted["typed"] = self.device(typed)
        math = self.math

        def log(x: Any) -> Any:
            return math.log(x)
        return SimpleNamespace(**lifted, log=self.device(log))

    def _memory(self, dtype: str) -> tuple[Function, Function]:
        """``load(pointer, index)`` and ``store(pointer, index, value)``; what is computed in is rounded once, here."""
        if dtype == "bfloat16":
            return self.device(_load_bfloat16), self.device(_store_bfloat16)
        number, stored = self.number(dtype), np.dtype(dtype).type

        def load(pointer: Any, index: Any) -> Any:
            return number(pointer[index])

        def store(pointer: Any, index: Any, value: Any) -> None:
            pointer[index] = stored(value)
        return self.device(load), self.device(store)

    def _walk(self, narrow: bool) -> tuple[Function, Function]:
        """Coordinates in up to four dimensions: found by division once, and by addition from there.

        locate(i, n1, n2, n3)                    the coordinates of element i; ``narrow``: i is below 2^31
        advance(c0, .., c3, n1, .., n3, t0, .., t3)  further by a step whose own coordinates are t0 .. t3
        """
        index = self.integer if narrow else np.int64

        def locate(i: Any, n1: Any, n2: Any, n3: Any) -> Any:
            rest = index(i)
            above = index(rest // index(n3))
            c3 = np.int64(rest - above * index(n3))
            rest = index(above // index(n2))
            c2 = np.int64(above - rest * index(n2))
            above = index(rest // index(n1))
            c1 = np.int64(rest - above * index(n1))
            return np.int64(above), c1, c2, c3

        def advance(c0: Any, c1: Any, c2: Any, c3: Any, n1: Any, n2: Any, n3: Any,
                    t0: Any, t1: Any, t2: Any, t3: Any) -> Any:
            c3 += t3
            c2 += t2
            c1 += t1
            c0 += t0
            if c3 >= n3:
                c3 -= n3
                c2 += 1
            if c2 >= n2:
                c2 -= n2
                c1 += 1
            if c1 >= n1:
                c1 -= n1
                c0 += 1
            return c0, c1, c2, c3
        return self.device(locate), self.device(advance)

    def _tile_sum(self, columns: int, threads: int) -> Function:
        """``tile_sum(value, scratch)``: for each column (thread index mod ``columns``) the sum over its threads.

        A tree, so that the order is fixed and rounding grows with the logarithm; every thread is told the sum. Both
        counts are powers of two; scratch is a shared array of ``threads`` numbers.
        """
        cuda = self.cuda

        def tile_sum(value: Any, scratch: Any) -> Any:
            thread = cuda.threadIdx.x
            scratch[thread] = value
            cuda.syncthreads()
            half = threads // 2
            while half >= columns:
                if thread < half:
                    scratch[thread] += scratch[thread + half]
                cuda.syncthreads()
                half //= 2
            result = scratch[thread % columns]
            cuda.syncthreads()  # before someone puts the next value there
            return result
        return self.device(tile_sum)

    def _block_max(self, threads: int) -> Function:
        """``block_max(value, scratch)``: the largest value of a block, none of which is NaN; any of them otherwise."""
        cuda = self.cuda

        def block_max(value: Any, scratch: Any) -> Any:
            thread = cuda.threadIdx.x
            scratch[thread] = value
            cuda.syncthreads()
            half = threads // 2
            while half >= 1:
                if thread < half:
                    other = scratch[thread + half]
                    if not other <= scratch[thread]:
                        scratch[thread] = other
                cuda.syncthreads()
                half //= 2
            result = scratch[0]
            cuda.syncthreads()
            return result
        return self.device(block_max)


def _load_bfloat16(pointer: Any, index: Any) -> Any:
    """bfloat16 is kept as its bits: the upper half of a float32's."""
    return np.uint32(np.uint32(pointer[index]) << np.uint32(16)).view(np.float32)


def _store_bfloat16(pointer: Any, index: Any, value: Any) -> None:
    """To nearest, ties to even; NaN stays NaN."""
    x = np.float32(value)
    bits = x.view(np.uint32)
    upper = np.uint32(bits >> np.uint32(16))
    lower = np.uint32(bits & np.uint32(0xFFFF))
    # Up if more than half a unit would be lost, or exactly half from an odd one. Beyond the largest it is infinity.
    up = lower > np.uint32(0x8000) or (lower == np.uint32(0x8000) and (upper & np.uint32(1)) == np.uint32(1))
    rounded = np.uint32(upper + np.uint32(1)) if up else upper
    if x != x:
        rounded = np.uint32(upper | np.uint32(0x40))
    pointer[index] = np.uint16(rounded)
