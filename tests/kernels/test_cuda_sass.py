"""Machine instructions of the kernels that memory should bound: compiled and disassembled here, without a GPU."""

import importlib.util

import pytest

from bench.support import sass
from minidl.kernels.cuda import KERNELS
from minidl.meta import DTYPES

QUICK = ("relu", "add", "bias_grad", "softmax_grad")  # compiled and counted by default, for one architecture


def test_what_is_measured_is_moved_in_groups_and_in_general_it_is_not():
    for dtype in sass.ALLOWED:
        for general in (False, True):
            for call in sass.measured(DTYPES[dtype], general=general):
                source = KERNELS[call.operation].prepare(call.metas, call.attrs).sources[0]
                family = source.make.__module__.rpartition(".")[2]
                grouped = family.endswith("_groups") or family in ("batchnorm_rows", "pool_tiles", "pool_windows")
                if call.operation in ("sgd_", "sgd_momentum_", "adam_") or call.case.endswith("first"):
                    continue  # one kernel for all layouts
                assert grouped is not general, (call.name, source.name)


def test_each_that_is_measured_has_a_name_of_its_own():
    names = [call.name for call in sass.measured(DTYPES["float32"])]
    assert len(set(names)) == len(names) and all(set(slow) < set(names) for slow in sass.SLOW.values())


def check(capability, dtype, names=()):
    program = sass.disassembler()
    if program is None or importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda or nvdisasm is not installed (pip install -e '.[cuda13]' nvidia-cuda-nvdisasm)")
    for count in sass.counts(capability, dtype, program, names=names):
        assert count.ratio <= sass.allowed(capability, count.operation, dtype), count
        assert count.stack_bytes == 0 and count.registers <= 128, count  # of an SM's 512 threads at least


def test_kernels_of_a_sample_take_no_longer_than_their_memory_allows():
    check((9, 0), "float32", QUICK)


@pytest.mark.full
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("dtype", sass.ALLOWED)
def test_no_kernel_takes_longer_than_its_memory_allows(dtype, capability):
    check(capability, dtype)
