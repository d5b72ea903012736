"""Run every launch of a CUDA kernel twice on the same bytes: its source in the simulator, and its compiled code."""

import numpy as np
from cuda_simulator import Simulator

from bench.support.llvm_machine import LlvmMachine

# Mathematical functions are NumPy's in the simulator and C's in compiled code; they may differ in the last bits.
LIBRARY_FORMULAS = ("log", "power", "softplus", "sin", "cos", "erf", "log1p", "expm1")
LIBRARY_KERNELS = ("log_softmax", "random_numbers")
TOLERANCE = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 2.0**-8, "float16": 2.0**-10}


def of_a_library(source):
    """Return True if a kernel may call functions that differ in the last bits; in float64 all may."""
    options = dict(source.options)
    return ("*float64" in source.signature or options.get("formula") in LIBRARY_FORMULAS
            or options.get("labelled", False) or source.make.__name__ in LIBRARY_KERNELS)


class Twice(Simulator):
    """A simulator that also runs the compiled kernel: both must leave all of memory the same, gaps between tensors too.
    """

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
        """Return (dtype, bytes) of floating-point operands, each up to the next operand or the end of its tensor."""
        places = [(at - self.memory.base, kind[1:]) for kind, at in zip(source.signature, arguments, strict=True)
                  if kind.startswith("*")]
        for start, dtype in places:
            ends = [start + int(np.argmin(self.memory.owned[start:])), *[p for p, _ in places if p > start]]
            if dtype in TOLERANCE:
                itemsize = np.dtype(dtype).itemsize
                yield dtype, slice(start, start + (min(ends) - start) // itemsize * itemsize)
