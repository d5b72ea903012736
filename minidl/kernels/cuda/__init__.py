"""Kernels for NVIDIA GPUs, written in Numba's CUDA: every operation that is no convolution and no matrix product, and
what follows a convolution with bias and ReLU (``add_relu``).

``KERNELS[op].issue(launcher, addresses, metas, attrs, workspace)`` plans a call (once for the same descriptions) and
hands its launches to a launcher; ``KERNELS[op].workspace(metas, attrs)`` says what room it needs. Operands are outputs,
then inputs, in any layout: strides count. Outputs are dense, C-contiguous or in the order of channels-last, and may lie
exactly over an input that the operation donates.

The halves are storage: kernels compute in float32 and round once. The same shapes and bytes give the same bits, always:
no atomics, and cuts that do not depend on the GPU.

Sources are closures over ``tools``; ``compile`` makes cubins of them, and is imported by nothing here but by who asks
for cubins: it alone imports CUDA.
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
from minidl.kernels.cuda.launch import Kernel, Launcher, Plan, Source

__all__ = ["KERNELS", "Kernel", "Launcher", "Plan", "Source"]

KERNELS: dict[str, Kernel] = {
    **elementwise.KERNELS, **sums.KERNELS, **attention.KERNELS, **batchnorm.KERNELS, **layernorm.KERNELS,
    **embedding.KERNELS, **loss.KERNELS, **pool.KERNELS, **shape.KERNELS, **update.KERNELS, **choose.KERNELS,
    **ranking.KERNELS,
}
