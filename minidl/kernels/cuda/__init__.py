"""Kernels for NVIDIA GPUs, in Numba's CUDA: all operations except convolutions and matrix products.

``KERNELS[op].issue(launcher, addresses, metas, attrs, workspace)`` plans a call (once for the same descriptions) and
passes its launches to a launcher; ``KERNELS[op].workspace(metas, attrs)`` returns the bytes of its workspace. Operands
are outputs, then inputs, of any strides. Outputs are contiguous or channels-last, and may share exactly the bytes of an
input that the operation donates. ``add_relu`` is the bias and ReLU after a convolution.

Halves are storage formats: kernels compute in float32 and round once. The same shapes and bytes always give the same
bits: there are no atomics, and cuts do not depend on the GPU.

Sources are closures over ``tools``; ``compile`` turns them into cubins. Only ``compile`` imports CUDA, and no kernel
imports it.
"""

from minidl.kernels.cuda import (
    attention,
    batchnorm,
    choose,
    elementwise,
    embedding,
    layernorm,
    loss,
    pool,
    ranking,
    shape,
    sums,
    update,
)
from minidl.kernels.cuda.launch import DeviceFunction, Kernel, Launcher, LaunchPlan

__all__ = ["KERNELS", "Kernel", "Launcher", "LaunchPlan", "DeviceFunction"]

KERNELS: dict[str, Kernel] = {
    **elementwise.KERNELS, **sums.KERNELS, **attention.KERNELS, **batchnorm.KERNELS, **layernorm.KERNELS,
    **embedding.KERNELS, **loss.KERNELS, **pool.KERNELS, **shape.KERNELS, **update.KERNELS, **choose.KERNELS,
    **ranking.KERNELS,
}
