"""Every launch of a CUDA kernel both ways, on the same bytes: its source in the simulator, and as compiled."""

import numpy as np
from cuda_simulator import Simulator

from bench.support.llvm_machine import LlvmMachine

# Of a mathematical library: NumPy's in the one, C's in the other. They differ by a unit in the last place or two.
LIBRARY_FORMULAS = ("log", "power", "softplus", "sin", "cos", "erf", "log1p", "expm1")
LIBRARY_KERNELS = ("log_softmax", "random_numbers")
TOLERANCE = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 2.0**-8, "float16": 2.0**-10}


def of_a_library(source):
    """Whether a kernel may call functions that differ in the last bits: in float64 all may."""
    options = dict(source.options)
    return ("*float64" in source.signature or options.get("formula") in LIBRARY_FORMULAS
            or options.get("labelled", False) or source.make.__name__ in LIBRARY_KERNELS)


class Twice(Simulator):
    """The simulator, and after it the compiled kernel on the bytes as they were: all of memory must come out the same,
    what lies between tensors too."""

    def __init__(self, memory, *, flipped=False):
        super().__init__(memory, flipped=flipped)
        self.machine = LlvmMachine()

    def launch(self, source, blocks, arguments):
        before = self.memory.bytes.copy()
        super().launch(source, blocks, arguments)
        wanted = self.memory.bytes.copy()
        self.memory.bytes[...] = before
        self.machine.launch(source, blocks, arguments)
        found = self.memory.bytes
        if of_a_library(source):
            for dtype, part in self._operands(source, arguments):
                ours, right = (a[part].view(dtype).astype(np.float64) for a in (found, wanted))
                np.testing.assert_allclose(ours, right, rtol=TOLERANCE[dtype], atol=min(TOLERANCE[dtype], 1e-6))
                wanted[part] = found[part]
        differ = np.flatnonzero(wanted != found)
        assert not differ.size, (f"{differ.size} bytes from {differ[0]} on are not those of the source, "
                                 f"{np.count_nonzero(~self.memory.owned[differ])} of them no tensor's: {source.name}")

    def _operands(self, source, arguments):
        """(dtype, bytes) of the floating-point operands: each to where the next one begins, or its tensor ends."""
        places = [(at - self.memory.base, kind[1:]) for kind, at in zip(source.signature, arguments, strict=True)
                  if kind.startswith("*")]
        for start, dtype in places:
            ends = [start + int(np.argmin(self.memory.owned[start:])), *[p for p, _ in places if p > start]]
            if dtype in TOLERANCE:
                itemsize = np.dtype(dtype).itemsize
                yield dtype, slice(start, start + (min(ends) - start) // itemsize * itemsize)
