"""The last image of more than 2^35 elements, by compiled kernels on the CPU: as that image alone, bit for bit.

Operands lie in memory that is reserved and never filled: of each only the last image is touched, of each launch
only the last blocks run.
"""

import importlib.util
import math
import mmap

import numpy as np
import pytest
from cuda_kernel_calls import channels_last, make_blocks_tiny

from bench.support.kernel_cases import OPS
from minidl.device.cuda import memory_format
from minidl.kernels.cuda import KERNELS
from minidl.meta import DTYPES, meta

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("numba-cuda is not installed (pip install -e '.[cuda13]')", allow_module_level=True)

from bench.support.llvm_machine import LlvmMachine

IMAGE = (8, 16, 16)
IMAGES = (1 << 35) // math.prod(IMAGE) + 3
RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
POOL = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}


class LastBlocks(LlvmMachine):
    """Runs so many blocks of each launch, the last ones."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def launch(self, source, blocks, arguments):
        self.blocks = range(max(0, blocks - self.count), blocks)
        super().launch(source, blocks, arguments)


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    make_blocks_tiny(monkeypatch)


def last(name, inputs, images, attrs, lie, machine):
    """A kernel's outputs for the last image, of so many; inputs: those of this image."""
    shapes = [(images, *a.shape[1:]) for a in inputs]
    described = tuple(meta(shape, DTYPES["float32"], lie(shape) if lie else None) for shape in shapes)
    inferred = OPS[name].infer(*described, **attrs)
    results = memory_format.outputs(name, described, inferred if isinstance(inferred, tuple) else (inferred,))
    addresses, tails = [], []
    for m in (*results, *described):
        reserved = np.frombuffer(mmap.mmap(-1, math.prod(m.shape) * m.dtype.itemsize, flags=RESERVED), np.uint8)
        flat = reserved.view(m.dtype.name)[-math.prod(m.shape[1:]):]
        tails.append(np.lib.stride_tricks.as_strided(flat, m.shape[1:], [s * flat.itemsize for s in m.strides[1:]]))
        addresses.append(reserved.ctypes.data)
    for tail, values in zip(tails[len(results):], inputs, strict=True):
        tail[...] = values[0]
    KERNELS[name].issue(machine, addresses, [*results, *described], attrs, 0)
    return tails[:len(results)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count", "attrs", "lie"), [
    *((*each, lie) for each in (("relu", 1, {}), ("relu_grad", 2, {}), ("max_pool2d", 1, POOL), ("avg_pool2d", 1, POOL))
      for lie in (None, channels_last)), ("softmax", 1, {}, None)])
def test_the_last_image_is_as_alone(name, count, attrs, lie):
    rng = np.random.default_rng(3)
    shape = (1, math.prod(IMAGE)) if name == "softmax" else (1, *IMAGE)
    inputs = [rng.standard_normal(shape, np.float32) for _ in range(count)]
    alone = last(name, inputs, 1, attrs, lie, LlvmMachine())
    assert any(np.any(each != 0) for each in alone)
    found = last(name, inputs, IMAGES, attrs, lie, LastBlocks(300))
    for here, there in zip(alone, found, strict=True):
        assert (here == there).all()
