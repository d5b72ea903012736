"""Kernels as Numba's CUDA compiler makes them, run on the CPU beside the formulas, and on indices beyond 2^31.

``test_cuda_as_compiled`` runs each of them beside its source.
"""

import importlib.util

import ml_dtypes  # noqa: F401 - the name bfloat16
import numpy as np
import pytest
from cuda_kernel_calls import channels_last, check, make_blocks_tiny

from bench.support.kernel_cases import CASES, OPS
from minidl.device.cuda import memory_format
from minidl.kernels.cuda import KERNELS
from minidl.kernels.cuda.launch import Launches, view
from minidl.meta import DTYPES, aligned, meta

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("numba-cuda is not installed (pip install -e '.[cuda13]')", allow_module_level=True)

from bench.support.llvm_machine import LlvmMachine, rewritten

GUARD, FILL = 256, 0xA5  # bytes around every operand, which nothing may change


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    make_blocks_tiny(monkeypatch)


class Memory:
    """One piece of memory, in which operands lie apart."""

    def __init__(self, nbytes=1 << 20):
        self.bytes = np.full(nbytes, FILL, np.uint8)
        self.taken = -(-self.bytes.ctypes.data // 256) * 256 - self.bytes.ctypes.data

    def place(self, described, values=None):
        """Address and array of an operand; its bytes may be anything before."""
        extent = 1 + sum((n - 1) * s for n, s in zip(described.shape, described.strides, strict=True))
        start = self.taken + GUARD
        self.taken = start + aligned(extent * described.dtype.itemsize)
        flat = self.bytes[start:start + extent * described.dtype.itemsize].view(described.dtype.name)
        array = np.lib.stride_tricks.as_strided(flat, described.shape, [s * flat.itemsize for s in described.strides])
        if values is not None:
            array[...] = values
        return self.bytes.ctypes.data + start, array


def call(name, inputs, attrs, lie=None, machine=None):
    """Outputs of a kernel, and the sources that ran. Inputs of four dimensions lie as ``lie`` says, outputs as on the
    device."""
    memory, machine = Memory(), machine or LlvmMachine()
    described = tuple(meta(a.shape, DTYPES[a.dtype.name], lie(a.shape) if lie and a.ndim == 4 else None)
                      for a in inputs)
    inferred = OPS[name].infer(*described, **attrs)
    results = memory_format.outputs(name, described, inferred if isinstance(inferred, tuple) else (inferred,))
    placed = [memory.place(m) for m in results]
    placed += [memory.place(m, a) for m, a in zip(described, inputs, strict=True)]
    metas = [*results, *described]
    room, _ = memory.place(meta((max(1, KERNELS[name].workspace(metas, attrs)),), DTYPES["uint8"]))
    KERNELS[name].issue(machine, [address for address, _ in placed], metas, attrs, room)
    return [array for _, array in placed[:len(results)]], machine.launches


def cases(*names):
    return [pytest.param(c, id=f"{c.name}-{i}") for i, c in enumerate(CASES) if c.name in names]


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lie", [None, channels_last], ids=["C", "channels last"])
@pytest.mark.parametrize("case", cases("add", "relu_grad", "scale", "contiguous", "concat", "sum_to", "bias_grad",
                                       "batch_norm_stats", "batch_norm", "batch_norm_grad_reduce", "softmax",
                                       "layer_norm", "max_pool2d", "max_pool2d_grad", "avg_pool2d", "dropout"))
def test_a_compiled_kernel_has_the_values_of_the_formula(case, lie, dtype):
    inputs = case.inputs(dtype)
    found, _ = call(case.name, inputs, case.attrs, lie)
    check(case, found, inputs, dtype)


# Where a block's elements lie far beyond 2^31 of them, operands are taken to begin that much before their memory.
@pytest.mark.slow
@pytest.mark.parametrize("first", [2**31 - 64, 2**32, 2**33 + 128])
def test_elements_beyond_32_bits_are_found_by_their_index_alone(first):
    size, each = first + 1024, 16 * 2 * 4  # elements of a block: threads, groups, and 4 in a group
    builder, described = Launches(), meta((size,), DTYPES["float32"])
    KERNELS["add"]._add_launches(builder, *(view(i, described) for i in range(3)))
    (made,) = builder.launches
    assert made.source.make.__name__ == "dense_groups"
    memory = Memory()
    here = meta((each,), DTYPES["float32"])
    block, values = -(-first // each), np.arange(each, dtype=np.float32)
    placed = [memory.place(here), memory.place(here, values), memory.place(here, 2 * values)]
    before = memory.bytes.copy()
    addresses = [(address - 4 * block * each) % 2**64 for address, _ in placed]
    LlvmMachine([block]).launch(made.source, made.blocks, [*addresses, *made.arguments[3:]])
    assert (placed[0][1] == 3 * values).all()
    placed[0][1][...] = before[placed[0][0] - memory.bytes.ctypes.data:][:4 * each].view(np.float32)
    assert (memory.bytes == before).all()  # nothing else was written


def test_pointers_of_any_depth_and_space_become_one_kind():
    assert rewritten("load {i8*, i64, [2 x float]}*, {i8*, i64, [2 x float]}** %x") == "load ptr, ptr %x"
    assert rewritten('%g = addrspacecast [256 x float] addrspace(3)* @"s" to i8*') == '%g = bitcast ptr @"s" to ptr'
    assert rewritten('call i32 @"llvm.nvvm.read.ptx.sreg.tid.x"()') == 'call i32 @"minidl.read.ptx.sreg.tid.x"()'
