"""Copies by CUDA kernels move integers: every bit pattern of the halves arrives as it was; no number is converted."""

import ml_dtypes  # noqa: F401 - the name bfloat16
import numpy as np
import pytest
from cuda_kernel_calls import Placed
from cuda_simulator import Memory, Simulator

from bench.support.cuda_calls import calls
from minidl.kernels.cuda import KERNELS
from minidl.meta import DTYPES, bfloat16, float16, meta

PATTERNS = np.arange(1 << 16).astype(np.uint16)
MOVES = ("contiguous", "concat", "narrow_grad", "copy_")


def test_every_bit_pattern_of_a_half_survives_a_copy_element_by_element():
    dtype, strides = "bfloat16", (514, 2)
    memory = Memory(1 << 20)
    x = Placed(memory, (256, 256), dtype, strides)
    y = Placed(memory, (256, 256), dtype)
    x.array.view(np.uint16)[...] = PATTERNS.reshape(256, 256)
    KERNELS["contiguous"].issue(Simulator(memory), [y.address, x.address], [y.meta, x.meta], {})
    assert (y.array.view(np.uint16) == x.array.view(np.uint16)).all()


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=["bfloat16", "float16"])
def test_copies_of_halves_have_pointers_to_integers_alone(dtype):
    odd = meta((3, 5), dtype), meta((3, 5), dtype, (1, 3))
    every = [(name, *call) for name in MOVES for call in calls(dtype)[name]] + [("contiguous", list(odd), {})]
    for name, metas, attrs in every:
        for source in KERNELS[name].prepare(metas, attrs).sources:
            assert not [kind for kind in source.signature if kind.startswith("*") and "float" in kind], source.name
    assert DTYPES.keys().isdisjoint({"uint16"})  # a word of kernels alone, and no dtype of tensors
