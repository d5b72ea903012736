"""Kernels for NVIDIA GPUs, in Numba's CUDA: all operations that neither NVIDIA's libraries nor other operations make.

cuDNN makes convolutions and fused attention, cuBLAS matrix products. LSTM, GRU and depthwise convolution are composed.
``KERNELS[op].issue(launcher, addresses, metas, attrs, workspace)`` makes the launches of a call, once for the
same metas and attributes, and passes them to a launcher. ``KERNELS[op].workspace(metas, attrs)``: bytes of workspace.
Inputs have any strides. Outputs, which stand before inputs, are contiguous or channels-last, and may share exactly the
bytes of a donated input. ``add_relu`` also adds a convolution's bias and applies its ReLU.

16-bit floats are storage formats: kernels compute in float32 and round once. The same shapes and bytes always give the
same bits: there are no atomics, and where a sum is cut does not depend on the GPU.

Device functions are closures over ``tools``, the operations of CUDA that kernels use. ``compile`` turns them into
machine code (cubins). Only ``compile`` imports CUDA, and no kernel imports ``compile``. Words of these modules:

  tile     the part of a result that one thread block computes
  lane     one of the threads that share a row or a column of a tile and add up its terms
  slab     one of the equal ranges into which the terms of a sum are cut, each for another thread block
  group    neighbouring elements of 16 bytes, which are loaded at once
  narrow   True if all indices are below 2^31, so that 32-bit arithmetic suffices
  walk     a thread's way through its elements: it adds a step to their coordinates instead of dividing an index
  rstd     1 / sqrt(variance + eps), by which a normalisation multiplies"""

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
