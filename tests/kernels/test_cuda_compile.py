"""Cubins made without a GPU: every source compiles and nothing spills; what was made is found again.

Needs numba-cuda and cuda-core (the extras cuda12, cuda13), but neither a GPU nor its driver.
"""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytest.importorskip("cuda.core", reason="cuda-core is not installed (pip install -e '.[cuda13]')")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install -e '.[cuda13]')")

from bench.support.cuda_calls import PRECISIONS, calls, sources
from minidl.kernels.cuda import KERNELS
from minidl.kernels.cuda.compile import Compiler
from minidl.meta import DTYPES

ROOT = Path(__file__).resolve().parents[2]
COMPILE_TWO = """
import sys
from pathlib import Path
import numpy
from minidl.kernels.cuda.compile import Compiler, default_folder
from bench.support.cuda_calls import sources
from bench.gpu_check.warm import compile_all

if __name__ == "__main__":
    assert not hasattr(numpy, "row_stack")
    first, second = sources("float32")[:2]
    Compiler((8, 0)).cubin(first)
    done = compile_all([second], (8, 0), 100.0)
    print(done, len(list(default_folder().iterdir())), hasattr(numpy, "row_stack"))
"""


def test_kernels_compile_under_a_numpy_without_row_stack_here_and_in_spawned_processes_and_warn_of_nothing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import numpy\nvars(numpy).pop('row_stack', None)\n")
    (tmp_path / "compile_two.py").write_text(COMPILE_TWO)
    found = subprocess.run([sys.executable, "-W", "error", str(tmp_path / "compile_two.py")], cwd=tmp_path, check=False,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
                                "XDG_CACHE_HOME": str(tmp_path / "cache")}, capture_output=True, text=True)
    assert found.stdout.split() == ["1", "2", "False"], found.stderr[-2000:]


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_what_is_installed_lies_within_the_bounds_of_the_extras(extra):
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    bounds = {one.name: one.specifier for one in map(Requirement, written["project"]["optional-dependencies"][extra])}
    for name in ("numpy", "numba-cuda"):
        assert any(one.operator == "<" for one in bounds[name]) and version(name) in bounds[name], name


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
