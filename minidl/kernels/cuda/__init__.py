"""Kernels for NVIDIA GPUs, in Numba's CUDA: all operations except those of NVIDIA's libraries, and composed ones.

cuDNN has convolutions and fused attention, cuBLAS matrix products. LSTM, GRU and depthwise convolution are composed.
``KERNELS[op].issue(launcher, addresses, metas, attrs, workspace)`` prepares the launches of a call (once for the same
descriptions) and passes them to a launcher; ``KERNELS[op].workspace(metas, attrs)`` returns the bytes of its workspace.
Operands are outputs, then inputs, of any strides. Outputs are contiguous or channels-last, and may share exactly the
bytes of an input that the operation donates. ``add_relu`` is the bias and ReLU after a convolution.

16-bit floats are storage formats: kernels compute in float32 and round once. The same shapes and bytes always give the
same bits: there are no atomics, and cuts do not depend on the GPU.

Device functions are closures over ``tools``; ``compile`` turns them into machine code (cubins). Only ``compile``
imports CUDA, and no kernel imports it. Words of these modules:

  tile     the part of a result that one thread block computes
  lane     one of the threads that share a row or a column of a tile and add up its terms
  slab     one of the equal ranges into which the terms of a sum are cut, each for another thread block
  group    neighbouring elements of 16 bytes, which are loaded at once
  narrow   True if all indices are below 2^31, so that 32-bit arithmetic suffices
  walk     a thread's way through its elements: it adds a step to their coordinates instead of dividing an index
  rstd     1 / sqrt(variance + eps), by which a normalisation multiplies
"""

from minidl.kernels.cuda import (
    attention, batchnorm, choose, elementwise, embedding, layernorm, loss, pool, ranking, shape, sums, update,
)
from minidl.kernels.cuda.launch import DeviceFunction, Kernel, Launcher, PreparedLaunches

__all__ = ["KERNELS", "Kernel", "Launcher", "PreparedLaunches", "DeviceFunction"]

KERNELS: dict[str, Kernel] = {
    **elementwise.KERNELS, **sums.KERNELS, **attention.KERNELS, **batchnorm.KERNELS, **layernorm.KERNELS,
    **embedding.KERNELS, **loss.KERNELS, **pool.KERNELS, **shape.KERNELS, **update.KERNELS, **choose.KERNELS,
    **ranking.KERNELS,
}
