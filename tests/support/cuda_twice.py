"""Every launch of a CUDA kernel both ways, on the same bytes: its source in the simulator, and as compiled."""

import numpy as np
from cuda_simulator import Simulator

from minidl.testing.llvm_machine import LlvmMachine

# Formulas of a mathematical library, which is NumPy's in the one and C's in the other: a unit in the last place or two.
OF_A_LIBRARY = {"log": 1e-6, "power": 1e-6, "softplus": 1e-6}


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
        tolerance = OF_A_LIBRARY.get(dict(source.options).get("formula"))
        if tolerance:
            start = arguments[0] - self.memory.base
            end = start + int(np.argmin(self.memory.owned[start:]))
            found, right = (bytes_[start:end].view(source.signature[0][1:]).astype(np.float64)
                            for bytes_ in (self.memory.bytes, wanted))
            np.testing.assert_allclose(found, right, rtol=max(tolerance, ROUNDING.get(source.signature[0][1:], 0)))
            wanted[start:end] = self.memory.bytes[start:end]
        differ = np.flatnonzero(wanted != self.memory.bytes)
        assert not differ.size, (f"{source.name}: {differ.size} bytes are not those of its source, from {differ[0]} on; "
                                 f"{np.count_nonzero(~self.memory.owned[differ])} of them are no tensor's")


ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
