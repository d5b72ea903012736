"""The tools of device functions: loads and stores, the shared formulas, walks over dimensions, sums.

A device function is a Python closure over these tools. Numba compiles it for a GPU; a simulator calls it as Python. The
tools differ, so they are passed in and not imported: this file sees CUDA as an object with ``threadIdx``, ``blockIdx``,
``shared``, ``local`` and ``syncthreads``. Python floats would turn arithmetic into float64, so device functions use
numbers of the type that they compute in.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from minidl.kernels import comparing, random, scalar
from minidl.kernels.cuda.launch import COMPUTE

Function = Callable[..., Any]

GROUP_BYTES = 16  # the most bytes that one instruction moves
GROUPED = ("float32", "int32", "bfloat16")  # dtypes that can be moved in groups of 8 or 16 bytes


class Tools:
    """The tools for one target: a GPU or a simulator.

    cuda      numba.cuda, or a simulator with the same names
    device    makes a function callable from device functions
    math      ``math``, or functions of the same names
    integer   the type of indices below 2^31: its divisions are several times faster
    access    by count (2 or 4): ``load(pointer, i)`` and ``store(pointer, i, words)`` of the i-th group of so many
              32-bit words; without it groups are moved element by element
    pair      rounds two numbers to bfloat16 in one word, the first one low, if the target has that instruction;
              without it rounding takes several instructions for each
    """

    def __init__(self, cuda: Any, device: Callable[[Function], Function], math: Any, integer: Any, *,
                 access: Mapping[int, tuple[Function, Function]] | None = None, pair: Function | None = None) -> None:
        self.cuda = cuda
        self.device = device
        self.math = math
        self.integer = integer
        self.scalar = cache(self._scalar)
        self.access = access
        self.pair = self._rounded_pair() if pair is None else pair
        self.memory = cache(self._memory)
        self.group = cache(self._group)
        self.walk = cache(self._walk)
        self.tile_sum = cache(self._tile_sum)
        self.block_max = cache(self._block_max)
        self.random_bits = self._random_bits()

    @staticmethod
    def number(dtype: str) -> Any:
        """Return the NumPy type in which a dtype is computed."""
        return np.dtype(COMPUTE.get(dtype, "int64")).type

    def wide(self, dtype: str) -> tuple[Function, Function]:
        """Return ``load`` and ``store`` for parameters and statistics beside a dtype: float32 for 16-bit floats."""
        load, store = self.memory(np.dtype(self.number(dtype)).name)
        return load, store

    def _scalar(self, dtype: str) -> SimpleNamespace:
        """Return the formulas of ``scalar`` as device functions for a dtype; those for float32 have no branches."""
        number = self.number(dtype)

        def typed(value: Any, like: Any) -> Any:
            return number(value)

        # Formulas call each other by name, so all copies look names up among the copies.
        lifted: dict[str, Any] = dict(vars(scalar), math=self.math)
        for name, function in (*vars(scalar).items(), *vars(comparing).items()):
            if isinstance(function, FunctionType):
                chosen = scalar.FLOAT32.get(function, function) if number is np.float32 else function
                assert isinstance(chosen, FunctionType)
                lifted[name] = self.device(FunctionType(chosen.__code__, lifted, name))
        lifted["typed"] = self.device(typed)
        math, relu, exp = self.math, lifted["relu"], lifted["exp"]

        def log(x: Any) -> Any:
            return math.log(x)

        def power(x: Any, value: Any) -> Any:
            return math.pow(x, value)

        def softplus(x: Any) -> Any:
            return relu(x) + math.log1p(exp(-abs(x)))

        def sin(x: Any) -> Any:
            return math.sin(x)

        def cos(x: Any) -> Any:
            return math.cos(x)

        def erf(x: Any) -> Any:
            return math.erf(x)

        def floor(x: Any) -> Any:
            return math.floor(x)

        def log1p(x: Any) -> Any:
            return math.log1p(x)

        def expm1(x: Any) -> Any:
            return math.expm1(x)
        library = (log, power, softplus, sin, cos, erf, floor, log1p, expm1)
        return SimpleNamespace(**lifted, **{f.__name__: self.device(f) for f in library})

    def _random_bits(self) -> Function:
        """Return ``random.random_bits`` as a device function that computes in integers of 32 bits."""
        integer = self.integer

        def low(h: Any) -> Any:
            return integer(h & random.MASK)
        lifted = dict(vars(random), low=self.device(low))
        return self.device(FunctionType(random.random_bits.__code__, lifted, "random_bits"))

    def _memory(self, dtype: str) -> tuple[Function, Function]:
        """Return ``load(pointer, index)`` and ``store(pointer, index, value)``; a stored value is rounded once."""
        if dtype == "bfloat16":
            pair = self.pair

            def store_half(pointer: Any, index: Any, value: Any) -> None:
                pointer[index] = np.uint16(pair(np.float32(value), np.float32(0)) & np.uint32(0xFFFF))
            return self.device(_load_bfloat16), self.device(store_half)
        number, stored = self.number(dtype), np.dtype(dtype).type

        def load(pointer: Any, index: Any) -> Any:
            return number(pointer[index])

        def store(pointer: Any, index: Any, value: Any) -> None:
            pointer[index] = stored(value)
        return self.device(load), self.device(store)

    def _rounded_pair(self) -> Function:
        """Return the device function ``pair``; without the instruction it rounds by integer arithmetic."""
        bits = self.device(_bits_of_bfloat16)

        def pair(low: Any, high: Any) -> Any:
            return np.uint32(bits(low) | np.uint32(bits(high) << np.uint32(16)))
        return self.device(pair)

    def _group(self, dtype: str, count: int) -> tuple[Function, Function]:
        """Return functions that load and store a group of ``count`` elements, 8 or 16 bytes aligned to their size.
        ``load(pointer, i, values, at)`` and ``store(pointer, i, values, at)`` move the i-th group to and from
        ``values[at:]``."""
        itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        assert count * itemsize in (8, 16) and dtype in GROUPED, f"groups of {count} {dtype}"
        if self.access is None:
            return self._one_by_one(dtype, count)
        words = count * itemsize // 4
        load_words, store_words = self.access[words]
        if itemsize == 2:
            return self._halves(load_words, store_words, words)
        number, stored = self.number(dtype), np.dtype(dtype).type

        def load(pointer: Any, i: Any, values: Any, at: Any) -> None:
            found = load_words(pointer, i)
            for k in range(count):
                values[at + k] = number(found[k].view(stored))

        def store4(pointer: Any, i: Any, values: Any, at: Any) -> None:
            store_words(pointer, i, (stored(values[at]).view(np.uint32), stored(values[at + 1]).view(np.uint32),
                                     stored(values[at + 2]).view(np.uint32), stored(values[at + 3]).view(np.uint32)))

        def store2(pointer: Any, i: Any, values: Any, at: Any) -> None:
            store_words(pointer, i, (stored(values[at]).view(np.uint32), stored(values[at + 1]).view(np.uint32)))
        return self.device(load), self.device(store4 if count == 4 else store2)

    def _halves(self, load_words: Function, store_words: Function, words: int) -> tuple[Function, Function]:
        """Return functions that load and store ``words`` words of two bfloat16 each; the lower 16 bits are the first.
        """
        pair = self.pair

        def load(pointer: Any, i: Any, values: Any, at: Any) -> None:
            found = load_words(pointer, i)
            for k in range(words):
                values[at + 2 * k] = np.uint32(found[k] << np.uint32(16)).view(np.float32)
                values[at + 2 * k + 1] = np.uint32(found[k] & np.uint32(0xFFFF0000)).view(np.float32)

        def store4(pointer: Any, i: Any, values: Any, at: Any) -> None:
            store_words(pointer, i, (pair(values[at], values[at + 1]), pair(values[at + 2], values[at + 3]),
                                     pair(values[at + 4], values[at + 5]), pair(values[at + 6], values[at + 7])))

        def store2(pointer: Any, i: Any, values: Any, at: Any) -> None:
            store_words(pointer, i, (pair(values[at], values[at + 1]), pair(values[at + 2], values[at + 3])))
        return self.device(load), self.device(store4 if words == 4 else store2)

    def _one_by_one(self, dtype: str, count: int) -> tuple[Function, Function]:
        """Return ``load`` and ``store`` as ``_group`` does; they move the group element by element."""
        load_one, store_one = self.memory(dtype)

        def load(pointer: Any, i: Any, values: Any, at: Any) -> None:
            for k in range(count):
                values[at + k] = load_one(pointer, i * count + k)

        def store(pointer: Any, i: Any, values: Any, at: Any) -> None:
            for k in range(count):
                store_one(pointer, i * count + k, values[at + k])
        return self.device(load), self.device(store)

    def _walk(self, narrow: bool) -> tuple[Function, Function]:
        """Return functions for coordinates in up to four dimensions: found by division once, then advanced by addition.

        locate(i, n1, n2, n3)                    the coordinates of element i; ``narrow``: i is below 2^31
        advance(c0, .., c3, n1, .., n3, t0, .., t3)  the coordinates after a step with coordinates t0 .. t3
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
        """Return ``tile_sum(value, scratch)``: for each column (thread index mod ``columns``) the sum over its threads.

        The sum is a tree, so its order is fixed and rounding grows with the logarithm; every thread gets the sum. Both
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
            cuda.syncthreads()  # before a thread writes the next value
            return result
        return self.device(tile_sum)

    def _block_max(self, threads: int) -> Function:
        """Return ``block_max(value, scratch)``: a thread block's largest value if none is NaN; otherwise any value."""
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
    """Return a bfloat16 as a float32; it is stored as the upper half of the float32's bits."""
    return np.uint32(np.uint32(pointer[index]) << np.uint32(16)).view(np.float32)


def _bits_of_bfloat16(value: Any) -> Any:
    """Return the bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    x = np.float32(value)
    bits = x.view(np.uint32)
    upper = np.uint32(bits >> np.uint32(16))
    lower = np.uint32(bits & np.uint32(0xFFFF))
    # Round up if more than half a unit is lost, or exactly half of an odd one. Beyond the largest it is infinity.
    up = lower > np.uint32(0x8000) or (lower == np.uint32(0x8000) and (upper & np.uint32(1)) == np.uint32(1))
    rounded = np.uint32(upper + np.uint32(1)) if up else upper
    if x != x:
        rounded = np.uint32(upper | np.uint32(0x40))
    return rounded
