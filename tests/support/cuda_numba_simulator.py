"""``python cuda_numba_simulator.py``: run a few CUDA kernels in Numba's own simulator, with its threads and barriers.

It must run in its own process, with NUMBA_ENABLE_CUDASIM=1. It prints the name of each operation that is right, and
fails otherwise.
"""

import warnings

from cuda_kernel_calls import call, check
from cuda_simulator import Simulator
from numba import cuda
from numba.cuda.simulator.kernel import _get_kernel_context

from bench.support.kernel_cases import CASES
from minidl.kernels.cuda import launch, sums

# Some of each family, with and without barriers, and halves; about 1,500 threads.
CHOSEN = {"relu": (4, "bfloat16"), "add": (7, "float16"), "sum_to": (0, "float32"), "softmax": (5, "float32"),
          "batch_norm_stats": (0, "float32"), "batch_norm_relu_grad": (2, "float16"), "layer_norm": (2, "float32"),
          "max_pool2d_grad": (0, "float32"), "cross_entropy": (1, "float32"), "embedding_grad": (1, "float32"),
          "dropout": (5, "float32"), "sgd_": (0, "float32")}


class Inside:
    """A ``cuda`` object as kernels see it while they run."""

    def __getattr__(self, name):
        return getattr(_get_kernel_context(), name)


class NumbaSimulator(Simulator):
    def __init__(self, memory, *, flipped):
        super().__init__(memory, flipped=flipped)
        self.tools.cuda = Inside()

    def run(self, kernel, blocks, threads, values):
        cuda.jit(kernel)[blocks, threads](*values)


def main():
    warnings.simplefilter("ignore")  # infinities and NaN are values; the simulator's threads have their own settings
    launch.THREADS, sums.COLUMNS, sums.DEPTH = 8, 4, 2
    for name, (index, dtype) in CHOSEN.items():
        case = [c for c in CASES if c.name == name][index]
        inputs = case.inputs(dtype)
        check(case, call(name, inputs, case.attrs, simulator=NumbaSimulator), inputs, dtype)
        print(name, flush=True)


if __name__ == "__main__":
    main()
