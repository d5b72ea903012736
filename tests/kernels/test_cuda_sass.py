"""Machine instructions of the kernels that memory should bound: compiled and disassembled here, without a GPU."""

import importlib.util

import pytest

from minidl.kernels.cuda import KERNELS, batchnorm_rows, elementwise
from minidl.meta import DTYPES
from minidl.testing import sass

MOST = 13  # instructions an element; the kernels for any layout take 75 to 133 for batch norm


def test_what_is_measured_is_moved_in_groups_and_in_general_it_is_not():
    for dtype in sass.ALLOWED:
        for general in (False, True):
            for name, (metas, attrs, _) in sass.measured(DTYPES[dtype], general=general).items():
                source = KERNELS[name].plan(metas, attrs).sources[0]
                grouped = source.make is elementwise.dense_groups or (
                    source.make.__module__ == batchnorm_rows.__name__)
                assert grouped is not general, (name, source.name)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("dtype", sass.ALLOWED)
def test_no_kernel_has_more_instructions_than_its_memory_takes_time(dtype, capability):
    program = sass.disassembler()
    if program is None or importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda or nvdisasm is not installed (pip install -e '.[cuda13]' nvidia-cuda-nvdisasm)")
    for count in sass.counts(capability, dtype, program):
        assert count.instructions <= MOST and count.ratio <= sass.ALLOWED[dtype], count
