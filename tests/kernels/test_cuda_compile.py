"""Cubins made without a GPU: every source compiles and nothing spills; what was made is found again.

Needs numba-cuda and cuda-core (the extras cuda12, cuda13), but neither a GPU nor its driver.
"""

import pytest

pytest.importorskip("cuda.core", reason="cuda-core is not installed (pip install -e '.[cuda13]')")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install -e '.[cuda13]')")

from bench.support.cuda_calls import PRECISIONS, calls, sources
from minidl.kernels.cuda import KERNELS
from minidl.kernels.cuda.compile import Compiler
from minidl.meta import DTYPES


def test_the_calls_that_are_compiled_cover_every_operation():
    assert set(calls(DTYPES["float32"])) == set(KERNELS)


@pytest.mark.full
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_every_source_compiles_and_nothing_spills(dtype, capability):
    compiler = Compiler(capability)
    for source in sources(dtype):
        cubin = compiler.cubin(source)
        assert cubin.stack_bytes == cubin.spill_bytes == 0, source.name


# A dense loop, a reduction in shared memory, a row in registers, an optimizer's step.
SOME = {"dense", "partial_sums", "normalise_rows", "sgd_step"}


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_few_sources_compile_without_a_gpu_and_nothing_spills(dtype, tmp_path):
    compiler = Compiler((8, 0), tmp_path)
    chosen = {source.make.__name__: source for source in sources(dtype) if source.make.__name__ in SOME}
    assert set(chosen) == SOME
    for source in chosen.values():
        cubin = compiler.cubin(source)
        assert cubin.code.startswith(b"\x7fELF") and 0 < cubin.registers < 128
        assert cubin.stack_bytes == cubin.spill_bytes == 0, source.name


def test_a_cubin_is_found_again_and_made_anew_if_it_is_damaged(tmp_path, monkeypatch):
    source = sources("float32")[0]
    made = []
    compiled = Compiler._compiled
    monkeypatch.setattr(Compiler, "_compiled", lambda self, s: made.append(s) or compiled(self, s))
    first = Compiler((8, 0), tmp_path).cubin(source)
    assert Compiler((8, 0), tmp_path).cubin(source) == first and len(made) == 1
    file, = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert Compiler((8, 0), tmp_path).cubin(source).registers == first.registers and len(made) == 2
    Compiler((9, 0), tmp_path).cubin(source)  # another architecture, another cubin
    assert len(made) == 3 and len(list(tmp_path.iterdir())) == 2
